"""Knowledge in parts, as the tracking receiver filters it, and the error of each receiver, as the planner foresees it.

For a receiver with a bias, and with E_{i,t} = Σ_k (B_i^k/B_i) E‖r̂^k − q^k‖²,
Ω_i = 3f_max/(η0√T) + 6γ²L2² T^{-3/2} Σ_t √t E_{i,t}  (theory section 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.privacy.sensitivity import SIMPLEX_DIAMETER

_MOST_ROUNDS = 4000
LARGEST_SQUARED_ERROR = SIMPLEX_DIAMETER**2  # between two points of the simplex


@dataclass(frozen=True)
class Part:
    """What a filter first thinks of a part of the knowledge: variances of a coordinate, at the start and by a round."""

    initial_variance: float
    drift: float


@dataclass(frozen=True)
class Parts:
    """Knowledge as the tracking receiver sees it: q^k = 1/K + (c + d_k) a_k + w_k, with a_k from 1/K towards class k.

    c, how sure the fleet is, is common to all classes and moves most; all of them tell of it. d_k is what class k is
    surer by, and w_k, of K − 2 dimensions, what it is taken for instead. (Entries sum to one, so that nothing is left
    along that direction.) One filter for all would have to follow c, and could not average the rest for so long.

    A fleet that learns grows surer round by round: c has a `trend` g, by which it moves besides its drift, and which
    itself changes slowly. Without one a filter has to believe quickly what it hears, noise and all, and still lags.
    """

    common: Part
    own: Part
    rest: Part
    trend: Part = Part(0.0, 0.0)

    @classmethod
    def for_drift(cls, drift: float) -> Parts:
        """All drifts in proportion to one number; they and the first variances are about those of MNIST in training."""
        return cls(
            common=Part(0.1, 0.01 * drift),
            own=Part(0.003, 0.1 * drift),
            rest=Part(0.001, 0.01 * drift),
            trend=Part(0.1 * drift, 0.001 * drift),
        )


def filter_gain(variance: FloatArray, noise_var: FloatArray) -> FloatArray:
    """g = p/(p + v), `[...]`: 1 where nothing is noisy, 0 where nothing was heard (v infinite)."""
    total = variance + noise_var
    return np.divide(variance, total, out=np.ones(total.shape), where=total > 0)


def filter_step(
    variance: FloatArray, noise_var: FloatArray, drift: float | FloatArray
) -> tuple[FloatArray, FloatArray]:
    """One round of the scalar Riccati recursion: the gain, and the variance of a coordinate after it."""
    before = variance + drift
    gain = filter_gain(before, noise_var)
    return gain, (1 - gain) * before


def noise_of_parts(noise_var: FloatArray) -> tuple[FloatArray, FloatArray]:
    """From v `[..., class]`: of the weighted mean by which c is seen, `[..., 1]`, and of how classes differ from it.

    With weights 1/v the mean has variance V = 1/Σ_k(1/v_k), and a class's own difference v_k − V; a class that is heard
    alone differs from nothing. It is how the planner sees it, for classes of about the same noise.
    """
    information = np.divide(1.0, noise_var, out=np.full(noise_var.shape, np.inf), where=noise_var > 0)
    total = information.sum(axis=-1, keepdims=True)
    common = np.divide(1.0, total, out=np.full(total.shape, np.inf), where=total > 0)
    several = np.isfinite(noise_var).sum(axis=-1, keepdims=True) > 1
    heard = np.isfinite(noise_var)
    differs = np.where(heard, np.where(heard, noise_var, 0.0) - np.where(np.isfinite(common), common, 0.0), np.inf)
    return common, np.where(several, np.maximum(differs, 0.0), np.inf)


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
    """The filters' error from their Riccati recursions, before projection, for drifts that stay as they are given."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def weighted_sums(
        self, noise_vars: Sequence[FloatArray], squared_bias: FloatArray, num_rounds: Sequence[int], length: int
    ) -> FloatArray:
        return self._played(noise_vars, squared_bias, num_rounds, length, power=0.5)

    def mean_error(self, noise_var: FloatArray, squared_bias: FloatArray, num_rounds: int, length: int) -> FloatArray:
        return np.asarray(self._played([noise_var], squared_bias, [num_rounds], length, power=0.0)[0] / num_rounds)

    def _played(
        self,
        noise_vars: Sequence[FloatArray],
        squared_bias: FloatArray,
        num_rounds: Sequence[int],
        length: int,
        power: float,
    ) -> FloatArray:
        """Σ_t t^power E_t for all T at once, round by round: a round is a few operations on `[candidate, class]`.

        A filter has settled long before `_MOST_ROUNDS`; rounds beyond are like the last ones, mean over all draws.
        """
        noise, limits = np.stack(noise_vars, axis=1), np.asarray(num_rounds, dtype=np.float64)[:, None]
        num_draws, state = len(noise), _Recursion(self.parts, noise, length)
        heard_by_now = np.logical_or.accumulate(np.isfinite(noise), axis=0)
        sums, settled = np.zeros(noise.shape[1:]), np.zeros(noise.shape[1:])
        for t in range(1, min(int(limits.max()), _MOST_ROUNDS) + 1):
            draw = (t - 1) % num_draws
            # Bias and noise are apart: a filter's weights sum to one at most, so that it averages squared biases.
            error = np.minimum(state.error_after(draw) + squared_bias[draw], LARGEST_SQUARED_ERROR)
            # Of a class that nobody has ever heard of nothing is known, whatever the filter thinks.
            error = np.where(heard_by_now[min(t, num_draws) - 1], error, LARGEST_SQUARED_ERROR)
            sums += np.where(t <= limits, t**power * error, 0.0)
            if t > _MOST_ROUNDS - num_draws:
                settled += error
        return np.asarray(sums + _sum_of_powers(_MOST_ROUNDS, limits, power) * settled / num_draws)


class _Recursion:
    """Variances of a coordinate of each part: of c, `[candidate, 1]`, and of d and w together, `[2, candidate, class]`.

    Beside c's variance stand its trend's and the covariance of the two. A plan plays hundreds of thousands of rounds:
    what follows from a draw's noise alone is found once and not in every round that meets it.
    """

    def __init__(self, parts: Parts, noise_var: FloatArray, length: int) -> None:
        """For rounds of noise `[draw, candidate, class]` and vectors of K entries."""
        self._parts = parts
        self._common_noise, own_noise = noise_of_parts(noise_var)
        self._heard = np.isfinite(self._common_noise).astype(np.float64)
        self._noise = np.stack([own_noise, noise_var], axis=1)
        self._drift = np.array([parts.own.drift, parts.rest.drift])[:, None, None]
        self._dimensions = max(length - 2, 0)  # of w
        candidates, shape = (noise_var.shape[1], 1), noise_var.shape[1:]
        self._common = np.full(candidates, parts.common.initial_variance)
        self._with_trend = np.zeros(candidates)
        self._trend = np.full(candidates, parts.trend.initial_variance)
        self._apart = np.stack([np.full(shape, part.initial_variance) for part in (parts.own, parts.rest)])

    def error_after(self, draw: int) -> FloatArray:
        """Of a class's whole vector, squared, `[candidate, class]`, after one more round, with the noise of this draw.

        c ← c + g with variances as follow from it, where anything is heard; then what is heard of c tells of g.
        """
        parts, heard = self._parts, self._heard[draw]
        moved = self._common + heard * (2 * self._with_trend + self._trend)
        together = self._with_trend + heard * self._trend
        gain, self._common = filter_step(moved, self._common_noise[draw], parts.common.drift)
        self._trend = self._trend + parts.trend.drift - gain * together**2 / (moved + parts.common.drift)
        self._with_trend = (1 - gain) * together
        _, self._apart = filter_step(self._apart, self._noise[draw], self._drift)
        return np.asarray(self._common + self._apart[0] + self._dimensions * self._apart[1])


def _sum_of_powers(after: int, last: FloatArray, power: float) -> FloatArray:
    """Σ t^power over after < t ≤ last, by the midpoints' integral; for thousands of terms as good as exact."""
    ends = [(np.maximum(end, after) + 0.5) ** (power + 1) for end in (last, np.asarray(float(after)))]
    return np.asarray((ends[0] - ends[1]) / (power + 1))
