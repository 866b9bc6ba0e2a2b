"""From one device's vector to what the server sees, through the same air code that a run goes through.

The world that a device is audited in: its data, and what the rest of the fleet sends in every round.

What the others send is replayed from one simulation of the whole fleet. That is legitimate: the guarantee must hold
whatever the others send, so that any fixed choice gives a lower bound on the loss of privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from airdistill.arrays import ComplexArray, FloatArray, IntArray, divide_or
from airdistill.audit.options import OnProgress
from airdistill.channel.csi import round_estimate
from airdistill.channel.sources import channel_source
from airdistill.data.datasets import Dataset
from airdistill.data.partition import assign_samples
from airdistill.data.public import PublicSet, load_data
from airdistill.learning.fleet import Engine, LearningFleet, check_finite
from airdistill.planning.antennas.uplink import AntennaUplink
from airdistill.planning.plan import Plan
from airdistill.planning.transceiver.design import RoundDesign, noise_by_trust
from airdistill.planning.transceiver.gradient import GradientUplink
from airdistill.planning.transceiver.superposed import KnowledgeUplink
from airdistill.planning.uplinks import release_of
from airdistill.radio.discrete_noise import SecureNoise, release_on_grid, secure_grid
from airdistill.radio.receivers import Receiver
from airdistill.radio.superposition import (
    Noise,
    RoundNoise,
    combine,
    ideal_knowledge,
    receive,
    superpose,
    superpose_tdma,
)
from airdistill.runs.simulation import seed_torch
from airdistill.scenario.model import Scenario
from airdistill.schemes.payloads import PayloadProtocol, payload_protocol
from airdistill.schemes.receivers import receiver_of

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

    def nominal_weights(self) -> FloatArray:
        """The weights that shift bounds and counted noise refer to, `[device, row]`; they differ under sampling."""
        uplink = self.plan.uplink
        if isinstance(uplink, GradientUplink):
            return uplink.participation.nominal_weights[:, None]
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
        return divide_or(noise, divide_or(weight, uplink.nominal_weights[device], 0.0) ** 2, np.inf)

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
        superposed = superpose_tdma if self.apart else superpose
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


@dataclass(frozen=True)
class AuditContext:
    """The replayed rounds, what the server received and broadcast in them, and who holds which samples.

    `received` and `broadcasts` are `[round, row, entry]`; they differ where a receiver makes something of what it gets.
    """

    plan: Plan
    link: Link
    engine: Engine
    dataset: Dataset
    indices: tuple[IntArray, ...]
    one_model: bool
    rounds: tuple[AirRound, ...]
    received: tuple[FloatArray, ...]
    broadcasts: tuple[FloatArray, ...]
    public: PublicSet | None = None

    @property
    def sharing(self) -> PayloadProtocol:
        return payload_protocol(self.plan)

    @property
    def device(self) -> int:
        return self.link.device

    @property
    def scenario(self) -> Scenario:
        return self.plan.scenario

    @property
    def own_samples(self) -> NDArray[np.generic]:
        """D, as stored, `[sample, ...]`."""
        return self.dataset.x_train[self.indices[self.device]]

    @property
    def own_labels(self) -> IntArray:
        return self.dataset.y_train[self.indices[self.device]]

    def counted_noise_var(self) -> FloatArray:
        """c of the audited device, `[round, row]`, in units in which it has its usual weight."""
        return np.stack([self.link.counted_noise_var(this) for this in self.rounds])


def replay(
    plan: Plan, link: Link, engine: Engine, one_model: bool, num_rounds: int, on_progress: OnProgress
) -> AuditContext:
    """Simulates the whole fleet, with a run's own seeds, and keeps of every round

    1. its channel and design;
    2. the weighted sum of what the others sent;
    3. the broadcast, from which every device learns.
    """
    scenario = plan.scenario
    (dataset, public), source, sharing = load_data(scenario), channel_source(scenario), payload_protocol(plan)
    shares = assign_samples(scenario, dataset.y_train)
    fleet = LearningFleet.of(
        dataset, shares.indices, scenario.model_names, scenario.seed, engine, one_model, public=public
    )
    everybody = list(range(len(fleet.learners)))
    receiver, rounds, received, broadcasts = receiver_of(plan, public, engine), [], [], []
    spent = np.zeros((plan.fleet.num_devices, plan.uplink.num_rows))
    for index in range(1, num_rounds + 1):
        seed_torch(scenario, index)
        channel = source.round_channel(index)
        known = round_estimate(scenario, channel, index)
        design, vectors = plan.design(known, index, spent), sharing.vectors(fleet, index, everybody)
        spent = spent + _cost(plan, design, known, index)
        rounds.append(AirRound(index, channel, known, design, _sum_of_others(link, design, channel, known, vectors)))
        noise = link.seeded_noise(scenario.seed, index, design)  # the run's own
        received.append(link.mean_of(link.receive(design, channel, vectors, noise)))
        broadcasts.append(broadcast_of(receiver, received[-1], design))
        learn(sharing, fleet, index, broadcasts[-1], everybody)
        on_progress("the fleet replayed", index, num_rounds)
    shared = (tuple(rounds), tuple(received), tuple(broadcasts))
    return AuditContext(plan, link, engine, dataset, shares.indices, one_model, *shared, public)


def broadcast_of(receiver: Receiver | None, received: FloatArray, design: RoundDesign) -> FloatArray:
    """What the server sends to all, `[row, entry]`."""
    return received if receiver is None else receiver.estimate(received, design.effective_noise_var).knowledge


def _cost(plan: Plan, design: RoundDesign, known: ComplexArray, round_index: int) -> FloatArray:
    """What the ledger of a run would have charged, `[device, row]`: later rounds may have the rest."""
    privacy, uplink = plan.scenario.privacy, plan.uplink
    if privacy.noise == "secure":
        grid = secure_grid(plan, design, known, round_index)
        release = release_on_grid(uplink, grid, design, known, round_index)
    else:
        release = release_of(uplink, design, known, round_index)
    return release.cost(privacy.sensitivity, privacy.trust)


def _sum_of_others(
    link: Link, design: RoundDesign, channel: ComplexArray, known: ComplexArray, vectors: FloatArray
) -> FloatArray:
    """Σ_{j≠i} w_j q_j as it arrives, `[row, entry]`; a class that a device lacks has weight zero and is no number."""
    weights = design.weights.copy()
    if known is not channel:
        weights *= np.divide(channel, known, out=np.zeros_like(channel), where=known != 0).real[:, None]
    weights[link.device] = 0.0
    spoken = np.where(weights[:, :, None] != 0, vectors, 0.0)
    return np.asarray(np.einsum("ik,ikd->kd", weights, spoken))


def learn(
    sharing: PayloadProtocol, fleet: LearningFleet, round_index: int, broadcast: FloatArray, devices: list[int]
) -> None:
    """Every learner's update from a broadcast `[row, entry]`; learner n stands for device `devices[n]`."""
    losses = sharing.learn(fleet, round_index, broadcast, devices)
    if losses:
        check_finite(losses, fleet.finite_weights(), round_index)
