"""The counted noise that privacy demands of shared knowledge: for all rounds alike, or from what is left to spend.

How a device's budget is best shared among the classes that one neighbour change moves together.

Joint sensitivity models charge a device Σ_k (w s)²_ik/v_k in a round. Equal shares of its budget are the simple choice;
the best one has the least Σ_k α_k v_k, which is what the noise costs learning. In x = 1/v the programme is convex:
least Σ_k α_k/x_k under linear limits, where a floor is one more limit, of a single class.
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


class RequiredNoise(Protocol):
    """Noise that privacy asks for, `[device, row]`, at every device's usual weight."""

    @property
    def shift(self) -> Shift: ...

    @property
    def is_linear(self) -> bool:
        """Whether T rounds ask for T times what one asks for."""

    def of_rounds(self, num_rounds: int) -> FloatArray:
        """The same in each of T rounds."""

    def of_rest(self, num_rounds: int, round_index: int, spent: FloatArray) -> FloatArray:
        """In round t of T, when the rounds before have cost `spent` `[device, row]`."""


@dataclass(frozen=True)
class VectorRequiredNoise:
    """Of one vector a round, whose squared shift is always the same: T·shift/μ² in each."""

    shift: ConstantShift
    mu: FloatArray
    is_linear = True

    def of_rounds(self, num_rounds: int) -> FloatArray:
        return np.asarray(self.shift.after(num_rounds) / self.mu[:, None] ** 2)

    def of_rest(self, num_rounds: int, round_index: int, spent: FloatArray) -> FloatArray:
        squared_mu = self.mu[:, None] ** 2
        # Who asked for no privacy may have spent without limit, and has no less left.
        left = squared_mu - np.where(np.isinf(squared_mu), 0.0, spent)
        _check_left(left[:, 0])
        return np.asarray(self.shift.after(num_rounds - round_index + 1) / left)


@dataclass
class ClassRequiredNoise:
    """What a sensitivity model demands of a fleet, `[device, class]`, at every device's usual weight.

    `split` says that a joint model's budget is shared out over the classes to make Σ_k α_k v_k least, and not equally.
    With `alone` each device counts on noise of its own. `floor` `[class]` is noise that is there anyway.
    """

    fleet: RealisedFleet
    model: str
    relabel: bool
    dynamics: TrajectoryDynamics
    split: bool = False
    alone: bool = False
    floor: FloatArray | None = None
    _latest: tuple[tuple[int, int], FloatArray, FloatArray] | None = field(default=None, init=False, compare=False)

    @cached_property
    def shift(self) -> AccumulatedShift:
        return AccumulatedShift(self.fleet.class_counts, self.model, self.dynamics)

    @cached_property
    def _shift_so_far(self) -> AccumulatedShift:
        # One of its own: going back and forth between early and late rounds would start over each time.
        return AccumulatedShift(self.fleet.class_counts, self.model, self.dynamics)

    def of_rounds(self, num_rounds: int) -> FloatArray:
        """The same in each of T rounds."""
        shift, fleet = self.shift.after(num_rounds), self.fleet
        if self.split and self.model in JOINT_MODELS:
            if self.is_linear:
                return num_rounds * self._split_of_one_round
            return self._split(shift, fleet.mu**2)
        return required_for_shift(shift, fleet.class_counts, fleet.mu, self.model, self.relabel)

    @property
    def is_linear(self) -> bool:
        """Whether T rounds ask for T times what one asks for."""
        return self.floor is None and self.shift.linear_from(2) == 1

    @cached_property
    def _split_of_one_round(self) -> FloatArray:
        return self._split(self.shift.after(1), self.fleet.mu**2)

    def of_rest(self, num_rounds: int, round_index: int, spent: FloatArray) -> FloatArray:
        """In round t of T, when the rounds before have cost `spent` `[device, class]`: the carry-over.

        req_ik(t) = n_i Σ_{τ≥t}(w s)²/(μ_i² − spent), spent per class, or pooled for joint models. If every later round
        then spends its share at most, no device ever spends more than μ_i².
        """
        asked_for = (num_rounds, round_index)
        if self._latest is None or self._latest[0] != asked_for or self._latest[1] is not spent:
            # A round's forecast and its design ask the same, and sharing a budget out takes milliseconds.
            self._latest = (asked_for, spent, self._of_rest(num_rounds, round_index, spent))
        return self._latest[2]

    def _of_rest(self, num_rounds: int, round_index: int, spent: FloatArray) -> FloatArray:
        rest = self.shift.after(num_rounds)
        if round_index > 1:
            rest = rest - self._shift_so_far.after(round_index - 1)
        # Who asked for no privacy may have spent without limit, and has no less left.
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
        importance = class_shares(self.fleet.class_counts).sum(axis=0)
        if self.alone:
            return own_noise_for_budget(shift, budget, importance)
        needed = noise_for_budget(shift, budget, importance, self.floor)
        return np.where(shift > 0, needed, 0.0)


def _check_left(left: FloatArray) -> None:
    if not (left > 0).all():
        device = int(np.argmin(left))
        raise BudgetExceeded(f"device {device} has nothing left of its privacy budget: it can pay for no more rounds")


_MARGIN = 1e-14  # of a budget, kept back so that no rounding of a sum goes above it
_TOLERANCE = 1e-12  # relative, how far the answer may be from the least cost
_MOST_STEPS = 60  # of Newton's method; about 14 are needed
_NEWCOMERS = 10  # devices that join the programme at a time


def noise_for_budget(
    squared_shift: ArrayLike, budget: ArrayLike, importance: ArrayLike, floor: ArrayLike | None = None
) -> FloatArray:
    """v `[class]` with the least Σ_k α_k v_k under Σ_k (w s)²_ik/v_k ≤ budget_i for every device, and v_k ≥ floor_k.

    `squared_shift` is (w_ik s_ik)² `[device, class]`, `budget` μ_i²/T `[device]` (infinite: no privacy asked), and
    `importance` α `[class]`. A class that cannot be sent has an infinite `floor`: it costs no budget and stays
    infinite. A class of no importance that someone must hide becomes infinite: no noise is too much for it.
    """
    shift, budgets, weight = _checked(squared_shift, budget, importance)
    lowest = np.zeros(weight.shape) if floor is None else _checked_floor(floor, weight)
    noise = lowest.copy()
    shift, budgets = shift[np.isfinite(budgets)], budgets[np.isfinite(budgets)]
    moved = shift.any(axis=0)
    noise[moved & (weight == 0)] = np.inf
    live = moved & np.isfinite(noise)
    shift, concerned = shift[:, live], shift[:, live].any(axis=1)
    if concerned.any():
        usage = _usage(shift[concerned], budgets[concerned])
        noise[live] = _shared_noise(usage, weight[live], lowest[live])
    return noise


def own_noise_for_budget(squared_shift: ArrayLike, budget: ArrayLike, importance: ArrayLike) -> FloatArray:
    """The same for each device by itself, `[device, class]`: v_ik = κ_i (w s)_ik/√α_k.

    Here κ_i = Σ_k (w s)_ik √α_k/budget_i.
    """
    shift, budgets, weight = _checked(squared_shift, budget, importance)
    asked = np.isfinite(budgets)[:, None] & (shift > 0)
    live = asked & (weight > 0)
    noise = np.where(asked & ~live, np.inf, 0.0)
    usage = np.where(live, _usage(shift, budgets), 0.0)
    noise[live] = _noise_alone(usage, weight, np.zeros(weight.shape))[live]
    return noise


def _usage(shift: FloatArray, budget: FloatArray) -> FloatArray:
    """(w s)²/budget: what share of a device's budget a class would cost it at v = 1, `[device, class]`."""
    return divide_or(shift, np.broadcast_to((budget * (1 - _MARGIN))[:, None], shift.shape), 0.0)


def _shared_noise(usage: FloatArray, importance: FloatArray, floor: FloatArray) -> FloatArray:
    """The programme for classes that all matter, can be sent and are moved by someone who asks for privacy."""
    alone = _noise_alone(usage, importance, floor)
    # Nobody's own optimum costs more than the common one: if a single device binds, it is the dearest.
    # (A matrix product would round equal devices differently.)
    dearest = int(np.argmax((alone * importance).sum(axis=1)))
    noise, most = alone[dearest], _spent(usage, alone[dearest]).max()
    if most > 1 + _TOLERANCE:
        noise = _noise_together(usage, importance, floor, alone, dearest)
        most = _spent(usage, noise).max()
    # Whatever a solver leaves, budgets are kept, and not more than kept.
    return np.asarray(np.maximum(floor, noise * most))


def _spent(usage: FloatArray, noise: FloatArray) -> FloatArray:
    """Σ_k usage_ik/v_k, `[device]`; each row is added up by itself, so that equal devices get equal sums."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = usage / noise
    return np.asarray(np.where(usage > 0, shares, 0.0).sum(axis=1))


def _noise_alone(usage: FloatArray, importance: FloatArray, floor: FloatArray) -> FloatArray:
    """The closed form for each device as if it were alone: v_k = max(floor_k, κ√(usage_k/α_k)), `[device, class]`.

    κ by water-filling: class k rises above its floor once κ exceeds floor_k/√(usage_k/α_k), the lowest first.
    """
    profile = np.sqrt(divide_or(usage, np.broadcast_to(importance, usage.shape), 0.0))
    threshold = divide_or(np.broadcast_to(floor, usage.shape), profile, np.inf)
    order = np.argsort(threshold, axis=1, kind="stable")
    threshold = np.take_along_axis(threshold, order, axis=1)
    at_floor = np.take_along_axis(divide_or(usage, np.broadcast_to(floor, usage.shape), 0.0), order, axis=1)
    raised = np.take_along_axis(np.sqrt(usage * importance), order, axis=1)
    # With the j lowest classes raised, κ Σ_{raised} and Σ_{at floor} are what the budget pays for, j = 0..K.
    edge = np.zeros((len(usage), 1))
    raised = np.concatenate([edge, np.cumsum(raised, axis=1)], axis=1)
    at_floor = np.concatenate([np.cumsum(at_floor[:, ::-1], axis=1)[:, ::-1], edge], axis=1)
    next_threshold = np.concatenate([threshold, edge + np.inf], axis=1)
    # The first j whose classes need not rise as far as the next threshold; without a floor a class must rise.
    enough = (raised <= (1 - at_floor) * next_threshold) & (next_threshold > 0)
    chosen = np.argmax(enough, axis=1)[:, None]
    left = 1 - np.take_along_axis(at_floor, chosen, axis=1)
    level = divide_or(np.take_along_axis(raised, chosen, axis=1), left, 0.0)
    return np.maximum(floor, level * profile)


def _noise_together(
    usage: FloatArray, importance: FloatArray, floor: FloatArray, alone: FloatArray, dearest: int
) -> FloatArray:
    """The common optimum where several devices bind: the programme of a few, whom others join until none is over.

    Of devices that are alike only the first ever joins, so that they count as one.
    """
    chosen = np.unique(np.append(np.argmax(usage, axis=0), dearest))
    while True:
        # Enough for each of them by itself is enough for all of them.
        start = alone[chosen].max(axis=0)
        limits = np.concatenate([usage[chosen] / start, np.diag(floor / start)])
        noise = start / _inverse_of_least_cost(limits, importance * start)
        spent, first = np.unique(_spent(usage, noise), return_index=True)
        over = first[spent > 1 + _TOLERANCE]
        if len(over) == 0:
            return np.asarray(noise)
        chosen = np.append(chosen, over[-_NEWCOMERS:])


def _inverse_of_least_cost(limits: FloatArray, cost: FloatArray) -> FloatArray:
    """x with the least Σ_k cost_k/x_k under `limits @ x` ≤ 1, for limits `[limit, class]` that x = 1 keeps.

    A primal-dual interior-point method with Newton's steps in log x, where curvature is the same at all scales. x stays
    within the limits, so that stopping early costs noise and never privacy.
    """
    inverse = np.full(len(cost), 0.5)
    slack = 1 - limits @ inverse
    price = (cost / inverse).sum() / len(limits) / slack  # of each limit: its multiplier
    for _ in range(_MOST_STEPS):
        value = cost / inverse
        least = 2 * np.sqrt(cost * (limits.T @ price)).sum() - price.sum()  # the dual's value: nothing costs less
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
        slack = slack - length * used  # not 1 − limits @ x, which would round a small one away
    return inverse


def _newton_step(
    share: FloatArray, value: FloatArray, slack: FloatArray, price: FloatArray, target: float
) -> FloatArray:
    """d log x towards value = shareᵀprice and price·slack = target, with the price eliminated.

    (D + shareᵀ diag(price/slack) share) d = value − shareᵀ(target/slack) with D = value + shareᵀprice, solved as the
    least squares whose normal equations these are: devices that are nearly alike make the product singular.
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
        raise ValueError("budget: must be greater than 0 for every device that has something to hide")
    return shift, budgets, weight


def _checked_floor(floor: ArrayLike, importance: FloatArray) -> FloatArray:
    lowest = np.broadcast_to(np.asarray(floor, dtype=np.float64), importance.shape)
    if not (lowest >= 0).all():
        raise ValueError("floor: must not be negative")
    return lowest
