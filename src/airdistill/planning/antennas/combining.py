"""Receive combining: which f, ‖f‖ = 1, makes the most of several antennas at the server.

A combiner turns channels h_i `[antenna]` into scalars f^H h_i, with which a round is designed as with one antenna. What
limits a class is its weakest holder: 1/cap_k = max_i (w_i^k)²/(K P_i|f^H h_i|²). So that a combiner's cost is

    Σ_k α_k max_i b_ik/|f^H h_i|²,   b_ik = (w_i^k)²/P_i,

for one class and any α the max-min problem max_f min_i |f^H h_i|²/b_i. This is hard in general (NP-hard multicast
beamforming): a relaxation says how good the best can be, random draws from it and its main direction are refined by
successive convex approximation, and what is left between the result and the bound is reported.

Successive convex approximation of receive combining: from a good combiner to the best one near it.

Around f0 the received power |a_i^H f|² is never below 2Re(f0^H a_i a_i^H f) − |a_i^H f0|², and touches it at f0. With
that in its place Σ_k α_k/τ_k, b_ik τ_k ≤ |a_i^H f|², ‖f‖ ≤ 1 is convex. It is solved by an interior point that
approximates anew at every Newton step: what the step gains on the approximation it gains on the truth at least.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from airdistill.arrays import BoolArray, ComplexArray, FloatArray, IntArray
from airdistill.planning.antennas.relaxation import Relaxed, relax

NUM_DRAWS = 200  # from the relaxation's covariance
NUM_STARTS = 12  # of them and the main direction that are refined
NUM_STRAY = 4  # starts besides that know nothing of the relaxation
_ROUGH = 0.02  # relative accuracy to which all starts are refined
_FINALISTS = 4  # of them that are refined to the end
_SAME = 12  # decimals to which two classes' burdens must agree, up to a factor, to be one


@dataclass(frozen=True)
class Combiner:
    """f `[antenna]` of norm 1 and what it costs; no combiner costs less than `bound`.

    `randomised_cost` is that of the best draw from the relaxation, before any refinement. All in units of b/|h|²; for
    one class the best worst signal |f^H h_i|²/b_i is 1/cost with α = 1.
    """

    vector: ComplexArray
    cost: float
    bound: float
    randomised_cost: float

    @property
    def gap(self) -> float:
        """cost/bound − 1: what is unknown about the best combiner."""
        return self.cost / self.bound - 1 if 0 < self.bound < np.inf else 0.0


def best_combiner(
    channel: ComplexArray,
    burden: FloatArray,
    importance: FloatArray,
    rng: np.random.Generator,
    num_starts: int = NUM_STARTS,
) -> Combiner:
    """One combiner for all classes: channels `[device, antenna]`, b `[device, class]` ≥ 0 (0: not held), α `[class]`.

    With one antenna f is exactly 1, so that nothing changes. A class with a holder who has no channel cannot be sent,
    and is left out of the choice; the cost is infinite then.
    """
    num_antennas = channel.shape[1]
    if num_antennas == 1:
        cost = _cost(channel, burden, importance, np.ones(1, dtype=np.complex128))
        return Combiner(np.ones(1, dtype=np.complex128), cost, cost, cost)
    deaf = np.asarray((channel == 0).all(axis=1))
    sendable = (burden > 0).any(axis=0) & ~(burden[deaf] > 0).any(axis=0) & (importance > 0)
    matters = (burden[:, sendable] > 0).any(axis=1)
    if not matters.any():
        first = np.eye(num_antennas, dtype=np.complex128)[0]
        cost = _cost(channel, burden, importance, first)
        return Combiner(first, cost, cost, cost)
    kept = channel[matters], burden[np.ix_(matters, sendable)], importance[sendable]
    vector, randomised, bound = _solve(*kept, rng, num_starts)
    cost, drawn_cost = _cost(*kept, vector), _cost(*kept, randomised)
    if drawn_cost < cost:  # by rounding: among as many antennas as devices the draw was no better
        vector, cost = randomised, drawn_cost
    lost = np.inf if (importance[(burden[deaf] > 0).any(axis=0)] > 0).any() else 0.0
    return Combiner(vector, cost + lost, bound + lost, drawn_cost + lost)


def combiner_of_each_class(
    channel: ComplexArray, burden: FloatArray, rng: np.random.Generator, num_starts: int = NUM_STARTS
) -> list[Combiner]:
    """A combiner for every class by itself, from b `[device, class]`; classes with the same burdens share one."""
    groups, sizes = _alike(burden)
    one = np.ones(1)
    found: dict[int, Combiner] = {}
    for group in np.unique(groups):
        first = int(np.argmax(groups == group))
        found[int(group)] = best_combiner(channel, burden[:, first : first + 1], one, rng, num_starts)
    firsts = [int(np.argmax(groups == group)) for group in groups]
    return [_resized(found[int(group)], sizes[klass], sizes[firsts[klass]]) for klass, group in enumerate(groups)]


def _resized(combiner: Combiner, size: float, of: float) -> Combiner:
    """The same for burdens that are `size` where they were `of`."""
    factor = size / of if of > 0 else 1.0
    return Combiner(combiner.vector, factor * combiner.cost, factor * combiner.bound, factor * combiner.randomised_cost)


def _alike(burden: FloatArray) -> tuple[IntArray, FloatArray]:
    """Which classes have the same burdens up to a factor, as numbers of groups `[class]`, and the factors `[class]`."""
    sizes = burden.max(axis=0)
    shapes = np.round(burden / np.where(sizes > 0, sizes, 1.0), _SAME)
    return np.unique(shapes, axis=1, return_inverse=True)[1].reshape(-1), sizes


def _cost(channel: ComplexArray, burden: FloatArray, importance: FloatArray, vector: ComplexArray) -> float:
    return float(cost_of(channel, burden, importance, vector[None])[0])


def _solve(
    channel: ComplexArray, burden: FloatArray, importance: FloatArray, rng: np.random.Generator, num_starts: int
) -> tuple[ComplexArray, ComplexArray, float]:
    """The combiner, the best random one and the bound, in numbers of unit size and no more antennas than devices."""
    groups, sizes = _alike(burden)
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
        rough = approach(*problem, starts, accuracy=_ROUGH)
        finalists = rough[np.argsort(cost_of(*problem, rough), kind="stable")[:_FINALISTS]]
        refined = approach(*problem, approach(*problem, finalists))  # a second time from well inside
        tried = np.concatenate([starts, rough, refined])
        best = tried[int(np.argmin(cost_of(*problem, tried)))]
    bound = relaxed.bound * float(merged.sum()) / size**2
    return _whole(basis @ best), _whole(basis @ randomised), bound


@cache
def _blas() -> Any:
    """Products this small are slower on many threads, on a machine that has other work eight times slower."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _whole(vector: ComplexArray) -> ComplexArray:
    """Of norm 1, and its largest entry real: the phase of a combiner means nothing."""
    largest = vector[int(np.argmax(np.abs(vector)))]
    return np.asarray(vector * (np.conj(largest) / np.abs(largest)) / np.linalg.norm(vector))


def _basis(channel: ComplexArray) -> ComplexArray:
    """Orthonormal columns that span all channels, `[antenna, direction]`: the best combiner lies among them."""
    num_devices, num_antennas = channel.shape
    if num_antennas <= num_devices:
        return np.eye(num_antennas, dtype=np.complex128)
    return np.asarray(np.linalg.qr(channel.T)[0])


def _starts(
    problem: tuple[ComplexArray, FloatArray, FloatArray], relaxed: Relaxed, rng: np.random.Generator, num_starts: int
) -> tuple[ComplexArray, ComplexArray]:
    """Where to refine from, `[start, antenna]`, and the best of what the relaxation alone gives.

    Gaussian randomisation: f = F^{1/2}ξ, which has the relaxation's power at every device on average.
    """
    size = problem[0].shape[1]
    values, directions = np.linalg.eigh(relaxed.covariance)
    root = directions * np.sqrt(np.maximum(values, 0.0))
    drawn, stray = (_gaussian(rng, count, size) for count in (NUM_DRAWS, NUM_STRAY))
    candidates = np.concatenate([directions[:, -1:].T, drawn @ root.T])
    costs = cost_of(*problem, candidates)
    best = np.argsort(costs, kind="stable")[:num_starts]
    heard = np.isfinite(costs[best])
    return np.concatenate([candidates[best[heard]], stray]), candidates[best[0]]


def _gaussian(rng: np.random.Generator, count: int, size: int) -> ComplexArray:
    return np.asarray(rng.standard_normal((count, size)) + 1j * rng.standard_normal((count, size)))


_FIRST_GAP = 0.1  # relative, of the barrier: looser, the start would be forgotten
_GROWTH = 8.0  # of the barrier's sharpness from stage to stage
_STEPS_A_STAGE = 30  # at most, and until the objective falls by no more than this
_SETTLED = 0.02
_LENGTHS = (16.0, 8.0, 4.0, 2.0, 1.0, *(0.5**power for power in range(1, 12)))


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
        """|a_i^H f|² − b_ik τ_k, `[start, device, class]`; 1 for who does not hold the class."""
        room = power[:, :, None] - self.burden * levels[:, None, :]
        return np.where(self.burden > 0, room, 1.0)


def cost_of(channel: ComplexArray, burden: FloatArray, importance: FloatArray, vectors: ComplexArray) -> FloatArray:
    """Σ_k α_k max_i b_ik/|f^H a_i|² of combiners `[start, antenna]` of any norm, as if it were 1, `[start]`."""
    power = np.abs(vectors @ channel.conj().T) ** 2 / (np.abs(vectors) ** 2).sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(burden > 0, burden / power[:, :, None], 0.0)
    return np.asarray(ratio.max(axis=1) @ importance)


def approach(
    channel: ComplexArray,
    burden: FloatArray,
    importance: FloatArray,
    starts: ComplexArray,
    accuracy: float = 1e-6,
) -> ComplexArray:
    """Better combiners `[start, antenna]` of norm 1 near the given ones, all at once.

    Every class must be held by somebody, and every start must hear all who hold any.
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
    room = 1 - (np.abs(vectors) ** 2).sum(axis=1)
    inside = (slack > 0).all(axis=(1, 2)) & (room > 0) & (levels > 0).all(axis=1)
    slack, room, levels = (_or_one(inside, values) for values in (slack, room, levels))
    value = sharpness * (problem.importance / levels).sum(axis=1) - np.log(slack).sum(axis=(1, 2)) - np.log(room)
    return np.where(inside, value, np.inf)


def _or_one(inside: BoolArray, values: FloatArray) -> FloatArray:
    return np.where(inside.reshape(-1, *[1] * (values.ndim - 1)), values, 1.0)


def _stepped(
    problem: _Problem, vectors: ComplexArray, levels: FloatArray, sharpness: FloatArray
) -> tuple[ComplexArray, FloatArray, FloatArray]:
    """One Newton step on the approximation around where every start is, and what it lowers the true objective by.

    The approximation is cautious: several times its step is often better, and tried first.
    """
    now = best = _objective(problem, vectors, levels, sharpness)
    turn, rise = _newton_step(problem, vectors, levels, sharpness)
    length = np.zeros((len(vectors), 1))
    for tried in _LENGTHS:
        if tried < 1 and (best < now).all():
            break
        value = _objective(problem, vectors + tried * turn, levels + tried * rise, sharpness)
        length = np.where((value < best)[:, None], tried, length)
        best = np.minimum(value, best)
    return vectors + length * turn, levels + length * rise, now - best


def _newton_step(
    problem: _Problem, vectors: ComplexArray, levels: FloatArray, sharpness: FloatArray
) -> tuple[ComplexArray, FloatArray]:
    """df `[start, antenna]` and dτ `[start, class]`.

    In real numbers: of f the real parts, then the imaginary ones, then τ.
    """
    heard = problem.received(vectors)
    inverse = np.where(problem.burden > 0, 1 / problem.slack(np.abs(heard) ** 2, levels), 0.0)
    room = 1 - (np.abs(vectors) ** 2).sum(axis=1)
    # The gradient of 2Re(f0^H a a^H f) is 2 a (a^H f0).
    pointing = 2 * heard[:, :, None] * problem.channel
    rows = np.concatenate([pointing.real, pointing.imag], axis=2)
    place = np.concatenate([vectors.real, vectors.imag], axis=1)
    num, size = place.shape
    drawn = problem.burden * inverse
    gradient = np.concatenate(
        [
            2 * place / room[:, None] - np.einsum("si,sin->sn", inverse.sum(axis=2), rows),
            drawn.sum(axis=1) - sharpness[:, None] * problem.importance / levels**2,
        ],
        axis=1,
    )
    squares = inverse**2
    hessian = np.zeros((num, size + levels.shape[1], size + levels.shape[1]))
    hessian[:, :size, :size] = rows.transpose(0, 2, 1) @ (squares.sum(axis=2)[:, :, None] * rows)
    hessian[:, :size, :size] += (4 / room**2)[:, None, None] * (place[:, :, None] * place[:, None, :])
    hessian[:, range(size), range(size)] += (2 / room)[:, None]
    mixed = -rows.transpose(0, 2, 1) @ (problem.burden * squares)
    hessian[:, :size, size:], hessian[:, size:, :size] = mixed, mixed.transpose(0, 2, 1)
    classes = range(size, size + levels.shape[1])
    hessian[:, classes, classes] = (drawn**2).sum(axis=1)
    hessian[:, classes, classes] += 2 * sharpness[:, None] * problem.importance / levels**3
    step = -np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
    half = size // 2
    return step[:, :half] + 1j * step[:, half:size], step[:, size:]
