"""Conversion between (ε, δ) and the parameter μ of Gaussian differential privacy.

A mechanism with L2 sensitivity Δ and Gaussian noise of standard deviation σ is μ-Gaussian-DP with μ = Δ/σ; rounds
compose as μ² = Σ μ_t². It is (ε, δ)-DP for exactly the pairs on the curve

    δ(ε, μ) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2).

With Mills' ratio R(x) = (1 − Φ(x))/φ(x) and e^ε φ(−ε/μ − μ/2) = φ(−ε/μ + μ/2) this is

    δ = φ(x) (R(x) − R(x + μ)),   x = ε/μ − μ/2,

which keeps full precision for tiny δ and does not overflow in e^ε.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erfcx, ndtr

from airdistill.arrays import FloatArray

_LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)
_MAX_STEPS = 200


def gaussian_mu(epsilon: ArrayLike, delta: ArrayLike) -> Any:
    """The largest μ that is (ε, δ)-DP; a float for numbers, an array for arrays. ε = inf gives inf."""
    epsilon, delta = checked(epsilon, delta, "epsilon")
    finite = np.isfinite(epsilon)
    eps = np.where(finite, epsilon, 1.0)

    def excess(log_mu: FloatArray) -> tuple[FloatArray, FloatArray]:
        mu = np.exp(log_mu)
        log_delta, ratio_gap, _ = _log_delta(eps, mu)
        # ∂δ/∂μ = φ(x), and so ∂ log δ/∂ log μ = μ/(R(x) − R(x + μ)).
        return log_delta - np.log(delta), mu / ratio_gap

    low = np.full(eps.shape, np.log(1e-3)) + np.log(np.minimum(eps, 1.0))
    high = np.full(eps.shape, np.log(10.0)) + 0.5 * np.log1p(eps)
    return unwrap(np.where(finite, np.exp(increasing_root(excess, low, high)), np.inf))


def gaussian_epsilon(mu: ArrayLike, delta: ArrayLike) -> Any:
    """The smallest ε ≥ 0 for which a μ-Gaussian-DP mechanism is (ε, δ)-DP. μ = 0 gives 0, μ = inf gives inf."""
    mu, delta = checked(mu, delta, "mu", zero_allowed=True)
    # δ(0, μ) = 2Φ(μ/2) − 1: if that is at most the target, ε = 0 suffices.
    free = 2 * ndtr(mu / 2) - 1 <= delta
    ordinary = ~free & np.isfinite(mu)
    m = np.where(ordinary, mu, 1.0)

    def excess(log_epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        epsilon = np.exp(log_epsilon)
        log_delta, ratio_gap, far_ratio = _log_delta(epsilon, m)
        # −∂ log δ/∂ log ε = ε R(x + μ)/(R(x) − R(x + μ)).
        return np.log(delta) - log_delta, epsilon * far_ratio / ratio_gap

    # ε = μ²/2 + μ√(2 ln 1/δ) is always enough.
    high = np.log(m * m / 2 + m * np.sqrt(2 * np.log(1 / delta)) + 1e-12)
    low = np.full(m.shape, np.log(1e-15))
    # Take the bracket's upper end: it is never below the true ε.
    epsilon = np.exp(increasing_root(excess, low, high, take_upper=True))
    return unwrap(np.where(ordinary, epsilon, np.where(free, 0.0, np.inf)))


def gaussian_delta(epsilon: ArrayLike, mu: ArrayLike) -> Any:
    """The smallest δ ≥ 0 for which a μ-Gaussian-DP mechanism is (ε, δ)-DP, ε ≥ 0. μ = 0 gives 0, μ = inf gives 1."""
    eps, size = np.broadcast_arrays(np.asarray(epsilon, dtype=np.float64), np.asarray(mu, dtype=np.float64))
    if not (np.all(eps >= 0) and np.all(size >= 0)):
        raise ValueError("epsilon and mu: must not be negative")
    ordinary = (size > 0) & np.isfinite(size) & np.isfinite(eps)
    with np.errstate(all="ignore"):
        log_delta, _, _ = _log_delta(np.where(ordinary, eps, 1.0), np.where(ordinary, size, 1.0))
    # Deep in the tail the difference of two Mills ratios may round to zero or below: δ is then negligible.
    delta = np.exp(np.where(np.isnan(log_delta), -np.inf, np.minimum(log_delta, 0.0)))
    return unwrap(np.where(ordinary, delta, np.where(np.isinf(size) & np.isfinite(eps), 1.0, 0.0)))


def paper_mu(epsilon: ArrayLike, delta: ArrayLike) -> Any:
    """Theorem 2: μ = ε/√(2 ln(1/δ)). Conservative for small ε; not valid above 7 (δ = 1e-3) to 10 (δ = 1e-11)."""
    epsilon, delta = checked(epsilon, delta, "epsilon")
    return unwrap(epsilon / np.sqrt(2 * np.log(1 / delta)))


def _log_delta(epsilon: FloatArray, mu: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """log δ(ε, μ), and the two terms of its derivatives: R(x) − R(x + μ) and R(x + μ)."""
    near = epsilon / mu - mu / 2
    far_ratio = _mills(near + mu)
    ratio_gap = _mills(near) - far_ratio
    in_tail = -0.5 * near * near - _LOG_SQRT_2PI + np.log(ratio_gap)
    # For negative x, R(x) soon overflows, but δ is then near 1/2 or more and the direct form keeps full precision.
    direct = np.log(ndtr(-near) - np.exp(-0.5 * near * near - _LOG_SQRT_2PI) * far_ratio)
    return np.where(near > 0, in_tail, direct), ratio_gap, far_ratio


def _mills(x: FloatArray) -> FloatArray:
    return np.asarray(np.sqrt(np.pi / 2) * erfcx(x / np.sqrt(2)), dtype=np.float64)


def increasing_root(
    excess: Callable[[FloatArray], tuple[FloatArray, FloatArray]],
    low: FloatArray,
    high: FloatArray,
    take_upper: bool = False,
) -> FloatArray:
    """Root of an increasing function: Newton steps, kept inside a bracket that bisection shrinks.

    `excess` returns value and derivative. The result is the lower end of the last bracket, or the upper end with
    `take_upper`, so that the caller can round to the safe side.
    """
    low, high = _widened(excess, low, high)
    guess = 0.5 * (low + high)
    for _ in range(_MAX_STEPS):
        value, derivative = _quietly(excess, guess)
        low, high = np.where(value <= 0, guess, low), np.where(value > 0, guess, high)
        if np.all(high - low <= 4e-16 * np.maximum(1.0, np.abs(low) + np.abs(high))):
            break
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # Go slightly beyond Newton's point: the root is then bracketed from both sides.
            step = -value / derivative
            newton = guess + step + np.copysign(1e-14, step)
        inside = (newton > low) & (newton < high)
        guess = np.where(inside, newton, 0.5 * (low + high))
    return high if take_upper else low


def _quietly(
    excess: Callable[[FloatArray], tuple[FloatArray, FloatArray]], point: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Evaluate without warnings: far from the root the value may be infinite and the derivative NaN."""
    with np.errstate(all="ignore"):
        return excess(point)


def _widened(
    excess: Callable[[FloatArray], tuple[FloatArray, FloatArray]], low: FloatArray, high: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Move the ends outwards until they bracket the root."""
    for _ in range(_MAX_STEPS):
        too_high = _quietly(excess, low)[0] > 0
        too_low = _quietly(excess, high)[0] < 0
        if not (too_high.any() or too_low.any()):
            break
        low, high = np.where(too_high, low - 1.0, low), np.where(too_low, high + 1.0, high)
    return low, high


def checked(
    parameter: ArrayLike, delta: ArrayLike, name: str, zero_allowed: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Both as arrays of one shape; `ValueError` if a value is out of range."""
    parameter, delta = np.broadcast_arrays(np.asarray(parameter, dtype=np.float64), np.asarray(delta, dtype=np.float64))
    fits = parameter >= 0 if zero_allowed else parameter > 0
    if not np.all(fits):
        worst = parameter[~fits].flat[0]
        raise ValueError(f"{name} = {worst}: must be {'at least' if zero_allowed else 'greater than'} 0")
    if not np.all((delta > 0) & (delta < 1)):
        raise ValueError(f"delta = {delta[~((delta > 0) & (delta < 1))].flat[0]}: must lie strictly between 0 and 1")
    return parameter, delta


def unwrap(values: FloatArray) -> Any:
    """A float for an array without dimensions, else the array."""
    return float(values) if values.ndim == 0 else values
