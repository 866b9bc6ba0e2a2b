"""Releases and spending: what leaves the devices in one round, as data, and what it costs each device.

Costs are kept under every sensitivity model and every trust model. Rounds with secret Poisson participation are
composed by privacy loss distributions (`SubsampledSpending`); all other rounds add up in μ².
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from airdistill.arrays import BoolArray, FloatArray, IntArray, divide_or
from airdistill.files import jsonable
from airdistill.privacy.neighbours import neighbours_from
from airdistill.privacy.poisson_sampling import SubsampledGaussian, composition_groups, grid_index
from airdistill.privacy.targets import spent_squared_mu
from airdistill.privacy.trust import OwnNoise

AS_BEFORE = "as before"
Cost = dict[tuple[str, str], FloatArray]  # by sensitivity model and trust model, `[device, row]` each


@dataclass(frozen=True)
class Release:
    """Round `round_index`: weights w, sensitivities s by model and counted noise c by trust model, `[device, row]`.

    A row is one vector: a class mean, a gradient, or all predictions on a public set. c is the variance per entry of
    the noise that protects the row, in units of the server's estimate: zero for a non-private release, infinite for a
    row that was not sent.

    With correlated noise c is the variance of the round's new noise, and a server that removes the noise it has seen
    also finds vectors of earlier rounds, with `carried_weights` `[device, row]`; None if the noise is independent.
    """

    round_index: int
    weights: FloatArray
    sensitivity: Mapping[str, FloatArray]
    counted_noise_var: Mapping[str, FloatArray]
    carried_weights: FloatArray | None = None

    @property
    def participants(self) -> IntArray:
        """The devices that sent a vector."""
        return np.flatnonzero(((self.weights > 0) & self._was_sent()).any(axis=1))

    @property
    def revealed_weights(self) -> FloatArray:
        """The weights with which the round reveals a device's vectors, earlier ones included, `[device, row]`."""
        return self.weights if self.carried_weights is None else self.weights + self.carried_weights

    def cost(self, model: str, trust: str) -> FloatArray:
        """(w s)²/c, `[device, row]`: what the round adds to μ² of a device."""
        squared_shift = (self.revealed_weights * self.sensitivity[model]) ** 2
        price = divide_or(squared_shift, self.counted_noise_var[trust], np.inf)
        return np.where(squared_shift > 0, price, 0.0)

    def costs(self) -> Cost:
        """The cost under every sensitivity model and trust model, computed together."""
        squared_shift = (self.revealed_weights * np.stack(list(self.sensitivity.values()))) ** 2
        counted = np.stack(list(self.counted_noise_var.values()))
        shape = (len(squared_shift), *counted.shape)
        shifts = np.broadcast_to(squared_shift[:, None], shape)
        prices = np.where(shifts > 0, divide_or(shifts, np.broadcast_to(counted, shape), np.inf), 0.0)
        names = itertools.product(self.sensitivity, self.counted_noise_var)
        return dict(zip(names, prices.reshape(-1, *counted.shape[1:]), strict=True))

    def problem(self) -> str | None:
        """Why this cannot be a release, with round, device, row, value and rule; None if it can.

        A negative variance would give budget back, and comparisons with NaN would never exceed one.
        """
        for (field, name), array in _arrays(self).items():
            if field == "counted_noise_var":
                sent = (self.weights > 0) & self._was_sent()
                wrong = ~(array >= 0) | (sent & np.isinf(array))
                rule = "must be positive, or 0 for a non-private release, or infinite for a row that was not sent"
            else:
                wrong, rule = ~((array >= 0) & np.isfinite(array)), "must be finite and not negative"
            if wrong.any():
                device, row = np.argwhere(wrong)[0]
                named = " under ".join(filter(None, (field, name)))
                value = f"row {row} of device {device} is {array[device, row]:.6g}"
                return f"round {self.round_index}: {named}: {value}; {rule}"
        return None

    def _was_sent(self) -> BoolArray:
        """Whether any trust model counts finite noise, `[device, row]`."""
        return np.asarray(np.any([np.isfinite(noise) for noise in self.counted_noise_var.values()], axis=0))

    def same_as(self, other: Release) -> bool:
        """To the last bit."""
        mine, theirs = _arrays(self), _arrays(other)
        same_arrays = mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in mine)
        return self.round_index == other.round_index and same_arrays

    def to_dict(self, before: Release | None = None) -> dict[str, Any]:
        """Convert to JSON values; an array that equals the one of the previous release is not repeated."""
        known = {} if before is None else _arrays(before)
        written: dict[str, Any] = {"round": self.round_index, "participants": self.participants.tolist()}
        for (field, name), array in _arrays(self).items():
            same = (field, name) in known and np.array_equal(known[field, name], array)
            value = AS_BEFORE if same else _shrunk(array)
            if name:
                written.setdefault(field, {})[name] = value
            else:
                written[field] = value
        ready: dict[str, Any] = jsonable(written)
        return ready

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], shape: tuple[int, int], before: Release | None = None) -> Release:
        """What `to_dict` wrote, for so many devices and rows; `ValueError` if it cannot be a release."""

        def array(field: str, name: str, value: Any) -> FloatArray:
            if value == AS_BEFORE:
                if before is None:
                    raise ValueError(f"{field} refers to a previous release, and there is none")
                return _arrays(before)[field, name]
            full = [[np.inf if entry is None else entry for entry in row] for row in value]
            return np.broadcast_to(np.array(full, dtype=np.float64), shape)

        release = cls(
            int(stored["round"]),
            array("weights", "", stored["weights"]),
            {name: array("sensitivity", name, value) for name, value in stored["sensitivity"].items()},
            {name: array("counted_noise_var", name, value) for name, value in stored["counted_noise_var"].items()},
            array("carried_weights", "", stored["carried_weights"]) if "carried_weights" in stored else None,
        )
        problem = release.problem()
        if problem is not None:
            raise ValueError(problem)
        return release


def _arrays(release: Release) -> dict[tuple[str, str], FloatArray]:
    named = {("weights", ""): release.weights}
    if release.carried_weights is not None:
        named["carried_weights", ""] = release.carried_weights
    named |= {("sensitivity", name): array for name, array in release.sensitivity.items()}
    return named | {("counted_noise_var", name): array for name, array in release.counted_noise_var.items()}


def _shrunk(array: FloatArray) -> FloatArray:
    """One row if all devices are equal, one column if all rows are: thousands of devices do not repeat a value."""
    if (array == array[:1]).all():
        array = array[:1]
    return array[:, :1] if (array == array[:, :1]).all() else array


class Spending:
    """The sum of (w s)²/c of every device and row over releases.

    `rows` names what the rows of a release stand for: rows of one payload, of devices that hold the same data, stand
    for the same classes and are added row by row. The costs of others (class means and gradients, or a record that has
    moved to another device or class) are added device by device, which never underestimates.
    """

    def __init__(self, num_devices: int, costs: Mapping[str, Cost] | None = None) -> None:
        self.num_devices = num_devices
        self._costs = dict(costs or {})

    def after(self, release: Release, rows: str) -> Spending:
        """The spending with one more release."""
        before = self._costs.get(rows, {})
        now = {names: before.get(names, 0.0) + cost for names, cost in release.costs().items()}
        return Spending(self.num_devices, {**self._costs, rows: now})

    def squared_mu(self, model: str, trust: str, relabel: bool) -> FloatArray:
        """μ² of every device so far, `[device]`.

        Runs that did not know a trust model of the user's own are counted on each device's own noise, the strictest.
        """
        costs = [cost[model, trust if (model, trust) in cost else OwnNoise.name] for cost in self._costs.values()]
        spent = [spent_squared_mu(cost, model, relabel) for cost in costs]
        return np.asarray(np.sum([np.zeros(self.num_devices), *spent], axis=0))


@dataclass(frozen=True)
class EarlierRuns:
    """What earlier runs of the same devices have spent: μ² `[device]`, and of δ for channel errors beyond a limit."""

    squared_mu: FloatArray
    excess_delta: float = 0.0


_TOLERANCE = 1e-8  # relative, of ε

Runs = tuple[tuple[IntArray, int], ...]
"""μ-grid indices of a round `[device]`, and the number of such rounds in a row."""


class Budget(Protocol):
    """The part of a ledger's header that names every device's target and the number of rounds."""

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
    """Rounds of the subsampled Gaussian mechanism so far, under each trust model, for whole devices as neighbours."""

    def __init__(self, mechanism: SubsampledGaussian, runs: Mapping[str, Runs] | None = None) -> None:
        self.mechanism = mechanism
        self._runs: dict[str, Runs] = dict(runs or {})

    @classmethod
    def from_header(cls, payload: str, terms: Mapping[str, Any]) -> SubsampledSpending | None:
        """The empty spending of a run with secret participation; None for other runs."""
        if not terms.get("participation_hidden", False):
            return None
        geometry = neighbours_from(payload, terms).geometry
        return cls(SubsampledGaussian(float(terms["participation"]), geometry))

    def after(self, release: Release) -> SubsampledSpending:
        """The spending with one more round."""
        return SubsampledSpending(self.mechanism, {t: self._with(release, t) for t in release.counted_noise_var})

    def _with(self, release: Release, trust: str) -> Runs:
        runs, indices = self._runs.get(trust, ()), grid_index(np.sqrt(release.cost("device", trust).sum(axis=1)))
        if runs and np.array_equal(runs[-1][0], indices):
            return (*runs[:-1], (indices, runs[-1][1] + 1))
        return (*runs, (indices, 1))

    def epsilon_of(self, device: int, trust: str, delta: float, earlier_squared_mu: float) -> float:
        counts, num_devices = Counter[int](), 1
        for indices, count in self._runs.get(trust, ()):
            counts[int(indices[device])] += count
            num_devices = len(indices)
        groups = composition_groups(counts, num_devices)
        return self.mechanism.epsilon(groups, float(delta), float(np.sqrt(earlier_squared_mu)))

    def epsilon(self, trust: str, delta: FloatArray, earlier_squared_mu: FloatArray) -> FloatArray:
        """ε of every device so far, `[device]`."""
        budgets = enumerate(zip(delta, earlier_squared_mu, strict=True))
        return np.array([self.epsilon_of(device, trust, *of_device) for device, of_device in budgets])

    def highest_epsilon(self, trust: str, delta: FloatArray, earlier_squared_mu: FloatArray) -> float:
        """An ε that no device exceeds, from one composition instead of one for each device.

        The order of rounds does not matter. Among devices of the same δ the most expensive rounds of any device are
        combined, then the second most expensive, and so on: no device has spent more than one that had all of them.
        """
        rounds = [np.broadcast_to(indices, (count, len(delta))) for indices, count in self._runs[trust]]
        by_cost = np.sort(np.concatenate(rounds), axis=0)
        terms, group = np.unique(np.stack([delta, earlier_squared_mu]), axis=1, return_inverse=True)
        highest = np.stack([by_cost[:, group == each].max(axis=1) for each in range(terms.shape[1])], axis=1)
        spent = np.vstack([highest, terms[1], -terms[0]])
        compared: list[int] = []
        for each in np.lexsort(spent)[::-1]:
            if not any((spent[:, each] <= spent[:, other]).all() for other in compared):
                compared.append(int(each))
        return max(
            self.mechanism.epsilon(
                composition_groups(Counter(highest[:, each].tolist())), *_delta_and_mu(terms[:, each])
            )
            for each in compared
        )

    def over_budget(self, target: Budget, earlier_squared_mu: FloatArray) -> tuple[int, float] | None:
        """The device furthest above its target, and its ε; None if no device is above it.

        If there were no more rounds than planned, and none more expensive than planned, they cost no more than the
        plan: if the plan stays within the targets, the rounds themselves need not be composed.
        """
        runs, planned = self._runs[target.trust], int(target.terms["planned_rounds"])
        indices = grid_index(target.mu / np.sqrt(planned))
        if sum(count for _, count in runs) <= planned and (np.max([each for each, _ in runs], axis=0) <= indices).all():
            as_planned = SubsampledSpending(self.mechanism, {target.trust: ((indices, planned),)})
            if as_planned._furthest_over(target, earlier_squared_mu) is None:
                return None
        return self._furthest_over(target, earlier_squared_mu)

    def _furthest_over(self, target: Budget, earlier_squared_mu: FloatArray) -> tuple[int, float] | None:
        epsilon, asked = self.epsilon(target.trust, target.delta, earlier_squared_mu), np.isfinite(target.epsilon)
        ratio = np.where(asked, epsilon / np.where(asked, target.epsilon, 1.0), 0.0)
        device = int(np.argmax(ratio))
        return (device, float(epsilon[device])) if ratio[device] > 1 + _TOLERANCE else None


def _delta_and_mu(terms: FloatArray) -> tuple[float, float]:
    return float(terms[0]), float(np.sqrt(terms[1]))
