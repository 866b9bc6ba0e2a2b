"""The error of each receiver, as the planner foresees it; the filter's own recursion is shared with the receiver.

For a receiver with a bias, and with E_{i,t} = Σ_k (B_i^k/B_i) E‖r̂^k − q^k‖²,
Ω_i = 3f_max/(η0√T) + 6γ²L2² T^{-3/2} Σ_t √t E_{i,t}  (theory section 2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.privacy.sensitivity import SIMPLEX_DIAMETER

INITIAL_VARIANCE = 0.1  # per entry, of a guess of 1/K: a one-hot vector of ten classes is 0.09 away
LARGEST_SQUARED_ERROR = SIMPLEX_DIAMETER**2  # between two points of the simplex


def filter_gain(variance: FloatArray, noise_var: FloatArray) -> FloatArray:
    """g = p/(p + v), `[...]`: 1 where nothing is noisy, 0 where nothing was heard (v infinite)."""
    heard = np.isfinite(noise_var)
    total = variance + np.where(heard, noise_var, 0.0)
    gain = np.divide(variance, total, out=np.ones_like(total), where=total > 0)
    return np.where(heard, np.where(noise_var == 0, 1.0, gain), 0.0)


def filter_step(variance: FloatArray, noise_var: FloatArray, drift: float) -> tuple[FloatArray, FloatArray]:
    """One round of the scalar Riccati recursion: the gain, and the variance per entry after it."""
    before = variance + drift
    gain = filter_gain(before, noise_var)
    return gain, np.asarray((1 - gain) * before)


class ReceiverError(Protocol):
    """What a receiver makes of noise v and a bias, in squared error of a class's vector."""

    def weighted_sums(
        self, noise_vars: Sequence[FloatArray], squared_bias: FloatArray, num_rounds: Sequence[int], length: int
    ) -> FloatArray:
        """Σ_t √t E_t of every class for each T, `[candidate, class]`.

        `noise_vars` holds v `[draw, class]` for each T; the rounds meet the draws in turn. `length` is K.
        """

    def mean_error(self, noise_var: FloatArray, squared_bias: FloatArray, num_rounds: int, length: int) -> FloatArray:
        """E_t of every class, mean over T rounds, `[class]`."""


class ProjectedError:
    """Projection on the simplex brings no point of it further away, and leaves nothing more than its diameter."""

    def weighted_sums(
        self, noise_vars: Sequence[FloatArray], squared_bias: FloatArray, num_rounds: Sequence[int], length: int
    ) -> FloatArray:
        errors = [self.mean_error(noise_var, squared_bias, 1, length) for noise_var in noise_vars]
        roots = [np.sqrt(np.arange(1, rounds + 1)).sum() for rounds in num_rounds]
        return np.asarray(np.stack(errors) * np.array(roots)[:, None])

    def mean_error(
        self,
        noise_var: FloatArray,
        squared_bias: FloatArray,
        num_rounds: int,  # noqa: ARG002
        length: int,
    ) -> FloatArray:
        error = np.minimum(length * noise_var + squared_bias, LARGEST_SQUARED_ERROR)
        return np.asarray(error.mean(axis=0))


class TrackingError:
    """The filter's error from its Riccati recursion, before projection, for a drift that stays as it is given."""

    def __init__(self, drift: float) -> None:
        self.drift = drift

    def weighted_sums(
        self, noise_vars: Sequence[FloatArray], squared_bias: FloatArray, num_rounds: Sequence[int], length: int
    ) -> FloatArray:
        return self._played(noise_vars, squared_bias, num_rounds, length, np.sqrt)

    def mean_error(self, noise_var: FloatArray, squared_bias: FloatArray, num_rounds: int, length: int) -> FloatArray:
        played = self._played([noise_var], squared_bias, [num_rounds], length, lambda _: 1.0)
        return np.asarray(played[0] / num_rounds)

    def _played(
        self,
        noise_vars: Sequence[FloatArray],
        squared_bias: FloatArray,
        num_rounds: Sequence[int],
        length: int,
        importance: Callable[[float], float],
    ) -> FloatArray:
        """All T at once, round by round: each round is a few operations on `[candidate, class]`."""
        noise, limits = np.stack(noise_vars), np.asarray(num_rounds)[:, None]
        num_draws = noise.shape[1]
        variance = np.full((len(noise), noise.shape[2]), INITIAL_VARIANCE)
        sums = np.zeros_like(variance)
        for t in range(1, int(limits.max()) + 1):
            draw = (t - 1) % num_draws
            _, variance = filter_step(variance, noise[:, draw], self.drift)
            # Bias and noise are apart: a filter's weights sum to one at most, so that it averages squared biases.
            error = np.minimum(length * variance + squared_bias[draw], LARGEST_SQUARED_ERROR)
            sums += np.where(t <= limits, importance(t) * error, 0.0)
        return sums
