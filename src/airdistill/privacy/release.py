"""What leaves the devices in one round, as data: enough to say what it costs whom under every model.

What releases have cost each device, under every sensitivity model and every trust model.

What a ledger has charged for rounds whose coins the server does not see, device by device.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from airdistill.arrays import FloatArray, IntArray, divide_or
from airdistill.files import jsonable
from airdistill.privacy.poisson_sampling import SubsampledGaussian, composition_groups, grid_index
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.privacy.targets import spent_squared_mu

TRUST_MODELS = ("receiver_noise", "fleet_noise", "own_noise")
AS_BEFORE = "as before"


@dataclass(frozen=True)
class Release:
    """Round `round_index`: weights w, sensitivities s by model and counted noise c by trust model, `[device, row]`.

    A row is a class's knowledge, or a gradient. c is the variance per entry of what hides the row, in units of the
    server's estimate: zero where numbers go out as they are, infinite where a row was not sent.
    """

    round_index: int
    weights: FloatArray
    sensitivity: Mapping[str, FloatArray]
    counted_noise_var: Mapping[str, FloatArray]

    @property
    def participants(self) -> IntArray:
        """The devices that sent something of their own."""
        sent = np.any([np.isfinite(noise) for noise in self.counted_noise_var.values()], axis=0)
        return np.flatnonzero(((self.weights > 0) & sent).any(axis=1))

    def cost(self, model: str, trust: str) -> FloatArray:
        """(w s)²/c, `[device, row]`: what the round adds to a device's μ²."""
        squared_shift = (self.weights * self.sensitivity[model]) ** 2
        price = divide_or(squared_shift, self.counted_noise_var[trust], np.inf)
        return np.where(squared_shift > 0, price, 0.0)

    def same_as(self, other: Release) -> bool:
        """To the last bit."""
        return self.round_index == other.round_index and all(
            np.array_equal(mine, theirs)
            for mine, theirs in zip(_arrays(self).values(), _arrays(other).values(), strict=True)
        )

    def to_dict(self, before: Release | None = None) -> dict[str, Any]:
        """Ready for JSON; an array that is as in the release before it is not written out again."""
        known = {} if before is None else _arrays(before)
        written: dict[str, Any] = {"round": self.round_index, "participants": self.participants.tolist()}
        for (field, name), array in _arrays(self).items():
            same = (field, name) in known and np.array_equal(known[field, name], array)
            value = AS_BEFORE if same else jsonable(_shrunk(array))
            if name:
                written.setdefault(field, {})[name] = value
            else:
                written[field] = value
        return written

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], shape: tuple[int, int], before: Release | None = None) -> Release:
        """What `to_dict` wrote, for so many devices and rows."""

        def array(field: str, name: str, value: Any) -> FloatArray:
            if value == AS_BEFORE:
                if before is None:
                    raise ValueError(f"{field} is said to be as before, but nothing was before")
                return _arrays(before)[field, name]
            full = [[np.inf if entry is None else entry for entry in row] for row in value]
            return np.broadcast_to(np.array(full, dtype=np.float64), shape)

        return cls(
            int(stored["round"]),
            array("weights", "", stored["weights"]),
            {name: array("sensitivity", name, value) for name, value in stored["sensitivity"].items()},
            {name: array("counted_noise_var", name, value) for name, value in stored["counted_noise_var"].items()},
        )


def _arrays(release: Release) -> dict[tuple[str, str], FloatArray]:
    named = {("weights", ""): release.weights}
    named |= {("sensitivity", name): array for name, array in release.sensitivity.items()}
    return named | {("counted_noise_var", name): array for name, array in release.counted_noise_var.items()}


def _shrunk(array: FloatArray) -> FloatArray:
    """One row if all devices have the same, one column if all rows have: thousands of devices need not say it each."""
    if (array == array[:1]).all():
        array = array[:1]
    return array[:, :1] if (array == array[:, :1]).all() else array


Cost = dict[tuple[str, str], FloatArray]


class Spending:
    """Adds up (w s)²/c of every device and row, release by release.

    Rows of one payload stand for the same classes in every release and are added up row by row. What different
    payloads cost (knowledge, gradients) is added up device by device, which is never less than the truth.
    """

    def __init__(self, num_devices: int, costs: Mapping[str, Cost] | None = None) -> None:
        self.num_devices = num_devices
        self._costs = dict(costs or {})

    def after(self, release: Release, payload: str) -> Spending:
        """The same with one more release."""
        before = self._costs.get(payload, {})
        now = {
            (model, trust): before.get((model, trust), 0.0) + release.cost(model, trust)
            for model, trust in itertools.product(SENSITIVITY_MODELS, TRUST_MODELS)
        }
        return Spending(self.num_devices, {**self._costs, payload: now})

    def squared_mu(self, model: str, trust: str, relabel: bool) -> FloatArray:
        """μ² of every device so far, `[device]`."""
        spent = [spent_squared_mu(cost[model, trust], model, relabel) for cost in self._costs.values()]
        return np.asarray(np.sum([np.zeros(self.num_devices), *spent], axis=0))


_TOLERANCE = 1e-8  # relative, of ε

Runs = tuple[tuple[IntArray, int], ...]
"""Rungs of a round `[device]`, and how many such rounds there were in turn."""


class Budget(Protocol):
    """Of a ledger's header, what every device was promised and for how many rounds."""

    @property
    def epsilon(self) -> FloatArray: ...

    @property
    def delta(self) -> FloatArray: ...

    @property
    def mu(self) -> FloatArray: ...

    @property
    def trust(self) -> str: ...

    @property
    def terms(self) -> Mapping[str, Any]: ...


class SubsampledSpending:
    """Every device's rounds so far under each trust model, for neighbours that differ in a whole device's data."""

    def __init__(self, coin: SubsampledGaussian, runs: Mapping[str, Runs] | None = None) -> None:
        self.coin = coin
        self._runs: dict[str, Runs] = dict.fromkeys(TRUST_MODELS, ()) if runs is None else dict(runs)

    @classmethod
    def promised_by(cls, payload: str, terms: Mapping[str, Any]) -> SubsampledSpending | None:
        """None where the terms of a run do not say that its coins are hidden."""
        if not terms.get("participation_hidden", False):
            return None
        return cls(SubsampledGaussian.for_payload(float(terms["participation"]), payload))

    def after(self, release: Release) -> SubsampledSpending:
        """With one more round."""
        return SubsampledSpending(self.coin, {trust: self._with(release, trust) for trust in TRUST_MODELS})

    def _with(self, release: Release, trust: str) -> Runs:
        runs, rungs = self._runs[trust], grid_index(np.sqrt(release.cost("device", trust).sum(axis=1)))
        if runs and np.array_equal(runs[-1][0], rungs):
            return (*runs[:-1], (rungs, runs[-1][1] + 1))
        return (*runs, (rungs, 1))

    def epsilon_of(self, device: int, trust: str, delta: float, earlier_squared_mu: float) -> float:
        kinds, num_devices = Counter[int](), 1
        for rungs, count in self._runs[trust]:
            kinds[int(rungs[device])] += count
            num_devices = len(rungs)
        return self.coin.epsilon(
            composition_groups(kinds, num_devices), float(delta), float(np.sqrt(earlier_squared_mu))
        )

    def epsilon(self, trust: str, delta: FloatArray, earlier_squared_mu: FloatArray) -> FloatArray:
        """Of every device so far, `[device]`."""
        paid = enumerate(zip(delta, earlier_squared_mu, strict=True))
        return np.array([self.epsilon_of(device, trust, *of_device) for device, of_device in paid])

    def highest_epsilon(self, trust: str, delta: FloatArray, earlier_squared_mu: FloatArray) -> float:
        """An ε that no device has exceeded, from one composition and not one for each.

        In which order rounds came does not matter. So among devices of the same δ the dearest rounds of any are put
        together, then the next, and so on: nobody has paid more than whoever had all of them.
        """
        rounds = [np.broadcast_to(rungs, (count, len(delta))) for rungs, count in self._runs[trust]]
        by_price = np.sort(np.concatenate(rounds), axis=0)
        terms, group = np.unique(np.stack([delta, earlier_squared_mu]), axis=1, return_inverse=True)
        dearest = np.stack([by_price[:, group == each].max(axis=1) for each in range(terms.shape[1])], axis=1)
        paid = np.vstack([dearest, terms[1], -terms[0]])
        compared: list[int] = []
        for each in np.lexsort(paid)[::-1]:
            if not any((paid[:, each] <= paid[:, other]).all() for other in compared):
                compared.append(int(each))
        return max(
            self.coin.epsilon(composition_groups(Counter(dearest[:, each].tolist())), *_delta_and_mu(terms[:, each]))
            for each in compared
        )

    def over_budget(self, promised: Budget, earlier_squared_mu: FloatArray) -> tuple[int, float] | None:
        """The device that is furthest over what it was promised, and its ε; None if all can pay.

        No more rounds than were planned, none dearer than planned, cost no more than the plan: if all can pay for that
        they need not be composed.
        """
        runs, planned = self._runs[promised.trust], int(promised.terms["planned_rounds"])
        rungs = grid_index(promised.mu / np.sqrt(planned))
        if sum(count for _, count in runs) <= planned and (np.max([each for each, _ in runs], axis=0) <= rungs).all():
            as_planned = SubsampledSpending(self.coin, {promised.trust: ((rungs, planned),)})
            if as_planned._furthest_over(promised, earlier_squared_mu) is None:
                return None
        return self._furthest_over(promised, earlier_squared_mu)

    def _furthest_over(self, promised: Budget, earlier_squared_mu: FloatArray) -> tuple[int, float] | None:
        epsilon, asked = self.epsilon(promised.trust, promised.delta, earlier_squared_mu), np.isfinite(promised.epsilon)
        times = np.where(asked, epsilon / np.where(asked, promised.epsilon, 1.0), 0.0)
        device = int(np.argmax(times))
        return (device, float(epsilon[device])) if times[device] > 1 + _TOLERANCE else None


def _delta_and_mu(terms: FloatArray) -> tuple[float, float]:
    return float(terms[0]), float(np.sqrt(terms[1]))
