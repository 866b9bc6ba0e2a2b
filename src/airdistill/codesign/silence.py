"""Truncated channel inversion: who stays silent in a deep fade, and what the others' average then misses.

One device in a fade holds the power of all the others down. Left out of a round, it is not charged for it either; the
weights of those who speak are raised to sum to one again, and the average of a class is off by at most √2 times the
weight of those who are missing: two averages over a simplex of diameter √2.
"""

from __future__ import annotations

import numpy as np

from airdistill.arrays import BoolArray, ComplexArray, FloatArray, divide_or
from airdistill.privacy.sensitivity import SIMPLEX_DIAMETER


def speaks(channel: ComplexArray, threshold: float) -> BoolArray:
    """Whether |h|² reaches the threshold, `[..., device]`."""
    return np.asarray(np.abs(channel) ** 2 >= threshold)


def weights_of_speakers(weights: FloatArray, channel: ComplexArray, threshold: float) -> FloatArray:
    """Usual weights `[device, class]` as a round with this channel `[..., device]` has them, `[..., device, class]`."""
    if threshold == 0:
        return weights
    spoken = np.where(speaks(channel, threshold)[..., None], weights, 0.0)
    return divide_or(spoken, spoken.sum(axis=-2, keepdims=True), 0.0)


def squared_bias_bound(weights: FloatArray, channel: ComplexArray, threshold: float) -> FloatArray:
    """At most ‖Σ_i w'_i q_i − Σ_i w_i q_i‖² of each class, `[..., class]`: 2 (weight of the silent)²."""
    missing = np.where(speaks(channel, threshold)[..., None], 0.0, weights).sum(axis=-2)
    return np.asarray((SIMPLEX_DIAMETER * missing) ** 2)
