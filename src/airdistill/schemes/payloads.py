"""Payload protocols: how devices make a payload and learn from what is broadcast, and what a record keeps of it.

One class for each built-in payload. Schemes and audits play rounds with these, and so an attack meets the very training
that a run has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from airdistill.arrays import BoolArray, FloatArray, IntArray
from airdistill.data.public import PublicSet
from airdistill.errors import InputError
from airdistill.learning.fleet import Engine, LearningFleet, check_finite
from airdistill.learning.gradients import Target
from airdistill.learning.learner import Learner, Losses
from airdistill.learning.mixed import MixedSteps, passes_in_batches, rise_and_fall
from airdistill.learning.public_predictions import ClientSelector, check_answers, sharpened, surest_answers, votes
from airdistill.planning.payloads import Gradient, PublicPredictions, declared_public, rows_of_round
from airdistill.planning.plan import Plan
from airdistill.radio.receivers import Receiver, make_receiver
from airdistill.radio.superposition import Reception
from airdistill.scenario.model import Scenario
from airdistill.schemes.receivers import OwnReceiver, public_receiver
from airdistill.streams import stream

# Tuned on MNIST, docs/results.md.
_MOMENTUM = 0.9
_CLIP_NORM = 4.0
_SHIFT_LOCAL, _SHIFT_DISTILLING = 1, 2  # pixels of random translation, in local training and in distillation
_PUBLIC_BATCH, _OWN_BATCH, _WARM_UP = 50, 10, 30
MOST_CLASSES = 100  # larger tables are not recorded: they are long to write and too large to read
_DIGITS = 6


class PayloadProtocol(Protocol):
    """The device side of a payload. Learner n of the fleet is device `devices[n]`: it takes its batches in that
    device's
    public order."""

    def vectors(self, fleet: LearningFleet, round_index: int, devices: Iterable[int]) -> FloatArray:
        """What every learner sends, `[learner, row, entry]`, after any training that the payload needs first."""

    def learn(
        self, fleet: LearningFleet, round_index: int, broadcast: FloatArray | None, devices: Iterable[int]
    ) -> Sequence[Losses]:
        """Update every learner from the server's broadcast, or on its own samples without one."""

    def receiver(self, public: PublicSet | None, engine: Engine) -> Receiver | None:
        """The server's receiver at the start of a run; None if the received sum is broadcast as it is."""

    def record(self, reception: Reception, round_index: int, public: PublicSet | None) -> dict[str, Any]:
        """What the record of a round keeps of the quality of what was received."""

    def tables(self, reception: Reception, round_index: int, public: PublicSet | None) -> dict[str, Any]:
        """What the record of an evaluated round keeps of the payload itself, for figures."""


def payload_protocol(plan: Plan) -> PayloadProtocol:
    """The device side of a plan's payload: its own, or the built-in one of its kind."""
    payload = plan.uplink.payload
    own: PayloadProtocol | None = payload.protocol(plan)
    if own is not None:
        return _checked(own, payload.kind)
    made: PayloadProtocol = _BUILT_IN[payload.kind](plan)
    return made


def _checked(own: PayloadProtocol, kind: str) -> PayloadProtocol:
    names = ("vectors", "learn", "receiver", "record", "tables")
    missing = [name for name in names if not callable(getattr(own, name, None))]
    if missing:
        rule = f"its protocol lacks {', '.join(missing)}: derive it from airdistill.schemes.payloads.BaseProtocol"
        raise InputError("payload", kind, rule)
    return own


def receiver_of(plan: Plan, public: PublicSet | None, engine: Engine) -> Receiver | None:
    """The receiver that a plan's scenario names, or a user's own by `package.module:Class`, which is made with the
    plan."""
    name, payload = plan.scenario.learning.receiver, plan.uplink.payload
    if ":" in name:
        return OwnReceiver(name, plan)
    if name not in payload.receivers and payload.is_knowledge:
        rule = (
            f"cannot read {payload.words}: one of {', '.join(payload.receivers)}, or your own as package.module:Class"
        )
        raise InputError("learning.receiver", name, rule)
    return payload_protocol(plan).receiver(public, engine)


class BaseProtocol:
    """A protocol that records nothing and has no receiver, for payloads that need neither."""

    def receiver(self, public: PublicSet | None, engine: Engine) -> Receiver | None:  # noqa: ARG002
        return None

    def record(self, reception: Reception, round_index: int, public: PublicSet | None) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def tables(self, reception: Reception, round_index: int, public: PublicSet | None) -> dict[str, Any]:  # noqa: ARG002
        return {}


@dataclass(frozen=True)
class ClassMeanProtocol(BaseProtocol):
    """Eq. (2), and the update of eq. (4) or local epochs."""

    plan: Plan

    def vectors(self, fleet: LearningFleet, round_index: int, devices: Iterable[int]) -> FloatArray:  # noqa: ARG002
        return fleet.knowledge(for_full_batch=self.plan.scenario.learning.local_epochs == 0)

    def learn(
        self, fleet: LearningFleet, round_index: int, broadcast: FloatArray | None, devices: Iterable[int]
    ) -> Sequence[Losses]:
        return learn_from(fleet, self.plan.scenario, round_index, broadcast, devices)

    def receiver(self, public: PublicSet | None, engine: Engine) -> Receiver | None:  # noqa: ARG002
        learning = self.plan.scenario.learning
        return make_receiver(learning.receiver, self.plan.uplink.num_rows, learning.knowledge_drift)

    def record(self, reception: Reception, round_index: int, public: PublicSet | None) -> dict[str, Any]:  # noqa: ARG002
        """The error of the broadcast per entry, and the receiver's own estimate of it; nothing without a receiver."""
        if reception.estimate is None:
            return {}
        expected = reception.estimate.expected_error
        return {
            "estimate_error": reception.estimate_error().tolist(),
            "expected_error": None if expected is None else expected.tolist(),
        }

    def tables(self, reception: Reception, round_index: int, public: PublicSet | None) -> dict[str, Any]:  # noqa: ARG002
        """The ideal mean, the received and the broadcast class means: row k is that of class k.

        Nothing if a scheme of the user's own sends something else.
        """
        num_classes = self.plan.fleet.num_classes
        tables = {"ideal": reception.ideal, "received": reception.received, "broadcast": reception.broadcast}
        if any(table.shape != (num_classes, num_classes) for table in tables.values()):
            return {}
        return _kept(tables, num_classes)


@dataclass(frozen=True)
class GradientProtocol(BaseProtocol):
    """Gradients clipped per sample, and one step along their noisy mean."""

    plan: Plan

    def vectors(self, fleet: LearningFleet, round_index: int, devices: Iterable[int]) -> FloatArray:  # noqa: ARG002
        payload = self.plan.uplink.payload
        assert isinstance(payload, Gradient)
        return fleet.gradients(payload.clip_norm)[0][:, None]

    def learn(
        self,
        fleet: LearningFleet,
        round_index: int,
        broadcast: FloatArray | None,
        devices: Iterable[int],  # noqa: ARG002
    ) -> Sequence[Losses]:
        if broadcast is not None and np.isfinite(broadcast).all():  # else a device has no channel: nothing was sent
            fleet.descend(broadcast[0], self.plan.scenario.learning.step_size(round_index))
        return []


class PublicPredictionProtocol(BaseProtocol):
    """Each round a device trains on its own samples, answers the round's public samples, and learns from the broadcast.

    With abstention it also learns in training to be uncertain on public samples, most of which are not of its classes;
    it then votes on those that it is most certain of.
    """

    def __init__(self, plan: Plan) -> None:
        payload = plan.uplink.payload
        assert isinstance(payload, PublicPredictions)
        if plan.scenario.learning.local_epochs == 0:
            rule = "devices train in passes over their samples before they answer a public set: at least 1"
            raise InputError("learning.local_epochs", 0, rule)
        self.plan, self.scenario, self.public = plan, plan.scenario, declared_public(plan.scenario)
        self.most_answers, self.num_classes = payload.most_answers, plan.fleet.num_classes

    def receiver(self, public: PublicSet | None, engine: Engine) -> Receiver | None:
        assert public is not None  # the scenario declares one, or there would be no such plan
        return public_receiver(self.plan, public, engine)

    def record(self, reception: Reception, round_index: int, public: PublicSet | None) -> dict[str, Any]:
        """If the labels are known: the share of right labels in the ideal, received and broadcast rows."""
        if public is None or public.hidden_labels is None:
            return {}
        labels = public.hidden_labels
        asked = labels[rows_of_round(self.public, round_index)]
        sums = {"ideal": reception.ideal, "received": reception.received}
        right = {name: _share_right(rows.reshape(-1, self.num_classes), asked) for name, rows in sums.items()}
        return {"labels_right": {**right, "broadcast": _share_right(reception.broadcast, labels)}}

    def tables(self, reception: Reception, round_index: int, public: PublicSet | None) -> dict[str, Any]:
        """If the labels are known: row k is the mean over the public samples of class k."""
        if public is None or public.hidden_labels is None:
            return {}
        labels, num_classes = public.hidden_labels, self.num_classes
        asked = labels[rows_of_round(self.public, round_index)]
        tables = {
            "ideal": _mean_by_label(reception.ideal.reshape(-1, num_classes), asked, num_classes),
            "received": _mean_by_label(reception.received.reshape(-1, num_classes), asked, num_classes),
            "broadcast": _mean_by_label(reception.broadcast, labels, num_classes),
        }
        return _kept(tables, num_classes)

    def vectors(self, fleet: LearningFleet, round_index: int, devices: Iterable[int]) -> FloatArray:
        places = list(devices)
        self._train(fleet, round_index, places)
        answers = self._answers(fleet, round_index, places)
        return answers.reshape(len(answers), 1, -1)

    def _answers(self, fleet: LearningFleet, round_index: int, devices: list[int]) -> FloatArray:
        """The answers `[learner, sample, class]`, within the bound that the plan counts on."""
        asked = rows_of_round(self.public, round_index)
        predictions = fleet.public_predictions(asked)
        answers = votes(predictions, self.public.confidence) if self.public.abstain else predictions
        if self.public.client_selector == "density":
            answers = np.where(self._accepted(fleet, asked, devices)[..., None], answers, 0.0)
        kept = surest_answers(answers, predictions.max(axis=-1), self.most_answers)
        check_answers(kept, self.most_answers)
        return kept

    def _accepted(self, fleet: LearningFleet, asked: IntArray, devices: list[int]) -> BoolArray:
        """The public samples that look like a learner's own, `[learner, sample]`."""
        public = fleet.public_samples(asked).cpu().numpy()

        def of_one(learner: Learner, device: int) -> BoolArray:
            samples, labels = (tensor.cpu().numpy() for tensor in learner.samples_and_labels())
            rng = stream(self.scenario.seed, "client-selector", 0, device)
            return ClientSelector.for_device(samples, labels, rng).accepts(public)

        return np.stack(fleet.engine.for_each(of_one, fleet.learners, devices))

    def _train(self, fleet: LearningFleet, round_index: int, devices: list[int]) -> None:
        public, engine = self.public, fleet.engine
        # A device that may answer every sample has no reason to learn uncertainty.
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
        lr = np.full(num_steps, learning.step_size(round_index))
        batches = (
            passes_in_batches(learner.num_samples, num_steps, learning.batch_size, own),
            passes_in_batches(self.public.samples, num_steps, batch, shared),
        )
        steps = self._steps(batches, (1.0, public_weight), lr)
        return self._translated(steps, _SHIFT_LOCAL, learner, own)

    def learn(
        self, fleet: LearningFleet, round_index: int, broadcast: FloatArray | None, devices: Iterable[int]
    ) -> Sequence[Losses]:
        assert broadcast is not None  # a scheme on a public set always broadcasts
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
        lr = learning.step_size(round_index, public.distill_lr) * rise_and_fall(num_steps, _WARM_UP)
        steps = self._steps(batches, (public.own_weight, learning.distill_weight), lr)
        return self._translated(steps, _SHIFT_DISTILLING, learner, rng)

    def _steps(self, batches: tuple[IntArray, IntArray], weights: tuple[float, float], lr: FloatArray) -> MixedSteps:
        optimiser = self.scenario.learning.optimizer
        return MixedSteps(*batches, *weights, lr, _MOMENTUM, clip_norm=self._clip_norm, optimiser=optimiser)

    @property
    def _clip_norm(self) -> float | None:
        """Without abstention a device is overconfident, and its first distillation steps can diverge: clip them."""
        return None if self.public.abstain else _CLIP_NORM

    def _translated(self, steps: MixedSteps, most: int, learner: Learner, rng: np.random.Generator) -> MixedSteps:
        """The same steps with every image translated by a few pixels; other samples stay."""
        if learner.samples_and_labels()[0].ndim != 4:
            return steps
        num_samples = steps.own.shape[1] + steps.public.shape[1]
        offsets = rng.integers(0, 2 * most, (len(steps.lr), num_samples, 2), endpoint=True)
        return replace(steps, offsets=offsets, most_moved=most)


_BUILT_IN: dict[str, Any] = {
    "knowledge": ClassMeanProtocol,
    "public_knowledge": PublicPredictionProtocol,
    "gradient": GradientProtocol,
}


def learn_from(
    fleet: LearningFleet, scenario: Scenario, round_index: int, received: FloatArray | None, devices: Iterable[int]
) -> Sequence[Losses]:
    """Update every learner in a round; learner n takes its batches in the public order of device `devices[n]`."""
    learning, engine = scenario.learning, fleet.engine
    lr = learning.step_size(round_index)
    target = None if received is None else Target.of(received, engine.dtype, engine.device)
    if learning.local_epochs == 0:
        return fleet.full_batch_step(target, lr, learning.distill_weight, learning.optimizer)
    sizes = [learner.num_samples for learner in fleet.learners]
    streams = [stream(scenario.seed, "batch-order", round_index, device) for device in devices]
    orders = [
        [rng.permutation(size) for _ in range(learning.local_epochs)] for rng, size in zip(streams, sizes, strict=True)
    ]
    return fleet.local_epochs(target, lr, learning.distill_weight, orders, learning.batch_size, learning.optimizer)


def _share_right(rows: FloatArray, labels: IntArray) -> float:
    """The share of the known rows `[row, class]` whose largest entry is that of the label."""
    known = np.isfinite(rows).all(axis=1) & rows.any(axis=1)
    return float((rows[known].argmax(axis=1) == labels[known]).mean()) if known.any() else 0.0


def _mean_by_label(rows: FloatArray, labels: IntArray, num_classes: int) -> FloatArray:
    means = np.full((num_classes, num_classes), np.nan)
    for label in np.unique(labels):
        known = rows[(labels == label) & np.isfinite(rows).all(axis=1)]
        if len(known):
            means[label] = known.mean(axis=0)
    return means


def _kept(tables: dict[str, FloatArray], num_classes: int) -> dict[str, Any]:
    if num_classes > MOST_CLASSES:
        return {}
    return {"knowledge": {name: _rounded(table) for name, table in tables.items()}}


def _rounded(table: FloatArray) -> list[list[float | None]]:
    """The table with six digits; null for unknown entries."""
    return [[float(f"{x:.{_DIGITS}g}") if np.isfinite(x) else None for x in row] for row in table.tolist()]
