"""What the devices of a plan send in a round, and how they learn from what is broadcast: one class for each kind.

Schemes and audits play rounds with these, so that an attack meets the very training that a run has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.codesign.gradient_uplink import GradientUplink
from airdistill.codesign.plan import Plan
from airdistill.learning.fleet import LearningFleet
from airdistill.learning.learner import Losses
from airdistill.learning.target import Target
from airdistill.scenario.model import Scenario
from airdistill.schemes.public_sharing import SharedPredictions
from airdistill.streams import stream


class Sharing(Protocol):
    """Learner n of the fleet stands for device `devices[n]`: it takes its batches in that device's public order."""

    def vectors(self, fleet: LearningFleet, round_index: int, devices: Iterable[int]) -> FloatArray:
        """What every learner would send, `[learner, row, entry]`; whatever it must learn before that it learns here."""

    def learn(
        self, fleet: LearningFleet, round_index: int, broadcast: FloatArray | None, devices: Iterable[int]
    ) -> Sequence[Losses]:
        """Every learner's update from what the server broadcast, or on its own."""


def sharing_of(plan: Plan) -> Sharing:
    uplink = plan.uplink
    if isinstance(uplink, GradientUplink):
        return SharedGradients(plan.scenario, uplink.clip_norm)
    if uplink.kind == "public_knowledge":
        return SharedPredictions.of(plan)
    return SharedClassMeans(plan.scenario)


@dataclass(frozen=True)
class SharedClassMeans:
    """Eq. (2), and the update of eq. (4) or local epochs."""

    scenario: Scenario

    def vectors(self, fleet: LearningFleet, round_index: int, devices: Iterable[int]) -> FloatArray:  # noqa: ARG002
        return fleet.knowledge(for_full_batch=self.scenario.learning.local_epochs == 0)

    def learn(
        self, fleet: LearningFleet, round_index: int, broadcast: FloatArray | None, devices: Iterable[int]
    ) -> Sequence[Losses]:
        return learn_from(fleet, self.scenario, round_index, broadcast, devices)


@dataclass(frozen=True)
class SharedGradients:
    """Gradients clipped per sample, and one step along their noisy mean."""

    scenario: Scenario
    clip_norm: float

    def vectors(self, fleet: LearningFleet, round_index: int, devices: Iterable[int]) -> FloatArray:  # noqa: ARG002
        return fleet.gradients(self.clip_norm)[0][:, None]

    def learn(
        self,
        fleet: LearningFleet,
        round_index: int,
        broadcast: FloatArray | None,
        devices: Iterable[int],  # noqa: ARG002
    ) -> Sequence[Losses]:
        if broadcast is not None and np.isfinite(broadcast).all():  # else a device has no channel: nothing was sent
            fleet.descend(broadcast[0], step_size(self.scenario, round_index))
        return []


def learn_from(
    fleet: LearningFleet, scenario: Scenario, round_index: int, received: FloatArray | None, devices: Iterable[int]
) -> Sequence[Losses]:
    """Every learner's update in a round; learner n takes its batches in the public order of device `devices[n]`."""
    learning, engine = scenario.learning, fleet.engine
    lr = step_size(scenario, round_index)
    target = None if received is None else Target.of(received, engine.dtype, engine.device)
    if learning.local_epochs == 0:
        return fleet.full_batch_step(target, lr, learning.distill_weight)
    orders = [
        [rng.permutation(learner.num_samples) for _ in range(learning.local_epochs)]
        for device, learner in zip(devices, fleet.learners, strict=True)
        for rng in [stream(scenario.seed, "batch-order", round_index, device)]
    ]
    return fleet.local_epochs(target, lr, learning.distill_weight, orders, learning.batch_size)


def step_size(scenario: Scenario, round_index: int) -> float:
    """η_t = η0/√t."""
    return float(scenario.learning.initial_lr / np.sqrt(round_index))
