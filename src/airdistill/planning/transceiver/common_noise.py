"""Common-noise allocation: how much noise each device must add if the server sees every antenna.

In units of the estimate, with ν_i the noise that device i adds and u = 1/λ², c_i = ν_i + 1/(e_i^T Σ_{-i}^{-1} e_i): its
own noise in full, and the part of the other devices' and the receiver's noise that the best attack leaves. That part
grows with each of them, and so it is at least κ_i R, with a common noise R of which a share κ_i ≤ 1 protects device i:

* `receiver_noise`: R = σ²u, the receiver noise, and κ_i = |f^H h_i|²/‖h_i‖²;
* `fleet_noise`: R in fixed proportions π from all devices, and κ_i = c_i of these;
* `own_noise`: none.

A device adds what it lacks itself: ν_i = Rπ_i + max(0, req_i − κ_i R). R minimises the sum. For one antenna κ = 1
yields the designs of section 1, which are computed in `design.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airdistill.arrays import FloatArray, divide_or

_ROUNDING = 1e-7  # relative margin: rounding must not violate a requirement


@dataclass(frozen=True)
class CommonNoiseDesign:
    """1/λ² and v `[..., row]`, the devices' noise ν `[..., device, row]`, all in units of the estimate."""

    inverse_scale_sq: FloatArray
    effective_noise_var: FloatArray
    added_noise_var: FloatArray


@dataclass(frozen=True)
class CommonNoise:
    """Rounds with their combiners: weights w, power |f^H h_i|²P_i, κ and π, all `[..., device, row]`.

    `channel_noise_var` σ² is the receiver noise on the decision axis; `receiver_counts` if it counts as protection.
    """

    weights: FloatArray
    power_w: FloatArray
    reaching: FloatArray
    proportions: FloatArray
    channel_noise_var: float
    energy_slots: float
    receiver_counts: bool

    def design(self, required: FloatArray) -> CommonNoiseDesign:
        """The design for counted noise `required` `[device, row]`."""
        required = np.where(self.weights > 0, required * (1 + _ROUNDING), 0.0)
        required = np.broadcast_to(required, np.broadcast_shapes(required.shape, self.power_w.shape))
        signal = self.weights**2 / self.energy_slots
        return self._with_receiver(required, signal) if self.receiver_counts else self._without(required, signal)

    def _without(self, required: FloatArray, signal: FloatArray) -> CommonNoiseDesign:
        common = best_common_noise(required, self.reaching)[..., None, :]
        added = common * self.proportions + np.maximum(required - self.reaching * common, 0.0)
        # w²/K + ν ≤ |f^H h|²P u
        inverse_scale = _ratio(signal + added, self.power_w).max(axis=-2)
        return self._designed(inverse_scale, added)

    def _with_receiver(self, required: FloatArray, signal: FloatArray) -> CommonNoiseDesign:
        sigma2 = self.channel_noise_var
        # w²/K + max(0, req − κσ²u) ≤ |f^H h|²P u
        least = np.maximum(
            _ratio(np.broadcast_to(signal, required.shape), self.power_w),
            _ratio(np.where(required > 0, signal + required, 0.0), self.power_w + self.reaching * sigma2),
        ).max(axis=-2)
        inverse_scale = np.maximum(least, best_common_noise(required, self.reaching) / sigma2)
        received = np.where(np.isfinite(inverse_scale), sigma2 * inverse_scale, 0.0)[..., None, :]
        return self._designed(inverse_scale, np.maximum(required - self.reaching * received, 0.0))

    def _designed(self, inverse_scale: FloatArray, added: FloatArray) -> CommonNoiseDesign:
        sendable = np.isfinite(inverse_scale) & (inverse_scale > 0)
        from_channel = self.channel_noise_var * np.where(sendable, inverse_scale, 0.0)
        effective = np.where(sendable, added.sum(axis=-2) + from_channel, np.inf)
        return CommonNoiseDesign(inverse_scale, effective, np.where(sendable[..., None, :], added, 0.0))


def best_common_noise(required: FloatArray, reaching: FloatArray) -> FloatArray:
    """The R with the least R + Σ_i max(0, req_i − κ_i R), `[..., row]`, from req and κ `[..., device, row]`.

    The sum is convex and piecewise linear in R: its minimum is at R = 0 or at a device's requirement req_i/κ_i.
    """
    reaching = np.broadcast_to(reaching, required.shape)
    needed = divide_or(required, reaching, np.inf)
    needed = np.where(required > 0, needed, 0.0)
    order = np.argsort(needed, axis=-2)
    needed, required, reaching = (np.take_along_axis(values, order, axis=-2) for values in (needed, required, reaching))
    # If R meets the n-th requirement, the requirements above it remain.
    left, reach = (values.sum(axis=-2, keepdims=True) - np.cumsum(values, axis=-2) for values in (required, reaching))
    reachable = np.isfinite(needed)
    finite = np.where(reachable, needed, 0.0)
    total = np.where(reachable, finite + np.maximum(left - reach * finite, 0.0), np.inf)
    best = np.argmin(total, axis=-2, keepdims=True)
    common = np.take_along_axis(finite, best, axis=-2)[..., 0, :]
    least = np.take_along_axis(total, best, axis=-2)[..., 0, :]
    # No common noise if it costs as much, up to rounding.
    return np.where(least < required.sum(axis=-2) * (1 - 1e-9), common, 0.0)


def _ratio(needed: FloatArray, available: FloatArray) -> FloatArray:
    """needed/available; nothing needed costs nothing even if nothing is available."""
    shape = np.broadcast_shapes(needed.shape, available.shape)
    ratio = divide_or(np.broadcast_to(needed, shape), np.broadcast_to(available, shape), np.inf)
    return np.where(needed > 0, ratio, 0.0)
