"""Receive combining: the combiner f, ‖f‖ = 1, of a server with several antennas, and a bound on its cost.

A combiner turns channels h_i `[antenna]` into scalars f^H h_i, for which a round is designed as for one antenna. The
weakest holder limits a class: 1/cap_k = max_i (w_i^k)²/(K P_i|f^H h_i|²). The cost of a combiner is therefore

    Σ_k α_k max_i b_ik/|f^H h_i|²,   b_ik = (w_i^k)²/P_i.

For one class this is the max-min problem max_f min_i |f^H h_i|²/b_i, which is NP-hard in general (multicast
beamforming). A semidefinite relaxation gives a lower bound on the cost. Its main direction and random draws from it are
refined by successive convex approximation, and the gap between the result and the bound is reported.

The approximation: around f0 the received power |a_i^H f|² is at least 2Re(f0^H a_i a_i^H f) − |a_i^H f0|², with
equality at f0. With this lower bound, minimising Σ_k α_k/τ_k under b_ik τ_k ≤ |a_i^H f|² and ‖f‖ ≤ 1 is convex. An
interior-point method solves it and updates the approximation at every Newton step: a step improves the true objective
at least as much as the approximation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from airdistill.arrays import BoolArray, ComplexArray, FloatArray, IntArray
from airdistill.planning.antennas.relaxation import Relaxed, relax

NUM_DRAWS = 200  # from the relaxation's covariance
NUM_STARTS = 12  # best ones of these and the main direction, which are refined
NUM_STRAY = 4  # further starts, independent of the relaxation
_ROUGH = 0.02  # relative accuracy to which all starts are refined
_FINALISTS = 4  # best ones of these, which are refined to full accuracy
_SAME = 12  # decimals to which the burdens of two classes must agree, up to a factor, to be one problem
_FIRST_GAP = 0.1  # relative gap of the first barrier; a larger one would forget the start
_GROWTH = 8.0  # of the barrier's sharpness from stage to stage
_STEPS_A_STAGE = 30  # at most; a stage ends when the objective falls by less than `_SETTLED`
_SETTLED = 0.02
_LENGTHS = (16.0, 8.0, 4.0, 2.0, 1.0, *(0.5**power for power in range(1, 12)))


@dataclass(frozen=True)
class Combiner:
    """f `[antenna]` of norm 1 and its cost; no combiner costs less than `bound`.

    `randomised_cost` is the cost of the best draw from the relaxation, before refinement. Costs are in units of b/|h|²;
    for one class with α = 1 the weakest signal |f^H h_i|²/b_i is 1/cost.
    """

    vector: ComplexArray
    cost: float
    bound: float
    randomised_cost: float

    @property
    def gap(self) -> float:
        """cost/bound − 1: how much better the best combiner could be at most."""
        return self.cost / self.bound - 1 if 0 < self.bound < np.inf else 0.0


def best_combiner(
    channel: ComplexArray,
    burden: FloatArray,
    importance: FloatArray,
    rng: np.random.Generator,
    num_starts: int = NUM_STARTS,
) -> Combiner:
    """One combiner for all classes: channels `[device, antenna]`, b `[device, class]` ≥ 0 (0: not held), α `[class]`.

    With one antenna f is exactly 1. A class with a holder that has no channel cannot be sent and does not influence f;
    the cost is then infinite.
    """
    num_antennas = channel.shape[1]
    if num_antennas == 1:
        cost = _cost(channel, burden, importance, np.ones(1, dtype=np.complex128))
        return Combiner(np.ones(1, dtype=np.complex128), cost, cost, cost)
    no_channel = np.asarray((channel == 0).all(axis=1))
    sendable = (burden > 0).any(axis=0) & ~(burden[no_channel] > 0).any(axis=0) & (importance > 0)
    holders = (burden[:, sendable] > 0).any(axis=1)
    if not holders.any():
        first = np.eye(num_antennas, dtype=np.complex128)[0]
        cost = _cost(channel, burden, importance, first)
        return Combiner(first, cost, cost, cost)
    kept = channel[holders], burden[np.ix_(holders, sendable)], importance[sendable]
    vector, randomised, bound = _solve(*kept, rng, num_starts)
    cost, drawn_cost = _cost(*kept, vector), _cost(*kept, randomised)
    if drawn_cost < cost:  # refinement can lose to rounding
        vector, cost = randomised, drawn_cost
    lost = np.inf if (importance[(burden[no_channel] > 0).any(axis=0)] > 0).any() else 0.0
    return Combiner(vector, cost + lost, bound + lost, drawn_cost + lost)


def combiner_of_each_class(
    channel: ComplexArray, burden: FloatArray, rng: np.random.Generator, num_starts: int = NUM_STARTS
) -> list[Combiner]:
    """A combiner for each class separately, from b `[device, class]`; proportional classes are solved once."""
    groups, sizes = _proportional_classes(burden)
    one = np.ones(1)
    found: dict[int, Combiner] = {}
    for group in np.unique(groups):
        first = int(np.argmax(groups == group))
        found[int(group)] = best_combiner(channel, burden[:, first : first + 1], one, rng, num_starts)
    firsts = [int(np.argmax(groups == group)) for group in groups]
    return [_resized(found[int(group)], sizes[klass], sizes[firsts[klass]]) for klass, group in enumerate(groups)]


def _resized(combiner: Combiner, size: float, of: float) -> Combiner:
    """The same combiner for burdens scaled from `of` to `size`."""
    factor = size / of if of > 0 else 1.0
    return Combiner(combiner.vector, factor * combiner.cost, factor * combiner.bound, factor * combiner.randomised_cost)


def _proportional_classes(burden: FloatArray) -> tuple[IntArray, FloatArray]:
    """Group classes whose burdens are equal up to a factor: the group `[class]` and the factor `[class]` of each."""
    sizes = burden.max(axis=0)
    shapes = np.round(burden / np.where(sizes > 0, sizes, 1.0), _SAME)
    return np.unique(shapes, axis=1, return_inverse=True)[1].reshape(-1), sizes


def _cost(channel: ComplexArray, burden: FloatArray, importance: FloatArray, vector: ComplexArray) -> float:
    return float(cost_of(channel, burden, importance, vector[None])[0])


def _solve(
    channel: ComplexArray, burden: FloatArray, importance: FloatArray, rng: np.random.Generator, num_starts: int
) -> tuple[ComplexArray, ComplexArray, float]:
    """The combiner, the best draw and the bound, found in normalised units with no more antennas than devices."""
    groups, sizes = _proportional_classes(burden)
    firsts = np.unique(groups, return_index=True)[1]
    merged = np.bincount(groups, importance * sizes / sizes[firsts][groups])
    basis = _basis(channel)
    heaviest = burden[:, firsts].max(axis=1)
    unit = (channel @ basis.conj()) / np.sqrt(heaviest)[:, None]
    size = float(np.sqrt((np.abs(unit) ** 2).sum(axis=1).min()))
    problem = unit / size, burden[:, firsts] / heaviest[:, None], merged / merged.sum()
    with _blas().limit(limits=1, user_api="blas"):
        relaxed = relax(*problem)
        starts, randomised = _starts(problem, relaxed, rng, num_starts)
        rough = refine(*problem, starts, accuracy=_ROUGH)
        finalists = rough[np.argsort(cost_of(*problem, rough), kind="stable")[:_FINALISTS]]
        refined = refine(*problem, refine(*problem, finalists))  # the second pass starts well inside
        tried = np.concatenate([starts, rough, refined])
        best = tried[int(np.argmin(cost_of(*problem, tried)))]
    bound = relaxed.bound * float(merged.sum()) / size**2
    return _normalised(basis @ best), _normalised(basis @ randomised), bound


@cache
def _blas() -> Any:
    """Controls BLAS threads: products this small are slower on many threads, up to eight times on a busy machine."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _normalised(vector: ComplexArray) -> ComplexArray:
    """Scale to norm 1 and make the largest entry real: the phase of a combiner is arbitrary."""
    largest = vector[int(np.argmax(np.abs(vector)))]
    return np.asarray(vector * (np.conj(largest) / np.abs(largest)) / np.linalg.norm(vector))


def _basis(channel: ComplexArray) -> ComplexArray:
    """Orthonormal columns that span all channels, `[antenna, direction]`: the best combiner is in their span."""
    num_devices, num_antennas = channel.shape
    if num_antennas <= num_devices:
        return np.eye(num_antennas, dtype=np.complex128)
    return np.asarray(np.linalg.qr(channel.T)[0])


def _starts(
    problem: tuple[ComplexArray, FloatArray, FloatArray], relaxed: Relaxed, rng: np.random.Generator, num_starts: int
) -> tuple[ComplexArray, ComplexArray]:
    """The starting points of the refinement, `[start, antenna]`, and the best one that the relaxation gives.

    Gaussian randomisation: f = F^{1/2}ξ has the power of the relaxation at every device on average.
    """
    size = problem[0].shape[1]
    values, directions = np.linalg.eigh(relaxed.covariance)
    root = directions * np.sqrt(np.maximum(values, 0.0))
    drawn, stray = (_gaussian(rng, count, size) for count in (NUM_DRAWS, NUM_STRAY))
    candidates = np.concatenate([directions[:, -1:].T, drawn @ root.T])
    costs = cost_of(*problem, candidates)
    best = np.argsort(costs, kind="stable")[:num_starts]
    feasible = np.isfinite(costs[best])
    return np.concatenate([candidates[best[feasible]], stray]), candidates[best[0]]


def _gaussian(rng: np.random.Generator, count: int, size: int) -> ComplexArray:
    return np.asarray(rng.standard_normal((count, size)) + 1j * rng.standard_normal((count, size)))


@dataclass(frozen=True)
class _Problem:
    """Channels a `[device, antenna]`; burdens b `[device, class]`; importance α `[class]`."""

    channel: ComplexArray
    burden: FloatArray
    importance: FloatArray

    def received(self, vectors: ComplexArray) -> ComplexArray:
        """a_i^H f, `[start, device]`."""
        return np.asarray(vectors @ self.channel.conj().T)

    def slack(self, power: FloatArray, levels: FloatArray) -> FloatArray:
        """|a_i^H f|² − b_ik τ_k, `[start, device, class]`; 1 for devices that do not hold the class."""
        slack = power[:, :, None] - self.burden * levels[:, None, :]
        return np.where(self.burden > 0, slack, 1.0)


def cost_of(channel: ComplexArray, burden: FloatArray, importance: FloatArray, vectors: ComplexArray) -> FloatArray:
    """Σ_k α_k max_i b_ik/|f^H a_i|² of combiners `[start, antenna]` scaled to norm 1, `[start]`."""
    power = np.abs(vectors @ channel.conj().T) ** 2 / (np.abs(vectors) ** 2).sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(burden > 0, burden / power[:, :, None], 0.0)
    return np.asarray(ratio.max(axis=1) @ importance)


def refine(
    channel: ComplexArray,
    burden: FloatArray,
    importance: FloatArray,
    starts: ComplexArray,
    accuracy: float = 1e-6,
) -> ComplexArray:
    """Refine all starts at once by successive convex approximation; combiners `[start, antenna]` of norm 1.

    Every class must have a holder, and every start must receive all devices that hold a class.
    """
    problem = _Problem(channel, burden, importance)
    vectors = 0.95 * starts / np.linalg.norm(starts, axis=1, keepdims=True)
    power = np.abs(problem.received(vectors)) ** 2
    with np.errstate(divide="ignore"):
        levels = 0.9 * np.where(burden > 0, power[:, :, None] / burden, np.inf).min(axis=1)
    num_barriers = (burden > 0).sum() + 1
    gap = _FIRST_GAP
    while gap > accuracy:
        sharpness = num_barriers / (gap * (importance / levels).sum(axis=1))
        for _ in range(_STEPS_A_STAGE):
            vectors, levels, fallen = _stepped(problem, vectors, levels, sharpness)
            if fallen.max() < _SETTLED:
                break
        gap /= _GROWTH
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def _objective(problem: _Problem, vectors: ComplexArray, levels: FloatArray, sharpness: FloatArray) -> FloatArray:
    """ω Σ_k α_k/τ_k − Σ log(|a_i^H f|² − b_ik τ_k) − log(1 − ‖f‖²), `[start]`; infinite outside."""
    slack = problem.slack(np.abs(problem.received(vectors)) ** 2, levels)
    norm_slack = 1 - (np.abs(vectors) ** 2).sum(axis=1)
    inside = (slack > 0).all(axis=(1, 2)) & (norm_slack > 0) & (levels > 0).all(axis=1)
    slack, norm_slack, levels = (_or_one(inside, values) for values in (slack, norm_slack, levels))
    value = sharpness * (problem.importance / levels).sum(axis=1) - np.log(slack).sum(axis=(1, 2)) - np.log(norm_slack)
    return np.where(inside, value, np.inf)


def _or_one(inside: BoolArray, values: FloatArray) -> FloatArray:
    return np.where(inside.reshape(-1, *[1] * (values.ndim - 1)), values, 1.0)


def _stepped(
    problem: _Problem, vectors: ComplexArray, levels: FloatArray, sharpness: FloatArray
) -> tuple[ComplexArray, FloatArray, FloatArray]:
    """One Newton step on the approximation around every start, and the decrease of the true objective.

    The approximation is conservative: longer steps are often better and are tried first.
    """
    now = best = _objective(problem, vectors, levels, sharpness)
    vector_step, level_step = _newton_step(problem, vectors, levels, sharpness)
    length = np.zeros((len(vectors), 1))
    for tried in _LENGTHS:
        if tried < 1 and (best < now).all():
            break
        value = _objective(problem, vectors + tried * vector_step, levels + tried * level_step, sharpness)
        length = np.where((value < best)[:, None], tried, length)
        best = np.minimum(value, best)
    return vectors + length * vector_step, levels + length * level_step, now - best


def _newton_step(
    problem: _Problem, vectors: ComplexArray, levels: FloatArray, sharpness: FloatArray
) -> tuple[ComplexArray, FloatArray]:
    """df `[start, antenna]` and dτ `[start, class]`.

    The variables are real: the real parts of f, its imaginary parts, then τ.
    """
    received = problem.received(vectors)
    inverse = np.where(problem.burden > 0, 1 / problem.slack(np.abs(received) ** 2, levels), 0.0)
    norm_slack = 1 - (np.abs(vectors) ** 2).sum(axis=1)
    # The gradient of 2Re(f0^H a a^H f) is 2 a (a^H f0).
    gradients = 2 * received[:, :, None] * problem.channel
    rows = np.concatenate([gradients.real, gradients.imag], axis=2)
    parts = np.concatenate([vectors.real, vectors.imag], axis=1)
    num, size = parts.shape
    weighted = problem.burden * inverse
    gradient = np.concatenate(
        [
            2 * parts / norm_slack[:, None] - np.einsum("si,sin->sn", inverse.sum(axis=2), rows),
            weighted.sum(axis=1) - sharpness[:, None] * problem.importance / levels**2,
        ],
        axis=1,
    )
    squares = inverse**2
    hessian = np.zeros((num, size + levels.shape[1], size + levels.shape[1]))
    hessian[:, :size, :size] = rows.transpose(0, 2, 1) @ (squares.sum(axis=2)[:, :, None] * rows)
    hessian[:, :size, :size] += (4 / norm_slack**2)[:, None, None] * (parts[:, :, None] * parts[:, None, :])
    hessian[:, range(size), range(size)] += (2 / norm_slack)[:, None]
    mixed = -rows.transpose(0, 2, 1) @ (problem.burden * squares)
    hessian[:, :size, size:], hessian[:, size:, :size] = mixed, mixed.transpose(0, 2, 1)
    classes = range(size, size + levels.shape[1])
    hessian[:, classes, classes] = (weighted**2).sum(axis=1)
    hessian[:, classes, classes] += 2 * sharpness[:, None] * problem.importance / levels**3
    step = -np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
    half = size // 2
    return step[:, :half] + 1j * step[:, half:size], step[:, size:]
