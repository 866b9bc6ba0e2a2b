"""How many rounds: the paper's formula, and the exact optimum over whole numbers.

More rounds learn longer but each must be noisier: Σ_iΩ_i(T) falls, then rises. Under full channel inversion the
mean of 1/|h|² does not exist, so the planner leaves out the worst `outage` share of the channel draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import BoolArray, ComplexArray, FloatArray
from airdistill.codesign.constants import LearningConstants
from airdistill.codesign.convergence import fleet_effective_noise, fleet_gap
from airdistill.codesign.links import Links
from airdistill.codesign.paper_transceiver import privacy_stringency
from airdistill.codesign.transceiver import effective_noise_var
from airdistill.codesign.trust import trust_model
from airdistill.privacy.sensitivity import (
    AccumulatedShift,
    TrajectoryDynamics,
    aggregation_weights,
    required_for_shift,
)

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


def paper_rounds(class_counts: ArrayLike, epsilon: ArrayLike, delta: ArrayLike, constants: Any) -> int | float:
    """Eq. (21) with i inside the maximum, to the nearest whole number and at least 1; inf if nothing limits it.

    It is the optimum of a balanced, privacy-limited fleet with the paper's sensitivity and accountant.
    """
    constants = LearningConstants.of(constants)
    weights = aggregation_weights(class_counts)
    stringency = privacy_stringency(class_counts, epsilon, delta)
    strictest = float(np.max(stringency * (weights**2).sum(axis=1)))
    # 24 η0² γ² L2² L1 = 4 η0 A2
    growth = 4 * constants.initial_lr * constants.noise_factor * strictest
    if growth == 0:
        return float("inf")
    mean_loss = constants.total_loss_bound(len(weights)) / len(weights)
    return max(1, int(np.floor(3 * mean_loss / growth + 0.5)))


def privacy_limited_rounds(class_counts: ArrayLike, required_in_one_round: FloatArray, constants: Any) -> float:
    """T̂ = 3Σf_max/(η0 A2 K Σ_k α_k req_k(1)): the continuous optimum when v = req in every round."""
    constants = LearningConstants.of(constants)
    noise = fleet_effective_noise(class_counts, required_in_one_round.max(axis=0))
    growth = constants.initial_lr * constants.noise_factor * float(noise)
    return 3 * constants.total_loss_bound(len(required_in_one_round)) / growth if growth > 0 else float("inf")


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
    objective = GapObjective(
        class_counts=np.asarray(class_counts, dtype=np.float64),
        mu=np.asarray(mu, dtype=np.float64),
        links=Links.of(class_counts, np.atleast_2d(channels), peak_power_w, channel_noise_var),
        constants=constants,
        model=model,
        trust=trust,
        relabel=relabel,
        dynamics=TrajectoryDynamics.of(constants if dynamics is None else dynamics),
        outage=outage,
    )
    return objective.best_rounds(max_rounds)


@dataclass(frozen=True)
class GapObjective:
    """Σ_iΩ_i as a function of the number of rounds, for one fleet and its channel draws."""

    class_counts: FloatArray
    mu: FloatArray
    links: Links
    constants: LearningConstants
    model: str
    trust: str
    relabel: bool = False
    dynamics: TrajectoryDynamics | None = None
    outage: float = DEFAULT_OUTAGE

    def with_constants_scaled(self, factor: float) -> GapObjective:
        """The same fleet if L1 and L2 were so many times as large."""
        constants = replace(
            self.constants,
            grad_lipschitz=factor * self.constants.grad_lipschitz,
            model_lipschitz=factor * self.constants.model_lipschitz,
        )
        return replace(self, constants=constants)

    @cached_property
    def _shift(self) -> AccumulatedShift:
        return AccumulatedShift(self.class_counts, self.model, self.dynamics)

    def required(self, num_rounds: int) -> FloatArray:
        """The counted noise that T rounds require, `[device, class]`."""
        shift = self._shift.after(num_rounds)
        return required_for_shift(shift, self.class_counts, self.mu, self.model, self.relabel)

    def gap(self, num_rounds: int) -> float:
        """Σ_iΩ_i after T rounds."""
        rule = trust_model(self.trust, self.links.channel_noise_var)
        noise_var = effective_noise_var(self.links, self.required(num_rounds), rule)
        per_draw = fleet_effective_noise(self.class_counts, noise_var)
        noise = float(per_draw[below_outage(per_draw, self.outage)].mean())
        return fleet_gap(num_rounds, self.constants, len(self.class_counts), noise)

    def privacy_limited_rounds(self) -> float:
        """T̂ of the closed form; infinite where nothing limits it, and for `trajectory`, which has none."""
        if self.model == "trajectory":
            return float("inf")
        return privacy_limited_rounds(self.class_counts, self.required(1), self.constants)

    def best_rounds(self, max_rounds: int) -> int:
        """Searched where the requirement grows linearly, for there the gap is convex in √T; scanned before that."""
        linear_from = self._shift.linear_from(max_rounds)
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
