"""The audit context: one device's link to the server, its data, and what the rest of the fleet sends in every round.

The other devices' signals are replayed from one simulation of the whole fleet, whose rounds are charged and transmitted
like those of a run. That is legitimate: the guarantee must hold whatever other devices send, and so any fixed choice
gives a lower bound on the privacy loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from airdistill.arrays import ComplexArray, FloatArray, IntArray, divide_or
from airdistill.audit.options import OnProgress
from airdistill.channel.csi import round_estimate
from airdistill.channel.sources import channel_source
from airdistill.channel.waveform import tone_noise_power_w
from airdistill.data.datasets import Dataset
from airdistill.data.partition import assign_samples
from airdistill.data.public import PublicSet, load_data
from airdistill.learning.fleet import Engine, LearningFleet, check_finite
from airdistill.planning.antennas.uplink import AntennaUplink
from airdistill.planning.plan import Plan
from airdistill.planning.transceiver.design import RoundDesign, noise_by_trust
from airdistill.planning.transceiver.superposed import SuperposedUplink
from airdistill.privacy.ledger import Ledger
from airdistill.privacy.trust import trust_named
from airdistill.radio.charged_round import charge_round
from airdistill.radio.discrete_noise import SecureNoise, secure_grid
from airdistill.radio.noise_memory import NoiseMemory
from airdistill.radio.receivers import Receiver, estimate_by
from airdistill.radio.superposition import (
    Noise,
    RoundNoise,
    combine,
    ideal_knowledge,
    receive,
    superpose,
    superpose_tdma,
)
from airdistill.runs.accounts import Inputs, ledger_header
from airdistill.runs.simulation import data_digest, seed_torch
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Scheme
from airdistill.schemes.payloads import dataset_of_models, payload_protocol, receiver_of
from airdistill.schemes.protocol import PayloadProtocol
from airdistill.streams import Seed

# (seed, round, design) to the noise of that round: artificial and the receiver's.
NoiseSource: TypeAlias = Callable[[int, int, RoundDesign], Noise]


@dataclass(frozen=True)
class AirRound:
    """A round's channel `[device]`, what is known of it, the design, and the other devices' part of the sum.

    `others` is `[row, entry]`.
    """

    index: int
    channel: ComplexArray
    known: ComplexArray
    design: RoundDesign
    others: FloatArray


@dataclass(frozen=True)
class Link:
    """The uplink as the audited device uses it."""

    plan: Plan
    device: int

    @property
    def tdma(self) -> bool:
        """Whether every device has slots of its own."""
        return self.plan.uplink.uses_tdma

    @property
    def secure(self) -> bool:
        return self.plan.scenario.privacy.noise == "secure"

    def nominal_weights(self) -> FloatArray:
        """The weights that shift bounds and counted noise refer to, `[device, row]`."""
        return self.plan.uplink.nominal_weights

    def seeded_noise(self, seed: Seed, round_index: int, design: RoundDesign) -> RoundNoise:
        """The `NoiseSource` of simulation: the noise that a run of this plan draws with that seed."""
        radio, length = self.plan.scenario.radio, self.plan.uplink.vector_length
        return RoundNoise.seeded(seed, round_index, design, length, tone_noise_power_w(self.plan.scenario), radio.noise)

    def transcript_noise(self, source: NoiseSource | None = None) -> NoiseSource:
        """A source for whole transcripts, by default of a simulation: noise may be correlated over their rounds.

        Ask it for the rounds of one transcript in turn, from the first on.
        """
        new = source or self.seeded_noise
        if self.plan.uplink.correlation is None:
            return new
        memories: dict[str, NoiseMemory] = {}

        def draw(seed: int, round_index: int, design: RoundDesign) -> Noise:
            if round_index == 1:
                memory = NoiseMemory.of(self.plan)
                assert memory is not None
                memories["latest"] = memory
            noise = new(seed, round_index, design)
            assert isinstance(noise, RoundNoise)  # secure noise is not correlated
            return replace(noise, artificial=memories["latest"].correlated(round_index, noise.artificial.real))

        return draw

    def production_noise(self, seed: int, round_index: int, design: RoundDesign, known: ComplexArray) -> Noise:
        """The noise as a run of this plan draws it: seeded, or secure and new each time."""
        seeded = self.seeded_noise(seed, round_index, design)
        if not self.secure:
            return seeded
        return SecureNoise(secure_grid(self.plan, design, known, round_index), seeded.receiver)

    def misalignment(self, this: AirRound) -> complex:
        """h/ĥ of the audited device: how its signal arrives relative to the design; 1 if the channel is known."""
        known = this.known[self.device]
        return 1.0 if this.known is this.channel or known == 0 else complex(this.channel[self.device] / known)

    def counted_noise_var(self, this: AirRound) -> FloatArray:
        """The true c of the audited device, `[row]`, in units in which it has its nominal weight.

        With inexact channels the design counts on less, to be safe; here the true channel is known.
        """
        design, device, uplink = this.design, self.device, self.plan.uplink
        exact = isinstance(uplink, SuperposedUplink) and uplink.error.exact and not uplink.observation.is_partial
        if not isinstance(uplink, SuperposedUplink) or exact:
            return np.asarray(design.counted_noise_var[device])
        trust = self.plan.scenario.privacy.trust
        noise = noise_by_trust(design, this.channel, uplink.channel_noise_var, trust)[trust][device]
        weight = design.weights[device] * np.abs(self.misalignment(this))
        return divide_or(noise, divide_or(weight, uplink.nominal_weights[device], 0.0) ** 2, np.inf)

    def received(self, this: AirRound, own: FloatArray, noise: Noise) -> FloatArray:
        """What the server receives, `[row, entry]`, when the audited device sends `own`.

        Everything is linear: the other devices' part can be added after the air.
        """
        return this.others + self.mean_of(self._receive_alone(this, own, noise))

    def seen(self, this: AirRound, own: FloatArray, noise: Noise) -> FloatArray:
        """What an attacker sees of the audited device after removing the others' known part, `[row, entry]`.

        In units of the mean. With TDMA it looks at the device's own slots only; with a misaligned signal, along the
        axis on which the signal arrives.
        """
        if this.design.combiner is not None:
            this = replace(this, design=self._attacked(this))
        misalignment = self.misalignment(this)
        if misalignment != 1:
            assert isinstance(noise, (RoundNoise, SecureNoise))
            turn = np.conj(misalignment) / np.abs(misalignment)
            this, noise = replace(this, channel=this.channel * turn), replace(noise, receiver=noise.receiver * turn)
        received = self._receive_alone(this, own, noise)
        if not self.tdma:
            return received
        return np.asarray(this.design.weights[self.device][:, None] * received[self.device])

    def _attacked(self, this: AirRound) -> RoundDesign:
        """The design with the combiner that reveals most of the audited device in what the antennas receive."""
        uplink, trust = self.plan.uplink, self.plan.scenario.privacy.trust
        assert isinstance(uplink, AntennaUplink)
        attack = uplink.received(this.design, this.channel).attack(self.device, trust)
        return replace(this.design, combiner=attack, rx_scale=(this.design.rx_scale > 0).astype(np.float64))

    def receive(self, design: RoundDesign, channel: ComplexArray, vectors: FloatArray, noise: Noise) -> FloatArray:
        """Eqs. (7), (10) to (12) for vectors `[device, row, entry]`: their sum, or each device's with TDMA."""
        sent = noise.transmit(design, vectors, self.plan.uplink.energy_slots)
        superposed = superpose_tdma if self.tdma else superpose
        signal = combine(superposed(sent, channel, noise.receiver), design.combiner)
        return receive(signal, design.rx_scale)

    def mean_of(self, received: FloatArray) -> FloatArray:
        """The server's weighted mean, `[row, entry]`, which the air has already formed without TDMA."""
        return ideal_knowledge(self.plan.fleet.class_counts, received) if self.tdma else received

    def _receive_alone(self, this: AirRound, own: FloatArray, noise: Noise) -> FloatArray:
        """What is received of the audited device's vector and of all devices' noise."""
        design, channel = this.design, this.channel
        if self.tdma or design.noise_gain.any() or not isinstance(noise, RoundNoise):
            vectors = np.zeros((len(channel), *own.shape))
            vectors[self.device] = own
            return self.receive(design, channel, vectors, noise)
        # The other devices send neither signal nor noise here: their zeros need not be added.
        only = slice(self.device, self.device + 1)
        design = replace(design, signal_gain=design.signal_gain[only], noise_gain=design.noise_gain[only])
        return self.receive(design, channel[only], own[None], replace(noise, artificial=noise.artificial[only]))

    def gain(self, this: AirRound) -> FloatArray:
        """The factor of the audited device's vectors in what is `seen` of them, `[row]`."""
        return np.asarray(np.abs(self.misalignment(this)) * this.design.weights[self.device])

    def counted_part(self, noise: Noise) -> Noise:
        """The noise with everything set to zero that the plan's trust model does not count for the audited device."""
        trust = trust_named(self.plan.scenario.privacy.trust)
        if trust.counts_receiver and self.plan.scenario.radio.noise_power > 0:
            return noise
        assert isinstance(noise, (RoundNoise, SecureNoise))
        noise = replace(noise, receiver=np.zeros_like(noise.receiver))
        if trust.counts_others:
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
    """The replayed rounds, what the server received and broadcast in them, and the samples of each device.

    `received` and `broadcasts` are `[round, row, entry]`; they differ if there is a receiver. `seen` is what an
    attacker who knows the other devices' vectors sees, with the counted noise; empty without a public set.
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
    seen: tuple[FloatArray, ...] = ()

    @property
    def protocol(self) -> PayloadProtocol:
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
        """c of the audited device, `[round, row]`, in units in which it has its nominal weight.

        With correlated noise that of each round's new noise, in units of the estimate.
        """
        return np.stack([self.link.counted_noise_var(this) for this in self.rounds])

    def without_repeated_noise(self, rounds: Sequence[FloatArray]) -> list[FloatArray]:
        """What a server computes that removes the noise which rounds repeat: Σ_s e_{t−s} y_s, from y of rounds 1, 2, …

        With independent noise the rounds themselves.
        """
        correlation = self.plan.uplink.correlation
        if correlation is None:
            return list(rounds)
        factors = correlation.coefficients(len(rounds))
        return [
            np.asarray(sum(factors[last - each] * rounds[each] for each in range(last + 1) if factors[last - each]))
            for last in range(len(rounds))
        ]


def replay(
    plan: Plan, link: Link, engine: Engine, scheme: Scheme, num_rounds: int, on_progress: OnProgress
) -> AuditContext:
    """Simulate the whole fleet with the noise of a run of this scheme, and keep of every round

    1. its channel and design;
    2. the weighted sum of what the other devices sent;
    3. the broadcast, from which every device learns;
    4. with a public set, what remains of the received sum for an attacker who knows the other devices' answers.

    Rounds are charged to a ledger in memory that enforces no target: an audit examines plans that break theirs, too.
    """
    scenario = plan.scenario
    (dataset, public), source, protocol = load_data(scenario), channel_source(scenario), payload_protocol(plan)
    shares, inputs = assign_samples(scenario, dataset.y_train), Inputs(data_digest(dataset, public))
    dataset = dataset_of_models(plan, dataset, public, engine, shares.indices)
    fleet = LearningFleet.of(
        dataset, shares.indices, scenario.model_names, scenario.seed, engine, scheme.one_model, public=public
    )
    devices = list(range(len(fleet.learners)))
    receiver, rounds, received, broadcasts, seen = receiver_of(plan, public, engine), [], [], [], []
    ledger = Ledger(replace(ledger_header(plan, scheme.name, "private", inputs), enforced=False))
    memory = NoiseMemory.of(plan)
    for index in range(1, num_rounds + 1):
        seed_torch(scenario, index)
        charged = charge_round(plan, ledger, source, index, memory=memory)
        channel, design = charged.channel, charged.design
        known = round_estimate(scenario, channel, index)
        vectors = protocol.vectors(fleet, index, devices)
        rounds.append(AirRound(index, channel, known, design, _sum_of_others(link, design, channel, known, vectors)))
        if link.secure:  # an audit must be repeatable
            charged.noise = link.seeded_noise(scenario.seed, index, design)
        assert isinstance(charged.noise, RoundNoise)
        sent = replace(charged.noise, permission=None)  # an audit looks again at what was sent
        received.append(charged.transmit(vectors).received)
        if plan.uplink.payload.answers_public_set:
            seen.append(link.seen(rounds[-1], vectors[link.device], link.counted_part(sent)))
        broadcasts.append(broadcast_of(receiver, received[-1], design))
        learn(protocol, fleet, index, broadcasts[-1], devices)
        on_progress("the fleet replayed", index, num_rounds)
    transcript = (tuple(rounds), tuple(received), tuple(broadcasts))
    return AuditContext(plan, link, engine, dataset, shares.indices, scheme.one_model, *transcript, public, tuple(seen))


def broadcast_of(receiver: Receiver | None, received: FloatArray, design: RoundDesign) -> FloatArray:
    """What the server broadcasts, `[row, entry]`."""
    if receiver is None:
        return received
    return estimate_by(receiver, received, design.effective_noise_var, design.weights).knowledge


def _sum_of_others(
    link: Link, design: RoundDesign, channel: ComplexArray, known: ComplexArray, vectors: FloatArray
) -> FloatArray:
    """Σ_{j≠i} w_j q_j as it arrives, `[row, entry]`; a class that a device lacks is NaN and has weight zero."""
    weights = design.weights.copy()
    if known is not channel:
        weights *= np.divide(channel, known, out=np.zeros_like(channel), where=known != 0).real[:, None]
    weights[link.device] = 0.0
    sent = np.where(weights[:, :, None] != 0, vectors, 0.0)
    return np.asarray(np.einsum("ik,ikd->kd", weights, sent))


def learn(
    protocol: PayloadProtocol, fleet: LearningFleet, round_index: int, broadcast: FloatArray, devices: list[int]
) -> None:
    """Update every learner from a broadcast `[row, entry]`; learner n is device `devices[n]`."""
    losses = protocol.learn(fleet, round_index, broadcast, devices)
    if losses:
        check_finite(losses, fleet.finite_weights(), round_index)
