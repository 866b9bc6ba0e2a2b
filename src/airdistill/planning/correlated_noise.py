"""The matrix of correlated noise for a number of rounds, and the error of the model that it predicts.

A model is a sum over rounds, and so its error is that of Σ_{s≤t} n_s. At equal privacy the mean over t of that variance
is L(E) = S(E) · mean_t ‖row t of A E⁻¹‖², with A the lower triangle of ones and S = Σ_t (Σ_s e_{t−s} p_s)² for a device
that joins rounds p. E minimises L: over banded Toeplitz matrices (BandMF), or over sums of exponentials (BLT).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from scipy.optimize import minimize

from airdistill.arrays import FloatArray
from airdistill.privacy.correlation import Correlation

_BANDS_OF_EVERYONE = 8  # with all devices in every round; with cycles a device has as many bands as rounds in a cycle
_MOST_BUFFERS = 3
_WORTH_A_BUFFER = 1e-3  # of ln L; a buffer is as much memory as a vector, on every device
_LARGEST_DECAY = 0.9999
_DIGITS = 6  # of the matrix: the last bits of a search depend on the processor


@lru_cache(maxsize=64)
def best_correlation(kind: str, num_rounds: int, cycle: int = 1) -> Correlation:
    """The best matrix of that kind for T rounds of which a device joins every `cycle`-th one."""
    joined = np.zeros(num_rounds)
    joined[::cycle] = 1.0
    if num_rounds == 1:
        return Correlation(kind, ())
    weights, decays = _best_banded(joined, cycle) if kind == "banded" else _best_buffered(joined)
    return Correlation(kind, _rounded(weights), _rounded(decays))


def _rounded(values: FloatArray) -> tuple[float, ...]:
    return tuple(float(np.round(value, _DIGITS)) for value in values)


def _best_banded(joined: FloatArray, cycle: int) -> tuple[FloatArray, FloatArray]:
    num_bands = min(len(joined), cycle if cycle > 1 else _BANDS_OF_EVERYONE)
    later = np.arange(1, num_bands)
    square_root = np.asarray(
        np.cumprod((2 * later - 1) / (2 * later)), dtype=np.float64
    )  # the square root of A, arXiv 2202.11205
    weights = _minimised(lambda x: _log_loss(np.append(1.0, x), joined), square_root, [(0.0, None)] * len(later))
    kept = np.flatnonzero(np.round(weights, _DIGITS))
    return weights[: kept[-1] + 1 if len(kept) else 0], np.zeros(0)


def _best_buffered(joined: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The fewest buffers to which one more adds nothing."""
    least, best = _with_buffers(joined, 1)
    for count in range(2, _MOST_BUFFERS + 1):
        loss, found = _with_buffers(joined, count)
        if loss > least - _WORTH_A_BUFFER:
            break
        least, best = loss, found
    weights, decays = np.split(best, 2)
    used = np.round(weights, _DIGITS) > 0
    return weights[used], decays[used]


def _with_buffers(joined: FloatArray, count: int) -> tuple[float, FloatArray]:
    """The least ln L, and the weights and decays that have it."""
    num_rounds, power = len(joined), np.arange(len(joined) - 1)

    def log_loss(x: FloatArray) -> tuple[float, FloatArray]:
        weights, decays = np.split(x, 2)
        powers = decays[:, None] ** power
        value, gradient = _log_loss(np.append(1.0, weights @ powers), joined)
        by_decay = np.zeros_like(powers)  # of the powers
        by_decay[:, 1:] = power[1:] * powers[:, :-1]
        return value, np.append(powers @ gradient, weights * (by_decay @ gradient))

    slowest = min(1 - 1 / num_rounds, _LARGEST_DECAY)
    start = np.append(np.full(count, 0.5 / count), 1 - np.geomspace(0.5, 1 - slowest, count))
    found = _minimised(log_loss, start, [*[(0.0, None)] * count, *[(0.0, _LARGEST_DECAY)] * count])
    return log_loss(found)[0], found


def _minimised(
    log_loss: Callable[[FloatArray], tuple[float, FloatArray]],
    start: FloatArray,
    limits: Sequence[tuple[float, float | None]],
) -> FloatArray:
    found = minimize(log_loss, start, jac=True, method="L-BFGS-B", bounds=limits, options={"maxiter": 1000})
    return np.asarray(found.x)


def _log_loss(coefficients: FloatArray, joined: FloatArray) -> tuple[float, FloatArray]:
    """ln L and its derivatives by e_1, e_2, …, from e_0, e_1, … of at most T entries."""
    from scipy.signal import lfilter

    num_rounds, bands = len(joined), len(coefficients)
    remaining = 1 - np.arange(num_rounds) / num_rounds
    sums = lfilter([1.0], coefficients, np.ones(num_rounds))  # the first column of A E⁻¹
    error = float(sums**2 @ remaining)
    back = lfilter([1.0], coefficients, (2 * sums * remaining)[::-1])[::-1]
    revealed = np.convolve(coefficients, joined)[:num_rounds]
    squared = float(revealed @ revealed)
    by_lag = [(back[k:] @ sums[: num_rounds - k], revealed[k:] @ joined[: num_rounds - k]) for k in range(1, bands)]
    gradients = np.array(by_lag).reshape(-1, 2)
    return float(np.log(error) + np.log(squared)), -gradients[:, 0] / error + 2 * gradients[:, 1] / squared


def prefix_variance(correlation: Correlation, step_sizes: FloatArray) -> FloatArray:
    """The variance of Σ_{s≤t} (η_s/η_1) n_s for new noise of variance 1, `[round]`, from η `[round]`."""
    relative, noise = step_sizes / step_sizes[0], correlation.noise_coefficients(len(step_sizes))
    found = np.zeros(len(relative))
    for start in range(len(relative)):  # the part of the new noise of one round
        found[start:] += np.cumsum(relative[start:] * noise[: len(noise) - start]) ** 2
    return found
