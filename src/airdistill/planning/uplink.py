"""The uplink: how a payload reaches the server, as planner, forecast, ledger and charged round see it.

Arrays `[device, row]` are `[device, class]` for class means. What is counted and required refers to each device's
nominal weight, at which rounds of different weights can be added.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.planning.convergence.gap import LearningConstants
from airdistill.planning.payloads import Payload
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.planning.waveform import Observation
from airdistill.privacy.correlation import Correlation
from airdistill.privacy.participation import Participation
from airdistill.privacy.release import Release
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS, Shift
from airdistill.privacy.trust import TRUST_MODELS, Trust, trust_named

if TYPE_CHECKING:
    from airdistill.planning.fleet import RealisedFleet


class Uplink(ABC):
    """A payload, the devices that send it, whose noise counts, and the design of every round.

    Subclasses are dataclasses with these fields.
    """

    if TYPE_CHECKING:

        @property
        def fleet(self) -> RealisedFleet: ...

        @property
        def payload(self) -> Payload: ...

        @property
        def participation(self) -> Participation: ...

        @property
        def trust(self) -> str: ...

        @property
        def channel_noise_var(self) -> float: ...

        @property
        def carry_over(self) -> bool:
            """Whether a design depends on what earlier rounds have cost."""

    @property
    def kind(self) -> str:
        """Its name in plans and ledgers."""
        return self.payload.kind

    @cached_property
    def trust_model(self) -> Trust:
        """The declared trust model, as it applies to this receiver."""
        return trust_named(self.trust).for_receiver(self.channel_noise_var)

    @property
    def model(self) -> str:
        return self.payload.model

    @cached_property
    def correlation(self) -> Correlation | None:
        """How a device's noise is correlated over rounds; None if it is independent."""
        return None

    @cached_property
    def num_rows(self) -> int:
        return self.payload.num_rows

    @cached_property
    def vector_length(self) -> int:
        return self.payload.vector_length

    @cached_property
    def largest_norm(self) -> float:
        return self.payload.largest_norm

    @cached_property
    def energy_slots(self) -> float:
        """K of eq. (7): the vector length over the squared norm bound."""
        return self.vector_length / self.largest_norm**2

    @cached_property
    def num_slots(self) -> int:
        """Slots of the air in a round."""
        return self.num_rows * self.vector_length

    uses_radio: ClassVar[bool] = True  # whether anything is on the air
    uses_tdma: ClassVar[bool] = False  # whether every device has its own slots
    observation = Observation()  # what of the designed noise is certain through a waveform

    @cached_property
    def nominal_weights(self) -> FloatArray:
        return self.payload.nominal_weights

    def shift(self, model: str) -> Shift:
        return self.payload.shift(model)

    def over_fleet(self, of_row: FloatArray) -> FloatArray:
        return self.payload.over_fleet(of_row)

    def noise_factor(self, constants: LearningConstants) -> float:
        return self.payload.noise_factor(constants)

    def paper_rounds(self, constants: LearningConstants) -> float:
        return self.payload.paper_rounds(constants)

    def num_planned(self, num_draws: int, num_rounds: int) -> int:
        """How many rounds to forecast from, with so many channel draws."""
        return self.participation.num_planned(num_draws, num_rounds)

    @abstractmethod
    def required(self, num_rounds: int) -> FloatArray:
        """The counted noise per entry that T rounds require in each, `[device, row]`."""

    @abstractmethod
    def required_at(self, num_rounds: int, round_index: int, spent: FloatArray | None = None) -> FloatArray:
        """The counted noise that one round requires after earlier rounds have cost `spent` `[device, row]`."""

    @abstractmethod
    def privacy_noise_var(self, num_rounds: int) -> FloatArray:
        """v over a perfect channel, with privacy as the only reason for noise, `[row]`."""

    @abstractmethod
    def noise_over(self, channels: ComplexArray) -> Callable[[int], FloatArray]:
        """v as a function of T, `[draw, row]`, for planning channels `[draw, device]`."""

    @abstractmethod
    def channel_floor(self, channels: ComplexArray) -> FloatArray:
        """v without any privacy requirement, `[draw, row]`."""

    @abstractmethod
    def squared_bias(self, channels: ComplexArray) -> FloatArray:
        """A bound on the squared distance of the active devices' sum from that of all devices, `[draw, row]`."""

    @abstractmethod
    def design(
        self, channel: ComplexArray, num_rounds: int, round_index: int, spent: FloatArray | None = None
    ) -> RoundDesign:
        """The gains of round `round_index` of T for this channel `[device]` as it is known.

        `spent` `[device, row]` is what earlier rounds have cost of μ²; without it, or if nothing is carried over, all
        rounds are alike.
        """

    @abstractmethod
    def fleet_noise(self, noise_var: FloatArray) -> FloatArray:
        """Σ_iΦ_i, from v `[..., row]`."""

    @abstractmethod
    def linear_from(self, max_rounds: int) -> int:
        """The round from which on the requirement grows linearly."""

    @abstractmethod
    def weights(self, round_index: int) -> FloatArray:
        """Weights of the ideal sum of a round, `[device, row]`; zero for devices that do not participate."""

    @abstractmethod
    def sensitivity(self, model: str, round_index: int) -> FloatArray:
        """How far a neighbour's vectors can be from a device's in a round, `[device, row]`."""

    @abstractmethod
    def noise_by_trust(self, design: RoundDesign, channel: ComplexArray) -> dict[str, FloatArray]:
        """What each trust model counts of the noise that a design really sends, `[device, row]`.

        In units of the estimate in which a device's vector has the round's weight; infinite for rows that are not sent.
        """

    def release(self, design: RoundDesign, channel: ComplexArray, round_index: int) -> Release:
        """What a designed round releases, with the noise that its gains really send."""
        return Release(
            round_index, design.weights, self.sensitivities(round_index), self.noise_by_trust(design, channel)
        )

    def non_private_release(self, round_index: int) -> Release:
        """The release of all devices' vectors without any noise."""
        weights = self.weights(round_index)
        no_noise = {trust: np.zeros_like(weights) for trust in dict.fromkeys((*TRUST_MODELS, self.trust))}
        return Release(round_index, weights, self.sensitivities(round_index), no_noise)

    def sensitivities(self, round_index: int) -> dict[str, FloatArray]:
        """The sensitivity under every model."""
        return {model: self.sensitivity(model, round_index) for model in SENSITIVITY_MODELS}
