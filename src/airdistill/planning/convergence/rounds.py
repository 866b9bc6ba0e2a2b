"""The number of rounds that minimises the convergence gap, over all integers, and the truncation threshold.

With more rounds training lasts longer, but each round needs more noise: Σ_iΩ_i(T) falls, then rises. The mean of 1/|h|²
does not exist under full channel inversion, and so the planner leaves out the worst `outage` share of channel draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import BoolArray, ComplexArray, FloatArray
from airdistill.planning.convergence.gap import LearningConstants, biased_gap, fleet_gap, misalignment_gap
from airdistill.planning.convergence.receiver_error import ReceiverError
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.payloads import ClassMeans
from airdistill.planning.transceiver.superposed import SuperposedUplink
from airdistill.planning.uplink import Uplink
from airdistill.privacy.sensitivity import TrajectoryDynamics

DEFAULT_OUTAGE = 0.05
_COARSE_STEPS = 40
_FINE_STEPS = 12
# Shares of devices and rounds that a threshold makes inactive, in ascending order.
_INACTIVE_SHARES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.35, 0.55, 0.8)
_FINER = 4  # shares tried between the best of them and its neighbour, on either side
_MOST_NUMBERS = 10**6  # draws × devices × classes of a search: large fleets need fewer draws


@dataclass(frozen=True)
class RoundsChoice:
    """T under each rule. `paper` and `privacy_limited` are not limited to `largest`, and may be infinite.

    `exact_smaller_constants` is the optimum if L1 and L2 were ten times smaller than declared.
    """

    chosen: int
    rule: str
    exact: int
    exact_smaller_constants: int
    paper: float
    privacy_limited: float
    largest: int


def exact_rounds(
    class_counts: ArrayLike,
    mu: ArrayLike,
    channels: ComplexArray,
    peak_power_w: ArrayLike,
    channel_noise_var: float,
    constants: Any,
    model: str,
    trust: str,
    max_rounds: int,
    relabel: bool = False,
    dynamics: Any = None,
    outage: float = DEFAULT_OUTAGE,
) -> int:
    """The T in 1..max_rounds with the least Σ_iΩ_i(T) over the channel draws `[draw, device]`.

    Without `dynamics` the `trajectory` model assumes one full-batch step per round with the given constants, the case
    that the gap bounds.
    """
    constants = LearningConstants.of(constants)
    mu = np.asarray(mu, dtype=np.float64)
    unknown = np.full(mu.shape, np.nan)  # μ already includes ε and δ
    power_w = np.broadcast_to(np.asarray(peak_power_w, dtype=np.float64), mu.shape)
    fleet = RealisedFleet(np.asarray(class_counts), power_w, unknown, unknown, mu)
    uplink = SuperposedUplink(
        fleet=fleet,
        channel_noise_var=channel_noise_var,
        trust=trust,
        payload=ClassMeans(fleet, model, relabel, TrajectoryDynamics.of(constants if dynamics is None else dynamics)),
    )
    return GapObjective.over(uplink, np.atleast_2d(channels), constants, outage).best_rounds(max_rounds)


@dataclass(frozen=True)
class GapObjective:
    """Σ_iΩ_i as a function of the number of rounds, for one uplink; `noise_var(T)` is v `[draw, row]`.

    `squared_bias` `[draw, row]` is the bias of leaving inactive devices out. `receiver` predicts the error after the
    receiver; without one the estimate is what was received, which is unbiased, and Theorem 1 holds.
    """

    uplink: Uplink
    constants: LearningConstants
    noise_var: Callable[[int], FloatArray]
    outage: float = DEFAULT_OUTAGE
    squared_bias: FloatArray = field(default_factory=lambda: np.zeros((1, 1)))
    receiver: ReceiverError | None = None
    # What a receiver's error adds up to, by T `[row]`: searches ask for the same T again.
    _errors: dict[int, FloatArray] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def over(
        cls,
        uplink: Uplink,
        channels: ComplexArray,
        constants: LearningConstants,
        outage: float = DEFAULT_OUTAGE,
        receiver: ReceiverError | None = None,
    ) -> GapObjective:
        """The objective over channel draws `[draw, device]`."""
        noise_var = cache(uplink.noise_over(channels))
        return cls(uplink, constants, noise_var, outage, uplink.squared_bias(channels), receiver)

    def with_constants_scaled(self, factor: float) -> GapObjective:
        """The same objective with L1 and L2 multiplied by a factor."""
        constants = replace(
            self.constants,
            grad_lipschitz=factor * self.constants.grad_lipschitz,
            model_lipschitz=factor * self.constants.model_lipschitz,
        )
        scaled = replace(self, constants=constants)
        scaled._errors.update(self._errors)  # which do not depend on the constants
        return scaled

    def gap(self, num_rounds: int) -> float:
        """Σ_iΩ_i after T rounds."""
        return self.gaps([num_rounds])[0]

    def gaps(self, candidates: Sequence[int]) -> list[float]:
        """Σ_iΩ_i for each of several T; the filters of a tracking receiver are simulated together."""
        if self.receiver is None:
            return [self._unbiased_gap(num_rounds) for num_rounds in candidates]
        if new := [num_rounds for num_rounds in candidates if num_rounds not in self._errors]:
            noise_vars = [self.noise_var(num_rounds) for num_rounds in new]
            sums = self.receiver.weighted_sums(noise_vars, self.squared_bias, new, self.uplink.vector_length)
            self._errors.update(zip(new, sums, strict=True))
        errors = self.uplink.over_fleet(np.stack([self._errors[num_rounds] for num_rounds in candidates]))
        return [
            biased_gap(num_rounds, self.constants, self._num_devices, float(error))
            for num_rounds, error in zip(candidates, errors, strict=True)
        ]

    def _unbiased_gap(self, num_rounds: int) -> float:
        noise = self.uplink.fleet_noise(self.noise_var(num_rounds))
        # The mean over classes of the squared bias is at least the Φ1² of (29), and is what run records measure.
        per_draw = noise + self.uplink.over_fleet(self.squared_bias)
        kept = below_outage(per_draw, self.outage)
        return self.gap_at(num_rounds, float(per_draw[kept].mean())) + self._bias_gap(num_rounds, kept)

    def squared_error(self, num_rounds: int) -> float:
        """Σ_k (B_i^k/B_i) E‖r̂^k − q^k‖², mean over devices and rounds; an upper bound for a biased receiver."""
        noise_var = self.noise_var(num_rounds)
        if self.receiver is None:
            per_draw = self.uplink.fleet_noise(noise_var) + self.uplink.over_fleet(self.squared_bias)
            return float(per_draw[below_outage(per_draw, self.outage)].mean()) / self._num_devices
        error = self.receiver.mean_error(noise_var, self.squared_bias, num_rounds, self.uplink.vector_length)
        return float(self.uplink.over_fleet(error)) / self._num_devices

    def _bias_gap(self, num_rounds: int, kept: BoolArray) -> float:
        if not self.squared_bias.any():
            return 0.0
        first = float(self.uplink.over_fleet(np.sqrt(self.squared_bias))[kept].mean())
        return misalignment_gap(num_rounds, self.constants, first)

    def gap_at(self, num_rounds: float, fleet_noise: float) -> float:
        """Σ_iΩ_i after T rounds that each have this Σ_iΦ_i, without a receiver's estimate."""
        factor = self.uplink.noise_factor(self.constants)
        return fleet_gap(num_rounds, self.constants, self._num_devices, fleet_noise, factor)

    def privacy_limited_rounds(self) -> float:
        """T̂ = (3Σf_max/η0)/(A2 Σ_iΦ_i(1)), the continuous optimum if all noise is required by privacy.

        Infinite without a privacy target, and for `trajectory`, which has no closed form.
        """
        if self.uplink.linear_from(2) > 1:
            return float("inf")
        noise = float(self.uplink.fleet_noise(self.uplink.privacy_noise_var(1)))
        growth = self.constants.initial_lr * self.uplink.noise_factor(self.constants) * noise
        return 3 * self.constants.total_loss_bound(self._num_devices) / growth if growth > 0 else float("inf")

    @property
    def _num_devices(self) -> int:
        return len(self.uplink.weights(1))

    def best_rounds(self, max_rounds: int) -> int:
        """The T in 1..max_rounds of the smallest gap; or, for payloads with `most_noise`, of a round that noisy.

        Once the required noise grows linearly in T, the gap is convex in √T and is searched; every smaller T is tried.
        """
        if self.uplink.payload.most_noise is not None:
            return self._rounds_within((self.uplink.payload.most_noise * self.uplink.largest_norm) ** 2, max_rounds)
        linear_from = self.uplink.linear_from(max_rounds)
        best_linear = least_integer(self.gaps, linear_from, max_rounds)
        candidates: list[int] = [*range(1, linear_from), best_linear]
        return min(zip(self.gaps(candidates), candidates, strict=True))[1]

    def _rounds_within(self, most_error: float, max_rounds: int) -> int:
        """The largest T, at least 1, at which the squared error of a vector is at most this: it grows with T."""
        enough, too_many = 1, max_rounds + 1
        while too_many - enough > 1:
            tried = (enough + too_many) // 2
            if self.squared_error(tried) <= most_error:
                enough = tried
            else:
                too_many = tried
        return enough


def below_outage(noise_per_draw: FloatArray, outage: float) -> BoolArray:
    """The draws up to the (1 − outage) quantile of the fleet's noise, at least one, as a mask `[draw]`."""
    num_kept = int(np.floor((len(noise_per_draw) - 1) * (1 - outage))) + 1
    kept = np.zeros(len(noise_per_draw), dtype=np.bool_)
    kept[np.argsort(noise_per_draw, kind="stable")[:num_kept]] = True
    return kept


def least_integer(objective: Callable[[Sequence[int]], Sequence[float]], smallest: int, largest: int) -> int:
    """The integer in smallest..largest that minimises the objective; the smallest of several.

    The objective takes several candidates at once. A coarse geometric grid finds the valley: a nearly convex curve may
    have small local minima. Finer grids around the best point follow until no integer between its neighbours is left.
    """
    grid: list[int] = sorted(set(np.geomspace(smallest, largest, _COARSE_STEPS).round().astype(np.int64).tolist()))
    while True:
        values = objective(grid)
        best = min(range(len(grid)), key=lambda index: (values[index], index))
        around = grid[max(0, best - 1) : best + 2]
        low, high = around[0], around[-1]
        if high - low < len(around):
            return grid[best]
        finer = np.linspace(low, high, _FINE_STEPS).round().astype(np.int64).tolist()
        grid = sorted({*finer, grid[best]})


def best_truncation(
    channels: ComplexArray,
    objective_at: Callable[[float, ComplexArray], GapObjective],
    num_classes: int,
    rounds: int | None,
    max_rounds: int,
) -> float:
    """The threshold on |h|² with the smallest gap, at a given T or at the best T of each threshold.

    Thresholds are quantiles of the draws `[draw, device]`: a coarse grid, then a finer one around its best point.
    `objective_at(threshold, channels)` is the gap. The lowest of equally good thresholds is taken.
    """
    num_draws = int(np.clip(_MOST_NUMBERS // (channels.shape[1] * num_classes), 10, len(channels)))
    searched = channels[:num_draws]
    gains = np.abs(searched) ** 2

    def least_gap(share: float) -> tuple[float, float]:
        threshold = float(np.quantile(gains, share)) if share > 0 else 0.0
        objective = objective_at(threshold, searched)
        gap = objective.gap(objective.best_rounds(max_rounds) if rounds is None else rounds)
        return gap, threshold

    found = [least_gap(share) for share in _INACTIVE_SHARES]
    best = min(range(len(found)), key=lambda place: found[place])
    low, high = _INACTIVE_SHARES[max(0, best - 1)], _INACTIVE_SHARES[min(best + 1, len(found) - 1)]
    finer = {*np.linspace(low, _INACTIVE_SHARES[best], _FINER), *np.linspace(_INACTIVE_SHARES[best], high, _FINER)}
    if best > 0:
        found += [least_gap(float(share)) for share in finer - set(_INACTIVE_SHARES)]
    return min(found)[1]


def typical_floor(uplink: SuperposedUplink, channels: ComplexArray) -> FloatArray:
    """σ_n²/cap_k at nominal weights, median over the draws in which the class can be sent, `[class]`; 0 if none can."""
    without_floor = replace(uplink, floor=None)
    # √(bias²/2) is the weight of the inactive devices of a class.
    active_weight = 1 - np.sqrt(without_floor.squared_bias(channels) / 2)
    floors = without_floor.channel_floor(channels) * active_weight**2
    sendable = [column[np.isfinite(column) & (column > 0)] for column in floors.T]
    return np.array([np.median(column) if len(column) else 0.0 for column in sendable])
