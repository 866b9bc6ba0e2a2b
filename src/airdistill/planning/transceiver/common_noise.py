"""How much noise each device must add when the server sees every antenna.

In units of the estimate, with ν_i the noise that device i adds and u = 1/λ², c_i = ν_i + 1/(e_i^T Σ_{-i}^{-1} e_i): its
own noise in full, and of everybody else's and the receiver's what is left after the best attack. That part grows with
each of them, so that it is at least κ_i R, where R is a common cover and κ_i ≤ 1 what of it reaches device i:

* `receiver_noise`: R = σ²u, the receiver's own, and κ_i = |f^H h_i|²/‖h_i‖²;
* `fleet_noise`: R in fixed proportions π from all devices, and κ_i = c_i of these;
* `own_noise`: none.

Who is not covered adds the rest itself: ν_i = Rπ_i + max(0, req_i − κ_i R). Of all R the one with the least sum is
taken. For one antenna κ = 1 gives section 1's designs back, but these have files of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airdistill.arrays import FloatArray, divide_or

_ROUNDING = 1e-7  # relative: what is asked for besides, so that rounding breaks no promise


@dataclass(frozen=True)
class Covered:
    """1/λ² and v `[..., row]`, the devices' noise ν `[..., device, row]`, all in units of the estimate."""

    inverse_scale_sq: FloatArray
    effective_noise_var: FloatArray
    added_noise_var: FloatArray


@dataclass(frozen=True)
class Cover:
    """Rounds with their combiners: weights w, power |f^H h_i|²P_i, κ and π, all `[..., device, row]`.

    `channel_noise_var` σ² is the receiver's on the decision axis, and `receiver_counts` if it is trusted.
    """

    weights: FloatArray
    power_w: FloatArray
    reaching: FloatArray
    proportions: FloatArray
    channel_noise_var: float
    energy_slots: float
    receiver_counts: bool

    def design(self, required: FloatArray) -> Covered:
        """For counted noise `required` `[device, row]`."""
        asked = np.where(self.weights > 0, required * (1 + _ROUNDING), 0.0)
        asked = np.broadcast_to(asked, np.broadcast_shapes(asked.shape, self.power_w.shape))
        signal = self.weights**2 / self.energy_slots
        return self._with_receiver(asked, signal) if self.receiver_counts else self._without(asked, signal)

    def _without(self, asked: FloatArray, signal: FloatArray) -> Covered:
        common = best_cover(asked, self.reaching)[..., None, :]
        added = common * self.proportions + np.maximum(asked - self.reaching * common, 0.0)
        # w²/K + ν ≤ |f^H h|²P u
        inverse_scale = _ratio(signal + added, self.power_w).max(axis=-2)
        return self._covered(inverse_scale, added)

    def _with_receiver(self, asked: FloatArray, signal: FloatArray) -> Covered:
        sigma2 = self.channel_noise_var
        # w²/K + max(0, req − κσ²u) ≤ |f^H h|²P u
        least = np.maximum(
            _ratio(np.broadcast_to(signal, asked.shape), self.power_w),
            _ratio(np.where(asked > 0, signal + asked, 0.0), self.power_w + self.reaching * sigma2),
        ).max(axis=-2)
        inverse_scale = np.maximum(least, best_cover(asked, self.reaching) / sigma2)
        received = np.where(np.isfinite(inverse_scale), sigma2 * inverse_scale, 0.0)[..., None, :]
        return self._covered(inverse_scale, np.maximum(asked - self.reaching * received, 0.0))

    def _covered(self, inverse_scale: FloatArray, added: FloatArray) -> Covered:
        sendable = np.isfinite(inverse_scale) & (inverse_scale > 0)
        from_channel = self.channel_noise_var * np.where(sendable, inverse_scale, 0.0)
        effective = np.where(sendable, added.sum(axis=-2) + from_channel, np.inf)
        return Covered(inverse_scale, effective, np.where(sendable[..., None, :], added, 0.0))


def best_cover(asked: FloatArray, reaching: FloatArray) -> FloatArray:
    """The R with the least R + Σ_i max(0, req_i − κ_i R), `[..., row]`, from req and κ `[..., device, row]`.

    The sum is convex and piecewise linear in R, so that its least is at R = 0 or where somebody is just covered.
    """
    reaching = np.broadcast_to(reaching, asked.shape)
    needed = divide_or(asked, reaching, np.inf)
    needed = np.where(asked > 0, needed, 0.0)
    order = np.argsort(needed, axis=-2)
    needed, asked, reaching = (np.take_along_axis(values, order, axis=-2) for values in (needed, asked, reaching))
    # Once R covers the n-th, those after it are left.
    left, slope = (values.sum(axis=-2, keepdims=True) - np.cumsum(values, axis=-2) for values in (asked, reaching))
    reachable = np.isfinite(needed)
    finite = np.where(reachable, needed, 0.0)
    total = np.where(reachable, finite + np.maximum(left - slope * finite, 0.0), np.inf)
    best = np.argmin(total, axis=-2, keepdims=True)
    cover = np.take_along_axis(finite, best, axis=-2)[..., 0, :]
    least = np.take_along_axis(total, best, axis=-2)[..., 0, :]
    # Nothing in common if that is no dearer, but for rounding.
    return np.where(least < asked.sum(axis=-2) * (1 - 1e-9), cover, 0.0)


def _ratio(needed: FloatArray, available: FloatArray) -> FloatArray:
    """needed/available, where nothing needed costs nothing even if nothing is available."""
    shape = np.broadcast_shapes(needed.shape, available.shape)
    ratio = divide_or(np.broadcast_to(needed, shape), np.broadcast_to(available, shape), np.inf)
    return np.where(needed > 0, ratio, 0.0)
