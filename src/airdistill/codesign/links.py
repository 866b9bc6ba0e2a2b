"""Rounds as the design sees them: who weighs how much, and how much power can arrive from whom."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import ComplexArray, FloatArray, divide_or
from airdistill.privacy.sensitivity import aggregation_weights

_NUMBERS_AT_ONCE = 2**16  # of as many draws as a processor's cache holds: one by one takes long, all much memory


@dataclass(frozen=True)
class Links:
    """One round or many at once: a leading `...` axis counts channel draws.

    `weights` w_i^k `[device, class]`, or `[..., device, class]` where they differ; `power_w` |h_i|²P_i `[..., device]`;
    `channel_noise_var` is the variance of the receiver's noise on the decision axis. `energy_slots` is how many slots
    share the energy of one sent vector, in units of its largest squared norm: K for knowledge, D/C² for a gradient of D
    entries clipped at C. A gradient is one vector, so that its class axis has length 1. `noise_axes` is 2 where devices
    must add their noise on both axes: it then costs twice the power.
    """

    weights: FloatArray
    power_w: FloatArray
    channel_noise_var: float
    energy_slots: float
    noise_axes: int = 1

    @classmethod
    def of(
        cls, class_counts: ArrayLike, channel: ComplexArray, peak_power_w: ArrayLike, channel_noise_var: float
    ) -> Links:
        """From counts `[device, class]`, channels `[..., device]` and power limits (one, or `[device]`)."""
        weights = aggregation_weights(class_counts)
        return cls.weighted(weights, float(weights.shape[1]), channel, peak_power_w, channel_noise_var)

    @classmethod
    def weighted(
        cls,
        weights: FloatArray,
        energy_slots: float,
        channel: ComplexArray,
        peak_power_w: ArrayLike,
        channel_noise_var: float,
        noise_axes: int = 1,
    ) -> Links:
        """From weights that are given."""
        power_w = np.abs(np.asarray(channel)) ** 2 * np.asarray(peak_power_w, dtype=np.float64)
        if power_w.shape[-1] != weights.shape[-2]:
            raise ValueError(f"channel of {power_w.shape[-1]} devices: the weights have {weights.shape[-2]}")
        if not np.isfinite(power_w).all() or not (power_w >= 0).all():
            raise ValueError("channel and peak_power_w: must be finite, and the power not negative")
        if not channel_noise_var >= 0:
            raise ValueError(f"channel_noise_var = {channel_noise_var}: must not be negative")
        return cls(weights, power_w, float(channel_noise_var), energy_slots, noise_axes)

    @property
    def num_classes(self) -> int:
        return int(self.weights.shape[-1])

    @cached_property
    def inverse_cap(self) -> FloatArray:
        """1/cap_k = max_i (w_i^k)²/(K|h_i|²P_i) over the class's holders, `[..., class]`; zero if it has none.

        K is the energy slots.
        """
        rows, weights = self.power_w.reshape(-1, self.power_w.shape[-1]), self._weight_rows()
        at_once = max(1, _NUMBERS_AT_ONCE // max(rows.shape[1] * self.num_classes, 1))
        parts = [slice(first, first + at_once) for first in range(0, len(rows), at_once)]
        limits = np.concatenate([self._inverse_cap_of(weights[part], rows[part]) for part in parts])
        return limits.reshape(*self.power_w.shape[:-1], self.num_classes)

    def _weight_rows(self) -> FloatArray:
        """`[draw, device, class]`, without a copy."""
        shape = (*self.power_w.shape, self.num_classes)
        return np.broadcast_to(self.weights, shape).reshape(-1, *shape[-2:])

    def _inverse_cap_of(self, weights: FloatArray, power_w: FloatArray) -> FloatArray:
        """Of some draws: weights `[draw, device, class]` and powers `[draw, device]`."""
        if np.all(power_w > 0):
            per_device = weights / np.sqrt(power_w)[..., None]
        else:
            per_device = divide_or(weights, np.broadcast_to(np.sqrt(power_w)[..., None], weights.shape), np.inf)
            per_device[weights == 0] = 0.0
        return np.asarray(per_device.max(axis=-2) ** 2 / self.energy_slots)

    @property
    def channel_floor(self) -> FloatArray:
        """σ_n²/cap_k, `[..., class]`: the noise that is left with all power on the signal."""
        reachable = np.isfinite(self.inverse_cap)
        return np.where(reachable, self.channel_noise_var * np.where(reachable, self.inverse_cap, 0.0), np.inf)

    @cached_property
    def signal_share(self) -> FloatArray:
        """Σ_i (w_i^k)²/K, `[class]` or `[..., class]`: the received power that the signal takes at λ = 1."""
        return np.asarray(np.einsum("...ik,...ik->...k", self.weights, self.weights) / self.energy_slots)
