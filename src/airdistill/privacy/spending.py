"""What releases cost each device: (w s)²/c of every device and row, under every sensitivity model and trust model.

Rounds with secret Poisson participation are composed by privacy loss distributions (`SubsampledSpending`); all other
rounds add up in μ².
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from airdistill.arrays import FloatArray, IntArray
from airdistill.privacy.groups import Groups
from airdistill.privacy.neighbours import neighbours_from
from airdistill.privacy.poisson_sampling import SubsampledGaussian, composition_groups, grid_index
from airdistill.privacy.release import Cost, GroupedRelease
from airdistill.privacy.targets import spent_squared_mu
from airdistill.privacy.trust import OwnNoise


class Spending:
    """The sum of (w s)²/c of every device and row over releases, by groups of identical devices.

    `rows` names what the rows of a release stand for: rows of one payload, of devices that hold the same data, stand
    for the same classes and are added row by row. The costs of others (class means and gradients, or a record that has
    moved to another device or class) are added device by device, which never underestimates.
    """

    def __init__(self, groups: Groups, costs: Mapping[str, Cost] | None = None) -> None:
        self.groups = groups
        self._costs = dict(costs or {})

    @classmethod
    def nothing(cls, num_devices: int) -> Spending:
        """That of devices that have released nothing, and are all alike therefore."""
        return cls(Groups.of([np.zeros(num_devices)]))

    def after(self, release: GroupedRelease, rows: str) -> Spending:
        """The spending with one more release."""
        return self.plus(release.groups, rows, release.kinds.costs())

    def plus(self, groups: Groups, rows: str, costs: Cost) -> Spending:
        """The spending with costs `[group, row]` of these groups, whose arrays it takes over."""
        joined, before, now = self.groups.joined(groups)
        kept = {
            name: cost if before is None else {names: each[before] for names, each in cost.items()}
            for name, cost in self._costs.items()
        }
        own, added = kept.get(rows, {}), {names: each if now is None else each[now] for names, each in costs.items()}
        for names in own.keys() & added.keys():
            added[names] += own[names]  # in place: large fleets have a dozen arrays of megabytes
        return Spending(joined, {**kept, rows: added})

    def cost(self, rows: str, model: str, trust: str) -> FloatArray | None:
        """The sum of rows of one kind under one pair of models, `[device, row]`; None if none was released."""
        cost = self._costs.get(rows)
        return None if cost is None else np.asarray(self.groups.expand(cost[model, trust]))

    def squared_mu(self, model: str, trust: str, relabel: bool) -> FloatArray:
        """μ² of every device so far, `[device]`.

        Runs that did not know a trust model of the user's own are counted on each device's own noise, the strictest.
        """
        costs = [cost[model, trust if (model, trust) in cost else OwnNoise.name] for cost in self._costs.values()]
        spent = [spent_squared_mu(cost, model, relabel) for cost in costs]
        return np.asarray(self.groups.expand(np.sum([np.zeros(self.groups.num_groups), *spent], axis=0)))


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

    def after(self, release: GroupedRelease) -> SubsampledSpending:
        """The spending with one more round."""
        return SubsampledSpending(self.mechanism, {t: self._with(release, t) for t in release.kinds.counted_noise_var})

    def _with(self, release: GroupedRelease, trust: str) -> Runs:
        cost, runs = release.kinds.cost("device", trust).sum(axis=1), self._runs.get(trust, ())
        indices = release.groups.expand(grid_index(np.sqrt(cost)))
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
        rounds = [indices.astype(np.float64) for indices, _ in self._runs.get(trust, ())]
        groups = Groups.of([*rounds, delta, earlier_squared_mu])
        budgets = ((device, delta[device], earlier_squared_mu[device]) for device in groups.first.tolist())
        found = [self.epsilon_of(device, trust, *of_device) for device, *of_device in budgets]
        return np.asarray(groups.expand(np.array(found)))

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
