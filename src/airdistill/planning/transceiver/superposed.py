"""Knowledge of either kind sent by all devices at once: the paper's uplink."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from airdistill.arrays import BoolArray, ComplexArray, FloatArray, divide_or
from airdistill.channel.csi import ChannelError
from airdistill.planning.convergence.gap import LearningConstants
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.participation import MANY_ROUNDS, Coins, every_round_alike, variance_of_division
from airdistill.planning.payloads import KnowledgePayload, PublicPredictions
from airdistill.planning.transceiver.active_set import active_devices, squared_bias_bound, weights_of_active_devices
from airdistill.planning.transceiver.design import (
    FleetNoise,
    Links,
    RoundDesign,
    TrustModel,
    design_links,
    effective_noise_var,
    noise_by_trust,
    trust_model,
)
from airdistill.planning.transceiver.paper import design_round_paper, privacy_stringency
from airdistill.planning.transceiver.required_noise import RequiredNoise
from airdistill.planning.uplink import Uplink
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS, Shift


@dataclass(frozen=True)
class KnowledgeUplink:
    """The rows of what is `shared` from every device, on top of each other, a slot for each entry.

    Devices whose |h|² is below `truncation` are silent in a round. Channels are known up to `error`. With `carry_over`
    what a round leaves of its share of μ² goes to the later ones; with `split_budget` a joint model's budget is shared
    out over the classes by what they are worth, given the noise `floor` `[class]` that they have anyway. A round in
    which fewer than `min_devices` would speak does not happen. `noise_on_both_axes` is said of the receiver's. With
    `coins` those who do not take part in a round are silent in it, whatever their channel; with `hidden_coins` they
    send noise, and the server divides the sum by their probability: what is required and counted is as before that.
    """

    fleet: RealisedFleet
    channel_noise_var: float
    trust: str
    shared: KnowledgePayload
    transceiver: str = "optimal"
    truncation: float = 0.0
    error: ChannelError = field(default_factory=ChannelError)
    carry_over: bool = False
    split_budget: bool = False
    floor: FloatArray | None = None
    noise_on_both_axes: bool = True
    min_devices: int = 1
    coins: Coins | None = None
    hidden_coins: Coins | None = None

    @property
    def kind(self) -> str:
        return self.shared.kind

    @property
    def payload(self) -> str:
        return self.shared.payload

    @property
    def model(self) -> str:
        return self.shared.model

    @property
    def num_rows(self) -> int:
        return self.shared.num_rows

    @property
    def vector_length(self) -> int:
        return self.shared.vector_length

    @property
    def largest_norm(self) -> float:
        return self.shared.largest_norm

    @property
    def num_slots(self) -> int:
        return self.num_rows * self.vector_length

    @cached_property
    def demand(self) -> RequiredNoise:
        floor = None if self.floor is None else self.floor / self._divided
        return self.shared.demand(self.split_budget, self._counts_alone, floor)

    @property
    def _divided(self) -> float:
        return variance_of_division(self.hidden_coins)

    @property
    def _counts_alone(self) -> bool:
        """Whether a device counts on noise of its own."""
        return self.trust == "own_noise"

    def shift(self, model: str) -> Shift:
        return self.shared.shift(model)

    @cached_property
    def _shifts(self) -> dict[str, Shift]:
        return {model: self.shift(model) for model in SENSITIVITY_MODELS}

    @property
    def nominal_weights(self) -> FloatArray:
        """Of a round in which everybody speaks, `[device, row]`."""
        return self.shared.nominal_weights

    def weights(self, round_index: int) -> FloatArray:  # noqa: ARG002
        return self.nominal_weights

    def sensitivity(self, model: str, round_index: int) -> FloatArray:
        return divide_or(np.sqrt(self._shifts[model].at(round_index)), self.nominal_weights, 0.0)

    def linear_from(self, max_rounds: int) -> int:
        return self.demand.shift.linear_from(max_rounds)

    def required(self, num_rounds: int) -> FloatArray:
        return self._for_own_rounds(self.demand.of_rounds(num_rounds), num_rounds, 1)

    def required_at(self, num_rounds: int, round_index: int, spent: FloatArray | None = None) -> FloatArray:
        if spent is None or not self.carry_over:
            return self.required(num_rounds)
        if self.coins is not None:
            # Who has no more rounds may have spent all that it had.
            spent = np.where(self._own_rounds(num_rounds, round_index)[:, None] > 0, spent, 0.0)
        return self._for_own_rounds(self.demand.of_rest(num_rounds, round_index, spent), num_rounds, round_index)

    def _own_rounds(self, num_rounds: int, first: int) -> FloatArray:
        """In how many of the rounds from `first` to T each device takes part, `[device]`."""
        assert self.coins is not None
        return self.coins.rounds_taken(num_rounds) - self.coins.rounds_taken(first - 1)

    def _for_own_rounds(self, required: FloatArray, num_rounds: int, first: int) -> FloatArray:
        """What all rounds from `first` to T would ask for, as only those in which a device takes part do."""
        if self.coins is None or self.linear_from(2) > 1:
            # Where later rounds move more than early ones, who takes part in which is not gone into.
            return required
        share = self._own_rounds(num_rounds, first) / (num_rounds - first + 1)
        return np.asarray(required * share[:, None])

    def privacy_noise_var(self, num_rounds: int) -> FloatArray:
        """With coins, the mean over many rounds of what grows with their number, scaled to T."""
        if self.coins is None:
            return np.asarray(self.required(num_rounds).max(axis=0) * self._divided)
        there = self.coins.over_rounds(MANY_ROUNDS, MANY_ROUNDS)
        weights = weights_of_active_devices(self.nominal_weights, there)
        asked = self.required(MANY_ROUNDS) * divide_or(weights, self.nominal_weights, 0.0) ** 2
        return np.asarray(asked.max(axis=-2).mean(axis=0) * num_rounds / MANY_ROUNDS)

    @property
    def _rule(self) -> TrustModel:
        return trust_model(self.trust, self.channel_noise_var)

    @property
    def _noise_axes(self) -> int:
        """Where channels are not exact a signal slips off the real axis; noise that others add must cover both.

        A device's own noise slips with its signal.
        """
        return 1 if self.error.exact or not isinstance(self._rule, FleetNoise) else 2

    def _links(self, channels: ComplexArray, there: BoolArray | None) -> Links:
        """Of channels `[..., device]` as they are known; who is silent has no power to offer."""
        weights = weights_of_active_devices(self.nominal_weights, self._active_devices(channels, there))
        return Links.weighted(
            weights,
            self.vector_length / self.largest_norm**2,
            self._heard(channels, there),
            self.fleet.peak_power_w,
            self.channel_noise_var,
            self._noise_axes,
        )

    def _active_devices(self, channels: ComplexArray, there: BoolArray | None) -> BoolArray | None:
        """Who does, `[..., device]`, of those who are `there`; None where all are and do whatever the channel."""
        if self.truncation == 0:
            return there
        return active_devices(channels, self.truncation, self.min_devices, there)

    def _heard(self, channels: ComplexArray, there: BoolArray | None) -> ComplexArray:
        speaking = self._active_devices(channels, there)
        return channels if speaking is None else np.where(speaking, channels, 0)

    def _asked(self, links: Links, required: FloatArray) -> FloatArray:
        """Noise at usual weights as a round must have it: for the weights that it has, and for signals that slip."""
        if self._weights_vary:
            required = required * divide_or(links.weights, self.nominal_weights, 0.0) ** 2
        return required if self.error.exact else required * self._slip_margin

    @property
    def _weights_vary(self) -> bool:
        return self.truncation > 0 or self.coins is not None

    @property
    def _slip_margin(self) -> float:
        """How many times louder over its cover a signal can arrive than planned, in variance.

        A signal inverted by ĥ = h(1+e) arrives 1/|1+e| ≤ 1/(1−e_q) times as strong, others' noise at least 1/(1+e_q)
        times; the receiver's noise is what it is, and a device's own noise slips with its signal.
        """
        if self.error.exact or self._counts_alone:
            return 1.0
        limit = self.error.limit
        others = 1 + limit if isinstance(self._rule, FleetNoise) else 1.0
        return (others / (1 - limit)) ** 2

    def _predicted(self, links: Links, asked: FloatArray, noise_var: FloatArray) -> FloatArray:
        """v with what slipping adds: of noise on both axes the slip, E|1/(1+e)|² − 1; of noise and vectors (of norm 1
        at most) on one axis half of that, for the other half leaves the decision axis."""
        if self.error.exact:
            return noise_var
        added = 0.5 * self._noise_axes * self._rule.artificial_noise_var(asked) + 0.5 * links.signal_share
        return np.asarray(noise_var + self.error.slip * added)

    def noise_over(self, channels: ComplexArray) -> Callable[[int], FloatArray]:
        links, rule = self._links(channels, None), self._rule
        # Where a class's strictest speaker decides, and T only scales what it asks, it is looked for once.
        once = None
        if self.truncation > 0 and self.coins is None and not self._counts_alone and self.demand.is_linear:
            once = self._asked(links, self.required(1)).max(axis=-2, keepdims=True)

        def noise_var(num_rounds: int) -> FloatArray:
            if self.coins is None:
                asked = self._asked(links, self.required(num_rounds)) if once is None else num_rounds * once
                return self._predicted(links, asked, effective_noise_var(links, asked, rule)) * self._divided
            of_those_there = self._links(channels, self.coins.over_rounds(num_rounds, len(channels)))
            asked = self._asked(of_those_there, self.required(num_rounds))
            return self._predicted(of_those_there, asked, effective_noise_var(of_those_there, asked, rule))

        return noise_var

    def squared_bias(self, channels: ComplexArray) -> FloatArray:
        """Of weak channels alone: who is missing by a coin makes the sum scatter, and pulls it nowhere."""
        speaking = self._active_devices(channels, None)
        return squared_bias_bound(self.nominal_weights, speaking, channels.shape, self.shared.diameter)

    def channel_floor(self, channels: ComplexArray) -> FloatArray:
        there = None if self.coins is None else self.coins.over_rounds(len(channels), len(channels))
        return self._links(channels, there).channel_floor * self._divided

    def design(
        self, channel: ComplexArray, num_rounds: int, round_index: int, spent: FloatArray | None = None
    ) -> RoundDesign:
        fleet, noise_var = self.fleet, self.channel_noise_var
        if self.transceiver == "paper":
            stringency = privacy_stringency(fleet.class_counts, fleet.epsilon, fleet.delta)
            power_w = fleet.peak_power_w
            return design_round_paper(fleet.class_counts, channel, power_w, noise_var, stringency, num_rounds)
        there = None if self.coins is None else self.coins.there(round_index)
        links = self._links(channel, there)
        asked = self._asked(links, self.required_at(num_rounds, round_index, spent))
        drawn = design_links(links, self._heard(channel, there), asked, self.trust)
        if not self.error.exact:
            drawn = replace(
                drawn,
                effective_noise_var=self._predicted(links, asked, drawn.effective_noise_var),
                counted_noise_var=drawn.counted_noise_var / self._slip_margin,
            )
        if self._weights_vary:
            drawn = drawn.at_nominal_weights(self.nominal_weights)
        return drawn if self.hidden_coins is None else drawn.with_hidden_coins(self.hidden_coins.probability)

    def noise_by_trust(self, design: RoundDesign, channel: ComplexArray) -> dict[str, FloatArray]:
        """From the channel as it is known: what is certain to be there up to the limit of its error."""
        if self.error.exact:
            return noise_by_trust(design, channel, self.channel_noise_var)
        limit = self.error.limit
        kept = (1 - limit) ** 2
        counted = noise_by_trust(design, channel, 0.0)
        # Noise on one axis covers only what slips as it does: a device's own.
        others = counted["fleet_noise"] * kept / (1 + limit) ** 2 if design.noise_axes == 2 else counted["own_noise"]
        # A receiver that has noise on the real axis alone hides nothing of what slips off it.
        at_receiver = kept * self.channel_noise_var if self.noise_on_both_axes else 0.0
        receiver = divide_or(np.array(at_receiver), design.rx_scale**2, np.inf)
        return {"receiver_noise": others + receiver, "fleet_noise": others, "own_noise": counted["own_noise"]}

    def num_planned(self, num_draws: int, num_rounds: int) -> int:
        return num_draws if self.coins is None else every_round_alike(num_draws, num_rounds)

    def fleet_noise(self, noise_var: FloatArray) -> FloatArray:
        return np.asarray(self.vector_length * self.shared.over_fleet(noise_var))

    def over_fleet(self, of_row: FloatArray) -> FloatArray:
        return self.shared.over_fleet(of_row)

    def noise_factor(self, constants: LearningConstants) -> float:
        return constants.noise_factor

    def paper_rounds(self, constants: LearningConstants) -> float:
        return self.shared.paper_rounds(constants)


def public_predictions_of(uplink: Uplink) -> PublicPredictions | None:
    """What an uplink sends of a public set; None if it sends anything else."""
    shared = uplink.shared if isinstance(uplink, KnowledgeUplink) else None
    return shared if isinstance(shared, PublicPredictions) else None
