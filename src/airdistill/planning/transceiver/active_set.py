"""Truncated channel inversion: who stays silent in a deep fade, and what the others' average then misses.

One device in a fade holds the power of all the others down. Left out of a round, it is not charged for it either; the
weights of those who speak are raised to sum to one again, and the average of a class is off by at most √2 times the
weight of those who are missing: two averages over a simplex of diameter √2. (Of public predictions the diameter is
another.)
"""

from __future__ import annotations

import numpy as np

from airdistill.arrays import BoolArray, ComplexArray, FloatArray, divide_or
from airdistill.privacy.sensitivity import SIMPLEX_DIAMETER


def active_devices(
    channel: ComplexArray, threshold: float, at_least: int = 1, there: BoolArray | None = None
) -> BoolArray:
    """Whether |h|² reaches the threshold, `[..., device]`; nobody does where fewer than `at_least` would.

    Of those who are `there`, if not all are.
    """
    reach = np.abs(channel) ** 2 >= threshold
    if there is not None:
        reach = reach & there
    return np.asarray(reach & (reach.sum(axis=-1, keepdims=True) >= at_least))


def weights_of_active_devices(weights: FloatArray, speaking: BoolArray | None) -> FloatArray:
    """Usual weights `[device, class]` for rounds in which these speak, `[..., device, class]`; None: all do."""
    if speaking is None:
        return weights
    spoken = np.where(speaking[..., None], weights, 0.0)
    return divide_or(spoken, spoken.sum(axis=-2, keepdims=True), 0.0)


def squared_bias_bound(
    weights: FloatArray, speaking: BoolArray | None, shape: tuple[int, ...], diameter: float = SIMPLEX_DIAMETER
) -> FloatArray:
    """At most ‖Σ_i w'_i q_i − Σ_i w_i q_i‖² of each row, `[..., row]`: (diameter · weight of the silent)².

    `shape` is that of the channels, `[..., device]`. A row that nobody speaks for is not received at all: no bias.
    """
    if speaking is None:
        return np.zeros((*shape[:-1], weights.shape[1]))
    missing = np.where(speaking[..., None], 0.0, weights).sum(axis=-2)
    spoken = np.where(speaking[..., None], weights, 0.0).any(axis=-2)
    return np.where(spoken, (diameter * missing) ** 2, 0.0)
