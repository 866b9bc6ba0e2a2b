"""Participation: which devices send in a round, with what weights, and what the ledger and the reader are told of it.

Every participation model is one class. Planner, schemes, ledger and certificate ask the object and test no names.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from airdistill.arrays import BoolArray, FloatArray
from airdistill.errors import InputError, described
from airdistill.plugins import load_object
from airdistill.privacy.assumptions import Assumption
from airdistill.streams import stream

_TRIED_ROUNDS = 10  # of a user's own model, before any round is charged
MANY_ROUNDS = 200  # stand for all rounds in means over participation masks


@dataclass(frozen=True)
class Participation(ABC):
    """Which of `num_devices` devices send in which round. `seed` is the scenario's.

    `mask` names the devices that transmit; the server knows it, and so do plan and ledger. `signal_mask` names those
    that transmit more than noise, if the server must not know them.
    """

    num_devices: int
    seed: int

    everyone: ClassVar[bool] = False
    changes_weights: ClassVar[bool] = False
    """Whether a round has weights of its own besides leaving devices out; only gradients can be sampled so."""

    @abstractmethod
    def mask(self, round_index: int) -> BoolArray | None:
        """The devices that transmit in a round, `[device]`; None if all do."""

    def header(self) -> dict[str, Any]:
        """What a ledger's header records: the class of a user's own model."""
        return {"sampling": f"{type(self).__module__}:{type(self).__qualname__}"}

    @property
    def statements(self) -> list[str]:
        """What a plan and a certificate state."""
        return []

    @property
    def assumption(self) -> Assumption | None:
        """What a guarantee takes for granted of it."""
        return None

    @property
    def signal_probability(self) -> float:
        """The probability that a device sends its vector in a round, if the server must not know who does."""
        return 1.0

    @cached_property
    def is_secret(self) -> bool:
        return self.signal_probability < 1

    @property
    def variance_factor(self) -> float:
        """Factor by which the server's division by the signal probability raises variances."""
        return self.signal_probability**-2 if self.is_secret else 1.0

    def signal_mask(self, round_index: int) -> BoolArray | None:  # noqa: ARG002
        """The devices that send more than noise, `[device]`; None if all that transmit do."""
        return None

    def masks(self, num_rounds: int, num_draws: int) -> BoolArray:
        """The masks of rounds 1 to T, repeated until there are `num_draws`, `[draw, device]`."""
        every = np.ones(self.num_devices, dtype=bool)
        drawn = [self.mask(round_index) for round_index in range(1, min(num_rounds, num_draws) + 1)]
        each = np.stack([every if mask is None else mask for mask in drawn])
        return each[np.arange(num_draws) % len(each)]

    def weights(self, nominal: FloatArray, round_index: int) -> FloatArray:
        """Aggregation weights of a round, `[device]`, from the nominal ones: the participating devices' sum to 1."""
        mask = self.mask(round_index)
        if mask is None:
            return nominal
        kept = np.where(mask, nominal, 0.0)
        return np.asarray(kept / (kept.sum() or 1.0))

    def rounds_joined(self, num_rounds: int) -> FloatArray:
        """In how many of the first T rounds each device transmits, `[device]`."""
        for round_index in range(len(self._joined_until), num_rounds + 1):
            mask = self.mask(round_index)
            self._joined_until.append(self._joined_until[-1] + (1.0 if mask is None else mask))
        return self._joined_until[num_rounds]

    @cached_property
    def _joined_until(self) -> list[FloatArray]:
        return [np.zeros(self.num_devices)]

    def expected_rounds(self, num_rounds: int) -> FloatArray:
        """The expected number of rounds that each device joins, `[device]`."""
        return self.rounds_joined(num_rounds)

    def share_joined(self, num_rounds: int) -> float:
        """The share of the first T rounds that a device joins, as tables state it."""
        return float(self.rounds_joined(num_rounds).mean() / num_rounds)

    def for_devices(self, num_devices: int) -> Participation:
        """The same rule for another number of devices; a user's own class may know its own number only."""
        return _Repeated(num_devices, self.seed, self)

    @property
    def advice(self) -> str | None:
        """What lets more devices join; None if all do."""
        return None if self.everyone else f"let more devices join with fleet.sampling = {self.header()['sampling']}"

    def num_planned(self, num_draws: int, num_rounds: int) -> int:
        """How many rounds to forecast from: about `num_draws`, and each of the T equally often, because ε adds up over
        these very rounds."""
        return num_draws if self.everyone else num_rounds * max(1, round(num_draws / num_rounds))


@dataclass(frozen=True)
class _Repeated(Participation):
    """Another model for its devices repeated, or for the first of them."""

    of: Participation

    def mask(self, round_index: int) -> BoolArray | None:
        mask = self.of.mask(round_index)
        return None if mask is None else np.resize(mask, self.num_devices)


@dataclass(frozen=True)
class Everyone(Participation):
    """All devices in all rounds."""

    everyone: ClassVar[bool] = True

    def mask(self, round_index: int) -> BoolArray | None:  # noqa: ARG002
        return None

    def for_devices(self, num_devices: int) -> Everyone:
        return replace(self, num_devices=num_devices)

    def header(self) -> dict[str, Any]:
        return {"sampling": "none"}

    def rounds_joined(self, num_rounds: int) -> FloatArray:
        return np.full(self.num_devices, float(num_rounds))


@dataclass(frozen=True)
class KnownPoisson(Participation):
    """Each device joins a round with the same probability, independently, and the server knows which devices join.

    The masks are public: a plan knows them too. A round that fewer than `at_least` devices would join does not happen.
    """

    probability: float = 1.0
    at_least: int = 1

    def mask(self, round_index: int) -> BoolArray:
        drawn = stream(self.seed, "fleet.participation", round_index).random(self.num_devices) < self.probability
        return np.asarray(drawn & (np.count_nonzero(drawn) >= self.at_least))

    def header(self) -> dict[str, Any]:
        return {"sampling": "none", "participation": self.probability}

    @property
    def statements(self) -> list[str]:
        return [
            f"Poisson sampling: each device joins a round with probability {self.probability:g}. The server knows "
            "which devices join, because it aligns them. Every round that a device joins is counted in full, other "
            "rounds cost it nothing, and sampling does not amplify privacy."
        ]

    def expected_rounds(self, num_rounds: int) -> FloatArray:
        return np.full(self.num_devices, num_rounds * self.probability)

    def share_joined(self, num_rounds: int) -> float:  # noqa: ARG002
        return self.probability

    def for_devices(self, num_devices: int) -> KnownPoisson:
        return replace(self, num_devices=num_devices)

    @property
    def advice(self) -> str:
        return "raise fleet.participation"


@dataclass(frozen=True)
class Cyclic(Participation):
    """Each device joins every `cycle`-th round: device i the rounds i mod cycle + 1, i mod cycle + 1 + cycle, …

    The schedule is public. Between two rounds of a device there are always `cycle` rounds.
    """

    cycle: int = 2

    def mask(self, round_index: int) -> BoolArray:
        return np.asarray(np.arange(self.num_devices) % self.cycle == (round_index - 1) % self.cycle)

    def header(self) -> dict[str, Any]:
        return {"sampling": "cyclic", "cycle": self.cycle}

    @property
    def statements(self) -> list[str]:
        return [
            f"Cyclic participation: each device joins one round in {self.cycle}, and the schedule is public. Every "
            "round that a device joins is counted in full, and sampling does not amplify privacy."
        ]


@dataclass(frozen=True)
class SecretPoisson(Participation):
    """Each device sends its vector with the same probability, independently, and noise in every round.

    The server does not know the masks, and so they amplify privacy. They have a random stream of their own: what the
    ledger of a run with known participation shows does not reveal them.
    """

    probability: float = 1.0

    everyone: ClassVar[bool] = True  # of all that transmit

    def mask(self, round_index: int) -> BoolArray | None:  # noqa: ARG002
        return None

    @property
    def signal_probability(self) -> float:
        return self.probability

    def for_devices(self, num_devices: int) -> SecretPoisson:
        return replace(self, num_devices=num_devices)

    def signal_mask(self, round_index: int) -> BoolArray:
        drawn = stream(self.seed, "fleet.participation_hidden", round_index).random(self.num_devices)
        return np.asarray(drawn < self.probability)

    def header(self) -> dict[str, Any]:
        return {"sampling": "none", "participation": self.probability, "participation_hidden": True}

    @property
    def statements(self) -> list[str]:
        return [self.assumption.sentence]

    @property
    def assumption(self) -> Assumption:
        return Assumption(
            "secret participation",
            f"Poisson sampling: each device sends its vector in a round with probability {self.probability:g}, and "
            "noise in every round. The server must not learn which devices send a vector, neither from a device nor "
            "from the time and form of its transmission. Sampling then amplifies the privacy of whole devices; rounds "
            "are composed by privacy loss distributions.",
        )

    def rounds_joined(self, num_rounds: int) -> FloatArray:
        return np.full(self.num_devices, float(num_rounds))


@dataclass(frozen=True)
class WithReplacement(Participation):
    """`num_draws` devices drawn with replacement in every round, device i with probability p_i and weight m_i/N.

    The server knows the draws, because it aligns the devices. p `[device]` are the nominal weights.
    """

    num_draws: int = 1
    selection: tuple[float, ...] = ()

    changes_weights: ClassVar[bool] = True

    def weights(self, nominal: FloatArray, round_index: int) -> FloatArray:
        drawn = stream(self.seed, "device-sampling", round_index).multinomial(self.num_draws, nominal)
        return np.asarray(drawn / self.num_draws)

    def mask(self, round_index: int) -> BoolArray:
        return np.asarray(self.weights(np.array(self.selection), round_index) > 0)

    def header(self) -> dict[str, Any]:
        return {"sampling": "with_replacement"}

    @property
    def statements(self) -> list[str]:
        return [
            "The server knows which devices are sampled: every round that a device joins is counted in full, and "
            "sampling does not amplify privacy."
        ]

    def expected_rounds(self, num_rounds: int) -> FloatArray:
        """q_i T with q_i = 1 − (1 − p_i)^N, `[device]`."""
        return np.asarray(num_rounds * (1 - (1 - np.array(self.selection)) ** self.num_draws))


def participation_named(reference: str, num_devices: int, seed: int) -> Participation:
    """A user's own participation model, `package.module:Class`, for a fleet."""
    found = load_object(reference, "fleet.sampling")
    if not (isinstance(found, type) and issubclass(found, Participation)):
        rule = "must be a class derived from airdistill.privacy.participation.Participation"
        raise InputError("fleet.sampling", reference, rule)
    if inspect.isabstract(found):
        raise InputError("fleet.sampling", reference, f"must define {', '.join(sorted(found.__abstractmethods__))}")
    try:
        made: Participation = found(num_devices, seed)
        masks = [[made.mask(round_index) for round_index in range(1, _TRIED_ROUNDS + 1)] for _ in range(2)]
    except Exception as error:  # a user's class can raise any exception
        raise InputError("fleet.sampling", reference, f"failed: {described(error)}") from error
    for first, again in zip(*masks, strict=True):
        _check_mask(first, again, num_devices, reference)
    if not isinstance(made.statements, list | tuple):
        raise InputError("fleet.sampling", reference, "its `statements` must be a list of sentences")
    if made.is_secret:
        rule = "secret participation needs an accountant of its own: use fleet.participation_hidden"
        raise InputError("fleet.sampling", reference, rule)
    return made


def _check_mask(mask: BoolArray | None, again: BoolArray | None, num_devices: int, reference: str) -> None:
    """Raise unless a mask says of each device whether it transmits, and says the same when it is asked again.

    Plan, gains and ledger each ask for the mask of a round.
    """
    if mask is None and again is None:
        return
    if not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.shape != (num_devices,):
        rule = f"mask must return an array of {num_devices} bools, one for each device, or None for all devices"
        raise InputError("fleet.sampling", reference, rule)
    if again is None or not np.array_equal(mask, again):
        rule = "mask must return the same devices each time it is asked for a round: draw them from a generator that is"
        raise InputError("fleet.sampling", reference, f"{rule} seeded with (self.seed, round_index)")


def participation_statements(terms: Mapping[str, Any]) -> list[str]:
    """What a ledger's header states of participation."""
    own = terms.get("participation_statements")
    return list(_from_header(terms).statements if own is None else own)


def participation_assumption(terms: Mapping[str, Any]) -> Assumption | None:
    """What a guarantee takes for granted of it, by a ledger's header."""
    own = terms.get("participation_assumption")
    return _from_header(terms).assumption if own is None else Assumption(**own)


def _from_header(terms: Mapping[str, Any]) -> Participation:
    if terms.get("participation_hidden", False):
        return SecretPoisson(0, 0, float(terms["participation"]))
    if "participation" in terms:
        return KnownPoisson(0, 0, float(terms["participation"]))
    if terms["sampling"] == "cyclic":
        return Cyclic(0, 0, int(terms["cycle"]))
    return Everyone(0, 0) if terms["sampling"] == "none" else WithReplacement(0, 0)


def header_of(participation: Participation) -> dict[str, Any]:
    """What a ledger's header records; of a user's own model also its statements, which a reader may not have."""
    if type(participation).__module__ == __name__:
        return participation.header()
    # Not what the class itself would write: it must not claim the amplification of another model.
    header = Participation.header(participation)
    header["participation_statements"] = participation.statements
    if participation.assumption is not None:
        header["participation_assumption"] = vars(participation.assumption)
    return header


def without_sampling(participation: Participation) -> Everyone:
    """The same fleet with all devices in all rounds."""
    return Everyone(participation.num_devices, participation.seed)
