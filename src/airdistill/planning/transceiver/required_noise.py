"""The counted noise that privacy requires of a payload, and the optimal division of a budget among classes.

The requirement is the same in all rounds, or follows from the budget that earlier rounds left (carry-over).

Joint sensitivity models charge a device Σ_k (w s)²_ik/v_k in a round. Equal shares of its budget are the simple choice;
the optimal one minimises Σ_k α_k v_k, the effect of the noise on learning. The programme is convex in x = 1/v: minimise
Σ_k α_k/x_k under linear constraints. A floor on the noise of a class is one more constraint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import FloatArray, divide_or
from airdistill.planning.convergence.gap import class_shares
from airdistill.planning.fleet import RealisedFleet
from airdistill.privacy.ledger import BudgetExceeded
from airdistill.privacy.sensitivity import (
    JOINT_MODELS,
    AccumulatedShift,
    ConstantShift,
    Shift,
    TrajectoryDynamics,
    classes_moved,
    required_for_shift,
)

_MARGIN = 1e-14  # of a budget, kept back: the rounding of a sum must not exceed it
_TOLERANCE = 1e-12  # relative distance from the optimal cost
_MOST_STEPS = 60  # of Newton's method; about 14 are needed
_ADDED_DEVICES = 10  # constraints added to the programme at a time


class RequiredNoise(Protocol):
    """The noise that privacy requires, `[device, row]`, at every device's nominal weight."""

    @property
    def shift(self) -> Shift: ...

    @property
    def is_linear(self) -> bool:
        """Whether T rounds require T times the noise of one."""

    def of_rounds(self, num_rounds: int) -> FloatArray:
        """The requirement of each of T equal rounds."""

    def of_rest(self, num_rounds: int, round_index: int, spent: FloatArray) -> FloatArray:
        """The requirement of round t of T if earlier rounds have spent `spent` `[device, row]`."""


@dataclass(frozen=True)
class VectorRequiredNoise:
    """The requirement of one vector per round with a constant squared shift: T·shift/μ²."""

    shift: ConstantShift
    mu: FloatArray
    is_linear = True

    def of_rounds(self, num_rounds: int) -> FloatArray:
        return np.asarray(self.shift.after(num_rounds) / self.mu[:, None] ** 2)

    def of_rest(self, num_rounds: int, round_index: int, spent: FloatArray) -> FloatArray:
        squared_mu = self.mu[:, None] ** 2
        # A device without a privacy target (μ = ∞) has no limit.
        left = squared_mu - np.where(np.isinf(squared_mu), 0.0, spent)
        _check_left(left[:, 0])
        return np.asarray(self.shift.after(num_rounds - round_index + 1) / left)


@dataclass
class ClassRequiredNoise:
    """The requirement of class means under a sensitivity model, `[device, class]`.

    With `split` the budget of a joint model is divided among the classes to minimise Σ_k α_k v_k, otherwise equally.
    With `alone` each device counts on its own noise only. `floor` `[class]` is noise that classes have anyway.
    """

    fleet: RealisedFleet
    model: str
    relabel: bool
    dynamics: TrajectoryDynamics
    split: bool = False
    alone: bool = False
    floor: FloatArray | None = None
    _latest: tuple[tuple[int, int], FloatArray, FloatArray] | None = field(default=None, init=False, compare=False)
    _of_rounds: tuple[int, FloatArray] | None = field(default=None, init=False, compare=False)

    @cached_property
    def shift(self) -> AccumulatedShift:
        return AccumulatedShift(self.fleet.class_counts, self.model, self.dynamics)

    @cached_property
    def _shift_so_far(self) -> AccumulatedShift:
        # A second accumulator: one alone would start again whenever it goes back to an earlier round.
        return AccumulatedShift(self.fleet.class_counts, self.model, self.dynamics)

    def of_rounds(self, num_rounds: int) -> FloatArray:
        """The requirement of each of T equal rounds."""
        if self._of_rounds is not None and self._of_rounds[0] == num_rounds:
            # All draws of a forecast need the same, and it is a large array for a large fleet.
            return self._of_rounds[1]
        shift, fleet = self.shift.after(num_rounds), self.fleet
        if self.split and self.model in JOINT_MODELS:
            if self.is_linear:
                return num_rounds * self._split_of_one_round
            return self._split(shift, fleet.mu**2)
        required = np.asarray(shift * self._noise_per_shift)
        required.flags.writeable = False
        self._of_rounds = (num_rounds, required)
        return required

    @cached_property
    def _noise_per_shift(self) -> FloatArray:
        """n_i/μ_i², `[device, 1]`."""
        one, fleet = np.ones((self.fleet.num_devices, 1)), self.fleet
        return required_for_shift(one, fleet.class_counts, fleet.mu, self.model, self.relabel)

    @property
    def is_linear(self) -> bool:
        """Whether T rounds require T times the noise of one."""
        return self.floor is None and self.shift.linear_from(2) == 1

    @cached_property
    def _split_of_one_round(self) -> FloatArray:
        return self._split(self.shift.after(1), self.fleet.mu**2)

    @cached_property
    def _importance(self) -> FloatArray:
        """α of every class, `[class]`."""
        return np.asarray(class_shares(self.fleet.class_counts).sum(axis=0))

    def of_rest(self, num_rounds: int, round_index: int, spent: FloatArray) -> FloatArray:
        """The requirement of round t of T with carry-over, if earlier rounds have spent `spent` `[device, class]`.

        req_ik(t) = n_i Σ_{τ≥t}(w s)²/(μ_i² − spent), with `spent` per class, or summed for joint models. If every round
        spends at most its share, no device ever spends more than μ_i².
        """
        key = (num_rounds, round_index)
        if self._latest is None or self._latest[0] != key or self._latest[1] is not spent:
            # Forecast and design of a round need the same result, and dividing a budget takes milliseconds.
            self._latest = (key, spent, self._of_rest(num_rounds, round_index, spent))
        return self._latest[2]

    def _of_rest(self, num_rounds: int, round_index: int, spent: FloatArray) -> FloatArray:
        rest = self.shift.after(num_rounds)
        if round_index > 1:
            rest = rest - self._shift_so_far.after(round_index - 1)
        # A device without a privacy target (μ = ∞) has no limit.
        squared_mu = self.fleet.mu[:, None] ** 2
        counted = np.where(np.isinf(squared_mu), 0.0, spent)
        share = classes_moved(self.fleet.class_counts, self.model, self.relabel)[:, None]
        if self.model not in JOINT_MODELS:
            left = squared_mu / share - counted
            _check_left(left.min(axis=1))
            return np.asarray(rest / left)
        left = squared_mu - counted.sum(axis=1, keepdims=True)
        _check_left(left[:, 0])
        return self._split(rest, left[:, 0]) if self.split else np.asarray(rest * (share / left))

    def _split(self, shift: FloatArray, budget: FloatArray) -> FloatArray:
        if self.alone:
            return own_noise_for_budget(shift, budget, self._importance)
        needed = noise_for_budget(shift, budget, self._importance, self.floor)
        return np.where(shift > 0, needed, 0.0)


def _check_left(left: FloatArray) -> None:
    if not (left > 0).all():
        device = int(np.argmin(left))
        raise BudgetExceeded(f"device {device} has no privacy budget left: no further round is possible")


def noise_for_budget(
    squared_shift: ArrayLike, budget: ArrayLike, importance: ArrayLike, floor: ArrayLike | None = None
) -> FloatArray:
    """v `[class]` with the least Σ_k α_k v_k under Σ_k (w s)²_ik/v_k ≤ budget_i for every device, and v_k ≥ floor_k.

    `squared_shift` is (w_ik s_ik)² `[device, class]`, `budget` μ_i²/T `[device]` (infinite without a privacy target),
    and `importance` α `[class]`. A class that cannot be sent has an infinite `floor`: it uses no budget and remains
    infinite. A class without importance that a device must protect gets infinite noise, which costs nothing.
    """
    shift, budgets, weight = _checked(squared_shift, budget, importance)
    lowest = np.zeros(weight.shape) if floor is None else _checked_floor(floor, weight)
    noise = lowest.copy()
    shift, budgets = shift[np.isfinite(budgets)], budgets[np.isfinite(budgets)]
    moved = shift.any(axis=0)
    noise[moved & (weight == 0)] = np.inf
    live = moved & np.isfinite(noise)
    shift, affected = shift[:, live], shift[:, live].any(axis=1)
    if affected.any():
        usage = _usage(shift[affected], budgets[affected])
        noise[live] = _common_optimum(usage, weight[live], lowest[live])
    return noise


def own_noise_for_budget(squared_shift: ArrayLike, budget: ArrayLike, importance: ArrayLike) -> FloatArray:
    """The same for the own noise of each device, `[device, class]`: v_ik = κ_i (w s)_ik/√α_k.

    κ_i = Σ_k (w s)_ik √α_k/budget_i.
    """
    shift, budgets, weight = _checked(squared_shift, budget, importance)
    protected = np.isfinite(budgets)[:, None] & (shift > 0)
    live = protected & (weight > 0)
    noise = np.where(protected & ~live, np.inf, 0.0)
    usage = np.where(live, _usage(shift, budgets), 0.0)
    noise[live] = _noise_alone(usage, weight, np.zeros(weight.shape))[live]
    return noise


def _usage(shift: FloatArray, budget: FloatArray) -> FloatArray:
    """(w s)²/budget: the share of a device's budget that a class uses at v = 1, `[device, class]`."""
    return divide_or(shift, np.broadcast_to((budget * (1 - _MARGIN))[:, None], shift.shape), 0.0)


def _common_optimum(usage: FloatArray, importance: FloatArray, floor: FloatArray) -> FloatArray:
    """Solve the programme for classes that have importance, can be sent and are moved by a device with a target."""
    alone = _noise_alone(usage, importance, floor)
    # The optimum of a single device never costs more than the common one: if one device binds, it is the costliest.
    # (A matrix product would round equal devices differently.)
    costliest = int(np.argmax((alone * importance).sum(axis=1)))
    noise, most = alone[costliest], _spent(usage, alone[costliest]).max()
    if most > 1 + _TOLERANCE:
        noise = _noise_of_several(usage, importance, floor, alone, costliest)
        most = _spent(usage, noise).max()
    # Whatever accuracy the solver reached, the tightest budget is met exactly.
    return np.asarray(np.maximum(floor, noise * most))


def _spent(usage: FloatArray, noise: FloatArray) -> FloatArray:
    """Σ_k usage_ik/v_k, `[device]`; rows are summed separately, and so equal devices have equal sums."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = usage / noise
    return np.asarray(np.where(usage > 0, shares, 0.0).sum(axis=1))


def _noise_alone(usage: FloatArray, importance: FloatArray, floor: FloatArray) -> FloatArray:
    """The closed form for each device separately: v_k = max(floor_k, κ√(usage_k/α_k)), `[device, class]`.

    κ is found by water-filling: class k rises above its floor once κ exceeds floor_k/√(usage_k/α_k), the lowest first.
    """
    profile = np.sqrt(divide_or(usage, np.broadcast_to(importance, usage.shape), 0.0))
    threshold = divide_or(np.broadcast_to(floor, usage.shape), profile, np.inf)
    order = np.argsort(threshold, axis=1, kind="stable")
    threshold = np.take_along_axis(threshold, order, axis=1)
    at_floor = np.take_along_axis(divide_or(usage, np.broadcast_to(floor, usage.shape), 0.0), order, axis=1)
    raised = np.take_along_axis(np.sqrt(usage * importance), order, axis=1)
    # With the j lowest classes raised, the budget is used by Σ_{raised}/κ and Σ_{at floor}, j = 0..K.
    edge = np.zeros((len(usage), 1))
    raised = np.concatenate([edge, np.cumsum(raised, axis=1)], axis=1)
    at_floor = np.concatenate([np.cumsum(at_floor[:, ::-1], axis=1)[:, ::-1], edge], axis=1)
    next_threshold = np.concatenate([threshold, edge + np.inf], axis=1)
    # The first j whose κ stays below the next threshold; a class without a floor must rise.
    enough = (raised <= (1 - at_floor) * next_threshold) & (next_threshold > 0)
    chosen = np.argmax(enough, axis=1)[:, None]
    left = 1 - np.take_along_axis(at_floor, chosen, axis=1)
    level = divide_or(np.take_along_axis(raised, chosen, axis=1), left, 0.0)
    return np.maximum(floor, level * profile)


def _noise_of_several(
    usage: FloatArray, importance: FloatArray, floor: FloatArray, alone: FloatArray, costliest: int
) -> FloatArray:
    """The common optimum if several devices bind, by adding the violated constraints of devices to a small programme.

    Of equal devices only the first is added, and so they count as one.
    """
    chosen = np.unique(np.append(np.argmax(usage, axis=0), costliest))
    while True:
        # Noise that suffices for each of them separately is feasible.
        start = alone[chosen].max(axis=0)
        limits = np.concatenate([usage[chosen] / start, np.diag(floor / start)])
        noise = start / _inverse_of_least_cost(limits, importance * start)
        spent, first = np.unique(_spent(usage, noise), return_index=True)
        over = first[spent > 1 + _TOLERANCE]
        if len(over) == 0:
            return np.asarray(noise)
        chosen = np.append(chosen, over[-_ADDED_DEVICES:])


def _inverse_of_least_cost(limits: FloatArray, cost: FloatArray) -> FloatArray:
    """x with the least Σ_k cost_k/x_k under `limits @ x` ≤ 1, for limits `[limit, class]` that x = 1 satisfies.

    A primal-dual interior-point method with Newton steps in log x, where the curvature does not depend on scale. x is
    always feasible, and so stopping early costs noise and never privacy.
    """
    inverse = np.full(len(cost), 0.5)
    slack = 1 - limits @ inverse
    price = (cost / inverse).sum() / len(limits) / slack  # the multiplier of each limit
    for _ in range(_MOST_STEPS):
        value = cost / inverse
        least = 2 * np.sqrt(cost * (limits.T @ price)).sum() - price.sum()  # the dual value, a lower bound
        if value.sum() - least <= _TOLERANCE * value.sum():
            break
        target = 0.05 * (price @ slack) / len(limits)
        step = _newton_step(limits * inverse, value, slack, price, target)
        used = (limits * inverse) @ step
        price_step = (target + price * used) / slack - price
        longest = max((-step).max(), (used / slack).max(), (-price_step / price).max())
        length = min(1.0, 0.95 / longest)
        inverse = inverse * (1 + length * step)
        price = price + length * price_step
        slack = slack - length * used  # not 1 − limits @ x, which would lose a small slack to rounding
    return inverse


def _newton_step(
    share: FloatArray, value: FloatArray, slack: FloatArray, price: FloatArray, target: float
) -> FloatArray:
    """The Newton step d log x for value = shareᵀprice and price·slack = target, with the price eliminated.

    (D + shareᵀ diag(price/slack) share) d = value − shareᵀ(target/slack) with D = value + shareᵀprice. It is solved as
    the least-squares problem with these normal equations, because nearly equal devices make the product singular.
    """
    unit = 1 / np.sqrt(value + share.T @ price)
    rows = np.concatenate([share * unit * np.sqrt(price / slack)[:, None], np.eye(len(value))])
    right = np.concatenate([-target / np.sqrt(price * slack), value * unit])
    return np.asarray(unit * np.linalg.lstsq(rows, right, rcond=None)[0])


def _checked(
    squared_shift: ArrayLike, budget: ArrayLike, importance: ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    shift, weight = np.asarray(squared_shift, dtype=np.float64), np.asarray(importance, dtype=np.float64)
    if shift.ndim != 2 or weight.shape != shift.shape[1:]:
        raise ValueError(
            f"squared_shift of shape {shift.shape}, importance {weight.shape}: must be [device, class], [class]"
        )
    budgets = np.broadcast_to(np.asarray(budget, dtype=np.float64), shift.shape[:1])
    if not (shift >= 0).all() or np.isinf(shift).any() or not (weight >= 0).all() or np.isinf(weight).any():
        raise ValueError("squared_shift and importance: must be finite and not negative")
    if not (budgets[shift.any(axis=1)] > 0).all():
        raise ValueError("budget: must be greater than 0 for every device whose vectors can shift")
    return shift, budgets, weight


def _checked_floor(floor: ArrayLike, importance: FloatArray) -> FloatArray:
    lowest = np.broadcast_to(np.asarray(floor, dtype=np.float64), importance.shape)
    if not (lowest >= 0).all():
        raise ValueError("floor: must not be negative")
    return lowest
