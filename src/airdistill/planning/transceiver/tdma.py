"""TDMA: every device sends in its own slots. Comparing with it shows what superposition and common noise save.

A device's slots contain only its own noise and the receiver noise. The server weighs what it receives:
r̂^k = Σ_i w_i^k Re(r_i^k)/λ_ik, and v_k = Σ_i (w_i^k)² v_ik.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray, divide_or
from airdistill.planning.transceiver.design import RoundDesign, inverse_of, noise_by_trust
from airdistill.planning.transceiver.superposed import SuperposedUplink

TDMA_KIND = "orthogonal_knowledge"  # its name in plans and ledgers


@dataclass(frozen=True)
class _AloneDesign:
    """Each device separately, `[..., device, class]`: 1/λ², its own noise and the receiver noise in units of q_i."""

    inverse_scale_sq: FloatArray
    own_noise_var: FloatArray
    receiver_noise_var: FloatArray

    @property
    def noise_var(self) -> FloatArray:
        return self.own_noise_var + self.receiver_noise_var


@dataclass(frozen=True)
class TdmaUplink(SuperposedUplink):
    """K² slots for each device."""

    @property
    def kind(self) -> str:
        return TDMA_KIND

    uses_tdma: ClassVar[bool] = True

    @cached_property
    def num_slots(self) -> int:
        return self.fleet.num_devices * self.fleet.num_classes**2

    @property
    def _counts_receiver(self) -> bool:
        return self.trust_model.counts_receiver

    @property
    def _counts_own_only(self) -> bool:
        return True

    def _alone(self, channels: ComplexArray, asked: FloatArray | None) -> _AloneDesign:
        """The optimum of section 1 for fleets of one device; without `asked` `[device, class]` there is no privacy."""
        weights = self.nominal_weights
        required = np.zeros(weights.shape)
        if asked is not None:
            # The requirement on q_i itself, not on its share in the mean.
            required = divide_or(asked, weights**2, 0.0)
        power_w = (np.abs(channels) ** 2 * self.fleet.peak_power_w)[..., None]
        least = divide_or(np.array(1.0 / self.num_rows), np.broadcast_to(power_w, (*power_w.shape[:-1], 1)), np.inf)
        if self._counts_receiver:
            inverse_scale = np.maximum(least, required / self.channel_noise_var)
            own = np.zeros(weights.shape)
        else:
            inverse_scale = least * (1 + self.num_rows * required)
            own = required
        reached = np.isfinite(inverse_scale)
        receiver = np.where(reached, self.channel_noise_var * np.where(reached, inverse_scale, 0.0), np.inf)
        return _AloneDesign(inverse_scale, own, receiver)

    def _of_the_mean(self, noise_var: FloatArray) -> FloatArray:
        """v_k = Σ_i (w_i^k)² v_ik, `[..., class]`; infinite for a class that no device holds."""
        weights = self.nominal_weights
        weighed = weights**2 * np.where(weights > 0, noise_var, 0.0)
        return np.where(weights.any(axis=0), weighed.sum(axis=-2), np.inf)

    def noise_by_trust(self, design: RoundDesign, channel: ComplexArray) -> dict[str, FloatArray]:
        """A device's slots contain its own noise and the receiver noise."""
        each = noise_by_trust(design, channel, self.channel_noise_var, self.trust)
        sent, squared = design.rx_scale > 0, self.nominal_weights**2
        # In units of the mean, in which the device's shift has weight w.
        return {trust: np.where(sent, squared * np.where(sent, noise, 0.0), np.inf) for trust, noise in each.items()}

    def privacy_noise_var(self, num_rounds: int) -> FloatArray:
        # w² · req/w² of every holder.
        return np.asarray(self.required(num_rounds).sum(axis=0))

    def noise_over(self, channels: ComplexArray) -> Callable[[int], FloatArray]:
        return lambda num_rounds: self._of_the_mean(self._alone(channels, self.required(num_rounds)).noise_var)

    def channel_floor(self, channels: ComplexArray) -> FloatArray:
        return self._of_the_mean(self._alone(channels, None).noise_var)

    def design(
        self, channel: ComplexArray, num_rounds: int, round_index: int, spent: FloatArray | None = None
    ) -> RoundDesign:
        required, weights = self.required_at(num_rounds, round_index, spent), self.nominal_weights
        alone = self._alone(channel, required)
        noise_var = np.broadcast_to(alone.noise_var, weights.shape)
        sent = (weights > 0) & np.isfinite(noise_var)
        scale = np.sqrt(np.where(sent, divide_or(np.ones(()), alone.inverse_scale_sq, 0.0), 0.0))
        inverse_channel = inverse_of(np.asarray(channel, dtype=np.complex128))[:, None]
        counted = noise_var if self._counts_receiver else np.broadcast_to(alone.own_noise_var, weights.shape)
        return RoundDesign(
            weights=weights,
            signal_gain=scale / np.sqrt(self.num_rows) * inverse_channel,
            noise_gain=np.sqrt(alone.own_noise_var) * scale * inverse_channel,
            rx_scale=scale,
            effective_noise_var=self._of_the_mean(noise_var),
            # In units of the mean, in which the device's shift has weight w.
            counted_noise_var=np.where(sent, weights**2 * np.where(sent, counted, 0.0), np.inf),
            required_noise_var=np.asarray(required.sum(axis=0)),
        )
