"""What a fleet sends in a round, as the planner sees it: the one seam between knowledge and gradients.

A round sends rows: one vector for each class (knowledge), or one in all (a gradient). Arrays `[device, row]` below are
`[device, class]` for knowledge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.planning.convergence.gap import LearningConstants
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.privacy.sensitivity import Shift


class Payload(Protocol):
    """What devices send in a round: rows, and what a neighbour and an error can do to them."""

    @property
    def kind(self) -> str:
        """Its name in plans and ledgers."""

    @property
    def payload(self) -> str:
        """What it is, in words."""

    @property
    def model(self) -> str:
        """The sensitivity model that it is planned for."""

    @property
    def num_rows(self) -> int: ...

    @property
    def vector_length(self) -> int:
        """Entries of a row, each sent in a slot."""

    @property
    def largest_norm(self) -> float:
        """Of a row that a device sends."""

    def shift(self, model: str) -> Shift:
        """How far T rounds move what the server sees, under a sensitivity model."""

    def over_fleet(self, of_row: FloatArray) -> FloatArray:
        """The sum over devices of what a squared error x `[..., row]` means to each."""

    def paper_rounds(self, constants: LearningConstants) -> float:
        """T by the paper's formula, at least 1; infinite if nothing limits it."""


class Uplink(Payload, Protocol):
    """A way to the server. What is counted and required refers to each device's usual weight."""

    @property
    def carry_over(self) -> bool:
        """Whether its design depends on what the rounds before have cost."""

    @property
    def num_slots(self) -> int:
        """Of the air, in a round."""

    def required(self, num_rounds: int) -> FloatArray:
        """The counted noise per entry that T rounds require in each, `[device, row]`."""

    def required_at(self, num_rounds: int, round_index: int, spent: FloatArray | None = None) -> FloatArray:
        """The same of one round, when the rounds before have cost `spent` `[device, row]`."""

    def privacy_noise_var(self, num_rounds: int) -> FloatArray:
        """v if the channel were perfect and privacy all that asks for noise, `[row]`."""

    def noise_over(self, channels: ComplexArray) -> Callable[[int], FloatArray]:
        """v as a function of T, `[draw, row]`, for planning channels `[draw, device]`."""

    def channel_floor(self, channels: ComplexArray) -> FloatArray:
        """v if privacy asked for nothing, `[draw, row]`."""

    def squared_bias(self, channels: ComplexArray) -> FloatArray:
        """How far the sum of those who speak can be from everybody's, squared, `[draw, row]`."""

    def design(
        self, channel: ComplexArray, num_rounds: int, round_index: int, spent: FloatArray | None = None
    ) -> RoundDesign:
        """The gains of round `round_index` of T with this channel `[device]` as it is known.

        `spent` `[device, row]` is what the rounds before have cost of μ²; without it, or where nothing is carried over,
        all rounds are alike.
        """

    def num_planned(self, num_draws: int, num_rounds: int) -> int:
        """How many rounds to forecast from, with so many channel draws."""

    def fleet_noise(self, noise_var: FloatArray) -> FloatArray:
        """Σ_iΦ_i, from v `[..., row]`."""

    def noise_factor(self, constants: LearningConstants) -> float:
        """What Φ is multiplied with in the gap."""

    def linear_from(self, max_rounds: int) -> int:
        """The round from which on the requirement grows linearly."""

    def weights(self, round_index: int) -> FloatArray:
        """Of the devices' vectors in a round, `[device, row]`; zero for who stays silent."""

    def sensitivity(self, model: str, round_index: int) -> FloatArray:
        """How far a neighbour's vectors can be from a device's in a round, `[device, row]`."""

    def noise_by_trust(self, design: RoundDesign, channel: ComplexArray) -> dict[str, FloatArray]:
        """What each trust model counts of the noise that a design really sends, `[device, row]`.

        In units of the estimate in which a device's vector has the round's weight; infinite where nothing is sent.
        """
