"""What a payload is: one class that owns all that other code asks about what a device sends in a round.

It owns its shape and norm bound, what two neighbours can do to it (`Neighbours`), what an error in it means to
learning, which receivers read it, and how it is named to the reader. How devices make it and learn from it needs
PyTorch and is defined in `schemes`; a payload of your own has both halves in one file (`protocol`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.errors import NOT_GIVEN, InputError
from airdistill.planning.convergence.gap import LearningConstants, class_shares
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.transceiver.required_noise import RequiredNoise, VectorRequiredNoise
from airdistill.privacy.neighbours import Neighbours
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS, ConstantShift, Shift
from airdistill.scenario.model import Scenario
from airdistill.scenario.sections import Public

if TYPE_CHECKING:
    from airdistill.planning.plan import Plan


class Payload(ABC):
    """What the devices of a fleet send. A payload of your own is a frozen dataclass with these names.

    `kind` is its name in plans; one of your own has `package.module:Class`. `receivers` are the names of
    `learning.receiver` that can read it.
    """

    kind: ClassVar[str]
    neighbours: ClassVar[Neighbours]
    receivers: ClassVar[tuple[str, ...]] = ("linear",)
    needs_model_size: ClassVar[bool] = False  # whether its length is the number of the model's parameters
    is_knowledge: ClassVar[bool] = True  # devices distil from it; a gradient moves one common model instead
    has_paper_design: ClassVar[bool] = False  # whether eqs. (18)-(20) are written for it
    has_gap: ClassVar[bool] = False  # whether the convergence gap bounds its learning
    needs_public_set: ClassVar[bool] = False  # whether devices and server look at unlabelled public samples
    hides_counts: ClassVar[bool] = False  # whether `privacy.counts = "private"` is possible
    broadcast_is_alike: ClassVar[bool] = False  # whether what a receiver broadcasts has the shape of what was received
    answers_public_set: ClassVar[bool] = False  # whether it has an entry per class for every public sample of a round
    # The noise of a round in units of the norm bound up to which more rounds help; None: T minimises the gap.
    most_noise: ClassVar[float | None] = None
    # How tables name it: itself, a row, what rounds are counted in, its error, T by the paper's formula.
    words: ClassVar[str] = "payload"
    row_name: ClassVar[str] = "vector"
    rounds_unit: ClassVar[str] = "rounds"
    error_label: ClassVar[str] = "Error of a vector"
    paper_rounds_label: ClassVar[str] = "paper's accountant"

    if TYPE_CHECKING:  # fields, class attributes or properties of every payload

        @property
        def fleet(self) -> RealisedFleet: ...

        @property
        def model(self) -> str:
            """The sensitivity model that it is planned for."""

        @property
        def num_rows(self) -> int:
            """Vectors that a device sends in a round."""

        @property
        def vector_length(self) -> int:
            """Entries of a row, each sent in a slot."""

        @property
        def largest_norm(self) -> float:
            """The norm bound of a row; the charged round refuses longer ones."""

        @property
        def diameter(self) -> float:
            """The largest distance between two rows."""

        @property
        def nominal_weights(self) -> FloatArray:
            """Aggregation weights of a round that all devices join, `[device, row]`."""

    @classmethod
    @abstractmethod
    def for_scenario(cls, scenario: Scenario, fleet: RealisedFleet, vector_length: int | None) -> Payload:
        """The payload of a scenario. Raise `InputError` if the scenario needs what it does not support."""

    @classmethod
    def chosen(cls, scenario: Scenario, fleet: RealisedFleet) -> Scenario:  # noqa: ARG003
        """The scenario with what it leaves to the planner named, as far as later stages must know it."""
        return scenario

    @classmethod
    def length_for(cls, scenario: Scenario, fleet: RealisedFleet, shape: tuple[int, ...]) -> int | None:  # noqa: ARG003
        """The `vector_length` for `for_scenario` if it depends on samples of this shape; None if it does not.

        Raise `InputError` if the payload cannot be made of such samples.
        """
        return None

    @classmethod
    def length_of_model(cls, scenario: Scenario, num_parameters: int) -> int:  # noqa: ARG003
        """The `vector_length` for `for_scenario` of a payload that `needs_model_size`."""
        return num_parameters

    @abstractmethod
    def required_noise(self, split: bool, alone: bool, floor: FloatArray | None) -> RequiredNoise:
        """The counted noise that privacy requires; the arguments are those of `ClassRequiredNoise`."""

    @abstractmethod
    def shift(self, model: str) -> Shift:
        """How far T rounds move what the server sees, under a sensitivity model."""

    def shifts(self) -> dict[str, Shift]:
        """The shift under every sensitivity model."""
        return {model: self.shift(model) for model in SENSITIVITY_MODELS}

    @abstractmethod
    def over_fleet(self, of_row: FloatArray) -> FloatArray:
        """The sum over devices of what a squared error x `[..., row]` means to each."""

    def paper_rounds(self, constants: LearningConstants) -> float:  # noqa: ARG002
        """T by the paper's formula, at least 1; infinite if it does not apply to this payload."""
        return float("inf")

    def noise_factor(self, constants: LearningConstants) -> float:
        """The factor of the received noise in the convergence gap."""
        return constants.noise_factor

    def reference_bounds(self, device: int) -> dict[str, FloatArray]:  # noqa: ARG002
        """Bounds on one record's shift that an audit compares with, by name, `[row]` each."""
        return {}

    def header(self) -> dict[str, Any]:
        """Facts of it that a ledger's header records besides its neighbours."""
        return {}

    def summary(self) -> list[tuple[str, str]]:
        """Facts of it for the table of a plan, with their labels."""
        return []

    def problem(self, vectors: FloatArray) -> str | None:  # noqa: ARG002
        """What else a vector `[device, row, entry]` of the right shape and norm breaks, or None: nothing."""
        return None

    def protocol(self, plan: Plan) -> Any:  # noqa: ARG002
        """How devices make it and learn from it, a `PayloadProtocol`; None for the built-in one of this kind."""
        return None


@dataclass(frozen=True)
class OneVector(Payload):
    """One vector of every device with weight 1/M, protected for whole devices: the easiest base for a new payload.

    A subclass names `kind`, `neighbours`, `vector_length` and `largest_norm`.
    """

    fleet: RealisedFleet

    model = "device"
    num_rows = 1

    @classmethod
    def for_scenario(cls, scenario: Scenario, fleet: RealisedFleet, vector_length: int | None) -> OneVector:
        require_device_sensitivity(scenario, cls.words)
        del vector_length
        return cls(fleet)

    @property
    def diameter(self) -> float:
        return float(self.neighbours.unit_distance * self.largest_norm)

    @cached_property
    def nominal_weights(self) -> FloatArray:
        return np.full((self.fleet.num_devices, 1), 1.0 / self.fleet.num_devices)

    def required_noise(self, split: bool, alone: bool, floor: FloatArray | None) -> VectorRequiredNoise:  # noqa: ARG002
        return VectorRequiredNoise(self.shift(self.model), self.fleet.mu)

    def shift(self, model: str) -> ConstantShift:  # noqa: ARG002
        """The bound of a whole device, for every model: a record is protected at least as well as its device."""
        return ConstantShift((self.nominal_weights * self.diameter) ** 2)

    def over_fleet(self, of_row: FloatArray) -> FloatArray:
        return np.asarray(self.fleet.num_devices * of_row[..., 0])


def declared_public(scenario: Scenario) -> Public:
    if scenario.public is None:
        raise InputError("public", NOT_GIVEN, "this scheme needs a public set: --set public.samples=3000")
    return scenario.public


def known_classes(fleet: RealisedFleet) -> int:
    """How many classes devices know on average, at least 1. Class counts are public.

    A device that holds less than a quarter of an even share of a class does not count as knowing it.
    """
    known = class_shares(fleet.class_counts) >= 0.25 / fleet.num_classes
    return max(1, round(float(known.sum(axis=1).mean())))


def answers_per_device(public: Public, rows: int, fleet: RealisedFleet) -> int:
    """How many of a round's public samples a device may answer: the scenario's limit, or the share of classes that
    devices know on average."""
    most = public.answers_per_device
    if most is None:
        most = math.ceil(rows * known_classes(fleet) / fleet.num_classes)
    return min(most, rows)


def require_device_sensitivity(scenario: Scenario, words: str) -> None:
    if scenario.privacy.sensitivity != "device":
        rule = f'the only bound of {words} is that of a whole device: set it to "device"'
        raise InputError("privacy.sensitivity", scenario.privacy.sensitivity, rule)
