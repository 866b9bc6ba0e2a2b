"""Clipped gradients sent by all devices at once: over-the-air federated learning, theory section 5.

g_i = (1/B_i)Σ_b clip_C(∇f_b); x_i = P1(√D/C)g_i + P2 m with P1 = w_i λ C h̄/(√D|h|²); ĝ = Re(y)/λ. It is section 1 with
one row of D entries, D/C² slots for the energy of a vector, and a shift of 2C/B_i by a record: the model is public,
so that rounds compose exactly. For a whole device the shift is 2C.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.planning.convergence.gap import LearningConstants
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.participation import MANY_ROUNDS, Coins, Participation, every_round_alike, variance_of_division
from airdistill.planning.transceiver.design import (
    Links,
    RoundDesign,
    design_links,
    effective_noise_var,
    noise_by_trust,
    trust_model,
)
from airdistill.privacy.gaussian import paper_mu
from airdistill.privacy.sensitivity import ConstantShift, gradient_sensitivity


@dataclass(frozen=True)
class GradientUplink:
    """One vector of D entries from every device that takes part; D slots.

    With `hidden_coins` everybody sends noise in every round, and the server divides the sum by their probability: what
    is required and counted is as before that.
    """

    fleet: RealisedFleet
    channel_noise_var: float
    model: str
    trust: str
    accountant: str
    clip_norm: float
    num_parameters: int
    participation: Participation
    hidden_coins: Coins | None = None

    kind = "gradient"
    payload = "gradient"
    carry_over = False
    num_rows = 1

    @property
    def vector_length(self) -> int:
        return self.num_parameters

    @property
    def largest_norm(self) -> float:
        return self.clip_norm

    @property
    def num_slots(self) -> int:
        return self.num_parameters

    def shift(self, model: str) -> ConstantShift:
        return ConstantShift(self._squared_shift(model, self.participation.nominal_weights)[:, None])

    def _squared_shift(self, model: str, weights: FloatArray) -> FloatArray:
        samples = self.participation.samples_per_device
        return np.asarray((weights * gradient_sensitivity(samples, model, self.clip_norm)) ** 2)

    def weights(self, round_index: int) -> FloatArray:
        return self.participation.weights(round_index)[:, None]

    def sensitivity(self, model: str, round_index: int) -> FloatArray:  # noqa: ARG002
        return gradient_sensitivity(self.participation.samples_per_device, model, self.clip_norm)[:, None]

    def noise_by_trust(self, design: RoundDesign, channel: ComplexArray) -> dict[str, FloatArray]:
        return noise_by_trust(design, channel, self.channel_noise_var)

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
        """Of the rounds in which a device takes part; the paper's accountant puts their expected number."""
        if self.accountant == "paper":
            rounds = self.participation.expected_rounds(num_rounds)
        else:
            rounds = self.participation.rounds_taken(num_rounds)
        shift = self._squared_shift(self.model, self.participation.nominal_weights)
        return np.asarray((rounds * shift / self.fleet.mu**2)[:, None])

    def _required_at(self, num_rounds: int, weights: FloatArray) -> FloatArray:
        """With the weights that a round has, `[device, row]`."""
        return self.required(num_rounds) * (weights / self.participation.nominal_weights)[:, None] ** 2

    def privacy_noise_var(self, num_rounds: int) -> FloatArray:
        """Where not everybody takes part, the mean over many rounds of what grows with their number, scaled to T."""
        if self.participation.everybody:
            return np.asarray(self.required(num_rounds).max(axis=0) * self._divided)
        strictest = [self._required_at(MANY_ROUNDS, weights).max(axis=0) for weights in self._weights_of_many()]
        return np.asarray(np.mean(strictest, axis=0) * num_rounds / MANY_ROUNDS)

    @property
    def _divided(self) -> float:
        return variance_of_division(self.hidden_coins)

    def _weights_of_many(self) -> list[FloatArray]:
        count = 1 if self.participation.everybody else MANY_ROUNDS
        return [self.participation.weights(round_index) for round_index in range(1, count + 1)]

    def _links(self, channels: ComplexArray, weights: FloatArray) -> Links:
        heard = np.where(weights > 0, channels, 0)  # who stays silent sends no noise either
        energy_slots = self.num_parameters / self.clip_norm**2
        return Links.weighted(weights[:, None], energy_slots, heard, self.fleet.peak_power_w, self.channel_noise_var)

    def noise_over(self, channels: ComplexArray) -> Callable[[int], FloatArray]:
        rule = trust_model(self.trust, self.channel_noise_var)
        if self.participation.everybody:
            links, weights = (
                self._links(channels, self.participation.nominal_weights),
                self.participation.nominal_weights,
            )
            return lambda num_rounds: (
                effective_noise_var(links, self._required_at(num_rounds, weights), rule) * self._divided
            )

        def noise_var(num_rounds: int) -> FloatArray:
            drawn = [self.participation.weights(draw % num_rounds + 1) for draw in range(len(channels))]
            each = [
                effective_noise_var(self._links(channel, weights), self._required_at(num_rounds, weights), rule)
                for channel, weights in zip(channels, drawn, strict=True)
            ]
            return np.stack(each)

        return noise_var

    def squared_bias(self, channels: ComplexArray) -> FloatArray:
        return np.zeros((len(channels), 1))

    def channel_floor(self, channels: ComplexArray) -> FloatArray:
        if self.participation.everybody:
            return self._links(channels, self.participation.nominal_weights).channel_floor * self._divided
        drawn = [self.participation.weights(draw + 1) for draw in range(len(channels))]
        return np.stack([self._links(*pair).channel_floor for pair in zip(channels, drawn, strict=True)])

    def num_planned(self, num_draws: int, num_rounds: int) -> int:
        return num_draws if self.participation.everybody else every_round_alike(num_draws, num_rounds)

    def design(
        self,
        channel: ComplexArray,
        num_rounds: int,
        round_index: int,
        spent: FloatArray | None = None,  # noqa: ARG002
    ) -> RoundDesign:
        weights = self.participation.weights(round_index)
        heard = np.where(weights > 0, channel, 0)
        required = self._required_at(num_rounds, weights)
        drawn = design_links(self._links(channel, weights), heard, required, self.trust)
        drawn = drawn.at_nominal_weights(self.participation.nominal_weights[:, None])
        return drawn if self.hidden_coins is None else drawn.with_hidden_coins(self.hidden_coins.probability)

    def fleet_noise(self, noise_var: FloatArray) -> FloatArray:
        """M·D·v: every device gets the same gradient."""
        return np.asarray(self.fleet.num_devices * self.num_parameters * noise_var[..., 0])

    def over_fleet(self, of_row: FloatArray) -> FloatArray:
        return np.asarray(self.fleet.num_devices * of_row[..., 0])

    def noise_factor(self, constants: LearningConstants) -> float:
        return constants.gradient_noise_factor

    def paper_rounds(self, constants: LearningConstants) -> float:
        """T̂ = f_max B²/(4η0² L D C² max_i ln(1/δ_i)/ε_i²); with device sampling, q_i rounds and the mean over draws."""
        mu = paper_mu(self.fleet.epsilon, self.fleet.delta)
        share = self.participation.expected_rounds(1)
        strictest = [
            (share * self._squared_shift("paper", weights) / mu**2).max() for weights in self._weights_of_many()
        ]
        growth = (
            constants.initial_lr * constants.gradient_noise_factor * self.num_parameters * float(np.mean(strictest))
        )
        if growth == 0:
            return float("inf")
        mean_loss = constants.total_loss_bound(self.fleet.num_devices) / self.fleet.num_devices
        return max(1, int(np.floor(3 * mean_loss / growth + 0.5)))
