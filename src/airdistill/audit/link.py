"""From one device's vector to what the server sees, through the same air code that a run goes through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from airdistill.air.exchange import Noise, RoundNoise
from airdistill.air.secure_noise import SecureNoise
from airdistill.air.secure_release import secure_grid
from airdistill.air.signal import combine, ideal_knowledge, receive, superpose, superpose_apart
from airdistill.arrays import ComplexArray, FloatArray, divide_or
from airdistill.codesign.antenna_uplink import AntennaUplink
from airdistill.codesign.gradient_uplink import GradientUplink
from airdistill.codesign.knowledge_uplink import KnowledgeUplink
from airdistill.codesign.plan import Plan
from airdistill.codesign.transceiver import RoundDesign, noise_by_trust

# (seed, round, design) to the noise of that round: artificial and the receiver's.
NoiseSource: TypeAlias = Callable[[int, int, RoundDesign], Noise]


@dataclass(frozen=True)
class AirRound:
    """A round's channel `[device]`, what is known of it, the design, and what the other devices add to the sum.

    `others` is `[row, entry]`.
    """

    index: int
    channel: ComplexArray
    known: ComplexArray
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
    def secure(self) -> bool:
        return self.plan.scenario.privacy.noise == "secure"

    def usual_weights(self) -> FloatArray:
        """The weights that shift bounds and counted noise refer to, `[device, row]`; they differ under sampling."""
        uplink = self.plan.uplink
        if isinstance(uplink, GradientUplink):
            return uplink.participation.usual_weights[:, None]
        return uplink.weights(1)

    def seeded_noise(self, seed: int, round_index: int, design: RoundDesign) -> RoundNoise:
        """The `NoiseSource` of simulation: what a run of this plan draws with that seed."""
        radio, length = self.plan.scenario.radio, self.plan.uplink.vector_length
        return RoundNoise.seeded(seed, round_index, design, length, radio.noise_power, radio.noise)

    def production_noise(self, seed: int, round_index: int, design: RoundDesign, known: ComplexArray) -> Noise:
        """As a run of this plan draws it: with the seed, or, where the scenario says so, secure and never the same."""
        seeded = self.seeded_noise(seed, round_index, design)
        if not self.secure:
            return seeded
        return SecureNoise(secure_grid(self.plan, design, known, round_index), seeded.receiver)

    def slip(self, this: AirRound) -> complex:
        """h/ĥ of the audited device: how its signal arrives against what it should, 1 where channels are known."""
        known = this.known[self.device]
        return 1.0 if this.known is this.channel or known == 0 else complex(this.channel[self.device] / known)

    def counted_noise_var(self, this: AirRound) -> FloatArray:
        """c of the audited device as it really was, `[row]`, in units in which it has its usual weight.

        Where the channel is known only nearly the design counts on less, to be sure; here the true channel is known.
        """
        design, device, uplink = this.design, self.device, self.plan.uplink
        if not isinstance(uplink, KnowledgeUplink) or uplink.error.exact:
            return np.asarray(design.counted_noise_var[device])
        trust = self.plan.scenario.privacy.trust
        noise = noise_by_trust(design, this.channel, uplink.channel_noise_var)[trust][device]
        weight = design.weights[device] * np.abs(self.slip(this))
        return divide_or(noise, divide_or(weight, uplink.usual_weights[device], 0.0) ** 2, np.inf)

    def received(self, this: AirRound, own: FloatArray, noise: Noise) -> FloatArray:
        """What the server receives, `[row, entry]`, when the audited device sends `own`.

        Everything is linear, so that the others' part can be added after the air.
        """
        return this.others + self.mean_of(self._receive_alone(this, own, noise))

    def seen(self, this: AirRound, own: FloatArray, noise: Noise) -> FloatArray:
        """What an attacker sees of the audited device once the others' known part is taken off, `[row, entry]`.

        In units of the mean. Where devices have slots of their own it looks at those alone; where the signal slips off
        the real axis, along the axis on which it arrives.
        """
        if this.design.combiner is not None:
            this = replace(this, design=self._attacked(this))
        slip = self.slip(this)
        if slip != 1:
            assert isinstance(noise, (RoundNoise, SecureNoise))
            turn = np.conj(slip) / np.abs(slip)
            this, noise = replace(this, channel=this.channel * turn), replace(noise, receiver=noise.receiver * turn)
        received = self._receive_alone(this, own, noise)
        if not self.apart:
            return received
        return np.asarray(this.design.weights[self.device][:, None] * received[self.device])

    def _attacked(self, this: AirRound) -> RoundDesign:
        """The design with the combiner that sees most of the audited device in all that the antennas hear."""
        uplink, trust = self.plan.uplink, self.plan.scenario.privacy.trust
        assert isinstance(uplink, AntennaUplink)
        attack = uplink.heard(this.design, this.channel).attack(self.device, trust)
        return replace(this.design, combiner=attack, rx_scale=(this.design.rx_scale > 0).astype(np.float64))

    def receive(self, design: RoundDesign, channel: ComplexArray, vectors: FloatArray, noise: Noise) -> FloatArray:
        """Eqs. (7), (10) to (12) for vectors `[device, row, entry]`: their sum, or each where devices are apart."""
        uplink = self.plan.uplink
        sent = noise.transmit(design, vectors, uplink.vector_length / uplink.largest_norm**2)
        superposed = superpose_apart if self.apart else superpose
        heard = combine(superposed(sent, channel, noise.receiver), design.combiner)
        return receive(heard, design.rx_scale)

    def mean_of(self, received: FloatArray) -> FloatArray:
        """The server's weighted mean, `[row, entry]`, where the air has not formed it already."""
        return ideal_knowledge(self.plan.fleet.class_counts, received) if self.apart else received

    def _receive_alone(self, this: AirRound, own: FloatArray, noise: Noise) -> FloatArray:
        """The audited device's vector and everybody's noise."""
        design, channel = this.design, this.channel
        if self.apart or design.noise_gain.any() or not isinstance(noise, RoundNoise):
            vectors = np.zeros((len(channel), *own.shape))
            vectors[self.device] = own
            return self.receive(design, channel, vectors, noise)
        # The others send nothing here, neither signal nor noise: their zeros need no adding up.
        only = slice(self.device, self.device + 1)
        design = replace(design, signal_gain=design.signal_gain[only], noise_gain=design.noise_gain[only])
        return self.receive(design, channel[only], own[None], replace(noise, artificial=noise.artificial[only]))

    def counted_part(self, noise: Noise) -> Noise:
        """The same noise with all set to zero that the plan's trust does not count for the audited device."""
        trust = self.plan.scenario.privacy.trust
        if trust == "receiver_noise" and self.plan.scenario.radio.noise_power > 0:
            return noise
        assert isinstance(noise, (RoundNoise, SecureNoise))
        noise = replace(noise, receiver=np.zeros_like(noise.receiver))
        if trust != "own_noise":
            return noise
        if isinstance(noise, SecureNoise):
            return replace(noise, grid=replace(noise.grid, deviation=self._own(noise.grid.deviation)))
        return replace(noise, artificial=self._own(noise.artificial))

    def _own(self, values: NDArray[Any]) -> NDArray[Any]:
        """Zero for all devices but the audited one."""
        own = np.zeros_like(values)
        own[self.device] = values[self.device]
        return own
