"""Payload protocols: how devices make a payload and learn from what is broadcast, and what a record keeps of it.

One class for each built-in payload. Schemes and audits play rounds with these, and so an attack meets the very training
that a run has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from airdistill.arrays import BoolArray, FloatArray, IntArray
from airdistill.data.datasets import Dataset
from airdistill.data.public import PublicSet
from airdistill.errors import InputError
from airdistill.learning.fleet import Engine, LearningFleet
from airdistill.learning.learner import Learner, Losses
from airdistill.learning.public_predictions import ClientSelector, check_answers, surest_answers, votes
from airdistill.planning.payloads import Gradient, PublicPredictions, TeacherVotes, rows_of_round
from airdistill.planning.plan import Plan
from airdistill.radio.receivers import Receiver, make_receiver
from airdistill.radio.superposition import Reception
from airdistill.radio.trusted_aggregator import facts_of_votes
from airdistill.schemes.feature_means import FeatureMeansProtocol
from airdistill.schemes.protocol import BaseProtocol as BaseProtocol  # for protocols of your own, as the next one
from airdistill.schemes.protocol import (
    ConstructedPair,
    PayloadProtocol,
    PublicDistillation,
    kept_tables,
    mean_by_label,
    share_right,
)
from airdistill.schemes.protocol import learn_from as learn_from
from airdistill.schemes.receivers import AnswerReceiver, OwnReceiver, public_receiver
from airdistill.schemes.updates import HeadUpdateProtocol, UpdateProtocol
from airdistill.streams import stream


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


def dataset_of_models(
    plan: Plan, dataset: Dataset, public: PublicSet | None, engine: Engine, indices: Sequence[IntArray]
) -> Dataset:
    """The dataset as the models of a plan's devices take it: embedded, for a head on public features."""
    protocol = payload_protocol(plan)
    if not isinstance(protocol, BaseProtocol):
        return dataset
    return protocol.dataset_of_models(dataset, public, engine, indices)


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
        return kept_tables(tables, num_classes)


@dataclass(frozen=True)
class GradientProtocol(BaseProtocol):
    """Gradients clipped per sample, and one step along their noisy mean."""

    plan: Plan

    def constructed_pairs(self, device: int, rng: np.random.Generator) -> Sequence[ConstructedPair]:
        """With correlated noise: mean gradients of opposite directions in every round, as far apart as clipping allows.

        They reach the joint sensitivity, which gradients of real samples, whose directions change, do not.
        """
        payload = self.plan.uplink.payload
        if self.plan.uplink.correlation is None or not isinstance(payload, Gradient):
            return ()
        direction = rng.standard_normal((1, payload.vector_length))
        direction /= np.linalg.norm(direction)
        ends: dict[Literal["record", "device"], str] = {"record": "class_mean", "device": "device"}
        return [
            ConstructedPair(
                relation,
                f"constructed: opposite mean gradients of one {relation} in every round",
                np.stack([sign * 0.5 * payload.sensitivity(model)[device] * direction for sign in (1.0, -1.0)]),
            )
            for relation, model in ends.items()
        ]

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


class PublicPredictionProtocol(PublicDistillation):
    """Each round a device trains on its own samples, answers the round's public samples, and learns from the broadcast.

    With abstention it also learns in training to be uncertain on public samples, most of which are not of its classes;
    it then votes on those that it is most certain of.
    """

    def __init__(self, plan: Plan) -> None:
        payload = plan.uplink.payload
        assert isinstance(payload, PublicPredictions | TeacherVotes)
        if plan.scenario.learning.local_epochs == 0:
            rule = "devices train in passes over their samples before they answer a public set: at least 1"
            raise InputError("learning.local_epochs", 0, rule)
        super().__init__(plan)
        self.most_answers, self.num_classes = payload.most_answers, plan.fleet.num_classes
        self.num_asked = payload.num_samples

    def asked(self, round_index: int) -> IntArray:
        """The public samples that devices answer in a round."""
        return rows_of_round(self.public, round_index)

    def receiver(self, public: PublicSet | None, engine: Engine) -> Receiver | None:
        assert public is not None  # the scenario declares one, or there would be no such plan
        return public_receiver(self.plan, public, engine)

    def record(self, reception: Reception, round_index: int, public: PublicSet | None) -> dict[str, Any]:
        """If the labels are known: the share of right labels in the ideal, received and broadcast rows."""
        if public is None or public.hidden_labels is None:
            return {}
        labels = public.hidden_labels
        asked = labels[self.asked(round_index)]
        sums = {"ideal": reception.ideal, "received": reception.received}
        right = {name: share_right(rows.reshape(-1, self.num_classes), asked) for name, rows in sums.items()}
        return {"labels_right": {**right, "broadcast": share_right(reception.broadcast, labels)}}

    def tables(self, reception: Reception, round_index: int, public: PublicSet | None) -> dict[str, Any]:
        """If the labels are known: row k is the mean over the public samples of class k."""
        if public is None or public.hidden_labels is None:
            return {}
        labels, num_classes = public.hidden_labels, self.num_classes
        asked = labels[self.asked(round_index)]
        tables = {
            "ideal": mean_by_label(reception.ideal.reshape(-1, num_classes), asked, num_classes),
            "received": mean_by_label(reception.received.reshape(-1, num_classes), asked, num_classes),
            "broadcast": mean_by_label(reception.broadcast, labels, num_classes),
        }
        return kept_tables(tables, num_classes)

    def vectors(self, fleet: LearningFleet, round_index: int, devices: Iterable[int]) -> FloatArray:
        places, kept = list(devices), {}
        if self.public.train_copy:
            kept = {name: tensor.clone() for name, tensor in fleet.state().items()}
        self._train(fleet, round_index, places)
        answers = self._answers(fleet, round_index, places)
        if kept:
            fleet.load_state(kept)
        return answers.reshape(len(answers), 1, -1)

    def _answers(self, fleet: LearningFleet, round_index: int, devices: list[int]) -> FloatArray:
        """The answers `[learner, sample, class]`, within the bound that the plan counts on."""
        asked = self.asked(round_index)
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
        public = self.public
        # A device that may answer every sample has no reason to learn uncertainty.
        lacks = self.most_answers < self.num_asked
        self.train(fleet, round_index, devices, public.abstain_weight if public.abstain and lacks else 0.0)


class TeacherVoteProtocol(PublicPredictionProtocol):
    """The same for votes that a trusted aggregator answers: it asks about the first public samples."""

    def asked(self, round_index: int) -> IntArray:  # noqa: ARG002
        return np.arange(self.num_asked)

    def receiver(self, public: PublicSet | None, engine: Engine) -> Receiver | None:
        assert public is not None  # the scenario declares one, or there would be no such plan
        return AnswerReceiver(self.plan, public, engine)

    def learn(
        self, fleet: LearningFleet, round_index: int, broadcast: FloatArray | None, devices: Iterable[int]
    ) -> Sequence[Losses]:
        assert broadcast is not None  # a scheme on a public set always broadcasts
        if self.public.broadcast == "predictions":
            return super().learn(fleet, round_index, broadcast, devices)
        return fleet.use_model(broadcast[0] if np.isfinite(broadcast).all() else None)

    def record(self, reception: Reception, round_index: int, public: PublicSet | None) -> dict[str, Any]:
        """What was answered and what it cost with these votes, and the shares of right labels."""
        facts = {**facts_of_votes(self.plan, reception.ideal, reception.received), **(reception.facts or {})}
        return {"pate": facts, **super().record(_of_predictions(reception), round_index, public)}

    def tables(self, reception: Reception, round_index: int, public: PublicSet | None) -> dict[str, Any]:
        return super().tables(_of_predictions(reception), round_index, public)


def _of_predictions(reception: Reception) -> Reception:
    """As if the model's predictions were broadcast, whatever was."""
    estimate = reception.estimate
    if estimate is None or estimate.predictions is None:
        return reception
    return replace(reception, estimate=replace(estimate, knowledge=estimate.predictions))


_BUILT_IN: dict[str, Any] = {
    "knowledge": ClassMeanProtocol,
    "public_knowledge": PublicPredictionProtocol,
    "teacher_votes": TeacherVoteProtocol,
    "feature_means": FeatureMeansProtocol,
    "gradient": GradientProtocol,
    "update": UpdateProtocol,
    "head_update": HeadUpdateProtocol,
}
