"""Clipped gradients superposed by all participating devices: over-the-air federated learning, theory section 5.

g_i = (1/B_i)Σ_b clip_C(∇f_b); x_i = P1(√D/C)g_i + P2 m with P1 = w_i λ C h̄/(√D|h|²); ĝ = Re(y)/λ. It is section 1 with
one row of D entries, D/C² energy slots, and a shift of 2C/B_i by a record: the model is public, and so rounds compose
exactly. For a whole device the shift is 2C.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.planning.convergence.gap import LearningConstants
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.payloads import Gradient
from airdistill.planning.transceiver.design import (
    Links,
    RoundDesign,
    design_links,
    noise_by_trust,
)
from airdistill.planning.uplink import Uplink
from airdistill.privacy.gaussian import paper_mu
from airdistill.privacy.participation import MANY_ROUNDS, Participation


@dataclass(frozen=True)
class GradientUplink(Uplink):
    """One vector of D entries from every participating device; D slots.

    With secret participation the server divides the sum by the signal probability: required and counted noise are those
    before the division.
    """

    fleet: RealisedFleet
    channel_noise_var: float
    trust: str
    payload: Gradient
    accountant: str
    participation: Participation

    carry_over = False

    @property
    def _nominal(self) -> FloatArray:
        """B_i/B, `[device]`."""
        return self.payload.nominal_weights[:, 0]

    def _weights(self, round_index: int) -> FloatArray:
        return self.participation.weights(self._nominal, round_index)

    def weights(self, round_index: int) -> FloatArray:
        return self._weights(round_index)[:, None]

    def sensitivity(self, model: str, round_index: int) -> FloatArray:  # noqa: ARG002
        return self.payload.sensitivity(model)[:, None]

    def noise_by_trust(self, design: RoundDesign, channel: ComplexArray) -> dict[str, FloatArray]:
        return noise_by_trust(design, channel, self.channel_noise_var, self.trust)

    def required_at(
        self,
        num_rounds: int,
        round_index: int,  # noqa: ARG002
        spent: FloatArray | None = None,  # noqa: ARG002
    ) -> FloatArray:
        return self.required(num_rounds)

    def linear_from(self, max_rounds: int) -> int:
        return min(1, max_rounds)

    def required(self, num_rounds: int) -> FloatArray:
        """The requirement of the rounds that a device joins; the paper's accountant takes their expected number."""
        if self.accountant == "paper":
            rounds = self.participation.expected_rounds(num_rounds)
        else:
            rounds = self.participation.rounds_joined(num_rounds)
        shift = self.payload.squared_shift(self.model, self._nominal)
        return np.asarray((rounds * shift / self.fleet.mu**2)[:, None])

    def _required_with(self, num_rounds: int, weights: FloatArray) -> FloatArray:
        """The requirement at the weights of a round, `[device, row]`."""
        return self.required(num_rounds) * (weights / self._nominal)[:, None] ** 2

    def privacy_noise_var(self, num_rounds: int) -> FloatArray:
        """With sampling, the mean over many rounds of what grows with their number, scaled to T."""
        if self.participation.everyone:
            return np.asarray(self.required(num_rounds).max(axis=0) * self.participation.variance_factor)
        strictest = [self._required_with(MANY_ROUNDS, weights).max(axis=0) for weights in self._weights_of_many()]
        return np.asarray(np.mean(strictest, axis=0) * num_rounds / MANY_ROUNDS)

    def _weights_of_many(self) -> list[FloatArray]:
        count = 1 if self.participation.everyone else MANY_ROUNDS
        return [self._weights(round_index) for round_index in range(1, count + 1)]

    def _links(self, channels: ComplexArray, weights: FloatArray) -> Links:
        active = np.where(weights > 0, channels, 0)  # inactive devices send no noise either
        power_w = self.fleet.peak_power_w
        return Links.weighted(weights[:, None], self.energy_slots, active, power_w, self.channel_noise_var)

    def noise_over(self, channels: ComplexArray) -> Callable[[int], FloatArray]:
        trust = self.trust_model
        if self.participation.everyone:
            links, factor = self._links(channels, self._nominal), self.participation.variance_factor
            return lambda num_rounds: (
                trust.effective_noise_var(links, self._required_with(num_rounds, self._nominal)) * factor
            )

        def noise_var(num_rounds: int) -> FloatArray:
            drawn = [self._weights(draw % num_rounds + 1) for draw in range(len(channels))]
            each = [
                trust.effective_noise_var(self._links(channel, weights), self._required_with(num_rounds, weights))
                for channel, weights in zip(channels, drawn, strict=True)
            ]
            return np.stack(each)

        return noise_var

    def squared_bias(self, channels: ComplexArray) -> FloatArray:
        return np.zeros((len(channels), 1))

    def channel_floor(self, channels: ComplexArray) -> FloatArray:
        if self.participation.everyone:
            return self._links(channels, self._nominal).channel_floor * self.participation.variance_factor
        drawn = [self._weights(draw + 1) for draw in range(len(channels))]
        return np.stack([self._links(*pair).channel_floor for pair in zip(channels, drawn, strict=True)])

    def design(
        self,
        channel: ComplexArray,
        num_rounds: int,
        round_index: int,
        spent: FloatArray | None = None,  # noqa: ARG002
    ) -> RoundDesign:
        weights = self._weights(round_index)
        active = np.where(weights > 0, channel, 0)
        required = self._required_with(num_rounds, weights)
        made = design_links(self._links(channel, weights), active, required, self.trust_model)
        made = made.at_nominal_weights(self.nominal_weights)
        secret = self.participation.is_secret
        return made.with_secret_participation(self.participation.signal_probability) if secret else made

    def fleet_noise(self, noise_var: FloatArray) -> FloatArray:
        """M·D·v: every device gets the same gradient."""
        return np.asarray(self.fleet.num_devices * self.vector_length * noise_var[..., 0])

    def paper_rounds(self, constants: LearningConstants) -> float:
        """T̂ = f_max B²/(4η0² L D C² max_i ln(1/δ_i)/ε_i²); with device sampling, q_i rounds and the mean over draws."""
        mu = paper_mu(self.fleet.epsilon, self.fleet.delta)
        share = self.participation.expected_rounds(1)
        strictest = [
            (share * self.payload.squared_shift("paper", weights) / mu**2).max() for weights in self._weights_of_many()
        ]
        growth = constants.initial_lr * constants.gradient_noise_factor * self.vector_length * float(np.mean(strictest))
        if growth == 0:
            return float("inf")
        mean_loss = constants.total_loss_bound(self.fleet.num_devices) / self.fleet.num_devices
        return max(1, int(np.floor(3 * mean_loss / growth + 0.5)))
