"""The world that a device is audited in: its data, and what the rest of the fleet sends in every round.

What the others send is replayed from one simulation of the whole fleet. That is legitimate: the guarantee must hold
whatever the others send, so that any fixed choice gives a lower bound on the loss of privacy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airdistill.air.receivers import Receiver
from airdistill.air.secure_release import release_on_grid, secure_grid
from airdistill.arrays import ComplexArray, FloatArray, IntArray
from airdistill.audit.link import AirRound, Link
from airdistill.audit.options import OnProgress
from airdistill.channel.csi import round_estimate
from airdistill.channel.sources import channel_source
from airdistill.codesign.plan import Plan
from airdistill.codesign.release import release_of
from airdistill.codesign.transceiver import RoundDesign
from airdistill.data.assignment import assign_samples
from airdistill.data.datasets import Dataset
from airdistill.data.public import PublicSet, load_data
from airdistill.learning.fleet import Engine, LearningFleet, check_finite
from airdistill.runs.simulation import seed_torch
from airdistill.scenario.model import Scenario
from airdistill.schemes.receiving import receiver_of
from airdistill.schemes.sharing import Sharing, sharing_of


@dataclass(frozen=True)
class World:
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
    def sharing(self) -> Sharing:
        return sharing_of(self.plan)

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


def replay(plan: Plan, link: Link, engine: Engine, one_model: bool, num_rounds: int, on_progress: OnProgress) -> World:
    """Simulates the whole fleet, with a run's own seeds, and keeps of every round

    1. its channel and design;
    2. the weighted sum of what the others sent;
    3. the broadcast, from which every device learns.
    """
    scenario = plan.scenario
    (dataset, public), source, sharing = load_data(scenario), channel_source(scenario), sharing_of(plan)
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
    return World(plan, link, engine, dataset, shares.indices, one_model, *shared, public)


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


def learn(sharing: Sharing, fleet: LearningFleet, round_index: int, broadcast: FloatArray, devices: list[int]) -> None:
    """Every learner's update from a broadcast `[row, entry]`; learner n stands for device `devices[n]`."""
    losses = sharing.learn(fleet, round_index, broadcast, devices)
    if losses:
        check_finite(losses, fleet.finite_weights(), round_index)
