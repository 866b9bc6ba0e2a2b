"""A device: its samples, its model and its ledger, in a folder of its own that outlives its process.

It decides by itself what it sends: the design and the noise of a round come from its own scenario and its own ledger,
which is charged, on the disk, before anything leaves.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load as load_tensors

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.data.assignment import assign_samples
from airdistill.data.datasets import Dataset
from airdistill.data.public import load_data
from airdistill.errors import InputError
from airdistill.files import write_whole
from airdistill.flower.station import Station, StationError
from airdistill.learning.evaluation import Accuracy, TestSet
from airdistill.learning.fleet import LearnerMaker, LearningFleet, TrainingDivergedError
from airdistill.learning.models import build_model
from airdistill.learning.samples import input_shape, to_tensor
from airdistill.runs.checkpoint import serialized
from airdistill.runs.simulation import check_has_data, seed_torch
from airdistill.schemes.sharing import sharing_of
from airdistill.streams import stream

WEIGHTS = "weights.safetensors"
_LEARNED = "learned_round"


@dataclass(frozen=True)
class Lesson:
    """What a device tells of an update: its losses, and how good its model is now, if asked."""

    training: float
    distillation: float
    accuracy: Accuracy | None

    def to_dict(self) -> dict[str, float]:
        measured = {} if self.accuracy is None else asdict(self.accuracy)
        return {"training": self.training, "distillation": self.distillation, **measured}


class Device:
    """One device in the middle of a run, read from its folder for one message; whoever reads it holds the lock."""

    def __init__(self, folder: Path, number: int, scheme: str) -> None:
        self.station, self.number, self._folder = Station.open(folder, scheme), number, folder
        scenario = self.station.plan.scenario
        check_has_data(scenario)
        if not 0 <= number < scenario.num_devices:
            raise InputError("device", number, f"the scenario has devices 0 to {scenario.num_devices - 1}")

    @property
    def last_round(self) -> int:
        """The last that it has paid for."""
        return self.station.ledger.last_round

    def signal(self, round_index: int) -> ComplexArray:
        """What it sends in a round, `[row, slot]`: precoded knowledge and its own share of the artificial noise."""
        plan = self.station.plan
        design, noise = self.station.pay_for(round_index)
        dataset, _ = load_data(plan.scenario)
        fleet, _ = self._fleet(dataset)
        seed_torch(plan.scenario, round_index)
        own = sharing_of(plan).vectors(fleet, round_index, [self.number])[0]
        # The others' places stay empty: a signal takes nothing from them.
        vectors = np.zeros((plan.fleet.num_devices, *own.shape))
        vectors[self.number] = own
        return np.asarray(noise.transmit(design, vectors, own.shape[1])[self.number])

    def learn(self, round_index: int, broadcast: FloatArray | None, evaluate: bool) -> Lesson:
        """The round's update, from what was broadcast or on its own; the new weights are on the disk before it ends."""
        plan = self.station.plan
        if broadcast is not None:
            _check_broadcast(broadcast, (plan.uplink.num_rows, plan.uplink.vector_length))
        dataset, _ = load_data(plan.scenario)
        fleet, learned = self._fleet(dataset)
        if not learned < round_index <= plan.num_rounds:
            raise StationError(f"learning in round {round_index} is refused: it has learned in round {learned}")
        seed_torch(plan.scenario, round_index)
        (losses,) = sharing_of(plan).learn(fleet, round_index, broadcast, [self.number])
        if not (fleet.finite_weights()[0] and np.isfinite([losses.training, losses.distillation]).all()):
            rule = "lower learning.initial_lr or learning.distill_weight"
            raise TrainingDivergedError(f"round {round_index}, device {self.number}: training diverged; {rule}")
        self._store(fleet, round_index)
        accuracy = self._accuracy(fleet, dataset) if evaluate else None
        return Lesson(float(losses.training), float(losses.distillation), accuracy)

    def _fleet(self, dataset: Dataset) -> tuple[LearningFleet, int]:
        """Of this one learner, and the round after which its weights were stored; 0 for the initial ones."""
        scenario, engine = self.station.plan.scenario, self.station.engine()
        held = assign_samples(scenario, dataset.y_train).indices[self.number]
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

    def _accuracy(self, fleet: LearningFleet, dataset: Dataset) -> Accuracy:
        engine = fleet.engine
        samples = to_tensor(dataset.x_test, engine.dtype, engine.device)
        tests = TestSet.of(samples, dataset.y_test, dataset.num_classes, engine.chunk_samples)
        return tests.evaluate(fleet, self.station.plan.fleet.class_counts[[self.number]])


def _check_broadcast(broadcast: FloatArray, shape: tuple[int, int]) -> None:
    """A row that was not sent is no number throughout; any other must be finite."""
    unsent = np.isnan(broadcast).all(axis=1) if broadcast.ndim == 2 else np.zeros(0, dtype=bool)
    if broadcast.shape != shape or not np.isfinite(broadcast[~unsent]).all():
        raise StationError(f"a broadcast of shape {broadcast.shape} is refused: it must have {shape} finite numbers")
