"""A payload superposed by all devices at a server with several antennas.

A combiner turns the antennas into one channel, and the round is designed for that channel. The privacy cost is counted
against everything that the antennas receive (`privacy.antennas`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airdistill.arrays import ComplexArray, FloatArray, divide_or
from airdistill.planning.antennas.combining import Combiner, best_combiner, combiner_of_each_class
from airdistill.planning.transceiver.common_noise import CommonNoise
from airdistill.planning.transceiver.design import RoundDesign, inverse_of
from airdistill.planning.transceiver.superposed import SuperposedUplink
from airdistill.privacy.antennas import ReceivedSignal
from airdistill.streams import stream

_KEPT = 256  # rounds whose combiners are cached: planner, what-if and run need the same ones


@dataclass(frozen=True)
class AntennaUplink(SuperposedUplink):
    """Channels are `[device, antenna]`, planning channels `[draw, device, antenna]`; all devices are active."""

    combining: str = "joint"

    @property
    def _receiver_counts(self) -> bool:
        return self.trust_model.counts_receiver

    def combiners(self, channel: ComplexArray) -> tuple[Combiner, ...]:
        """Of one round: one for all rows, or one for each."""
        burden = self.nominal_weights**2 / self.fleet.peak_power_w[:, None]
        importance = self.over_fleet(np.eye(self.num_rows))
        alone = self.combining == "per_class"
        return _combiners(_Key(channel), _Key(burden), _Key(np.where(importance > 0, importance, 0.0)), alone)

    def _vectors(self, channel: ComplexArray) -> ComplexArray:
        """f of every row, `[row, antenna]`."""
        vectors = np.stack([made.vector for made in self.combiners(channel)])
        return np.broadcast_to(vectors, (self.num_rows, vectors.shape[1]))

    def _common_noise(self, channel: ComplexArray) -> tuple[CommonNoise, ComplexArray]:
        """One round, and f^H h `[device, row]`."""
        combined = channel @ self._vectors(channel).conj().T
        power_w = np.abs(combined) ** 2 * self.fleet.peak_power_w[:, None]
        reaching, proportions = self._reaching(channel, combined, power_w)
        return self._common_noise_of(power_w, reaching, proportions), combined

    def _common_noise_of(self, power_w: FloatArray, reaching: FloatArray, proportions: FloatArray) -> CommonNoise:
        return CommonNoise(
            self.nominal_weights,
            power_w,
            reaching,
            proportions,
            self.channel_noise_var,
            self.energy_slots,
            self._receiver_counts,
        )

    def _reaching(
        self, channel: ComplexArray, combined: ComplexArray, power_w: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """κ and π, `[device, row]`."""
        nothing = np.zeros(combined.shape)
        if self._counts_own_only:
            return nothing, nothing
        if self._receiver_counts:
            return np.abs(combined) ** 2 / (np.abs(channel) ** 2).sum(axis=1)[:, None], nothing
        # No device adds more than the median can: a few strong directions of noise are easily nulled.
        shares = np.minimum(power_w, np.median(power_w, axis=0))
        proportions = divide_or(shares, shares.sum(axis=0), 0.0)
        gains = inverse_of(combined)
        together = slice(0, 1) if self.combining == "joint" else slice(None)
        signal = ReceivedSignal(channel, gains[:, together], (np.sqrt(proportions) * gains)[:, together], 0.0)
        reaching = signal.counted_by_trust()["fleet_noise"]
        return np.broadcast_to(np.where(np.isfinite(reaching), reaching, 0.0), combined.shape), proportions

    def _common_noises(self, channels: ComplexArray) -> CommonNoise:
        """Many rounds at once."""
        each = [self._common_noise(channel)[0] for channel in channels]
        return self._common_noise_of(
            np.stack([one.power_w for one in each]),
            np.stack([one.reaching for one in each]),
            np.stack([one.proportions for one in each]),
        )

    def noise_over(self, channels: ComplexArray) -> Callable[[int], FloatArray]:
        common = self._common_noises(channels)
        return lambda num_rounds: common.design(self.required(num_rounds)).effective_noise_var

    def channel_floor(self, channels: ComplexArray) -> FloatArray:
        return self._common_noises(channels).design(np.zeros(self.nominal_weights.shape)).effective_noise_var

    def squared_bias(self, channels: ComplexArray) -> FloatArray:
        return np.zeros((len(channels), self.num_rows))

    def design(
        self, channel: ComplexArray, num_rounds: int, round_index: int, spent: FloatArray | None = None
    ) -> RoundDesign:
        required = np.where(self.nominal_weights > 0, self.required_at(num_rounds, round_index, spent), 0.0)
        common, combined = self._common_noise(channel)
        made = common.design(required)
        sent = np.isfinite(made.effective_noise_var)
        scale_sq = np.where(sent, divide_or(np.ones(()), made.inverse_scale_sq, 0.0), 0.0)
        inverse = inverse_of(combined)
        # Eq. (18) with f^H h in place of h; the noise is received on the real axis of f^H Y.
        signal_gain = self.nominal_weights * np.sqrt(scale_sq / self.energy_slots) * inverse
        noise_gain = np.sqrt(made.added_noise_var * scale_sq) * inverse
        signal = self._received_by_all(channel, signal_gain, noise_gain)
        return RoundDesign(
            weights=self.nominal_weights,
            signal_gain=signal_gain,
            noise_gain=noise_gain,
            rx_scale=np.sqrt(scale_sq),
            effective_noise_var=made.effective_noise_var,
            counted_noise_var=signal.counted_by_trust()[self._counted_as],
            required_noise_var=np.asarray(required.max(axis=0)),
            combiner=self._vectors(channel),
        )

    @property
    def _counted_as(self) -> str:
        return self.trust if self._receiver_counts or self._counts_own_only else "fleet_noise"

    def _received_by_all(
        self, channel: ComplexArray, signal_gain: ComplexArray, noise_gain: ComplexArray
    ) -> ReceivedSignal:
        weights = self.nominal_weights
        unit = np.divide(
            signal_gain * np.sqrt(self.energy_slots), weights, out=np.zeros_like(signal_gain), where=weights > 0
        )
        return ReceivedSignal(channel, unit, noise_gain, self.channel_noise_var)

    def received(self, design: RoundDesign, channel: ComplexArray) -> ReceivedSignal:
        """A designed round as the antennas receive it."""
        return self._received_by_all(channel, design.signal_gain, design.noise_gain)

    def noise_by_trust(self, design: RoundDesign, channel: ComplexArray) -> dict[str, FloatArray]:
        """Counted over everything that the antennas receive, whatever the server combines."""
        return self.received(design, channel).counted_by_trust()


class _Key:
    """An array that can be looked up by its bytes."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = np.ascontiguousarray(array)
        self._bytes = (self.array.shape, self.array.tobytes())

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._bytes == other._bytes


@lru_cache(maxsize=_KEPT)
def _combiners(channel: _Key, burden: _Key, importance: _Key, alone: bool) -> tuple[Combiner, ...]:
    """A pure function of the channel: devices and server compute the same combiners."""
    rng = stream(0, "combining")
    if alone:
        return tuple(combiner_of_each_class(channel.array, burden.array, rng))
    return (best_combiner(channel.array, burden.array, importance.array, rng),)
