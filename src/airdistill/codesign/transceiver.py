"""One round's gains: how loud each device sends its knowledge, how much noise it adds, how the server scales."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import ComplexArray, FloatArray, divide_or
from airdistill.codesign.links import Links
from airdistill.codesign.trust import TrustModel, trust_model

TOLERANCE = 1e-9  # relative, for limits that a design meets exactly but for rounding


@dataclass(frozen=True)
class RoundDesign:
    """A round's transceiver: weights w, P1, P2 `[device, class]`, λ, v `[class]`, counted noise c `[device, class]`.

    `weights` are what each device's vector has in the sum of this very round, zero for who stays silent. A class that
    cannot be sent (nobody holds it, or a holder has no channel) has scale 0 and infinite noise. `required_noise_var`
    `[class]` is what privacy asked for: of the strictest device, or of all where each is apart. With two `noise_axes`
    a device's noise is complex, as strong on either axis. `combiner` f `[class, antenna]` is there if the server has
    several antennas. Where coins are hidden a device sends its vector with `chance_of_signal`, and noise always.
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
    chance_of_signal: float = 1.0

    def noise_power_w(self) -> FloatArray:
        """|P2|² on the real axis, or on both, `[device, class]`."""
        return np.asarray(self.noise_axes * np.abs(self.noise_gain) ** 2)

    def mean_power_w(self) -> FloatArray:
        """|P1|² + |P2|², the bound of eq. (8) on the power averaged over a class's slots, `[device, class]`."""
        return np.asarray(np.abs(self.signal_gain) ** 2 + self.noise_power_w())

    def with_hidden_coins(self, probability: float) -> RoundDesign:
        """Nobody sends otherwise than before, but for the coin: the server divides the sum by p, and its noise too."""
        return replace(
            self,
            weights=self.weights / probability,
            rx_scale=self.rx_scale * probability,
            effective_noise_var=self.effective_noise_var / probability**2,
            required_noise_var=self.required_noise_var / probability**2,
            chance_of_signal=probability,
        )

    def at_usual_weights(self, usual: FloatArray) -> RoundDesign:
        """The same with c as if each device had its usual weight, so that rounds of other weights can be added up."""
        relative = divide_or(self.weights, usual, 0.0) ** 2
        counted = divide_or(np.broadcast_to(self.counted_noise_var, relative.shape), relative, np.inf)
        return replace(self, counted_noise_var=counted)

    def power_slack(self, peak_power_w: ArrayLike) -> FloatArray:
        """1 − (|P1|² + |P2|²)/P_i of eq. (9), `[device, class]`: negative where the limit is broken."""
        return 1.0 - self.mean_power_w() / np.reshape(np.asarray(peak_power_w, dtype=np.float64), (-1, 1))

    def privacy_slack(self, required_noise_var: FloatArray) -> FloatArray:
        """c/req − 1, eq. (17) in units of the estimate, `[device, class]`: negative where it is broken.

        Infinite where nothing is required.
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
    return design_links(links, channel, required_noise_var, trust)


def design_links(links: Links, channel: ComplexArray, required_noise_var: ArrayLike, trust: str) -> RoundDesign:
    """The same for links whose weights may be others than the class counts'."""
    rule = trust_model(trust, links.channel_noise_var)
    required = np.asarray(required_noise_var, dtype=np.float64)
    if required.shape != links.weights.shape:
        raise ValueError(f"required_noise_var of shape {required.shape}: must be {links.weights.shape}")
    if not (required >= 0).all() or np.isinf(required).any():
        raise ValueError("required_noise_var: must be finite and not negative")
    idle = links.weights == 0
    if required[idle].any():
        # Who does not hold a class has nothing to hide in it.
        required = np.where(idle, 0.0, required)
    del idle
    inverse_scale = rule.inverse_scale_sq(links, required)
    effective = effective_noise_var(links, required, rule, inverse_scale)
    scale_sq = np.where(np.isfinite(effective), divide_or(np.ones(()), inverse_scale, 0.0), 0.0)
    inverse_channel = inverse_of(np.asarray(channel, dtype=np.complex128))
    # The noise first: its temporaries are gone before the signal's array is made.
    noise_gain = _noise_gain(rule.received_noise(links, required, scale_sq), inverse_channel)
    return RoundDesign(
        weights=links.weights,
        signal_gain=aligned_signal_gain(links, inverse_channel, scale_sq),
        noise_gain=noise_gain,
        rx_scale=np.sqrt(scale_sq),
        effective_noise_var=effective,
        counted_noise_var=rule.counted_noise_var(required, effective),
        required_noise_var=np.asarray(required.max(axis=0)),
        noise_axes=links.noise_axes,
    )


def effective_noise_var(
    links: Links, required: FloatArray, rule: TrustModel, inverse_scale: FloatArray | None = None
) -> FloatArray:
    """v_k of the optimal design, `[..., class]`; infinite for a class that cannot be sent."""
    if inverse_scale is None:
        inverse_scale = rule.inverse_scale_sq(links, required)
    sendable = (inverse_scale > 0) & np.isfinite(inverse_scale)
    # 0 · inf is no number: what cannot be sent is marked, not multiplied.
    from_channel = links.channel_noise_var * np.where(sendable, inverse_scale, 0.0)
    return np.where(sendable, rule.artificial_noise_var(required) + from_channel, np.inf)


def noise_by_trust(design: RoundDesign, channel: ComplexArray, channel_noise_var: float) -> dict[str, FloatArray]:
    """What each trust model counts of the noise that the gains really send, `[device, class]`, in units of r̂.

    With a scale for each device (one after the other) nobody else's noise is in its slots.
    """
    sent, scale_sq = design.rx_scale > 0, design.rx_scale**2
    own = np.abs(design.noise_gain * channel[:, None]) ** 2
    together = own if scale_sq.ndim == 2 else own.sum(axis=0)
    at_receiver = {"receiver_noise": together + channel_noise_var, "fleet_noise": together, "own_noise": own}
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
    """P2 = |P2| h̄/|h| from |h P2|², `[device, class]`, so that the noise arrives on the real axis."""
    if received_noise.strides == (0, 0):  # one number, zero, stands for all
        return np.broadcast_to(np.complex128(0), received_noise.shape)
    amplitude = np.sqrt(received_noise, out=received_noise)
    return np.asarray(amplitude * inverse_channel[:, None])


def inverse_of(channel: ComplexArray) -> ComplexArray:
    """1/h, and zero for a device without a channel."""
    return np.where(channel != 0, 1.0 / np.where(channel != 0, channel, 1.0), 0.0)
