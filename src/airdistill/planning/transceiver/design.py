"""The optimal transceiver of a round: signal gains P1, noise gains P2 and the server's scale λ.

In units of the estimate r̂ = Re(r)/λ a device needs counted noise `required[device, class]`. `Links` holds the weights
and the power that can be received from each device. A trust model (`privacy.trust`) gives the closed form that
minimises v_k = (Σ_j|h_jP2_j|² + σ_n²)/λ_k² under the power limits (K in the formulas stands for `Links.energy_slots`):
λ, v, how the devices divide the noise, and what each may count. The gains follow from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import ComplexArray, FloatArray, divide_or, largest
from airdistill.privacy.sensitivity import aggregation_weights
from airdistill.privacy.trust import DesignedNoise, OwnNoise, Trust, counted_by_trust, trust_named

TOLERANCE = 1e-9  # relative, for limits that a design meets exactly up to rounding
_NUMBERS_AT_ONCE = 2**16  # in a block of draws: about the size of a processor's cache


@dataclass(frozen=True)
class Links:
    """One round or many at once: a leading `...` axis counts channel draws.

    `weights` w_i^k `[device, class]`, or `[..., device, class]` if draws differ; `power_w` |h_i|²P_i `[..., device]`;
    `channel_noise_var` is the variance of the receiver noise on the decision axis. `energy_slots` is the number of
    slots that carry the energy of one vector, over its largest squared norm: K for class means, D/C² for a gradient of
    D entries clipped at C. A gradient is one vector, and its class axis has length 1. `noise_axes` is 2 if devices must
    add noise on both axes, which costs twice the power.
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
        """The links for class counts `[device, class]`, channels `[..., device]` and power limits (or one limit)."""
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
        """The links of given weights. Raise `ValueError` if shapes or values are not valid."""
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
        """1/cap_k = max_i (w_i^k)²/(K|h_i|²P_i) over the holders of a class, `[..., class]`; zero without holders."""
        rows, weights = self.power_w.reshape(-1, self.power_w.shape[-1]), self._weight_rows()
        at_once = max(1, _NUMBERS_AT_ONCE // max(rows.shape[1] * self.num_classes, 1))
        parts = [slice(first, first + at_once) for first in range(0, len(rows), at_once)]
        limits = np.concatenate([self._inverse_cap_of(weights[part], rows[part]) for part in parts])
        return limits.reshape(*self.power_w.shape[:-1], self.num_classes)

    def _weight_rows(self) -> FloatArray:
        """The weights of every draw, `[draw, device, class]`, without a copy."""
        shape = (*self.power_w.shape, self.num_classes)
        return np.broadcast_to(self.weights, shape).reshape(-1, *shape[-2:])

    def _inverse_cap_of(self, weights: FloatArray, power_w: FloatArray) -> FloatArray:
        """The same for some draws, from weights `[draw, device, class]` and powers `[draw, device]`."""
        if np.all(power_w > 0):
            per_device = weights / np.sqrt(power_w)[..., None]
            if len(per_device) == 1:
                return np.asarray(largest(per_device[0])[None] ** 2 / self.energy_slots)
        else:
            per_device = divide_or(weights, np.broadcast_to(np.sqrt(power_w)[..., None], weights.shape), np.inf)
            per_device[weights == 0] = 0.0
        return np.asarray(per_device.max(axis=-2) ** 2 / self.energy_slots)

    @property
    def channel_floor(self) -> FloatArray:
        """σ_n²/cap_k, `[..., class]`: the noise that remains with all power on the signal."""
        reachable = np.isfinite(self.inverse_cap)
        return np.where(reachable, self.channel_noise_var * np.where(reachable, self.inverse_cap, 0.0), np.inf)

    @cached_property
    def signal_share(self) -> FloatArray:
        """Σ_i (w_i^k)²/K, `[class]` or `[..., class]`: the received power of the signal at λ = 1."""
        return np.asarray(np.einsum("...ik,...ik->...k", self.weights, self.weights) / self.energy_slots)

    @property
    def common_share(self) -> FloatArray:
        """Σ_{i≠j} w_i^k w_j^k/K, `[..., class]`: what the sum of equal vectors has more than `signal_share`."""
        return np.asarray(self.weights.sum(axis=-2) ** 2 / self.energy_slots - self.signal_share)


@dataclass(frozen=True)
class RoundDesign:
    """A round's transceiver: weights w, P1, P2 `[device, class]`, λ, v `[class]`, counted noise c `[device, class]`.

    `weights` are those of this round's sum, zero for inactive devices. A class that cannot be sent (no device holds it,
    or a holder has no channel) has scale 0 and infinite noise. `required_noise_var` `[class]` is the requirement of
    privacy: that of the strictest device, or the sum over devices with TDMA. With two `noise_axes` a device's noise is
    complex, with the same power on both axes. `combiner` f `[class, antenna]` is set if the server has several
    antennas. With secret participation a device sends its vector with `signal_probability`, and noise always. With
    correlated noise `new_noise_share` of the devices' noise variance is new; the rest repeats earlier rounds, and c is
    that of the new noise.
    """

    weights: FloatArray
    signal_gain: ComplexArray
    noise_gain: ComplexArray
    rx_scale: FloatArray
    effective_noise_var: FloatArray
    counted_noise_var: FloatArray
    required_noise_var: FloatArray
    noise_axes: int = 1
    combiner: ComplexArray | None = None
    signal_probability: float = 1.0
    new_noise_share: float = 1.0

    @cached_property
    def uses_tdma(self) -> bool:
        """Whether every device has its own slots, and so a scale of its own."""
        return self.rx_scale.ndim == 2

    def noise_power_w(self) -> FloatArray:
        """|P2|² on the real axis, or on both, `[device, class]`."""
        return np.asarray(self.noise_axes * np.abs(self.noise_gain) ** 2)

    def mean_power_w(self) -> FloatArray:
        """|P1|² + |P2|², the bound of eq. (8) on the power averaged over a class's slots, `[device, class]`."""
        return np.asarray(np.abs(self.signal_gain) ** 2 + self.noise_power_w())

    def with_secret_participation(self, probability: float) -> RoundDesign:
        """The same gains, with vectors sent with probability p: the server divides the sum and its noise by p."""
        return replace(
            self,
            weights=self.weights / probability,
            rx_scale=self.rx_scale * probability,
            effective_noise_var=self.effective_noise_var / probability**2,
            required_noise_var=self.required_noise_var / probability**2,
            signal_probability=probability,
        )

    def at_nominal_weights(self, nominal: FloatArray) -> RoundDesign:
        """Convert c to nominal weights, at which rounds of different weights can be added."""
        relative = divide_or(self.weights, nominal, 0.0) ** 2
        counted = divide_or(np.broadcast_to(self.counted_noise_var, relative.shape), relative, np.inf)
        return replace(self, counted_noise_var=counted)

    def power_slack(self, peak_power_w: ArrayLike) -> FloatArray:
        """1 − (|P1|² + |P2|²)/P_i of eq. (9), `[device, class]`: negative if the limit is violated."""
        return 1.0 - self.mean_power_w() / np.reshape(np.asarray(peak_power_w, dtype=np.float64), (-1, 1))

    def privacy_slack(self, required_noise_var: FloatArray) -> FloatArray:
        """c/req − 1, eq. (17) in units of the estimate, `[device, class]`: negative if it is violated.

        Infinite if nothing is required.
        """
        shape = self.counted_noise_var.shape
        return divide_or(self.counted_noise_var, np.broadcast_to(required_noise_var, shape), np.inf) - 1.0


def design_round(
    class_counts: ArrayLike,
    channel: ComplexArray,
    peak_power_w: ArrayLike,
    channel_noise_var: float,
    required_noise_var: ArrayLike,
    trust: str,
) -> RoundDesign:
    """The optimal gains for one round's channel `[device]` and required counted noise `[device, class]`."""
    links = Links.of(class_counts, channel, peak_power_w, channel_noise_var)
    return design_links(links, channel, required_noise_var, trust_named(trust).for_receiver(links.channel_noise_var))


def design_links(links: Links, channel: ComplexArray, required_noise_var: ArrayLike, trust: Trust) -> RoundDesign:
    """The optimal gains for links whose weights may differ from those of the class counts."""
    required = np.asarray(required_noise_var, dtype=np.float64)
    if required.shape != links.weights.shape:
        raise ValueError(f"required_noise_var of shape {required.shape}: must be {links.weights.shape}")
    if required.size and not (required.min() >= 0 and required.max() < np.inf):
        raise ValueError("required_noise_var: must be finite and not negative")
    idle = links.weights == 0
    if idle.any() and required[idle].any():
        # A device that does not hold a class has nothing to protect in it.
        required = np.where(idle, 0.0, required)
    del idle
    return _with_gains(links, channel, required, trust.designed(links, required))


def design_shares(links: Links, channel: ComplexArray, noise_var: FloatArray) -> RoundDesign:
    """The optimal gains for links in which every device adds noise of a given variance `[device, row]`, in units of
    the estimate, also a device that sends no vector."""
    return _with_gains(links, channel, noise_var, OwnNoise().designed(links, noise_var))


def _with_gains(links: Links, channel: ComplexArray, required: FloatArray, noise: DesignedNoise) -> RoundDesign:
    inverse_channel = inverse_of(np.asarray(channel, dtype=np.complex128))
    # The noise first: its temporaries are freed before the signal's array is allocated.
    noise_gain = _noise_gain(noise.received, inverse_channel)
    return RoundDesign(
        weights=links.weights,
        signal_gain=aligned_signal_gain(links, inverse_channel, noise.scale_sq),
        noise_gain=noise_gain,
        rx_scale=np.sqrt(noise.scale_sq),
        effective_noise_var=noise.effective,
        counted_noise_var=noise.counted,
        required_noise_var=largest(required),
        noise_axes=links.noise_axes,
    )


def noise_by_trust(
    design: RoundDesign, channel: ComplexArray, channel_noise_var: float, declared: str
) -> dict[str, FloatArray]:
    """What each trust model counts of the noise that the gains really send, `[device, row]`, in units of r̂.

    With TDMA a device's slots contain no other device's noise. `declared` may be a trust model of the user's own.
    """
    sent, scale_sq = design.rx_scale > 0, design.rx_scale**2
    own = np.abs(design.noise_gain * channel[:, None]) ** 2 * design.new_noise_share
    together = own if design.uses_tdma else own.sum(axis=0)
    at_receiver = counted_by_trust(own, together, channel_noise_var, declared)
    return {
        trust: np.broadcast_to(np.where(sent, noise / np.where(sent, scale_sq, 1.0), np.inf), own.shape)
        for trust, noise in at_receiver.items()
    }


def aligned_signal_gain(links: Links, inverse_channel: ComplexArray, scale_sq: FloatArray) -> ComplexArray:
    """Eq. (18): P1 = w λ h̄/(√K|h|²) = w λ/(√K h), `[device, class]`."""
    gain = links.weights * inverse_channel[:, None]
    gain *= np.sqrt(scale_sq / links.energy_slots)
    return np.asarray(gain)


def _noise_gain(received_noise: FloatArray, inverse_channel: ComplexArray) -> ComplexArray:
    """P2 = |P2| h̄/|h| from |h P2|², `[device, class]`: the noise is received on the real axis."""
    if received_noise.strides == (0, 0):  # a broadcast zero: no device adds noise
        return np.broadcast_to(np.complex128(0), received_noise.shape)
    amplitude = np.sqrt(received_noise, out=received_noise)
    return np.asarray(amplitude * inverse_channel[:, None])


def inverse_of(channel: ComplexArray) -> ComplexArray:
    """1/h, and zero for a device without a channel."""
    return np.where(channel != 0, 1.0 / np.where(channel != 0, channel, 1.0), 0.0)
