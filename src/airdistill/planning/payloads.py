"""The built-in payloads by name: class means, predictions, votes, feature means, gradients and updates.

Planner, ledger and certificate take what a payload states of itself for granted, and so a user's own is checked here.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np

from airdistill.arrays import FloatArray, IntArray
from airdistill.errors import Described, InputError
from airdistill.planning.convergence.gap import LearningConstants, class_weight, paper_rounds, weighted_sum
from airdistill.planning.feature_means import FeatureMeans
from airdistill.planning.fleet import RealisedFleet, training_dynamics
from airdistill.planning.payload import OneVector as OneVector  # payloads of your own are derived from these two
from airdistill.planning.payload import Payload as Payload
from airdistill.planning.payload import answers_per_device, require_device_sensitivity
from airdistill.planning.payload import declared_public as declared_public
from airdistill.planning.teacher_votes import TeacherVotes as TeacherVotes
from airdistill.planning.transceiver.required_noise import ClassRequiredNoise, VectorRequiredNoise
from airdistill.planning.updates import HeadUpdate as HeadUpdate
from airdistill.planning.updates import Update as Update
from airdistill.plugins import load_object
from airdistill.privacy.neighbours import BUILT_IN, CLASS_MEANS, GRADIENTS, PUBLIC_PREDICTIONS, Neighbours
from airdistill.privacy.sensitivity import (
    SENSITIVITY_MODELS,
    SIMPLEX_DIAMETER,
    AccumulatedShift,
    ConstantShift,
    Shift,
    TrajectoryDynamics,
    aggregation_weights,
    gradient_sensitivity,
    knowledge_sensitivity,
    public_rows_sensitivity,
)
from airdistill.scenario.model import Scenario
from airdistill.scenario.sections import Public

LEMMA_1, CLASS_MEAN_BOUND, RECORD_GRADIENT = "Lemma 1, √2/B_i", "class mean, √2/B_i^k", "one record, 2C/B_i"


@dataclass(frozen=True)
class ClassMeans(Payload):
    """The mean prediction of every class, eq. (2): K rows of K entries, weighted by class counts."""

    fleet: RealisedFleet
    model: str
    relabel: bool
    dynamics: TrajectoryDynamics

    kind = "knowledge"
    neighbours = CLASS_MEANS
    receivers = ("linear", "projected", "tracking")
    has_paper_design = True
    largest_norm = 1.0
    diameter = SIMPLEX_DIAMETER
    row_name = "class"
    rounds_unit = "class-rounds"
    error_label = "Class-mean error Φ2"
    paper_rounds_label = "paper, eq. (21)"
    has_gap = True
    broadcast_is_alike = True
    words = "class means"

    @classmethod
    def for_scenario(cls, scenario: Scenario, fleet: RealisedFleet, vector_length: int | None) -> ClassMeans:
        del vector_length
        return cls(fleet, scenario.privacy.sensitivity, scenario.privacy.relabel, training_dynamics(scenario))

    @cached_property
    def num_rows(self) -> int:
        return self.fleet.num_classes

    @cached_property
    def vector_length(self) -> int:
        return self.fleet.num_classes

    @cached_property
    def nominal_weights(self) -> FloatArray:
        return aggregation_weights(self.fleet.class_counts)

    def required_noise(self, split: bool, alone: bool, floor: FloatArray | None) -> ClassRequiredNoise:
        return ClassRequiredNoise(self.fleet, self.model, self.relabel, self.dynamics, split, alone, floor)

    def shift(self, model: str) -> AccumulatedShift:
        return AccumulatedShift(self.fleet.class_counts, model, self.dynamics)

    def shifts(self) -> dict[str, Shift]:
        counts, dynamics = self.fleet.class_counts, self.dynamics
        return {model: AccumulatedShift(counts, model, dynamics) for model in SENSITIVITY_MODELS}

    def over_fleet(self, of_row: FloatArray) -> FloatArray:
        return weighted_sum(self._class_weight, of_row)

    @cached_property
    def _class_weight(self) -> FloatArray:
        return class_weight(self.fleet.class_counts)

    def reference_bounds(self, device: int) -> dict[str, FloatArray]:
        models = {LEMMA_1: "paper", CLASS_MEAN_BOUND: "class_mean"}
        return {name: knowledge_sensitivity(self.fleet.class_counts, model)[device] for name, model in models.items()}

    def paper_rounds(self, constants: LearningConstants) -> float:
        return paper_rounds(self.fleet.class_counts, self.fleet.epsilon, self.fleet.delta, constants)


@dataclass(frozen=True)
class PublicPredictions(OneVector):
    """Predictions on N public samples, theory section 8: one vector of N·K entries, every device's weight 1/M.

    A device answers at most `most_answers` of the samples in a round and sends zeros for the others. An answer has no
    negative entry and a norm of 1 at most. With V answers the distance of two devices' vectors is then at most √(2V):
    √2 for a sample that both answer, and 1 for each answer of one of them. The sum is divided by M, never by the
    private number of devices that answered.
    """

    num_samples: int
    most_answers: int

    kind = "public_knowledge"
    neighbours = PUBLIC_PREDICTIONS
    needs_public_set = True
    answers_public_set = True
    receivers = ("linear", "projected", "tracking", "learning")
    error_label = "Error of a prediction"
    words = "public predictions"

    @classmethod
    def for_scenario(cls, scenario: Scenario, fleet: RealisedFleet, vector_length: int | None) -> PublicPredictions:
        """All public samples or the part of a round, with a device's answers limited.

        The limit is the share of classes that devices know on average, which saves noise for all devices.
        """
        del vector_length
        require_device_sensitivity(scenario, "predictions of a trained model")
        public = declared_public(scenario)
        rows = public.rows_a_round
        return cls(fleet, rows, answers_per_device(public, rows, fleet))

    @property
    def vector_length(self) -> int:
        return self.num_samples * self.fleet.num_classes

    @property
    def largest_norm(self) -> float:
        return float(np.sqrt(self.most_answers))

    @property
    def diameter(self) -> float:
        return float(public_rows_sensitivity(self.most_answers))

    def over_fleet(self, of_row: FloatArray) -> FloatArray:
        return np.asarray(self.fleet.num_devices * of_row[..., 0] / self.num_samples)

    def summary(self) -> list[tuple[str, str]]:
        answered = f"at most {self.most_answers} of {self.num_samples} public samples a device and round"
        return [("Answered samples", answered)]

    def header(self) -> dict[str, Any]:
        return {"public": {"samples": self.num_samples, "answers": self.most_answers}}


@dataclass(frozen=True)
class Gradient(Payload):
    """The gradient of one model, clipped per sample at C: one row of D entries, weighted by B_i/B."""

    fleet: RealisedFleet
    model: str
    clip_norm: float
    num_parameters: int

    kind = "gradient"
    neighbours = GRADIENTS
    num_rows = 1
    needs_model_size = True
    is_knowledge = False
    error_label = "Gradient error Φ"
    has_gap = True
    words = "gradient"

    @classmethod
    def for_scenario(cls, scenario: Scenario, fleet: RealisedFleet, vector_length: int | None) -> Gradient:
        if vector_length is None:
            raise ValueError("vector_length: a gradient has as many entries as the model has parameters")
        return cls(fleet, scenario.privacy.sensitivity, scenario.learning.clip_norm, vector_length)

    @property
    def vector_length(self) -> int:
        return self.num_parameters

    @property
    def largest_norm(self) -> float:
        return self.clip_norm

    @property
    def diameter(self) -> float:
        return 2 * self.clip_norm

    @cached_property
    def samples_per_device(self) -> IntArray:
        return np.asarray(self.fleet.class_counts.sum(axis=1))

    @cached_property
    def nominal_weights(self) -> FloatArray:
        return np.asarray(self.samples_per_device / self.samples_per_device.sum())[:, None]

    def sensitivity(self, model: str) -> FloatArray:
        """2C/B_i of a record, 2C of a whole device, `[device]`."""
        return gradient_sensitivity(self.samples_per_device, model, self.clip_norm)

    def squared_shift(self, model: str, weights: FloatArray) -> FloatArray:
        """(w s)² with the weights of a round, `[device]`."""
        return np.asarray((weights * self.sensitivity(model)) ** 2)

    def shift(self, model: str) -> ConstantShift:
        return ConstantShift(self.squared_shift(model, self.nominal_weights[:, 0])[:, None])

    def required_noise(self, split: bool, alone: bool, floor: FloatArray | None) -> VectorRequiredNoise:  # noqa: ARG002
        return VectorRequiredNoise(self.shift(self.model), self.fleet.mu)

    def over_fleet(self, of_row: FloatArray) -> FloatArray:
        return np.asarray(self.fleet.num_devices * of_row[..., 0])

    def reference_bounds(self, device: int) -> dict[str, FloatArray]:
        return {RECORD_GRADIENT: np.array([2 * self.clip_norm / self.samples_per_device[device]])}

    def noise_factor(self, constants: LearningConstants) -> float:
        return constants.gradient_noise_factor


PAYLOADS: dict[str, type[Payload]] = {
    each.kind: each
    for each in (ClassMeans, PublicPredictions, TeacherVotes, FeatureMeans, Gradient, Update, HeadUpdate)
}


def payload_named(kind: str) -> type[Payload]:
    """A payload by its name in plans, or a user's own by `package.module:Class`."""
    if kind in PAYLOADS:
        return PAYLOADS[kind]
    found = load_object(kind, "payload")
    if not (isinstance(found, type) and issubclass(found, Payload)):
        raise InputError("payload", kind, "must be a class derived from airdistill.planning.payloads.Payload")
    if found.kind != kind:
        raise InputError("payload", kind, f"its `kind` is {found.kind!r}: it must name the class itself")
    return found


def rows_of_round(public: Public, round_index: int) -> IntArray:
    """The public samples of round t, from 1 on: the next ones each time, starting again after the last."""
    first = (round_index - 1) * public.rows_a_round
    return np.arange(first, first + public.rows_a_round) % public.samples


def check_payload_class(payload: type[Payload]) -> None:
    """Raise `InputError` unless a class names itself in `kind`, states its own neighbours and has a protocol.

    A run looks the payload up by `kind`: the class that it finds is the one that devices send.
    """
    name, kind = Described(payload.__qualname__), getattr(payload, "kind", None)
    if not isinstance(kind, str):
        raise InputError("payload", name, "must have a `kind`, which names it as package.module:Class")
    found = payload_named(kind)
    if not _is_same(found, payload):
        rule = f"its `kind` is {kind!r}, which is {found.__qualname__}: it must name the class itself"
        raise InputError("payload", name, rule)
    if kind in PAYLOADS:
        return
    neighbours = getattr(payload, "neighbours", None)
    if not isinstance(neighbours, Neighbours):
        raise InputError("payload", kind, "must have `neighbours`, an airdistill.privacy.neighbours.Neighbours")
    if neighbours != BUILT_IN.get(neighbours.payload, neighbours):
        rule = f'its `neighbours` are called "{neighbours.payload}" as a built-in payload\'s: give them another name'
        raise InputError("payload", kind, rule)
    for stated in ("relation", "basis"):
        if unknown := [model for model in getattr(neighbours, stated) if model not in SENSITIVITY_MODELS]:
            rule = f"must name sensitivity models, of {', '.join(SENSITIVITY_MODELS)}, and not {unknown[0]}"
            raise InputError("payload", kind, f"the `{stated}` of its `neighbours` {rule}")
    if inspect.isabstract(payload) or payload.protocol is Payload.protocol:
        missing = ", ".join(sorted(payload.__abstractmethods__)) or "protocol"
        raise InputError("payload", kind, f"must define {missing}")


def check_payload(payload: Payload) -> None:
    """Raise `InputError` unless the sizes and weights that a user's own payload states can be sent and counted."""
    if payload.kind in PAYLOADS:
        return
    for name in ("num_rows", "vector_length"):
        value: Any = getattr(payload, name)
        if not isinstance(value, Integral) or value < 1:
            raise InputError("payload", payload.kind, f"its `{name}` is {value!r}: must be a whole number from 1 on")
    for name in ("largest_norm", "diameter"):
        value = getattr(payload, name)
        if not (np.ndim(value) == 0 and np.isreal(value) and np.isfinite(value) and value > 0):
            raise InputError("payload", payload.kind, f"its `{name}` is {value!r}: must be finite and above 0")
    weights, shape = payload.nominal_weights, (payload.fleet.num_devices, payload.num_rows)
    if np.shape(weights) != shape or not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any(axis=0).all():
        rule = f"its `nominal_weights` must have shape [device, row] = {list(shape)}, not below 0, with a sum above 0"
        raise InputError("payload", payload.kind, rule)


def _is_same(found: type[Payload], payload: type[Payload]) -> bool:
    """Whether two classes have one source; a script that is also imported has each class twice."""
    by_name = found.__qualname__ == payload.__qualname__ and "__main__" in (found.__module__, payload.__module__)
    return found is payload or by_name
