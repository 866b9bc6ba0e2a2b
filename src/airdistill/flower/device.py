"""A device: its samples, its model and its ledger, in its own folder, which outlives its process.

On a public set it also has the public samples and the fitted embedding, which all endpoints have in common.

The device decides what it sends: the design and the noise of a round come from its own scenario and its own ledger. The
ledger is charged, on disk, before anything leaves. Losses and accuracy also reveal information about the data, and the
ledger does not account for them. A device therefore stores its update reports, and sends them only in a run that does
not protect the devices from the server.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from torch import Tensor

from airdistill.arrays import FloatArray, IntArray
from airdistill.data.datasets import Dataset, load_dataset
from airdistill.data.partition import assign_samples
from airdistill.data.public import (
    check_not_private,
    check_same_format,
    load_data,
    normalisation,
    normalised_dataset,
)
from airdistill.errors import AirDistillError, InputError
from airdistill.files import write_whole
from airdistill.flower.account import Account
from airdistill.flower.endpoint import Endpoint, EndpointError
from airdistill.flower.public_set import SharedPublic
from airdistill.flower.records import Record, unpacked
from airdistill.flower.reply_cache import DeviceReplyCache
from airdistill.flower.senders import Sender, sender_of
from airdistill.learning.evaluation import Accuracy, TestSet
from airdistill.learning.fleet import LOWER_THE_STEP, LearningFleet, TrainingDivergedError
from airdistill.learning.learner_maker import LearnerMaker
from airdistill.learning.models import build_model, flat_weights
from airdistill.learning.samples import input_shape, to_tensor
from airdistill.planning.feature_means import FeatureMeans
from airdistill.planning.payloads import declared_public
from airdistill.runs.checkpoint import serialized
from airdistill.runs.simulation import check_has_data, seed_torch
from airdistill.schemes.payloads import payload_protocol
from airdistill.streams import stream

WEIGHTS, UPDATE_REPORTS = "weights.safetensors", "lessons.jsonl"
LEARN = "learn"
_LEARNED_ROUND = "learned_round"


@dataclass(frozen=True)
class UpdateReport:
    """The losses of a model update and, if requested, the accuracy of the updated model."""

    training: float
    distillation: float
    accuracy: Accuracy | None

    def to_record(self) -> Record:
        measured = {} if self.accuracy is None else self.accuracy.to_dict()
        return {"training": self.training, "distillation": self.distillation, **measured}


class Device:
    """One device, read from its folder for one message; the caller holds the lock of the folder."""

    def __init__(
        self, folder: Path, number: int, scheme: str, radio: str = "", data: str = "", account: str = ""
    ) -> None:
        """`data` names the device's own dataset; without it the device has its partition of the scenario's dataset.

        `account` is the folder of its account, if it has one.
        """
        self.endpoint = Endpoint.open(folder, scheme, account=Account.of(account, str(number)))
        self.number, self._folder, self._data = number, folder, data
        scenario = self.endpoint.plan.scenario
        if not data:
            check_has_data(scenario)
        if not 0 <= number < scenario.num_devices:
            raise InputError("device", number, f"the scenario has devices 0 to {scenario.num_devices - 1}")
        self._sender: Sender = sender_of(self.endpoint, number, radio)
        self._replies = DeviceReplyCache(folder)

    @property
    def last_round(self) -> int:
        """The last round that is charged to the ledger."""
        return self.endpoint.ledger.last_round

    def answer(self, step: str, round_index: int, question: Record) -> Record:
        """Answer one question of a round; the same question always gets the same answer."""
        if step == LEARN:
            return self._replies.reply(round_index, step, question, lambda: self._learn(round_index, question))
        if step not in self._sender.steps:
            raise EndpointError(f"step {step} is refused: the medium is {self.endpoint.medium}")
        return self._replies.reply(round_index, step, question, lambda: self._send(step, round_index, question))

    def _send(self, step: str, round_index: int, question: Record) -> Record:
        if step == self._sender.steps[0]:
            charged = self.endpoint.charge_through(round_index)
            self._sender.begin(charged, self._knowledge(round_index))
        return self._sender.answer(step, round_index, question)

    def _knowledge(self, round_index: int) -> FloatArray:
        """The vectors that the device sends in a round, without noise, `[row, entry]`."""
        plan = self.endpoint.plan
        _, fleet, learned = self._data_and_fleet()
        if learned >= round_index:
            # The charge of a round bounds the effect of the updates before that round, and of no later ones.
            raise EndpointError(f"round {round_index} is refused: the model was already updated in round {learned}")
        self._check_has_sent_model(round_index, learned)
        seed_torch(plan.scenario, round_index)
        vectors = np.asarray(payload_protocol(plan).vectors(fleet, round_index, [self.number])[0])
        if plan.uplink.payload.answers_public_set:
            self._store(fleet, learned)  # devices train before they answer
        return vectors

    def _check_has_sent_model(self, round_index: int, learned: int) -> None:
        """Raise if features of the server's model are to be sent and the device has an older one."""
        plan = self.endpoint.plan
        if not isinstance(plan.uplink.payload, FeatureMeans):
            return
        if declared_public(plan.scenario).later == "features" and learned != round_index - 1:
            rule = f"its features are of the model that round {round_index - 1} broadcast, which this device has not"
            raise EndpointError(f"round {round_index} is refused: {rule}")

    def _learn(self, round_index: int, question: Record) -> Record:
        report = self.learn(round_index, self._broadcast_in(question), bool(question.get("evaluate")))
        self._append(round_index, report)
        return report.to_record() if self.endpoint.sends_update_reports else {}

    def _broadcast_in(self, question: Record) -> FloatArray | None:
        """What the server broadcasts. With a public set, nothing means that it knows of no sample yet: all rows NaN."""
        if "broadcast" in question:
            return _check_broadcast(unpacked(question, "broadcast", "f8", self._broadcast_shape()))
        if not self.endpoint.plan.uplink.payload.needs_public_set:
            return None
        return np.full(self._broadcast_shape(), np.nan)

    def _broadcast_shape(self) -> tuple[int, int]:
        """Of class means; of predictions on the public samples, or of the server's model as one vector."""
        plan = self.endpoint.plan
        uplink, scenario = plan.uplink, plan.scenario
        if not uplink.payload.needs_public_set:
            return uplink.num_rows, uplink.vector_length
        public = declared_public(scenario)
        if isinstance(uplink.payload, FeatureMeans) and public.broadcast == "model":
            _, fleet, _ = self._data_and_fleet()
            return 1, len(flat_weights(fleet.models()[0]))
        return public.samples, plan.fleet.num_classes

    def learn(self, round_index: int, broadcast: FloatArray | None, evaluate: bool) -> UpdateReport:
        """Update the model, with the broadcast if there is one, and store the new weights on disk."""
        plan = self.endpoint.plan
        dataset, fleet, learned = self._data_and_fleet()
        last_charged = self.endpoint.ledger.last_round
        if not learned < round_index <= last_charged:
            state = f"the last update was in round {learned}, the last charge in round {last_charged}"
            raise EndpointError(f"learning in round {round_index} is refused: {state}")
        seed_torch(plan.scenario, round_index)
        (losses,) = payload_protocol(plan).learn(fleet, round_index, broadcast, [self.number])
        if not (fleet.finite_weights()[0] and np.isfinite([losses.training, losses.distillation]).all()):
            problem = f"round {round_index}, device {self.number}: training diverged"
            raise TrainingDivergedError(f"{problem}; {LOWER_THE_STEP}")
        accuracy = self._accuracy(fleet, dataset) if evaluate else None
        self._store(fleet, round_index)
        return UpdateReport(float(losses.training), float(losses.distillation), accuracy)

    def _data_and_fleet(self) -> tuple[Dataset, LearningFleet, int]:
        """The device's dataset, the fleet with its one learner, and the round of the stored weights; 0 for the initial
        ones."""
        shared, scenario = self.endpoint.public(), self.endpoint.plan.scenario
        dataset, held = self._samples(shared)
        if shared is None:
            return dataset, *self._fleet(dataset, held, None)
        public, source = normalisation(scenario, shared.samples)(shared.samples), declared_public(scenario).source
        check_same_format("public.source", source, "samples", public, dataset)
        check_not_private("public.source", source, public, replace(dataset, x_train=dataset.x_train[held]))
        engine = self.endpoint.engine()
        return dataset, *self._fleet(dataset, held, to_tensor(public, engine.dtype, engine.device))

    def _samples(self, shared: SharedPublic | None) -> tuple[Dataset, IntArray]:
        """A dataset and the indices of the device's training samples in it."""
        scenario = self.endpoint.plan.scenario
        if not self._data:
            dataset, _ = load_data(scenario)
            return dataset, assign_samples(scenario, dataset.y_train).indices[self.number]
        planned = self.endpoint.plan.fleet.class_counts[self.number]
        # Its labels are the plan's classes, of which it may lack some.
        dataset = load_dataset(self._data, range(len(planned)))
        counts = np.bincount(dataset.y_train, minlength=len(planned))
        if not np.array_equal(counts, planned):
            rule = f"has {counts.tolist()} samples of each class; the plan requires {planned.tolist()}"
            # Not an EndpointError: the server must not learn the counts.
            raise AirDistillError(f"device {self.number}: its dataset {rule}")
        if shared is not None:
            dataset = normalised_dataset(dataset, normalisation(scenario, shared.samples))
        elif scenario.data.normalization == "public":
            rule = "this scheme has no public set: normalise the device's samples yourself, and set it to fixed"
            raise InputError("data.normalization", "public", rule)
        return dataset, np.arange(len(dataset.y_train))

    def _fleet(self, dataset: Dataset, held: IntArray, public: Tensor | None) -> tuple[LearningFleet, int]:
        """The fleet with this one learner, and the round of its stored weights."""
        plan, engine = self.endpoint.plan, self.endpoint.engine()
        scenario, num_classes = plan.scenario, plan.fleet.num_classes
        rng = stream(scenario.seed, "model-weights", 0, self.number)
        name, shape = scenario.model_names[self.number], input_shape(dataset.x_train)
        model = build_model(name, shape, num_classes, rng, engine.dtype)
        samples = to_tensor(dataset.x_train[held], engine.dtype, engine.device)
        learner = LearnerMaker(engine).learner(model, samples, dataset.y_train[held], num_classes)
        fleet = LearningFleet([learner], engine, public=public)
        path = self._folder / WEIGHTS
        if not path.exists():
            return fleet, 0
        stored = load_tensors(path.read_bytes())
        learned = int(stored.pop(_LEARNED_ROUND).item())
        fleet.load_state(stored)
        return fleet, learned

    def _store(self, fleet: LearningFleet, round_index: int) -> None:
        """Write weights and round into one file, and so the two cannot disagree."""
        write_whole(self._folder / WEIGHTS, serialized({**fleet.state(), _LEARNED_ROUND: torch.tensor([round_index])}))

    def _append(self, round_index: int, report: UpdateReport) -> None:
        with (self._folder / UPDATE_REPORTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"round": round_index, **report.to_record()}) + "\n")

    def _accuracy(self, fleet: LearningFleet, dataset: Dataset) -> Accuracy:
        counts = self.endpoint.plan.fleet.class_counts
        tests = replace(TestSet.of_dataset(dataset, fleet.engine), num_classes=counts.shape[1])
        return tests.evaluate(fleet, counts[[self.number]])


def _check_broadcast(broadcast: FloatArray) -> FloatArray:
    """Return the broadcast if its numbers are finite; a row that was not sent is NaN in every entry."""
    unsent = np.isnan(broadcast).all(axis=1)
    if not np.isfinite(broadcast[~unsent]).all():
        raise EndpointError("the broadcast is refused: its numbers must be finite")
    return broadcast
