"""How many rounds: the exact optimum over whole numbers.

More rounds learn longer but each must be noisier: Σ_iΩ_i(T) falls, then rises. Under full channel inversion the
mean of 1/|h|² does not exist, so the planner leaves out the worst `outage` share of the channel draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import BoolArray, ComplexArray, FloatArray
from airdistill.codesign.constants import LearningConstants
from airdistill.codesign.convergence import fleet_gap
from airdistill.codesign.fleet import RealisedFleet
from airdistill.codesign.knowledge_uplink import KnowledgeUplink
from airdistill.codesign.uplink import Uplink
from airdistill.privacy.sensitivity import TrajectoryDynamics

DEFAULT_OUTAGE = 0.05
_COARSE_STEPS = 40


@dataclass(frozen=True)
class RoundsChoice:
    """T under each rule. `paper` and `privacy_limited` are not held to `largest`, and may be infinite.

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

    Without `dynamics` the `trajectory` model takes one full-batch step a round with the constants given, the case that
    the gap is a bound for.
    """
    constants = LearningConstants.of(constants)
    mu = np.asarray(mu, dtype=np.float64)
    unknown = np.full(mu.shape, np.nan)  # ε and δ are in μ already
    power_w = np.broadcast_to(np.asarray(peak_power_w, dtype=np.float64), mu.shape)
    uplink = KnowledgeUplink(
        fleet=RealisedFleet(np.asarray(class_counts), power_w, unknown, unknown, mu),
        channel_noise_var=channel_noise_var,
        model=model,
        trust=trust,
        relabel=relabel,
        dynamics=TrajectoryDynamics.of(constants if dynamics is None else dynamics),
    )
    return GapObjective.over(uplink, np.atleast_2d(channels), constants, outage).best_rounds(max_rounds)


@dataclass(frozen=True)
class GapObjective:
    """Σ_iΩ_i as a function of the number of rounds, for one uplink; `noise_var(T)` is v `[draw, row]`."""

    uplink: Uplink
    constants: LearningConstants
    noise_var: Callable[[int], FloatArray]
    outage: float = DEFAULT_OUTAGE

    @classmethod
    def over(
        cls, uplink: Uplink, channels: ComplexArray, constants: LearningConstants, outage: float = DEFAULT_OUTAGE
    ) -> GapObjective:
        """For channel draws `[draw, device]`."""
        return cls(uplink, constants, uplink.noise_over(channels), outage)

    def with_constants_scaled(self, factor: float) -> GapObjective:
        """The same fleet if L1 and L2 were so many times as large."""
        constants = replace(
            self.constants,
            grad_lipschitz=factor * self.constants.grad_lipschitz,
            model_lipschitz=factor * self.constants.model_lipschitz,
        )
        return replace(self, constants=constants)

    def gap(self, num_rounds: int) -> float:
        """Σ_iΩ_i after T rounds."""
        per_draw = self.uplink.fleet_noise(self.noise_var(num_rounds))
        noise = float(per_draw[below_outage(per_draw, self.outage)].mean())
        return self.gap_at(num_rounds, noise)

    def gap_at(self, num_rounds: float, fleet_noise: float) -> float:
        """Σ_iΩ_i after T rounds that each have this Σ_iΦ_i."""
        factor = self.uplink.noise_factor(self.constants)
        return fleet_gap(num_rounds, self.constants, self._num_devices, fleet_noise, factor)

    def privacy_limited_rounds(self) -> float:
        """T̂ = (3Σf_max/η0)/(A2 Σ_iΦ_i(1)), the continuous optimum when privacy alone asks for noise.

        Infinite where nothing limits it, and for `trajectory`, which has none.
        """
        if self.uplink.linear_from(2) > 1:
            return float("inf")
        noise = float(self.uplink.fleet_noise(self.uplink.privacy_noise_var(1)))
        growth = self.constants.initial_lr * self.uplink.noise_factor(self.constants) * noise
        return 3 * self.constants.total_loss_bound(self._num_devices) / growth if growth > 0 else float("inf")

    @property
    def _num_devices(self) -> int:
        return len(self.uplink.required(1))

    def best_rounds(self, max_rounds: int) -> int:
        """Searched where the requirement grows linearly, for there the gap is convex in √T; scanned before that."""
        linear_from = self.uplink.linear_from(max_rounds)
        best_later = least_integer(self.gap, linear_from, max_rounds)
        candidates: list[int] = [*range(1, linear_from), best_later]
        return min(candidates, key=lambda num_rounds: (self.gap(num_rounds), num_rounds))


def below_outage(noise_per_draw: FloatArray, outage: float) -> BoolArray:
    """Which draws stay: those up to the (1 − outage) quantile of the fleet's noise, at least one."""
    num_kept = int(np.floor((len(noise_per_draw) - 1) * (1 - outage))) + 1
    kept = np.zeros(len(noise_per_draw), dtype=np.bool_)
    kept[np.argsort(noise_per_draw, kind="stable")[:num_kept]] = True
    return kept


def least_integer(objective: Callable[[int], float], smallest: int, largest: int) -> int:
    """The whole number in smallest..largest where the objective is least; the smallest of several.

    A coarse geometric grid finds the valley, so that a small dent in a nearly convex curve cannot catch the search;
    thirds of the bracket are then dropped until a handful is left.
    """
    value = cache(objective)
    grid = sorted({round(point) for point in np.geomspace(smallest, largest, _COARSE_STEPS)})
    best = min(range(len(grid)), key=lambda index: (value(grid[index]), index))
    low, high = grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)]
    while high - low > 8:
        third = (high - low) // 3
        if value(low + third) <= value(high - third):
            high -= third
        else:
            low += third
    return min(range(low, high + 1), key=lambda point: (value(point), point))
