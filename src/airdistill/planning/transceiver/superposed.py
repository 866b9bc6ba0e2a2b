"""A payload superposed on the air by all active devices at once: the paper's uplink, with truncated channel inversion.

A device in a deep fade limits the power of all other devices. If it is left out of a round, it is not charged either.
The weights of the active devices are scaled to sum to one again. The average of a class then changes by at most √2
times the weight of the inactive devices, because both averages lie in a simplex of diameter √2. (Other payloads have
another diameter.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from airdistill.arrays import BoolArray, ComplexArray, FloatArray, divide_or
from airdistill.channel.csi import ChannelError
from airdistill.planning.fleet import LARGE_FLEET, RealisedFleet
from airdistill.planning.payloads import Payload
from airdistill.planning.transceiver.design import (
    Links,
    RoundDesign,
    design_links,
    noise_by_trust,
)
from airdistill.planning.transceiver.paper import design_round_paper, privacy_stringency
from airdistill.planning.transceiver.required_noise import RequiredNoise
from airdistill.planning.uplink import Uplink
from airdistill.planning.waveform import Observation
from airdistill.privacy.participation import MANY_ROUNDS, Everyone, Participation
from airdistill.privacy.sensitivity import SIMPLEX_DIAMETER, Shift
from airdistill.privacy.trust import TRUST_MODELS, counted_by_trust, trust_named


@dataclass(frozen=True)
class SuperposedUplink(Uplink):
    """The rows of a payload from all devices at once, one slot for each entry.

    Devices whose |h|² is below `truncation` are inactive in a round. Channels are known up to `error`. With
    `carry_over` later rounds may use what a round leaves of its share of μ². With `split_budget` the budget of a joint
    sensitivity model is divided among the classes by their importance, given the noise `floor` `[class]` that they have
    anyway. A round with fewer than `min_devices` active devices does not happen. `noise_on_both_axes` describes the
    receiver noise. With secret participation the server divides the sum by the signal probability: required and counted
    noise are those before the division.
    """

    fleet: RealisedFleet
    channel_noise_var: float
    trust: str
    payload: Payload
    transceiver: str = "optimal"
    truncation: float = 0.0
    error: ChannelError = field(default_factory=ChannelError)
    carry_over: bool = False
    split_budget: bool = False
    floor: FloatArray | None = None
    noise_on_both_axes: bool = True
    min_devices: int = 1
    participation: Participation = field(default_factory=partial(Everyone, 0, 0))
    observation: Observation = field(default_factory=Observation)

    @cached_property
    def required_noise(self) -> RequiredNoise:
        floor = None if self.floor is None else self.floor / self.participation.variance_factor
        return self.payload.required_noise(self.split_budget, self._counts_own_only, floor)

    @property
    def _counts_own_only(self) -> bool:
        """Whether a device counts on its own noise only."""
        return trust_named(self.trust).counts_own_only

    @cached_property
    def _shifts(self) -> dict[str, Shift]:
        return self.payload.shifts()

    @cached_property
    def _exact_channels(self) -> bool:
        return self.error.exact

    def shift(self, model: str) -> Shift:
        return self._shifts[model]

    def weights(self, round_index: int) -> FloatArray:  # noqa: ARG002
        return self.nominal_weights

    def sensitivity(self, model: str, round_index: int) -> FloatArray:
        return divide_or(np.sqrt(self._shifts[model].at(round_index)), self.nominal_weights, 0.0)

    def sensitivities(self, round_index: int) -> dict[str, FloatArray]:
        shifts = np.stack([shift.at(round_index) for shift in self._shifts.values()])
        return dict(zip(self._shifts, divide_or(np.sqrt(shifts), self.nominal_weights, 0.0), strict=True))

    def linear_from(self, max_rounds: int) -> int:
        return self.required_noise.shift.linear_from(max_rounds)

    def required(self, num_rounds: int) -> FloatArray:
        return self._for_own_rounds(self.required_noise.of_rounds(num_rounds), num_rounds, 1)

    def required_at(self, num_rounds: int, round_index: int, spent: FloatArray | None = None) -> FloatArray:
        if spent is None or not self.carry_over:
            return self.required(num_rounds)
        if not self.participation.everyone:
            # A device without further rounds may have spent its whole budget.
            spent = np.where(self._own_rounds(num_rounds, round_index)[:, None] > 0, spent, 0.0)
        return self._for_own_rounds(
            self.required_noise.of_rest(num_rounds, round_index, spent), num_rounds, round_index
        )

    def _own_rounds(self, num_rounds: int, first: int) -> FloatArray:
        """In how many of the rounds from `first` to T each device participates, `[device]`."""
        return self.participation.rounds_joined(num_rounds) - self.participation.rounds_joined(first - 1)

    def _for_own_rounds(self, required: FloatArray, num_rounds: int, first: int) -> FloatArray:
        """The requirement of all rounds from `first` to T, reduced to the rounds in which a device participates."""
        if self.participation.everyone or self.linear_from(2) > 1:
            # If later rounds move more than early ones, the requirement is not reduced: all rounds are an upper bound.
            return required
        share = self._own_rounds(num_rounds, first) / (num_rounds - first + 1)
        return np.asarray(required * share[:, None])

    def privacy_noise_var(self, num_rounds: int) -> FloatArray:
        """With sampling, the mean over many rounds of what grows with their number, scaled to T."""
        if self.participation.everyone:
            return np.asarray(self.required(num_rounds).max(axis=0) * self.participation.variance_factor)
        masks = self.participation.masks(MANY_ROUNDS, MANY_ROUNDS)
        weights = weights_of_active_devices(self.nominal_weights, masks)
        asked = self.required(MANY_ROUNDS) * divide_or(weights, self.nominal_weights, 0.0) ** 2
        return np.asarray(asked.max(axis=-2).mean(axis=0) * num_rounds / MANY_ROUNDS)

    @property
    def _counts_fleet_noise(self) -> bool:
        """Whether all noise that counts is added by devices, and that of other devices counts too."""
        return self.trust_model.counts_others and not self.trust_model.counts_receiver

    @property
    def _noise_axes(self) -> int:
        """With inexact channels a signal leaves the real axis, and noise that other devices add must be on both axes.

        A device's own noise has the same misalignment as its signal.
        """
        return 1 if self._exact_channels or not self._counts_fleet_noise else 2

    def _links(self, channels: ComplexArray, mask: BoolArray | None) -> Links:
        """The links of channels `[..., device]` as they are known; inactive devices have no power to offer."""
        weights = weights_of_active_devices(self.nominal_weights, self._active_devices(channels, mask))
        return Links.weighted(
            weights,
            self.energy_slots,
            self._active_channels(channels, mask),
            self.fleet.peak_power_w,
            self.channel_noise_var,
            self._noise_axes,
        )

    def _active_devices(self, channels: ComplexArray, mask: BoolArray | None) -> BoolArray | None:
        """The active ones of the participating devices, `[..., device]`; None if all devices are active."""
        if self.truncation == 0:
            return mask
        return active_devices(channels, self.truncation, self.min_devices, mask)

    def _active_channels(self, channels: ComplexArray, mask: BoolArray | None) -> ComplexArray:
        """The channels with zeros for inactive devices."""
        active = self._active_devices(channels, mask)
        return channels if active is None else np.where(active, channels, 0)

    def _round_requirement(self, links: Links, required: FloatArray) -> FloatArray:
        """Required noise at nominal weights, converted to the weights of a round and to misaligned signals."""
        if self._weights_vary:
            required = required * divide_or(links.weights, self.nominal_weights, 0.0) ** 2
        return required if self._margin == 1 else required * self._margin

    @cached_property
    def _margin(self) -> float:
        """By how much more noise is designed than is counted: for misaligned channels, or through a waveform."""
        return self._misalignment_margin * self.observation.factor(self.trust_model)

    @cached_property
    def _weights_vary(self) -> bool:
        return self.truncation > 0 or not self.participation.everyone

    @property
    def _misalignment_margin(self) -> float:
        """Factor by which residual CSI misalignment can raise a signal above its noise, in variance.

        A signal inverted by ĥ = h(1+e) arrives 1/|1+e| ≤ 1/(1−e_q) times as strong, other devices' noise at least
        1/(1+e_q) times. The receiver noise does not change, and a device's own noise changes with its signal.
        """
        if self._exact_channels or self._counts_own_only:
            return 1.0
        limit = self.error.limit
        others = 1 + limit if self._counts_fleet_noise else 1.0
        return (others / (1 - limit)) ** 2

    def _predicted(self, links: Links, required: FloatArray, noise_var: FloatArray) -> FloatArray:
        """v with the error of misalignment: E|1/(1+e)|² − 1 of noise on both axes, and half of that of noise and
        vectors (of norm 1 at most) on one axis, because the other half leaves the decision axis."""
        if self.observation.misalignment > 0:
            # A tone's error is spread over its symbol: every number has the same share of it.
            noise_var = noise_var + self.observation.misalignment * links.signal_share
            # What all devices lose alike adds up where they send the same, which is taken for granted.
            noise_var = noise_var + self.observation.common_loss**2 * links.common_share
        if self._exact_channels:
            return noise_var
        artificial = self.trust_model.artificial_noise_var(required)
        added = 0.5 * self._noise_axes * artificial + 0.5 * links.signal_share
        return np.asarray(noise_var + self.error.misalignment * added)

    def noise_over(self, channels: ComplexArray) -> Callable[[int], FloatArray]:
        links, trust, sampled = self._links(channels, None), self.trust_model, not self.participation.everyone
        # If a class's strictest active device decides, and T only scales its requirement, it is found once.
        once = None
        strictest_decides = self.trust in TRUST_MODELS and not self._counts_own_only
        worthwhile = self.truncation > 0 or self.fleet.num_devices >= LARGE_FLEET
        if worthwhile and not sampled and strictest_decides and self.required_noise.is_linear:
            once = self._round_requirement(links, self.required(1)).max(axis=-2, keepdims=True)

        def noise_var(num_rounds: int) -> FloatArray:
            if not sampled:
                asked = (
                    num_rounds * once if once is not None else self._round_requirement(links, self.required(num_rounds))
                )
                noise = self._predicted(links, asked, trust.effective_noise_var(links, asked))
                return noise * self.participation.variance_factor
            joined = self._links(channels, self.participation.masks(num_rounds, len(channels)))
            asked = self._round_requirement(joined, self.required(num_rounds))
            return self._predicted(joined, asked, trust.effective_noise_var(joined, asked))

        return noise_var

    def squared_bias(self, channels: ComplexArray) -> FloatArray:
        """The bias of truncation only: sampling makes the sum vary, but does not bias it."""
        active = self._active_devices(channels, None)
        return squared_bias_bound(self.nominal_weights, active, channels.shape, self.payload.diameter)

    def channel_floor(self, channels: ComplexArray) -> FloatArray:
        masks = None if self.participation.everyone else self.participation.masks(len(channels), len(channels))
        return self._links(channels, masks).channel_floor * self.participation.variance_factor

    def design(
        self, channel: ComplexArray, num_rounds: int, round_index: int, spent: FloatArray | None = None
    ) -> RoundDesign:
        fleet, noise_var = self.fleet, self.channel_noise_var
        if self.transceiver == "paper":
            stringency = privacy_stringency(fleet.class_counts, fleet.epsilon, fleet.delta)
            power_w = fleet.peak_power_w
            return design_round_paper(fleet.class_counts, channel, power_w, noise_var, stringency, num_rounds)
        mask = self.participation.mask(round_index)
        links = self._links(channel, mask)
        asked = self._round_requirement(links, self.required_at(num_rounds, round_index, spent))
        made = design_links(links, self._active_channels(channel, mask), asked, self.trust_model)
        if not self._exact_channels or self._margin != 1 or self.observation.misalignment > 0:
            made = replace(
                made,
                effective_noise_var=self._predicted(links, asked, made.effective_noise_var),
                counted_noise_var=made.counted_noise_var / self._margin,
            )
        if self._weights_vary:
            made = made.at_nominal_weights(self.nominal_weights)
        secret = self.participation.is_secret
        return made.with_secret_participation(self.participation.signal_probability) if secret else made

    def noise_by_trust(self, design: RoundDesign, channel: ComplexArray) -> dict[str, FloatArray]:
        """From the channel as it is known: the noise that is certain for any error up to its limit."""
        if self.observation.is_partial:
            seen, counted = self.observation, noise_by_trust(design, channel, 0.0, "fleet_noise")
            if self._counts_own_only:
                # Nothing was bounded of what errors of the channel do to other noise: a later run of the ledger, with
                # another trust model, cannot count it either.
                return counted_by_trust(counted["own_noise"], counted["own_noise"], 0.0, self.trust)
            receiver = divide_or(np.array(self.channel_noise_var), design.rx_scale**2, np.inf)
            stronger = (1 + seen.limit) ** 2
            # A row that is not sent reveals nothing, also where no noise is certain (inf · 0 would be NaN).
            sent = np.isfinite(counted["fleet_noise"])
            kept = seen.kept / (stronger * seen.fleet_factor)
            others = np.where(sent, np.where(sent, counted["fleet_noise"], 0.0) * kept, np.inf)
            if np.isinf(seen.receiver_factor):
                receiver = np.zeros_like(receiver)
            return counted_by_trust(
                counted["own_noise"], others, receiver / (stronger * seen.receiver_factor), self.trust
            )
        if self._exact_channels:
            return noise_by_trust(design, channel, self.channel_noise_var, self.trust)
        limit = self.error.limit
        kept = (1 - limit) ** 2
        counted = noise_by_trust(design, channel, 0.0, "fleet_noise")
        # Noise on one axis protects only a signal of the same misalignment: the device's own.
        others = counted["fleet_noise"] * kept / (1 + limit) ** 2 if design.noise_axes == 2 else counted["own_noise"]
        # Receiver noise on the real axis only does not protect the part of a signal that leaves this axis.
        at_receiver = kept * self.channel_noise_var if self.noise_on_both_axes else 0.0
        receiver = divide_or(np.array(at_receiver), design.rx_scale**2, np.inf)
        return counted_by_trust(counted["own_noise"], others, receiver, self.trust)

    def fleet_noise(self, noise_var: FloatArray) -> FloatArray:
        return np.asarray(self.vector_length * self.payload.over_fleet(noise_var))


def active_devices(
    channel: ComplexArray, threshold: float, at_least: int = 1, participating: BoolArray | None = None
) -> BoolArray:
    """The participating devices whose |h|² reaches the threshold, as a mask `[..., device]`.

    No device is active if fewer than `at_least` would be. Without `participating` `[..., device]` all devices are.
    """
    active = np.abs(channel) ** 2 >= threshold
    if participating is not None:
        active = active & participating
    return np.asarray(active & (active.sum(axis=-1, keepdims=True) >= at_least))


def weights_of_active_devices(weights: FloatArray, active: BoolArray | None) -> FloatArray:
    """Nominal weights `[device, class]` scaled to the active devices `[..., device]`, `[..., device, class]`.

    None means that all devices are active.
    """
    if active is None:
        return weights
    kept = np.where(active[..., None], weights, 0.0)
    return divide_or(kept, kept.sum(axis=-2, keepdims=True), 0.0)


def squared_bias_bound(
    weights: FloatArray, active: BoolArray | None, shape: tuple[int, ...], diameter: float = SIMPLEX_DIAMETER
) -> FloatArray:
    """The bound on ‖Σ_i w'_i q_i − Σ_i w_i q_i‖² of each row, `[..., row]`: (diameter · weight of inactive devices)².

    `shape` is that of the channels, `[..., device]`. A row without active devices is not received and has no bias.
    """
    if active is None:
        return np.zeros((*shape[:-1], weights.shape[1]))
    missing = np.where(active[..., None], 0.0, weights).sum(axis=-2)
    received = np.where(active[..., None], weights, 0.0).any(axis=-2)
    return np.where(received, (diameter * missing) ** 2, 0.0)
