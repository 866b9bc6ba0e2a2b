"""What a device shares: class means, the paper's knowledge, or its predictions on a public set.

The uplink asks one of these how many numbers that is, how large they can be, how far a neighbour can move them, and
what an error in them means to the devices; it knows nothing else of either.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.planning.convergence.gap import LearningConstants, over_fleet, paper_rounds
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.transceiver.required_noise import ClassRequiredNoise, RequiredNoise, VectorRequiredNoise
from airdistill.planning.uplink import Payload
from airdistill.privacy.assumptions import PUBLIC_KNOWLEDGE
from airdistill.privacy.sensitivity import (
    SIMPLEX_DIAMETER,
    AccumulatedShift,
    ConstantShift,
    TrajectoryDynamics,
    aggregation_weights,
    public_rows_sensitivity,
)


class KnowledgePayload(Payload, Protocol):
    """A kind of knowledge. An error in a row means to a device what it means to the vectors of K entries, one for each
    sample, that it learns from."""

    @property
    def nominal_weights(self) -> FloatArray:
        """Of a round in which everybody speaks, `[device, row]`."""

    @property
    def diameter(self) -> float:
        """How far apart two rows can be."""

    def demand(self, split: bool, alone: bool, floor: FloatArray | None) -> RequiredNoise:
        """The noise that privacy asks for; the arguments are those of `ClassRequiredNoise`."""


@dataclass(frozen=True)
class ClassMeans:
    """The mean prediction of every class, eq. (2): K rows of K entries, weighted by class counts."""

    fleet: RealisedFleet
    model: str
    relabel: bool
    dynamics: TrajectoryDynamics

    kind = "knowledge"
    payload = "knowledge"
    largest_norm = 1.0
    diameter = SIMPLEX_DIAMETER

    @property
    def num_rows(self) -> int:
        return self.fleet.num_classes

    @property
    def vector_length(self) -> int:
        return self.fleet.num_classes

    @cached_property
    def nominal_weights(self) -> FloatArray:
        return aggregation_weights(self.fleet.class_counts)

    def demand(self, split: bool, alone: bool, floor: FloatArray | None) -> ClassRequiredNoise:
        return ClassRequiredNoise(self.fleet, self.model, self.relabel, self.dynamics, split, alone, floor)

    def shift(self, model: str) -> AccumulatedShift:
        return AccumulatedShift(self.fleet.class_counts, model, self.dynamics)

    def over_fleet(self, of_row: FloatArray) -> FloatArray:
        return over_fleet(self.fleet.class_counts, of_row)

    def paper_rounds(self, constants: LearningConstants) -> float:
        return paper_rounds(self.fleet.class_counts, self.fleet.epsilon, self.fleet.delta, constants)


@dataclass(frozen=True)
class PublicPredictions:
    """Predictions on N public samples, theory section 8: one vector of N·K entries, every device's weight 1/M.

    A device answers at most `most_answers` of the samples in a round and sends zeros for the others. An answer has no
    entry below zero and a norm of 1 at most. So two devices' vectors are at most √(2V) apart, V being that number:
    where both answer by √2 each, elsewhere by 1 for each answer of either. What is divided by M is never divided by
    the private number of those who answered.
    """

    fleet: RealisedFleet
    num_samples: int
    most_answers: int

    kind = "public_knowledge"
    payload = PUBLIC_KNOWLEDGE
    model = "device"
    num_rows = 1

    @property
    def vector_length(self) -> int:
        return self.num_samples * self.fleet.num_classes

    @property
    def largest_norm(self) -> float:
        return float(np.sqrt(self.most_answers))

    @property
    def diameter(self) -> float:
        return float(public_rows_sensitivity(self.most_answers))

    @cached_property
    def nominal_weights(self) -> FloatArray:
        return np.full((self.fleet.num_devices, 1), 1.0 / self.fleet.num_devices)

    def demand(self, split: bool, alone: bool, floor: FloatArray | None) -> VectorRequiredNoise:  # noqa: ARG002
        return VectorRequiredNoise(self.shift(self.model), self.fleet.mu)

    def shift(self, model: str) -> ConstantShift:  # noqa: ARG002
        """A record's bound is its device's: what it can do to the predictions of a trained model has no other."""
        return ConstantShift((self.nominal_weights * self.diameter) ** 2)

    def over_fleet(self, of_row: FloatArray) -> FloatArray:
        return np.asarray(self.fleet.num_devices * of_row[..., 0] / self.num_samples)

    def paper_rounds(self, constants: LearningConstants) -> float:  # noqa: ARG002
        """Eq. (21) is for class means."""
        return float("inf")
