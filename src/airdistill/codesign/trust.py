"""Whose noise may be counted as protection, and the optimal design under each answer.

In units of the estimate r̂ = Re(r)/λ a device needs counted noise `required[device, class]`. Each rule below answers
four questions with the closed form that minimises v_k = (Σ_j|h_jP2_j|² + σ_n²)/λ_k² under the power limits (K in the
formulas stands for `Links.energy_slots`):

1. `inverse_scale_sq`: 1/λ_k², `[..., class]`;
2. `artificial_noise_var`: how much of v_k the devices add, `[class]`, or `[..., class]` for requirements by draw;
3. `received_noise`: who adds it, |h_jP2_j|² `[device, class]`;
4. `counted_noise_var`: what each device may count, `[device, class]`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from airdistill.arrays import FloatArray, divide_or
from airdistill.codesign.links import Links

_CHUNK = 1 << 20  # numbers that a temporary array over draws × devices × classes may hold


class TrustModel(Protocol):
    """A rule of your own needs these four methods."""

    def inverse_scale_sq(self, links: Links, required: FloatArray) -> FloatArray: ...

    def artificial_noise_var(self, required: FloatArray) -> FloatArray: ...

    def received_noise(self, links: Links, required: FloatArray, scale_sq: FloatArray) -> FloatArray: ...

    def counted_noise_var(self, required: FloatArray, effective: FloatArray) -> FloatArray: ...


class ReceiverNoise:
    """The paper's: all noise at the receiver counts. Backing the power off is enough, and cheapest: P2 = 0."""

    def inverse_scale_sq(self, links: Links, required: FloatArray) -> FloatArray:
        # λ² = min(cap, σ_n²/req)
        return np.asarray(np.maximum(links.inverse_cap, required.max(axis=-2) / links.channel_noise_var))

    def artificial_noise_var(self, required: FloatArray) -> FloatArray:
        return np.zeros(required.shape[-1])

    def received_noise(self, links: Links, required: FloatArray, scale_sq: FloatArray) -> FloatArray:  # noqa: ARG002
        return np.broadcast_to(0.0, required.shape)

    def counted_noise_var(self, required: FloatArray, effective: FloatArray) -> FloatArray:
        return np.broadcast_to(effective, required.shape)


class FleetNoise:
    """The server owns the receiver: only what the devices add counts, and everyone helps to add it."""

    def inverse_scale_sq(self, links: Links, required: FloatArray) -> FloatArray:
        # λ² = min(cap, Σ_j|h_j|²P_j/(req + Σ_j w_j²/K)), with 2 req where noise goes on both axes.
        noise = links.noise_axes * required.max(axis=-2)
        needed = np.where(links.signal_share > 0, noise + links.signal_share, 0.0)
        total_w = links.power_w.sum(axis=-1)[..., None]
        return np.maximum(links.inverse_cap, _quotient(needed, total_w))

    def artificial_noise_var(self, required: FloatArray) -> FloatArray:
        return np.asarray(required.max(axis=-2))

    def received_noise(self, links: Links, required: FloatArray, scale_sq: FloatArray) -> FloatArray:
        # In proportion to the power that its signal leaves a device: |h_j|²P_j − λ²w_j²/K.
        headroom = links.weights**2
        headroom *= -scale_sq / links.energy_slots
        headroom += links.power_w[:, None]
        np.maximum(headroom, 0.0, out=headroom)
        headroom *= divide_or(required.max(axis=0) * scale_sq, headroom.sum(axis=0), 0.0)
        return headroom

    def counted_noise_var(self, required: FloatArray, effective: FloatArray) -> FloatArray:
        strictest = required.max(axis=0)
        return np.broadcast_to(np.where(np.isfinite(effective), strictest, np.inf), required.shape)


class OwnNoise:
    """Nobody is trusted: only a device's own noise counts for it."""

    def inverse_scale_sq(self, links: Links, required: FloatArray) -> FloatArray:
        # λ² = min_i K|h_i|²P_i/(w_i² + K req_ik)
        needed = links.weights**2
        needed /= links.energy_slots
        needed = needed + required
        rows = links.power_w.reshape(-1, links.power_w.shape[-1])
        step = max(1, _CHUNK // (needed.shape[-1] * needed.shape[-2]))
        chunks = [
            _quotient(needed if needed.ndim == 2 else needed[part], rows[part, :, None]).max(axis=-2)
            for part in (slice(start, start + step) for start in range(0, len(rows), step))
        ]
        return np.concatenate(chunks).reshape(*links.power_w.shape[:-1], links.num_classes)

    def artificial_noise_var(self, required: FloatArray) -> FloatArray:
        return np.asarray(required.sum(axis=-2))

    def received_noise(self, links: Links, required: FloatArray, scale_sq: FloatArray) -> FloatArray:  # noqa: ARG002
        return required * scale_sq

    def counted_noise_var(self, required: FloatArray, effective: FloatArray) -> FloatArray:
        sent = np.isfinite(effective)
        return required if sent.all() else np.where(sent, required, np.inf)


_RULES: dict[str, TrustModel] = {
    "receiver_noise": ReceiverNoise(),
    "fleet_noise": FleetNoise(),
    "own_noise": OwnNoise(),
}


def trust_model(name: str, channel_noise_var: float) -> TrustModel:
    """The rule of that name. A receiver without noise protects nobody: the fleet must make the noise then."""
    if name not in _RULES:
        raise ValueError(f"trust = {name!r}: must be one of {', '.join(_RULES)}")
    if name == "receiver_noise" and channel_noise_var == 0:
        return _RULES["fleet_noise"]
    return _RULES[name]


def _quotient(needed: FloatArray, available: FloatArray) -> FloatArray:
    """needed/available, where nothing needed costs nothing even if nothing is available."""
    if np.all(available > 0):
        return np.asarray(needed / available)
    shape = np.broadcast_shapes(needed.shape, available.shape)
    ratio = divide_or(np.broadcast_to(needed, shape), np.broadcast_to(available, shape), np.inf)
    return np.where(needed > 0, ratio, 0.0)
