"""The semidefinite relaxation of receive combining: a lower bound on the cost of every combiner.

f f^H, ‖f‖ = 1, is relaxed to any F ⪰ 0 with tr F = 1. Minimising Σ_k α_k max_i b_ik/(a_i^H F a_i) is then convex. The
dual has one variable z_ik ≥ 0 for every device and class, and every choice of z gives a valid bound: with
x_i = Σ_k z_ik and s_k = Σ_i b_ik z_ik

    cost ≥ (Σ_k √(α_k s_k))² / λ_max(Σ_i x_i a_i a_i^H).

(For one class: 1/min over the simplex of λ_max.) An interior-point method follows the central path of the dual, which
has far fewer variables than F has entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from airdistill.arrays import ComplexArray, FloatArray, IntArray

_FIRST_SHARPNESS = 0.5  # barriers over the cost
# Growth of the barrier's sharpness from stage to stage. With faster growth S comes close to singular, and Newton steps,
# which can only double an eigenvalue, need hundreds of iterations to leave that region.
_GROWTH = 2.0
_CENTRED = 0.1  # half the squared Newton decrement at which a stage ends
_MOST_STEPS = 400
_BISECTIONS = 30
_LONGEST = 4.0  # step, in units of the Newton step
_MOST_PAIRS = 600  # heaviest pairs of device and class; z = 0 for the others, and the bound remains valid
_ROUNDING = 1e-9  # relative margin: the rounding of eigenvalues must not make the bound invalid


@dataclass(frozen=True)
class Relaxed:
    """F `[antenna, antenna]` of trace 1, and a lower bound on the cost of every F, and so of every combiner."""

    covariance: ComplexArray
    bound: float


@dataclass(frozen=True)
class _Problem:
    """Channels a `[device, antenna]`, importance α `[class]`; device, class and burden b > 0 of each pair, `[pair]`."""

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
            heaviest[weight.argmax(axis=0), np.arange(len(importance))] = True  # at least one holder of every class
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
    """Solve the relaxation to a relative accuracy; the bound is valid whatever the accuracy.

    Channels `[device, antenna]`, burdens `[device, class]` and importance `[class]` are those of `combining`. Every
    class must have a holder, every device a channel, and there must be no more antennas than devices.
    """
    problem = _Problem.of(channel, burden, importance)
    point, sharpness = _start(problem)
    centred, bound = point, 0.0
    for _ in range(_MOST_STEPS):
        stepped, decrement = _newton(problem, point, sharpness)
        if stepped is None:
            break  # rounding prevents further progress
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
    """A strictly feasible start: duals inversely proportional to channel power, scaled to their best bound."""
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
    """A damped Newton step, in units of z, and half its squared decrement; None if rounding prevents it."""
    inverse = np.linalg.inv(_slack(problem, point))
    through = problem.channel.conj() @ inverse  # a_i^H S^{-1}
    gradient_x = np.einsum("in,in->i", through, problem.channel).real
    mixed = -(np.abs(through) ** 2).sum(axis=1)
    gradient_t, curvature_t = sharpness - float(np.trace(inverse).real), float((np.abs(inverse) ** 2).sum())
    # t is eliminated: its step follows from that of the duals.
    curvature_x = np.abs(through @ problem.channel.T) ** 2 - np.outer(mixed, mixed) / curvature_t
    gradient_x = gradient_x - mixed * (gradient_t / curvature_t)
    shares, device, klass = problem.shares(point.duals), problem.device, problem.klass
    pull = sharpness * np.sqrt(problem.importance / shares)
    gradient = point.duals * (gradient_x[device] - problem.burden * pull[klass]) - 1
    scaled = point.duals * problem.burden
    curvature = curvature_x[np.ix_(device, device)] * np.outer(point.duals, point.duals)
    curvature += np.outer(scaled, scaled) * ((0.5 * pull / shares)[klass] * (klass[:, None] == klass))
    curvature[np.diag_indices_from(curvature)] += 1
    try:
        relative = -cho_solve(cho_factor(curvature), gradient)
    except LinAlgError:
        return None, 0.0
    duals = point.duals * relative
    level = -(gradient_t + float(mixed @ problem.loads(duals))) / curvature_t
    decrement = -0.5 * float(gradient @ relative) + 0.5 * gradient_t**2 / curvature_t
    length = _best_length(problem, point, _Point(level, duals), relative, sharpness)
    if length is None or not decrement > 0:
        return None, 0.0
    return _Point(point.level + length * level, point.duals + length * duals), decrement


def _best_length(
    problem: _Problem, point: _Point, step: _Point, relative: FloatArray, sharpness: float
) -> float | None:
    """The step length that minimises κ(t − 2Σ_k√(α_k s_k)) − log det S − Σ log z; None if rounding prevents it."""
    try:
        factor = np.linalg.inv(np.linalg.cholesky(_slack(problem, point)))
    except np.linalg.LinAlgError:
        return None
    turned = factor @ (step.level * np.eye(len(factor)) - problem.summed(step.duals)) @ factor.conj().T
    rates = np.concatenate([np.linalg.eigvalsh(turned), relative])
    shares, moved = problem.shares(point.duals), problem.shares(step.duals)

    def derivative(length: float) -> float:
        root = np.sqrt(problem.importance / (shares + length * moved)) @ moved
        return float(sharpness * (step.level - root) - (rates / (1 + length * rates)).sum())

    low, high = 0.0, min(_LONGEST, (1 - 1e-6) / max(float(-rates.min()), 1e-300))
    if derivative(low) >= 0:
        return None
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if derivative(middle) < 0 else (low, middle)
    return low
