"""Knowledge sent by all devices at once: the paper's uplink."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray, divide_or
from airdistill.codesign.constants import LearningConstants
from airdistill.codesign.convergence import fleet_effective_noise
from airdistill.codesign.fleet import RealisedFleet
from airdistill.codesign.links import Links
from airdistill.codesign.paper_rounds import paper_rounds
from airdistill.codesign.paper_transceiver import design_round_paper, privacy_stringency
from airdistill.codesign.transceiver import RoundDesign, design_round, effective_noise_var, noise_by_trust
from airdistill.codesign.trust import trust_model
from airdistill.privacy.sensitivity import (
    SENSITIVITY_MODELS,
    AccumulatedShift,
    TrajectoryDynamics,
    aggregation_weights,
    required_for_shift,
)


@dataclass(frozen=True)
class KnowledgeUplink:
    """K vectors of K entries from every device, on top of each other; K² slots."""

    fleet: RealisedFleet
    channel_noise_var: float
    model: str
    trust: str
    relabel: bool
    dynamics: TrajectoryDynamics
    transceiver: str = "optimal"

    kind = "knowledge"
    payload = "knowledge"
    largest_norm = 1.0

    @property
    def num_rows(self) -> int:
        return self.fleet.num_classes

    @property
    def vector_length(self) -> int:
        return self.fleet.num_classes

    @property
    def num_slots(self) -> int:
        return self.fleet.num_classes**2

    @cached_property
    def _own_shift(self) -> AccumulatedShift:
        return self.shift(self.model)

    def shift(self, model: str) -> AccumulatedShift:
        return AccumulatedShift(self.fleet.class_counts, model, self.dynamics)

    @cached_property
    def _shifts(self) -> dict[str, AccumulatedShift]:
        return {model: self.shift(model) for model in SENSITIVITY_MODELS}

    def weights(self, round_index: int) -> FloatArray:  # noqa: ARG002
        return aggregation_weights(self.fleet.class_counts)

    def sensitivity(self, model: str, round_index: int) -> FloatArray:
        return divide_or(np.sqrt(self._shifts[model].at(round_index)), self.weights(round_index), 0.0)

    def noise_by_trust(self, design: RoundDesign, channel: ComplexArray) -> dict[str, FloatArray]:
        return noise_by_trust(design, channel, self.channel_noise_var)

    def linear_from(self, max_rounds: int) -> int:
        return self._own_shift.linear_from(max_rounds)

    def required(self, num_rounds: int) -> FloatArray:
        shift = self._own_shift.after(num_rounds)
        return required_for_shift(shift, self.fleet.class_counts, self.fleet.mu, self.model, self.relabel)

    def privacy_noise_var(self, num_rounds: int) -> FloatArray:
        strictest: FloatArray = self.required(num_rounds).max(axis=0)
        return strictest

    def _links(self, channels: ComplexArray) -> Links:
        return Links.of(self.fleet.class_counts, channels, self.fleet.peak_power_w, self.channel_noise_var)

    def noise_over(self, channels: ComplexArray) -> Callable[[int], FloatArray]:
        links, rule = self._links(channels), trust_model(self.trust, self.channel_noise_var)
        return lambda num_rounds: effective_noise_var(links, self.required(num_rounds), rule)

    def channel_floor(self, channels: ComplexArray) -> FloatArray:
        return self._links(channels).channel_floor

    def design(self, channel: ComplexArray, num_rounds: int, round_index: int) -> RoundDesign:  # noqa: ARG002
        fleet, noise_var = self.fleet, self.channel_noise_var
        if self.transceiver == "paper":
            stringency = privacy_stringency(fleet.class_counts, fleet.epsilon, fleet.delta)
            power_w = fleet.peak_power_w
            return design_round_paper(fleet.class_counts, channel, power_w, noise_var, stringency, num_rounds)
        required = self.required(num_rounds)
        return design_round(fleet.class_counts, channel, fleet.peak_power_w, noise_var, required, self.trust)

    def num_planned(self, num_draws: int, num_rounds: int) -> int:  # noqa: ARG002
        return num_draws

    def fleet_noise(self, noise_var: FloatArray) -> FloatArray:
        return fleet_effective_noise(self.fleet.class_counts, noise_var)

    def noise_factor(self, constants: LearningConstants) -> float:
        return constants.noise_factor

    def paper_rounds(self, constants: LearningConstants) -> float:
        return paper_rounds(self.fleet.class_counts, self.fleet.epsilon, self.fleet.delta, constants)
