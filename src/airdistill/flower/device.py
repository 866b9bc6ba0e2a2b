"""A device: its samples, its model and its ledger, in a folder of its own that outlives its process.

It decides by itself what it sends: the design and the noise of a round come from its own scenario and its own ledger,
which is charged, on the disk, before anything leaves. Its losses and its model's accuracy tell of its data too, and no
ledger counts them: it tells them only where nothing is protected from the server, and keeps them for itself.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load as load_tensors

from airdistill.arrays import FloatArray, IntArray
from airdistill.data.datasets import Dataset, load_dataset
from airdistill.data.partition import assign_samples
from airdistill.data.public import load_data
from airdistill.errors import AirDistillError, InputError
from airdistill.files import write_whole
from airdistill.flower.endpoint import Endpoint, EndpointError
from airdistill.flower.records import Record, unpacked
from airdistill.flower.reply_cache import Answers
from airdistill.flower.senders import Sender, sender_of
from airdistill.learning.evaluation import Accuracy, TestSet
from airdistill.learning.fleet import LearnerMaker, LearningFleet, TrainingDivergedError
from airdistill.learning.models import build_model
from airdistill.learning.samples import input_shape, to_tensor
from airdistill.runs.checkpoint import serialized
from airdistill.runs.simulation import check_has_data, seed_torch
from airdistill.schemes.payloads import payload_protocol
from airdistill.streams import stream

WEIGHTS, LESSONS = "weights.safetensors", "lessons.jsonl"
LEARN = "learn"
_LEARNED = "learned_round"


@dataclass(frozen=True)
class Lesson:
    """An update: its losses, and how good the model is now, if that was asked."""

    training: float
    distillation: float
    accuracy: Accuracy | None

    def to_record(self) -> Record:
        measured = {} if self.accuracy is None else asdict(self.accuracy)
        return {"training": self.training, "distillation": self.distillation, **measured}


class Device:
    """One device in the middle of a run, read from its folder for one message; whoever reads it holds the lock."""

    def __init__(self, folder: Path, number: int, scheme: str, radio: str = "", data: str = "") -> None:
        """`data` names its own dataset; without it, it holds its share of the scenario's."""
        self.station, self.number, self._folder, self._data = Endpoint.open(folder, scheme), number, folder, data
        scenario = self.station.plan.scenario
        if not data:
            check_has_data(scenario)
        if not 0 <= number < scenario.num_devices:
            raise InputError("device", number, f"the scenario has devices 0 to {scenario.num_devices - 1}")
        self._sender: Sender = sender_of(self.station, number, radio)
        self._answers = Answers(folder)

    @property
    def last_round(self) -> int:
        """The last that it has paid for."""
        return self.station.ledger.last_round

    def answer(self, step: str, round_index: int, question: Record) -> Record:
        """To one question of a round; to the same question always the same."""
        if step == LEARN:
            return self._answers.given(round_index, step, question, lambda: self._learn(round_index, question))
        if step not in self._sender.steps:
            raise EndpointError(f"{step} is refused: the medium is {self.station.medium}")
        return self._answers.given(round_index, step, question, lambda: self._send(step, round_index, question))

    def _send(self, step: str, round_index: int, question: Record) -> Record:
        if step == self._sender.steps[0]:
            paid = self.station.charge_through(round_index)
            self._sender.begin(paid, self._knowledge(round_index))
        return self._sender.answer(step, round_index, question)

    def _knowledge(self, round_index: int) -> FloatArray:
        """What it has to say in a round, `[row, entry]`."""
        plan = self.station.plan
        fleet, learned = self._fleet(*self._samples())
        if learned >= round_index:
            # Its release counts what so many lessons before it can have told the model, and no more.
            raise EndpointError(f"round {round_index} is refused: it has learned in round {learned}")
        seed_torch(plan.scenario, round_index)
        return np.asarray(payload_protocol(plan).vectors(fleet, round_index, [self.number])[0])

    def _learn(self, round_index: int, question: Record) -> Record:
        plan = self.station.plan
        shape = (plan.uplink.num_rows, plan.uplink.vector_length)
        broadcast = _checked(unpacked(question, "broadcast", "f8", shape)) if "broadcast" in question else None
        lesson = self.learn(round_index, broadcast, bool(question.get("evaluate")))
        self._note(round_index, lesson)
        return lesson.to_record() if self.station.tells_lessons else {}

    def learn(self, round_index: int, broadcast: FloatArray | None, evaluate: bool) -> Lesson:
        """The round's update, from what was broadcast or on its own; the new weights are on the disk before it ends."""
        plan = self.station.plan
        dataset, held = self._samples()
        fleet, learned = self._fleet(dataset, held)
        paid = self.station.ledger.last_round
        if not learned < round_index <= paid:
            known = f"it has learned in round {learned} and paid for round {paid}"
            raise EndpointError(f"learning in round {round_index} is refused: {known}")
        seed_torch(plan.scenario, round_index)
        (losses,) = payload_protocol(plan).learn(fleet, round_index, broadcast, [self.number])
        if not (fleet.finite_weights()[0] and np.isfinite([losses.training, losses.distillation]).all()):
            rule = "lower learning.initial_lr or learning.distill_weight"
            raise TrainingDivergedError(f"round {round_index}, device {self.number}: training diverged; {rule}")
        accuracy = self._accuracy(fleet, dataset) if evaluate else None
        self._store(fleet, round_index)
        return Lesson(float(losses.training), float(losses.distillation), accuracy)

    def _samples(self) -> tuple[Dataset, IntArray]:
        """A dataset, and which of its training samples are the device's."""
        scenario = self.station.plan.scenario
        if not self._data:
            dataset, _ = load_data(scenario)
            return dataset, assign_samples(scenario, dataset.y_train).indices[self.number]
        dataset, planned = load_dataset(self._data), self.station.plan.fleet.class_counts[self.number]
        counts = np.bincount(dataset.y_train, minlength=len(planned))
        if not np.array_equal(counts, planned):
            rule = f"has {counts.tolist()} samples of each class, and the scenario was planned for {planned.tolist()}"
            raise AirDistillError(f"device {self.number}: its data {rule}")  # its counts are not for the server
        return dataset, np.arange(len(dataset.y_train))

    def _fleet(self, dataset: Dataset, held: IntArray) -> tuple[LearningFleet, int]:
        """Of this one learner, and the round after which its weights were stored; 0 for the initial ones."""
        scenario, engine = self.station.plan.scenario, self.station.engine()
        rng = stream(scenario.seed, "model-weights", 0, self.number)
        name, shape = scenario.model_names[self.number], input_shape(dataset.x_train)
        model = build_model(name, shape, dataset.num_classes, rng, engine.dtype)
        samples = to_tensor(dataset.x_train[held], engine.dtype, engine.device)
        learner = LearnerMaker(engine).learner(model, samples, dataset.y_train[held], dataset.num_classes)
        fleet = LearningFleet([learner], engine)
        path = self._folder / WEIGHTS
        if not path.exists():
            return fleet, 0
        stored = load_tensors(path.read_bytes())
        learned = int(stored.pop(_LEARNED).item())
        fleet.load_state(stored)
        return fleet, learned

    def _store(self, fleet: LearningFleet, round_index: int) -> None:
        """Weights and round in one file: they cannot disagree."""
        write_whole(self._folder / WEIGHTS, serialized({**fleet.state(), _LEARNED: torch.tensor([round_index])}))

    def _note(self, round_index: int, lesson: Lesson) -> None:
        with (self._folder / LESSONS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"round": round_index, **lesson.to_record()}) + "\n")

    def _accuracy(self, fleet: LearningFleet, dataset: Dataset) -> Accuracy:
        engine = fleet.engine
        samples = to_tensor(dataset.x_test, engine.dtype, engine.device)
        tests = TestSet.of(samples, dataset.y_test, dataset.num_classes, engine.chunk_samples)
        return tests.evaluate(fleet, self.station.plan.fleet.class_counts[[self.number]])


def _checked(broadcast: FloatArray) -> FloatArray:
    """A row that was not sent is no number throughout; any other must be finite."""
    unsent = np.isnan(broadcast).all(axis=1)
    if not np.isfinite(broadcast[~unsent]).all():
        raise EndpointError("a broadcast is refused: its numbers must be finite")
    return broadcast
