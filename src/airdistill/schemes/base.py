"""What a scheme is: how it adapts the scenario, and how it plays a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.channel.csi import round_estimate
from airdistill.channel.sources import ChannelSource
from airdistill.errors import AirDistillError
from airdistill.planning.payloads import ClassMeans, Payload
from airdistill.planning.plan import Plan
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.planning.transceiver.tdma import TDMA_KIND
from airdistill.planning.waveform import design_of_round
from airdistill.privacy.ledger import Ledger
from airdistill.radio.charged_round import ChargedRound, charge_round, release_without_privacy
from airdistill.radio.noise_memory import NoiseMemory
from airdistill.radio.receivers import Receiver
from airdistill.radio.superposition import Reception
from airdistill.radio.trusted_aggregator import ChargedVotes, charge_votes
from airdistill.scenario.model import Scenario

if TYPE_CHECKING:  # PyTorch is loaded when a round is played: a plan needs schemes too, and must not wait for it
    from airdistill.learning.fleet import LearningFleet
    from airdistill.learning.learner import Losses
    from airdistill.schemes.protocol import PayloadProtocol


Releases = Literal["private", "bare", "nothing"]

# The colours of Okabe and Ito.
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE, GREY = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#767676",
)  # fmt: skip


class Look(NamedTuple):
    """How a scheme's curve looks in figures: Matplotlib's colour, line style and marker."""

    colour: str
    line: str
    mark: str

    def style(self) -> dict[str, Any]:
        """The arguments of Matplotlib's `plot`."""
        return {"color": self.colour, "linestyle": self.line, "marker": self.mark, "linewidth": 1.8, "markersize": 5}


@dataclass(frozen=True)
class Outcome:
    """A round's result: every device's losses, and what the server received if anything was sent."""

    losses: Sequence[Losses]
    reception: Reception | None = None


@dataclass
class Round:
    """What a scheme needs to play round `index`, counted from 1.

    `transmit` sends what the ledger has charged. A scheme without privacy calls `release_without_privacy`, which is
    charged too.
    """

    index: int
    scenario: Scenario
    plan: Plan
    source: ChannelSource
    fleet: LearningFleet
    ledger: Ledger
    receiver: Receiver | None = None
    noise_memory: NoiseMemory | None = None
    _charged: ChargedRound | ChargedVotes | None = None
    _sent: Reception | None = None
    _made: FloatArray | None = None  # what `vectors` returned, if nothing else may be sent

    @property
    def lr(self) -> float:
        """η_t."""
        return self.scenario.learning.step_size(self.index)

    @cached_property
    def protocol(self) -> PayloadProtocol:
        """How devices make the plan's payload and learn from it."""
        from airdistill.schemes.payloads import payload_protocol

        return payload_protocol(self.plan)

    def design(self) -> RoundDesign:
        """The planned gains of this round, from the channel as it is known and what earlier rounds have left."""
        known = round_estimate(self.scenario, self.source.round_channel(self.index), self.index)
        return design_of_round(self.plan, self.source, known, self.index, self.ledger.cost_of_run)[0]

    def charge(self, design: RoundDesign | None = None) -> None:
        """Charge the ledger with the planned gains, or with the scheme's own. Call it before `vectors` to use these.

        Raise `BudgetExceeded` if a device's budget does not allow the round.
        """
        if self._charged is not None:
            rule = "vectors() and transmit() charge it; call charge(design) once, before them"
            raise AirDistillError(f"round {self.index} was charged already: {rule}")
        if self.plan.uplink.uses_radio:
            memory = self.noise_memory
            self._charged = charge_round(self.plan, self.ledger, self.source, self.index, design, memory=memory)
        elif design is None:
            self._charged = charge_votes(self.plan, self.ledger, self.index)
        else:
            raise AirDistillError(f"round {self.index}: votes go to an aggregator, which needs no design; give none")

    def vectors(self) -> FloatArray:
        """Every device's vectors of the plan's payload, `[device, row, entry]`.

        A private round is charged first: devices must not train for a round that cannot be sent.
        """
        if self._charged is None and self.ledger.header.enforced:
            self.charge()
        made = self.protocol.vectors(self.fleet, self.index, range(len(self.fleet.learners)))
        if self._bounds_one_record:
            self._made = made.copy()  # a scheme may change what it is given
        return made

    def transmit(self, vectors: FloatArray) -> Reception:
        """Send `[device, row, entry]` over the air, once, and apply the scenario's receiver; charge it if needed."""
        if not self.ledger.header.enforced:
            raise AirDistillError(f"{self._declares}: only private releases are transmitted with noise")
        if not (isinstance(vectors, np.ndarray) and vectors.dtype.kind in "fiubc"):
            rule = "a NumPy array of numbers, as this.vectors() returns"
            raise AirDistillError(f"round {self.index}: vectors must be {rule}, not {type(vectors).__name__}")
        if self._charged is None:
            self.charge()
        assert self._charged is not None
        self._check_unchanged(vectors)
        self._sent = self._charged.transmit(vectors)
        # A scheme may change what it is given; what was received stays, to compare a broadcast with.
        return replace(self._sent, received=self._sent.received.copy()).estimated_by(self.receiver)

    @property
    def _bounds_one_record(self) -> bool:
        """Whether a user's own scheme runs under a guarantee that only the payload itself keeps.

        Lemma 1 for class means is for comparison with the paper only: no certificate holds with it.
        """
        header = self.ledger.header
        is_lemma_1 = header.sensitivity == "paper" and self.plan.uplink.payload.neighbours.is_class_mean
        protects_record = header.enforced and header.sensitivity != "device" and not is_lemma_1
        return protects_record and "scheme" in header.terms.get("own_code", ())

    def _check_unchanged(self, vectors: FloatArray) -> None:
        """Raise if a record's bound is charged for other vectors than those that it bounds.

        One record can flip a sign or an argmax, and so move a quantised class mean as far as a whole device can.
        """
        if self._bounds_one_record and (self._made is None or not _is_copy(vectors, self._made)):
            bound = f'privacy.sensitivity = "{self.ledger.header.sensitivity}" bounds one record in these only'
            rule = f'{bound}; send them unchanged, or set it to "device"'
            named = f"scheme {self.ledger.header.scheme} would send other vectors than this.vectors() returned"
            raise AirDistillError(f"round {self.index}: {named}: {rule}")

    def release_without_privacy(self, aggregate: FloatArray) -> Reception:
        """Charge the release of every device's vectors without noise; the server gets the aggregate `[row, entry]`."""
        if self.ledger.header.terms.get("releases") != "bare":
            rule = 'its class must declare releases = "bare"'
            raise AirDistillError(f"scheme {self.ledger.header.scheme}: released vectors without privacy; {rule}")
        self._sent = release_without_privacy(self.plan, self.ledger, self.index, aggregate)
        return self._sent

    @property
    def _declares(self) -> str:
        header = self.ledger.header
        return f'scheme {header.scheme}: its class declares releases = "{header.terms.get("releases")}"'

    def learn(self, broadcast: FloatArray | None) -> Sequence[Losses]:
        """Update every device from the broadcast, or on its own samples only if there is none.

        From class means it is one full-batch step (eq. 4), or the scenario's local epochs.
        """
        from airdistill.schemes.protocol import learn_from

        devices = range(len(self.fleet.learners))
        if broadcast is None:
            return learn_from(self.fleet, self.scenario, self.index, None, devices)
        self._check_broadcast(broadcast)
        return self.protocol.learn(self.fleet, self.index, broadcast, devices)

    def learn_alone(self, rows: FloatArray) -> Sequence[Losses]:
        """Update every device from its own rows for the public samples, `[device, sample, class]`."""
        from airdistill.schemes.protocol import PublicDistillation

        assert isinstance(self.protocol, PublicDistillation)
        return self.protocol.learn_alone(self.fleet, self.index, rows, range(len(self.fleet.learners)))

    def _check_broadcast(self, broadcast: FloatArray) -> None:
        """Raise if devices would learn from vectors that were made but never sent, or from the sum without its noise.

        It finds mistakes. It cannot find what a scheme computes from the vectors in another way.
        """
        sent, scheme = self._sent, f"round {self.index}: scheme {self.ledger.header.scheme}"
        if not isinstance(broadcast, np.ndarray):
            rule = "learn takes an array: reception.received, reception.broadcast, or what was computed from them"
            raise AirDistillError(f"{scheme} would broadcast a {type(broadcast).__name__}: {rule}")
        payload = self.plan.uplink.payload
        expected = (payload.num_rows, payload.vector_length)
        if payload.broadcast_is_alike and broadcast.shape != expected:
            rule = f"devices learn {payload.words} from [row, entry] = {list(expected)}"
            raise AirDistillError(f"{scheme} would broadcast an array of shape {list(broadcast.shape)}: {rule}")
        if sent is None and (self._charged is not None or self.ledger.num_releases == 0):
            rule = "call this.transmit(vectors) first, or learn(None) on their own samples only"
            raise AirDistillError(f"{scheme} would let devices learn from what was never sent: {rule}")
        if sent is not None and _is_copy(broadcast, sent.ideal) and not _is_copy(sent.received, sent.ideal):
            rule = "learn from reception.received or reception.broadcast"
            raise AirDistillError(f"{scheme} would broadcast reception.ideal, which has no noise: {rule}")


def _is_copy(array: FloatArray, of: FloatArray) -> bool:
    return np.shape(array) == of.shape and np.array_equal(array, of, equal_nan=True)


class Scheme(ABC):
    """A system to run. A scheme of your own is a class with these names in a file of its own.

    `payload` is the class of what devices send; with `tdma` they send it in slots of their own. `one_model` makes all
    devices start from the same weights. `inherits` names schemes whose overrides in a scenario apply to this one too,
    before its own. `releases` says what leaves the devices: "private" for what the plan's noise protects, "bare" for a
    non-private release, "nothing" for no release. `look` is its curve in figures.
    """

    name: ClassVar[str]
    payload: ClassVar[type[Payload]] = ClassMeans
    tdma: ClassVar[bool] = False
    one_model: ClassVar[bool] = False
    inherits: ClassVar[tuple[str, ...]] = ()
    releases: ClassVar[Releases] = "private"
    look: ClassVar[Look | None] = None

    def adapt(self, scenario: Scenario) -> Scenario:
        """The scenario as this scheme runs it."""
        return scenario

    @abstractmethod
    def play(self, this: Round) -> Outcome:
        """Play one round."""

    @property
    def uplink_kind(self) -> str:
        """The uplink's name in plans and ledgers."""
        return TDMA_KIND if self.tdma else self.payload.kind
