"""The squared error that the planner predicts for each receiver, and the state model of the tracking receiver.

The gap of a biased receiver with E_{i,t} = Σ_k (B_i^k/B_i) E‖r̂^k − q^k‖² is
Ω_i = 3f_max/(η0√T) + 6γ²L2² T^{-3/2} Σ_t √t E_{i,t} (theory section 2).
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
    """Prior of one component of the class means: its variance per coordinate at the start, and its drift per round."""

    initial_variance: float
    drift: float


@dataclass(frozen=True)
class Parts:
    """State model of the tracking receiver: q^k = 1/K + (c + d_k) a_k + w_k, with a_k from 1/K towards class k.

    c is the confidence that all classes have in common; it moves most, and every class is an observation of it. d_k is
    the additional confidence of class k, and w_k, of K − 2 dimensions, is its confusion with other classes. (Entries
    sum to one, and so there is no further dimension.) A single filter would have to follow c, and could not average
    the slower components for as long.

    The confidence of a fleet that learns grows from round to round: c has a `trend` g, which changes slowly. Without a
    trend a filter would need a high gain, which passes noise, and would still lag.
    """

    common: Part
    own: Part
    rest: Part
    trend: Part = Part(0.0, 0.0)

    @classmethod
    def for_drift(cls, drift: float) -> Parts:
        """All drifts in proportion to one number; initial variances and drifts are about those of training on MNIST."""
        return cls(
            common=Part(0.1, 0.01 * drift),
            own=Part(0.003, 0.1 * drift),
            rest=Part(0.001, 0.01 * drift),
            trend=Part(0.1 * drift, 0.001 * drift),
        )


def filter_gain(variance: FloatArray, noise_var: FloatArray) -> FloatArray:
    """g = p/(p + v), `[...]`: 1 without noise, 0 if nothing was received (v infinite)."""
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
    """Noise variance of the observations of c, `[..., 1]`, and of d_k, `[..., class]`, from v `[..., class]`.

    c is observed by the mean over classes with weights 1/v, of variance V = 1/Σ_k(1/v_k), and d_k by the difference
    from this mean, of variance v_k − V. A single received class says nothing of d_k. This is the planner's
    approximation, for classes of similar noise.
    """
    information = np.divide(1.0, noise_var, out=np.full(noise_var.shape, np.inf), where=noise_var > 0)
    total = information.sum(axis=-1, keepdims=True)
    common = np.divide(1.0, total, out=np.full(total.shape, np.inf), where=total > 0)
    several = np.isfinite(noise_var).sum(axis=-1, keepdims=True) > 1
    received = np.isfinite(noise_var)
    differs = np.where(
        received, np.where(received, noise_var, 0.0) - np.where(np.isfinite(common), common, 0.0), np.inf
    )
    return common, np.where(several, np.maximum(differs, 0.0), np.inf)


class ReceiverError(Protocol):
    """The squared error of a class's vector after a receiver, from the received noise v and bias."""

    def weighted_sums(
        self, noise_vars: Sequence[FloatArray], squared_bias: FloatArray, num_rounds: Sequence[int], length: int
    ) -> FloatArray:
        """Σ_t √t E_t of every class for each T, `[candidate, class]`.

        `noise_vars` holds v `[draw, class]` for each T; the rounds use the draws in turn. `length` is K.
        """

    def mean_error(self, noise_var: FloatArray, squared_bias: FloatArray, num_rounds: int, length: int) -> FloatArray:
        """E_t of every class, mean over T rounds, `[class]`."""


class ProjectedError:
    """Projection onto the simplex, which increases no error; the diameter of the simplex bounds it."""

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
    """Tracking: the error of the filters from their Riccati recursions, before projection, for constant drifts."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def weighted_sums(
        self, noise_vars: Sequence[FloatArray], squared_bias: FloatArray, num_rounds: Sequence[int], length: int
    ) -> FloatArray:
        return self._simulated(noise_vars, squared_bias, num_rounds, length, power=0.5)

    def mean_error(self, noise_var: FloatArray, squared_bias: FloatArray, num_rounds: int, length: int) -> FloatArray:
        return np.asarray(self._simulated([noise_var], squared_bias, [num_rounds], length, power=0.0)[0] / num_rounds)

    def _simulated(
        self,
        noise_vars: Sequence[FloatArray],
        squared_bias: FloatArray,
        num_rounds: Sequence[int],
        length: int,
        power: float,
    ) -> FloatArray:
        """Σ_t t^power E_t for all T at once; every round is a few operations on `[candidate, class]`.

        A filter is in its steady state long before `_MOST_ROUNDS`: later rounds have the mean error of the last ones,
        one for each draw.
        """
        order = np.argsort(num_rounds)[::-1]  # the largest T first: those that a round still concerns are in front
        noise, limits = np.stack([noise_vars[place] for place in order], axis=1), np.asarray(num_rounds)[order]
        num_draws, state = len(noise), _Recursion(self.parts, noise, length)
        received_so_far = np.logical_or.accumulate(np.isfinite(noise), axis=0)
        all_received = np.all(received_so_far, axis=(1, 2))
        concerned = np.searchsorted(-limits, -np.arange(limits[0] + 1), side="right").tolist()
        sums, settled = np.zeros(noise.shape[1:]), np.zeros(noise.shape[1:])
        for t in range(1, min(int(limits[0]), _MOST_ROUNDS) + 1):
            draw, seen = (t - 1) % num_draws, min(t, num_draws) - 1
            # Bias and noise add up: a filter's weights sum to one at most, and so it averages squared biases.
            error = np.minimum(state.error_after(draw) + squared_bias[draw], LARGEST_SQUARED_ERROR)
            if not all_received[seen]:
                # A class that was never received has the largest error, whatever the filter's prior is.
                error = np.where(received_so_far[seen], error, LARGEST_SQUARED_ERROR)
            sums[: concerned[t]] += t**power * error[: concerned[t]]
            if t > _MOST_ROUNDS - num_draws:
                settled += error
        powers = _sum_of_powers(_MOST_ROUNDS, limits[:, None].astype(np.float64), power)
        found = np.empty_like(sums)
        found[order] = sums + powers * settled / num_draws
        return found


class _Recursion:
    """Variances per coordinate of c, d and w side by side, `[candidate, 1 + 2 class]`; of c's trend, and their
    covariance, `[candidate, 1]`.

    A plan simulates hundreds of thousands of rounds: what depends only on a draw's noise is computed once.
    """

    def __init__(self, parts: Parts, noise_var: FloatArray, length: int) -> None:
        """Start the recursion for noise `[draw, candidate, class]` and vectors of K entries."""
        common_noise, own_noise = noise_of_parts(noise_var)
        self._received = np.isfinite(common_noise).astype(np.float64)
        self._noise = np.concatenate([common_noise, own_noise, noise_var], axis=-1)
        self._has_noise = np.asarray((self._noise > 0).all(axis=(1, 2)))
        _, num_candidates, self._num_classes = noise_var.shape
        repeated = (parts.common, *[parts.own] * self._num_classes, *[parts.rest] * self._num_classes)
        self._drift = np.array([part.drift for part in repeated])
        self._variance = np.tile([part.initial_variance for part in repeated], (num_candidates, 1))
        self._dimensions = max(length - 2, 0)  # of w
        self._trend_drift = parts.trend.drift
        self._with_trend = np.zeros((num_candidates, 1))
        self._trend = np.full((num_candidates, 1), parts.trend.initial_variance)

    def error_after(self, draw: int) -> FloatArray:
        """The squared error of a class's vector after one more round with the noise of this draw, `[candidate, class]`.

        If anything is received: predict c ← c + g, then update c and g from the observation of c.
        """
        variance, received = self._variance, self._received[draw]
        variance[:, :1] += received * (2 * self._with_trend + self._trend)
        together = self._with_trend + received * self._trend
        before, noise = variance + self._drift, self._noise[draw]
        # As in `filter_step`; a division without a condition is several times as fast.
        gain = before / (before + noise) if self._has_noise[draw] else filter_gain(before, noise)
        rest = 1 - gain
        self._variance = after = rest * before
        self._trend = self._trend + self._trend_drift - gain[:, :1] * together**2 / before[:, :1]
        self._with_trend = rest[:, :1] * together
        own, confusion = after[:, 1 : self._num_classes + 1], after[:, self._num_classes + 1 :]
        return np.asarray(after[:, :1] + own + self._dimensions * confusion)


def _sum_of_powers(after: int, last: FloatArray, power: float) -> FloatArray:
    """Σ t^power over after < t ≤ last by the midpoint integral, which is accurate for thousands of terms."""
    ends = [(np.maximum(end, after) + 0.5) ** (power + 1) for end in (last, np.asarray(float(after)))]
    return np.asarray((ends[0] - ends[1]) / (power + 1))
