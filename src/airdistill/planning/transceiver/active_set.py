"""Truncated channel inversion: the active set of a round, its weights, and the bias of leaving devices out.

A device in a deep fade limits the power of all other devices. If it is left out of a round, it is not charged either.
The weights of the active devices are scaled to sum to one again. The average of a class then changes by at most √2
times the weight of the inactive devices, because both averages lie in a simplex of diameter √2. (Other payloads have
another diameter.)
"""

from __future__ import annotations

import numpy as np

from airdistill.arrays import BoolArray, ComplexArray, FloatArray, divide_or
from airdistill.privacy.sensitivity import SIMPLEX_DIAMETER


def active_devices(
    channel: ComplexArray, threshold: float, at_least: int = 1, participating: BoolArray | None = None
) -> BoolArray:
    """The participating devices whose |h|² reaches the threshold, as a mask `[..., device]`.

    No device is active if fewer than `at_least` would be. Without `participating` `[..., device]` all devices are.
    """
    active = np.abs(channel) ** 2 >= threshold
    if participating is not None:
        active = active & participating
    return np.asarray(active & (active.sum(axis=-1, keepdims=True) >= at_least))


def weights_of_active_devices(weights: FloatArray, active: BoolArray | None) -> FloatArray:
    """Nominal weights `[device, class]` scaled to the active devices `[..., device]`, `[..., device, class]`.

    None means that all devices are active.
    """
    if active is None:
        return weights
    kept = np.where(active[..., None], weights, 0.0)
    return divide_or(kept, kept.sum(axis=-2, keepdims=True), 0.0)


def squared_bias_bound(
    weights: FloatArray, active: BoolArray | None, shape: tuple[int, ...], diameter: float = SIMPLEX_DIAMETER
) -> FloatArray:
    """The bound on ‖Σ_i w'_i q_i − Σ_i w_i q_i‖² of each row, `[..., row]`: (diameter · weight of inactive devices)².

    `shape` is that of the channels, `[..., device]`. A row without active devices is not received and has no bias.
    """
    if active is None:
        return np.zeros((*shape[:-1], weights.shape[1]))
    missing = np.where(active[..., None], 0.0, weights).sum(axis=-2)
    received = np.where(active[..., None], weights, 0.0).any(axis=-2)
    return np.where(received, (diameter * missing) ** 2, 0.0)
