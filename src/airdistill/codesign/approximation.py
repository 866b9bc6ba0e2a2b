"""Successive convex approximation of receive combining: from a good combiner to the best one near it.

Around f0 the received power |a_i^H f|² is never below 2Re(f0^H a_i a_i^H f) − |a_i^H f0|², and touches it at f0. With
that in its place Σ_k α_k/τ_k, b_ik τ_k ≤ |a_i^H f|², ‖f‖ ≤ 1 is convex. It is solved by an interior point that
approximates anew at every Newton step: what the step gains on the approximation it gains on the truth at least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airdistill.arrays import BoolArray, ComplexArray, FloatArray

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
