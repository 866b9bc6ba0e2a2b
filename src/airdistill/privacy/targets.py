"""Conversion between a device's (ε, δ) and the μ of its releases, and the ε that a planned run will have spent.

The conversion depends on the accountant (`exact` or `paper`) and on the noise: seeded noise is Gaussian, secure noise
is a sum of discrete Gaussians.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import FloatArray
from airdistill.privacy.concentrated import concentrated_epsilon, concentrated_mu
from airdistill.privacy.gaussian import gaussian_epsilon, gaussian_mu, paper_mu
from airdistill.privacy.groups import over_distinct
from airdistill.privacy.sensitivity import JOINT_MODELS, AccumulatedShift, Shift, TrajectoryDynamics

# Secure noise is drawn on a grid. Rounding to the grid raises a device's shift by at most this fraction, and plans
# reserve it.
ROUNDING = 1e-6
TOLERANCE = 1e-8  # relative, of ε: a ledger allows rounding of 1e-9 in μ²


def target_mu(epsilon: ArrayLike, delta: ArrayLike, accountant: str, noise: str = "seeded") -> FloatArray:
    """The μ that an accountant grants for the target (ε, δ), `[device]`."""
    exact = concentrated_mu if noise == "secure" else gaussian_mu
    rules: dict[str, Callable[[ArrayLike, ArrayLike], Any]] = {"exact": exact, "paper": paper_mu}
    if accountant not in rules:
        raise ValueError(f"accountant = {accountant!r}: must be one of {', '.join(rules)}")
    return np.atleast_1d(np.asarray(rules[accountant](epsilon, delta), dtype=np.float64))


def epsilon_of_mu(mu: ArrayLike, delta: ArrayLike, noise: str = "seeded") -> FloatArray:
    """The smallest valid ε, `[device]`: exact for Gaussian noise, by zCDP for sums of discrete Gaussians."""
    convert = concentrated_epsilon if noise == "secure" else gaussian_epsilon
    return np.atleast_1d(np.asarray(convert(mu, delta), dtype=np.float64))


def without_rounding(epsilon: FloatArray, target: ArrayLike) -> FloatArray:
    """ε or δ with the target in place of what exceeds it by rounding only: 3, not 3.000000000000001. `[device]`."""
    asked = np.asarray(target, dtype=np.float64)
    return np.where((epsilon > asked) & (epsilon <= asked * (1 + TOLERANCE)), asked, epsilon)


def paper_epsilon(mu: ArrayLike, delta: ArrayLike) -> FloatArray:
    """The ε that Theorem 2 assigns to μ: ε = μ√(2 ln(1/δ)), `[device]`."""
    return np.atleast_1d(np.asarray(mu, dtype=np.float64) * np.sqrt(2 * np.log(1 / np.asarray(delta))))


def spent_squared_mu(cost: FloatArray, model: str, relabel: bool) -> FloatArray:
    """μ² that each device has spent `[device]`, from the cost (w s)²/c of its classes `[device, class]`.

    One record moves one class. Per-class models therefore count the class of highest cost, or with `relabel` the two
    classes of highest cost; joint models count all classes.
    """
    if model in JOINT_MODELS:
        return np.asarray(cost.sum(axis=1))
    num_moved = min(2 if relabel else 1, cost.shape[1])
    return np.asarray(np.sort(cost, axis=1)[:, -num_moved:].sum(axis=1))


def epsilon_after(
    class_counts: ArrayLike,
    inverse_counted_noise: FloatArray,
    delta: FloatArray,
    num_rounds: int,
    model: str,
    relabel: bool = False,
    dynamics: TrajectoryDynamics | None = None,
) -> FloatArray:
    """The exact ε of every device after `num_rounds`, `[device]`.

    `inverse_counted_noise` `[device, class]` is the mean of 1/c over the rounds, because μ² is a sum of terms in 1/c.
    """
    shift = AccumulatedShift(class_counts, model, dynamics)
    return epsilon_of_shift(shift, inverse_counted_noise, delta, num_rounds, model, relabel)


def epsilon_of_shift(
    accumulated: Shift,
    inverse_counted_noise: FloatArray,
    delta: FloatArray,
    num_rounds: int,
    model: str,
    relabel: bool = False,
    noise: str = "seeded",
) -> FloatArray:
    """The same as `epsilon_after`, for any accumulated shift."""
    shift = accumulated.after(num_rounds)
    cost = shift * np.where(shift > 0, inverse_counted_noise, 0.0)
    mu = np.sqrt(spent_squared_mu(cost, model, relabel))
    return over_distinct(lambda each, at: epsilon_of_mu(each, at, noise), mu, np.broadcast_to(delta, mu.shape))
