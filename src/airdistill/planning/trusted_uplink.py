"""The uplink of votes to a trusted aggregator: a secure channel in place of the air."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.errors import InputError
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.payloads import TeacherVotes
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.planning.uplink import Uplink
from airdistill.privacy.participation import Everyone, Participation
from airdistill.privacy.trust import TRUST_MODELS, TRUSTED_AGGREGATOR
from airdistill.scenario.model import Scenario


@dataclass(frozen=True)
class TrustedUplink(Uplink):
    """Every device's votes over a secure channel, digital and without errors, to an aggregator that adds the noise.

    The noise is σ2 in units of the mean over devices. It counts for those that trust the aggregator; under every other
    trust model the votes are as good as public. Air time is an estimate: each device sends the bits of its votes in
    slots of its own, one bit a slot.
    """

    fleet: RealisedFleet
    payload: TeacherVotes
    channel_noise_var: float = 0.0
    trust: str = TRUSTED_AGGREGATOR.name
    participation: Participation = field(default_factory=partial(Everyone, 0, 0))

    carry_over = False
    uses_radio = False

    @property
    def num_slots(self) -> int:
        bits = math.ceil(math.log2(self.fleet.num_classes + 1))  # a class, or no vote
        return self.fleet.num_devices * self.payload.num_samples * bits

    @cached_property
    def noise_var(self) -> FloatArray:
        """(σ2/M)², `[row]`."""
        return np.array([(self.payload.settings.vote_noise / self.fleet.num_devices) ** 2])

    def required(self, num_rounds: int) -> FloatArray:
        return self.payload.required_noise(split=False, alone=False, floor=None).of_rounds(num_rounds)

    def required_at(self, num_rounds: int, round_index: int, spent: FloatArray | None = None) -> FloatArray:  # noqa: ARG002
        return self.required(num_rounds)

    def privacy_noise_var(self, num_rounds: int) -> FloatArray:  # noqa: ARG002
        return self.noise_var

    def noise_over(self, channels: ComplexArray) -> Callable[[int], FloatArray]:
        return lambda num_rounds: np.broadcast_to(self.noise_var, (len(channels), 1))  # noqa: ARG005

    def channel_floor(self, channels: ComplexArray) -> FloatArray:
        return np.zeros((len(channels), 1))

    def squared_bias(self, channels: ComplexArray) -> FloatArray:
        return np.zeros((len(channels), 1))

    def design(
        self,
        channel: ComplexArray,  # noqa: ARG002
        num_rounds: int,
        round_index: int,  # noqa: ARG002
        spent: FloatArray | None = None,  # noqa: ARG002
    ) -> RoundDesign:
        """Weights and noise only: nothing is on the air."""
        silent = np.zeros(self.nominal_weights.shape, dtype=np.complex128)
        counted = np.broadcast_to(self.noise_var, self.nominal_weights.shape)
        strictest = self.required(num_rounds).max(axis=0)
        return RoundDesign(self.nominal_weights, silent, silent, np.ones(1), self.noise_var, counted, strictest)

    def fleet_noise(self, noise_var: FloatArray) -> FloatArray:
        return np.asarray(self.fleet.num_devices * noise_var[..., 0])

    def linear_from(self, max_rounds: int) -> int:
        return min(1, max_rounds)

    def weights(self, round_index: int) -> FloatArray:  # noqa: ARG002
        return self.nominal_weights

    def sensitivity(self, model: str, round_index: int) -> FloatArray:
        return np.asarray(np.sqrt(self.payload.shift(model).at(round_index)) / self.nominal_weights)

    def noise_by_trust(self, design: RoundDesign, channel: ComplexArray) -> dict[str, FloatArray]:  # noqa: ARG002
        unprotected = np.zeros(design.weights.shape)
        return {**dict.fromkeys(TRUST_MODELS, unprotected), self.trust: design.counted_noise_var}


def trusted_uplink(scenario: Scenario, payload: TeacherVotes) -> TrustedUplink:
    """The uplink of votes. Raise `InputError` if the scenario asks for what has no meaning without a radio."""
    trust, rule = scenario.privacy.trust, "all devices vote, because the aggregator cannot align or hide any"
    if trust != TRUSTED_AGGREGATOR.name:
        raise InputError("privacy.trust", trust, f'votes go to an aggregator: use "{TRUSTED_AGGREGATOR.name}"')
    if scenario.fleet.participation < 1:
        raise InputError("fleet.participation", scenario.fleet.participation, rule)
    if scenario.fleet.sampling != "none":
        raise InputError("fleet.sampling", scenario.fleet.sampling, rule)
    return TrustedUplink(payload.fleet, payload)
