"""From one device's vector to what the server sees, through the same air code that a run goes through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from airdistill.air.exchange import RoundNoise
from airdistill.air.signal import ideal_knowledge, receive, superpose, superpose_apart, transmit
from airdistill.arrays import ComplexArray, FloatArray
from airdistill.codesign.gradient_uplink import GradientUplink
from airdistill.codesign.plan import Plan
from airdistill.codesign.transceiver import RoundDesign
from airdistill.privacy.sensitivity import aggregation_weights

# (seed, round, design) to the noise of that round: artificial and the receiver's.
NoiseSource: TypeAlias = Callable[[int, int, RoundDesign], RoundNoise]


@dataclass(frozen=True)
class AirRound:
    """A round's channel `[device]` and design, and what the other devices add to the sum, `[row, entry]`."""

    index: int
    channel: ComplexArray
    design: RoundDesign
    others: FloatArray


@dataclass(frozen=True)
class Link:
    """The uplink as the audited device meets it. A row is a class's knowledge, or the one gradient."""

    plan: Plan
    device: int

    @property
    def of_gradient(self) -> bool:
        return isinstance(self.plan.uplink, GradientUplink)

    @property
    def apart(self) -> bool:
        """Whether every device has slots of its own."""
        return self.plan.uplink.kind == "orthogonal_knowledge"

    @property
    def _energy_slots(self) -> float | None:
        uplink = self.plan.uplink
        return uplink.num_parameters / uplink.clip_norm**2 if isinstance(uplink, GradientUplink) else None

    def weights(self, round_index: int) -> FloatArray:
        """Of every device's vector in the sum, `[device, row]`."""
        uplink = self.plan.uplink
        if isinstance(uplink, GradientUplink):
            return uplink.participation.weights(round_index)[:, None]
        return aggregation_weights(self.plan.fleet.class_counts)

    def usual_weights(self) -> FloatArray:
        """The weights that shift bounds and counted noise refer to, `[device, row]`; they differ under sampling."""
        uplink = self.plan.uplink
        if isinstance(uplink, GradientUplink):
            return uplink.participation.usual_weights[:, None]
        return self.weights(1)

    def seeded_noise(self, seed: int, round_index: int, design: RoundDesign) -> RoundNoise:
        """The `NoiseSource` of the simulation: what a run of this plan draws with that seed."""
        radio, uplink, fleet = self.plan.scenario.radio, self.plan.uplink, self.plan.fleet
        if isinstance(uplink, GradientUplink):
            length = uplink.num_parameters
            return RoundNoise.of_gradient(seed, round_index, design, length, radio.noise_power, radio.noise)
        draw = RoundNoise.apart if self.apart else RoundNoise.seeded
        return draw(seed, round_index, fleet.num_devices, fleet.num_classes, radio.noise_power, radio.noise)

    def broadcast(self, this: AirRound, own: FloatArray, noise: RoundNoise) -> FloatArray:
        """What the server sends to all, `[row, entry]`, when the audited device sends `own`.

        Everything is linear, so that the others' part can be added after the air.
        """
        return this.others + self.mean_of(self._receive_alone(this, own, noise))

    def seen(self, this: AirRound, own: FloatArray, noise: RoundNoise) -> FloatArray:
        """What an attacker sees of the audited device once the others' known part is taken off, `[row, entry]`.

        In units of the mean. Where devices have slots of their own it looks at those alone.
        """
        received = self._receive_alone(this, own, noise)
        if not self.apart:
            return received
        return np.asarray(self.weights(this.index)[self.device][:, None] * received[self.device])

    def receive(self, design: RoundDesign, channel: ComplexArray, vectors: FloatArray, noise: RoundNoise) -> FloatArray:
        """Eqs. (7), (10) to (12) for vectors `[device, row, entry]`: their sum, or each where devices are apart."""
        sent = transmit(design, vectors, noise.artificial, self._energy_slots)
        superposed = superpose_apart if self.apart else superpose
        return receive(superposed(sent, channel, noise.receiver), design.rx_scale)

    def mean_of(self, received: FloatArray) -> FloatArray:
        """The server's weighted mean, `[row, entry]`, where the air has not formed it already."""
        return ideal_knowledge(self.plan.fleet.class_counts, received) if self.apart else received

    def _receive_alone(self, this: AirRound, own: FloatArray, noise: RoundNoise) -> FloatArray:
        """The audited device's vector and everybody's noise."""
        design, channel = this.design, this.channel
        if self.apart or design.noise_gain.any():
            vectors = np.zeros((len(channel), *own.shape))
            vectors[self.device] = own
            return self.receive(design, channel, vectors, noise)
        # The others send nothing here, neither signal nor noise: their zeros need no adding up.
        only = slice(self.device, self.device + 1)
        design = replace(design, signal_gain=design.signal_gain[only], noise_gain=design.noise_gain[only])
        return self.receive(design, channel[only], own[None], replace(noise, artificial=noise.artificial[only]))

    def counted_part(self, noise: RoundNoise) -> RoundNoise:
        """The same draws with all set to zero that the plan's trust does not count for the audited device."""
        trust = self.plan.scenario.privacy.trust
        if trust == "receiver_noise" and self.plan.scenario.radio.noise_power > 0:
            return noise
        silent_receiver = np.zeros_like(noise.receiver)
        if trust != "own_noise":
            return replace(noise, receiver=silent_receiver)
        own = np.zeros_like(noise.artificial)
        own[self.device] = noise.artificial[self.device]
        return replace(noise, artificial=own, receiver=silent_receiver)
