"""Knowledge on a public set: how devices come to their answers, and how they learn from what is broadcast.

What the devices of a plan send in a round, and how they learn from what is broadcast: one class for each kind.

Schemes and audits play rounds with these, so that an attack meets the very training that a run has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from airdistill.arrays import BoolArray, FloatArray, IntArray
from airdistill.errors import InputError
from airdistill.learning.fleet import LearningFleet, check_finite
from airdistill.learning.gradients import Target
from airdistill.learning.learner import Learner, Losses
from airdistill.learning.mixed import MixedSteps, passes_in_batches, rise_and_fall
from airdistill.learning.public_predictions import ClientSelector, check_answers, sharpened, surest_answers, votes
from airdistill.planning.plan import Plan
from airdistill.planning.transceiver.gradient import GradientUplink
from airdistill.planning.transceiver.superposed import public_predictions_of
from airdistill.planning.uplinks import declared_public
from airdistill.scenario.model import Public, Scenario
from airdistill.streams import stream

# Tuned on MNIST, docs/results.md.
_MOMENTUM = 0.9
_CLIP_NORM = 4.0
_MOVED_ALONE, _MOVED_TOGETHER = 1, 2  # pixels that images are moved by, while a device learns alone and from the rest
_PUBLIC_BATCH, _OWN_BATCH, _WARM_UP = 50, 10, 30


@dataclass(frozen=True)
class PublicPredictionProtocol:
    """Each round a device trains on its own samples, answers the round's public ones, and learns from the broadcast.

    With abstention it is also taught, while it trains, to be unsure on public samples, which are mostly none of its own
    classes; it then votes on those of which it is surest nevertheless.
    """

    scenario: Scenario
    public: Public
    most_answers: int
    num_classes: int

    @classmethod
    def of(cls, plan: Plan) -> PublicPredictionProtocol:
        shared = public_predictions_of(plan.uplink)
        assert shared is not None  # the caller has looked
        if plan.scenario.learning.local_epochs == 0:
            rule = "devices train in passes over their samples before they answer a public set: at least 1"
            raise InputError("learning.local_epochs", 0, rule)
        return cls(plan.scenario, declared_public(plan.scenario), shared.most_answers, plan.fleet.num_classes)

    def vectors(self, fleet: LearningFleet, round_index: int, devices: Iterable[int]) -> FloatArray:
        places = list(devices)
        self._train(fleet, round_index, places)
        answers = self._answers(fleet, round_index, places)
        return answers.reshape(len(answers), 1, -1)

    def _answers(self, fleet: LearningFleet, round_index: int, devices: list[int]) -> FloatArray:
        """`[learner, sample, class]`, within the bound that the plan counts on."""
        asked = rows_of_round(self.public, round_index)
        predictions = fleet.public_predictions(asked)
        said = votes(predictions, self.public.confidence) if self.public.abstain else predictions
        if self.public.client_selector == "density":
            said = np.where(self._accepted(fleet, asked, devices)[..., None], said, 0.0)
        kept = surest_answers(said, predictions.max(axis=-1), self.most_answers)
        check_answers(kept, self.most_answers)
        return kept

    def _accepted(self, fleet: LearningFleet, asked: IntArray, devices: list[int]) -> BoolArray:
        """Which public samples each learner takes for its own kind, `[learner, sample]`."""
        public = fleet.public_samples(asked).cpu().numpy()

        def of_one(learner: Learner, device: int) -> BoolArray:
            samples, labels = (tensor.cpu().numpy() for tensor in learner.samples_and_labels())
            rng = stream(self.scenario.seed, "client-selector", 0, device)
            return ClientSelector.for_device(samples, labels, rng).accepts(public)

        return np.stack(fleet.engine.for_each(of_one, fleet.learners, devices))

    def _train(self, fleet: LearningFleet, round_index: int, devices: list[int]) -> None:
        public, engine = self.public, fleet.engine
        # Who is asked about everything has nothing to be unsure of.
        lacks = self.most_answers < public.rows_a_round
        weight = public.abstain_weight if public.abstain and lacks else 0.0
        unsure = np.full((public.samples, self.num_classes), 1.0 / self.num_classes)
        steps = [
            self._local_steps(learner, round_index, device, weight)
            for device, learner in zip(devices, fleet.learners, strict=True)
        ]
        losses = fleet.mixed_steps(steps, Target.of(unsure, engine.dtype, engine.device), "devices trained")
        check_finite(losses, fleet.finite_weights(), round_index)

    def _local_steps(self, learner: Learner, round_index: int, device: int, public_weight: float) -> MixedSteps:
        learning, own = self.scenario.learning, stream(self.scenario.seed, "batch-order", round_index, device)
        shared = stream(self.scenario.seed, "public-order", round_index, device)
        num_steps = learning.local_epochs * -(-learner.num_samples // learning.batch_size)
        batch = learning.batch_size if public_weight else 0
        lr = np.full(num_steps, learning.initial_lr / np.sqrt(round_index))
        batches = (
            passes_in_batches(learner.num_samples, num_steps, learning.batch_size, own),
            passes_in_batches(self.public.samples, num_steps, batch, shared),
        )
        steps = MixedSteps(*batches, 1.0, public_weight, lr, _MOMENTUM, clip_norm=self._clip_norm)
        return self._moving(steps, _MOVED_ALONE, learner, own)

    def learn(
        self, fleet: LearningFleet, round_index: int, broadcast: FloatArray | None, devices: Iterable[int]
    ) -> Sequence[Losses]:
        assert broadcast is not None  # nobody is asked to learn from a public set on its own
        target = Target.of(sharpened(broadcast, self.public.temperature), fleet.engine.dtype, fleet.engine.device)
        steps = [
            self._distilling_steps(learner, round_index, device)
            for device, learner in zip(devices, fleet.learners, strict=True)
        ]
        return fleet.mixed_steps(steps, target, "devices taught")

    def _distilling_steps(self, learner: Learner, round_index: int, device: int) -> MixedSteps:
        learning, public = self.scenario.learning, self.public
        rng = stream(self.scenario.seed, "distilling-order", round_index, device)
        num_steps = public.distill_epochs * -(-public.samples // _PUBLIC_BATCH)
        batches = (
            passes_in_batches(learner.num_samples, num_steps, _OWN_BATCH if public.own_weight else 0, rng),
            passes_in_batches(public.samples, num_steps, _PUBLIC_BATCH, rng),
        )
        lr = public.distill_lr / np.sqrt(round_index) * rise_and_fall(num_steps, _WARM_UP)
        weights = (public.own_weight, learning.distill_weight)
        steps = MixedSteps(*batches, *weights, lr, _MOMENTUM, clip_norm=self._clip_norm)
        return self._moving(steps, _MOVED_TOGETHER, learner, rng)

    @property
    def _clip_norm(self) -> float | None:
        """Who never learned to be unsure is so sure that its first steps towards others' labels can wreck it."""
        return None if self.public.abstain else _CLIP_NORM

    def _moving(self, steps: MixedSteps, most: int, learner: Learner, rng: np.random.Generator) -> MixedSteps:
        """The same with every image moved by a few pixels; what is no image stays."""
        if learner.samples_and_labels()[0].ndim != 4:
            return steps
        num_samples = steps.own.shape[1] + steps.public.shape[1]
        offsets = rng.integers(0, 2 * most, (len(steps.lr), num_samples, 2), endpoint=True)
        return replace(steps, offsets=offsets, most_moved=most)


def rows_of_round(public: Public, round_index: int) -> IntArray:
    """The public samples that round t, from 1 on, asks about: the next ones each time, from the first again after the
    last."""
    first = (round_index - 1) * public.rows_a_round
    return np.arange(first, first + public.rows_a_round) % public.samples


class PayloadProtocol(Protocol):
    """Learner n of the fleet stands for device `devices[n]`: it takes its batches in that device's public order."""

    def vectors(self, fleet: LearningFleet, round_index: int, devices: Iterable[int]) -> FloatArray:
        """What every learner would send, `[learner, row, entry]`; whatever it must learn before that it learns here."""

    def learn(
        self, fleet: LearningFleet, round_index: int, broadcast: FloatArray | None, devices: Iterable[int]
    ) -> Sequence[Losses]:
        """Every learner's update from what the server broadcast, or on its own."""


def payload_protocol(plan: Plan) -> PayloadProtocol:
    uplink = plan.uplink
    if isinstance(uplink, GradientUplink):
        return GradientProtocol(plan.scenario, uplink.clip_norm)
    if uplink.kind == "public_knowledge":
        return PublicPredictionProtocol.of(plan)
    return ClassMeanProtocol(plan.scenario)


@dataclass(frozen=True)
class ClassMeanProtocol:
    """Eq. (2), and the update of eq. (4) or local epochs."""

    scenario: Scenario

    def vectors(self, fleet: LearningFleet, round_index: int, devices: Iterable[int]) -> FloatArray:  # noqa: ARG002
        return fleet.knowledge(for_full_batch=self.scenario.learning.local_epochs == 0)

    def learn(
        self, fleet: LearningFleet, round_index: int, broadcast: FloatArray | None, devices: Iterable[int]
    ) -> Sequence[Losses]:
        return learn_from(fleet, self.scenario, round_index, broadcast, devices)


@dataclass(frozen=True)
class GradientProtocol:
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
