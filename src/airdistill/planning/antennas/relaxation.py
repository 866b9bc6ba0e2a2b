"""The relaxation of receive combining: how good a combiner could be at best, with a proof.

In place of f, ‖f‖ = 1, any F ⪰ 0 with tr F = 1: the least Σ_k α_k max_i b_ik/(a_i^H F a_i), a convex problem. Its dual
has one number z_ik ≥ 0 for every device and class, and every choice of them proves a bound: with x_i = Σ_k z_ik and
s_k = Σ_i b_ik z_ik

    cost ≥ (Σ_k √(α_k s_k))² / λ_max(Σ_i x_i a_i a_i^H).

(For one class: 1/min over the simplex of λ_max.) An interior point goes along the dual's central path; F has thousands
of entries, z one for each pair of a device and a class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from airdistill.arrays import ComplexArray, FloatArray, IntArray

_FIRST_SHARPNESS = 0.5  # barriers over the cost
# Of the barrier's sharpness from stage to stage. With larger steps S comes so near to singular that Newton's steps,
# which can only double an eigenvalue, take hundreds to get away from there.
_GROWTH = 2.0
_CENTRED = 0.1  # half the squared Newton decrement at which a stage ends
_MOST_STEPS = 400
_BISECTIONS = 30
_LONGEST = 4.0  # step, in Newton's
_MOST_PAIRS = 600  # of those that weigh most; the others' z is zero, which is as good a proof
_ROUNDING = 1e-9  # relative: the bound must not come out too good by the rounding of eigenvalues


@dataclass(frozen=True)
class Relaxed:
    """F `[antenna, antenna]` of trace 1, and the cost that no F and so no combiner goes below."""

    covariance: ComplexArray
    bound: float


@dataclass(frozen=True)
class _Problem:
    """Channels a `[device, antenna]`, importance α `[class]`; of pairs `[pair]` device, class and burden b > 0."""

    channel: ComplexArray
    importance: FloatArray
    device: IntArray
    klass: IntArray
    burden: FloatArray

    @classmethod
    def of(cls, channel: ComplexArray, burden: FloatArray, importance: FloatArray) -> _Problem:
        weight = burden / (np.abs(channel) ** 2).sum(axis=1, keepdims=True)
        kept = burden > 0
        if kept.sum() > _MOST_PAIRS:
            heaviest = np.zeros_like(kept)
            heaviest.flat[np.argsort(weight, axis=None)[-_MOST_PAIRS:]] = True
            heaviest[weight.argmax(axis=0), np.arange(len(importance))] = True  # somebody of every class
            kept &= heaviest
        device, klass = np.nonzero(kept)
        return cls(channel, importance, device, klass, burden[kept])

    @property
    def num_barriers(self) -> int:
        return int(self.channel.shape[1]) + len(self.burden)

    def loads(self, duals: FloatArray) -> FloatArray:
        """x, `[device]`."""
        return np.bincount(self.device, duals, len(self.channel)).astype(np.float64)

    def shares(self, duals: FloatArray) -> FloatArray:
        """s, `[class]`."""
        return np.bincount(self.klass, self.burden * duals, len(self.importance)).astype(np.float64)

    def summed(self, duals: FloatArray) -> ComplexArray:
        """Σ_i x_i a_i a_i^H, `[antenna, antenna]`."""
        return np.asarray((self.channel.T * self.loads(duals)) @ self.channel.conj())

    def root(self, duals: FloatArray) -> float:
        """Σ_k √(α_k s_k)."""
        return float(np.sqrt(self.importance * self.shares(duals)).sum())


@dataclass(frozen=True)
class _Point:
    """t, and z `[pair]`."""

    level: float
    duals: FloatArray


def relax(channel: ComplexArray, burden: FloatArray, importance: FloatArray, accuracy: float = 3e-5) -> Relaxed:
    """Solves the relaxation to that relative accuracy; the bound holds whatever the accuracy.

    Channels `[device, antenna]`, burdens `[device, class]` and importance `[class]` as in `combining`; every class must
    be held by somebody, everybody must have a channel, and there must be no more antennas than devices.
    """
    problem = _Problem.of(channel, burden, importance)
    point, sharpness = _start(problem)
    centred, bound = point, 0.0
    for _ in range(_MOST_STEPS):
        stepped, decrement = _newton(problem, point, sharpness)
        if stepped is None:
            break  # rounding: the path ends here
        point = stepped
        if decrement > _CENTRED:
            continue
        centred, bound = point, max(bound, _bound(problem, point))
        if problem.num_barriers <= accuracy * sharpness * problem.root(point.duals):
            break
        sharpness *= _GROWTH
    inverse = np.asarray(np.linalg.inv(_slack(problem, centred)), dtype=np.complex128)
    covariance = (inverse + inverse.conj().T) / np.trace(inverse).real / 2
    return Relaxed(covariance, max(bound, _bound(problem, point)))


def _bound(problem: _Problem, point: _Point) -> float:
    return problem.root(point.duals) ** 2 / _top(problem, point.duals) * (1 - _ROUNDING)


def _start(problem: _Problem) -> tuple[_Point, float]:
    """The weaker a device the larger its duals, of the size at which their bound is best, well inside."""
    duals = (1 / (np.abs(problem.channel) ** 2).sum(axis=1))[problem.device]
    top = _top(problem, duals)
    # 2√c·A − cB is largest at c = (A/B)².
    size = (problem.root(duals) / top) ** 2
    return _Point(2 * size * top, size * duals), _FIRST_SHARPNESS * problem.num_barriers / (size * top)


def _top(problem: _Problem, duals: FloatArray) -> float:
    return float(np.linalg.eigvalsh(problem.summed(duals))[-1])


def _slack(problem: _Problem, point: _Point) -> ComplexArray:
    """S = tI − Σ_i x_i a_i a_i^H, `[antenna, antenna]`."""
    return np.asarray(point.level * np.eye(problem.channel.shape[1]) - problem.summed(point.duals))


def _newton(problem: _Problem, point: _Point, sharpness: float) -> tuple[_Point | None, float]:
    """A damped Newton step, in units of z, and half its squared decrement; None where rounding stops it."""
    inverse = np.linalg.inv(_slack(problem, point))
    through = problem.channel.conj() @ inverse  # a_i^H S^{-1}
    slope_x = np.einsum("in,in->i", through, problem.channel).real
    mixed = -(np.abs(through) ** 2).sum(axis=1)
    slope_t, curvature_t = sharpness - float(np.trace(inverse).real), float((np.abs(inverse) ** 2).sum())
    # Without t: it follows the duals.
    curvature_x = np.abs(through @ problem.channel.T) ** 2 - np.outer(mixed, mixed) / curvature_t
    slope_x = slope_x - mixed * (slope_t / curvature_t)
    shares, device, klass = problem.shares(point.duals), problem.device, problem.klass
    pull = sharpness * np.sqrt(problem.importance / shares)
    gradient = point.duals * (slope_x[device] - problem.burden * pull[klass]) - 1
    scaled = point.duals * problem.burden
    curvature = curvature_x[np.ix_(device, device)] * np.outer(point.duals, point.duals)
    curvature += np.outer(scaled, scaled) * ((0.5 * pull / shares)[klass] * (klass[:, None] == klass))
    curvature[np.diag_indices_from(curvature)] += 1
    try:
        relative = -cho_solve(cho_factor(curvature), gradient)
    except LinAlgError:
        return None, 0.0
    duals = point.duals * relative
    level = -(slope_t + float(mixed @ problem.loads(duals))) / curvature_t
    decrement = -0.5 * float(gradient @ relative) + 0.5 * slope_t**2 / curvature_t
    length = _best_length(problem, point, _Point(level, duals), relative, sharpness)
    if length is None or not decrement > 0:
        return None, 0.0
    return _Point(point.level + length * level, point.duals + length * duals), decrement


def _best_length(
    problem: _Problem, point: _Point, step: _Point, relative: FloatArray, sharpness: float
) -> float | None:
    """Where κ(t − 2Σ_k√(α_k s_k)) − log det S − Σ log z is least along the step; None if rounding hides it."""
    try:
        factor = np.linalg.inv(np.linalg.cholesky(_slack(problem, point)))
    except np.linalg.LinAlgError:
        return None
    turned = factor @ (step.level * np.eye(len(factor)) - problem.summed(step.duals)) @ factor.conj().T
    shrinks = np.concatenate([np.linalg.eigvalsh(turned), relative])
    shares, moved = problem.shares(point.duals), problem.shares(step.duals)

    def slope(length: float) -> float:
        root = np.sqrt(problem.importance / (shares + length * moved)) @ moved
        return float(sharpness * (step.level - root) - (shrinks / (1 + length * shrinks)).sum())

    low, high = 0.0, min(_LONGEST, (1 - 1e-6) / max(float(-shrinks.min()), 1e-300))
    if slope(low) >= 0:
        return None
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return low
