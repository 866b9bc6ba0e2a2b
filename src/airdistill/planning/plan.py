"""From a scenario to a plan: the number of rounds, the gains of each, what limits it, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.channel.csi import planning_estimates
from airdistill.channel.link_budget import duty_cycle
from airdistill.channel.selective import WideChannel
from airdistill.channel.sources import channel_source
from airdistill.channel.waveform import AirTime, air_time, number_seconds
from airdistill.planning.amplification import amplified_epsilon, fleet_for_rounds
from airdistill.planning.convergence.gap import LearningConstants
from airdistill.planning.convergence.receiver_error import Parts, ProjectedError, ReceiverError, TrackingError
from airdistill.planning.convergence.rounds import GapObjective, RoundsChoice, best_truncation, typical_floor
from airdistill.planning.fleet import LARGE_FLEET, RealisedFleet, channel_noise_var
from airdistill.planning.forecast import LIMITING_FACTORS, RoundForecast, forecast_round
from airdistill.planning.payloads import ClassMeans, payload_named
from airdistill.planning.slips import check_duty_cycle
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.planning.transceiver.superposed import SuperposedUplink
from airdistill.planning.transceiver.tdma import TDMA_KIND
from airdistill.planning.uplink import Uplink
from airdistill.planning.uplinks import Choices, correlated_choices, uplink_for
from airdistill.planning.warnings import assumptions_of, warnings_of
from airdistill.planning.waveform import Observation, planned_observation
from airdistill.planning.what_if.correlation import (
    CorrelationComparison,
    correlation_comparison,
    correlation_warnings,
)
from airdistill.planning.what_if.participation import (
    AmplificationComparison,
    ParticipationComparison,
    amplification_comparison,
    participation_comparison,
)
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.privacy.spending import EarlierRuns
from airdistill.privacy.targets import epsilon_of_mu, epsilon_of_shift, without_rounding
from airdistill.privacy.trust import trust_named
from airdistill.scenario.cells import is_threegpp
from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario
from airdistill.stages import report_stage

NUM_DRAWS = 200
# A combiner takes a good part of a second, and several antennas fade less than one. So do many tones of 3GPP channels.
FEWER_DRAWS = 24
_DRAWN_DEVICES = 200 * LARGE_FLEET  # draws times devices of large fleets
# The other end of what pilots measure for the paper's network: L1 2 to 22, L2 0.7 to 7.7.
SMALLER_CONSTANTS = 0.1
STAGE, _STEPS = "planning", 5  # channels, rounds, forecast, privacy, comparisons
_MOST_TRIES = 4  # to find a T that secret participation and the gap agree on


@dataclass(frozen=True)
class Plan:
    """The choices made for a scenario, and the performance they predict."""

    scenario: Scenario
    fleet: RealisedFleet
    rounds: RoundsChoice
    forecast: RoundForecast
    convergence_gap: float
    epsilon_by_model: dict[str, FloatArray]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    uplink: Uplink
    participation: ParticipationComparison | None = None
    amplification: AmplificationComparison | None = None
    correlation: CorrelationComparison | None = None

    def __repr__(self) -> str:
        privacy, forecast = self.scenario.privacy, self.forecast
        return (
            f"Plan({self.scenario.name!r}: {self.num_rounds} rounds of {self.fleet.num_devices} devices, "
            f"{self.uplink.payload.words}, trust {privacy.trust}, limited by {LIMITING_FACTORS[forecast.regime]}, "
            f"noise {forecast.effective_noise:.3g}, {self.uplink_seconds:.3g} s, {self.uplink_joules:.3g} J)"
        )

    @cached_property
    def num_rounds(self) -> int:
        return self.rounds.chosen

    @property
    def uplink_seconds(self) -> float:
        if self.scenario.waveform.kind == "single_tone":
            return self.num_rounds * self.uplink.num_slots * self.scenario.radio.slot
        return self.num_rounds * self.air_time.total_s

    @cached_property
    def air_time(self) -> AirTime:
        """The time of one round on the air, by its parts."""
        return air_time(self.scenario, self.uplink.num_slots)

    @property
    def duty_cycle(self) -> float:
        """The largest share of the time that a device may be on the air."""
        return duty_cycle(self.scenario, float(self.fleet.peak_power_w.max()))

    @property
    def on_air_seconds(self) -> float:
        """The time that a device is on the air in one round, at most."""
        shared = self.fleet.num_devices if self.uplink.uses_tdma else 1
        return self.uplink_seconds / (self.num_rounds * shared)

    @property
    def least_seconds(self) -> float:
        """The least time of the whole run: the uplink, or at a steady pace what the duty cycle makes of it."""
        return max(self.uplink_seconds, self.num_rounds * self.on_air_seconds / self.duty_cycle)

    @property
    def uplink_joules(self) -> float:
        """Planned energy of the whole fleet over the whole run."""
        return self.num_rounds * self.forecast.round_joules

    def required_noise_var(self) -> FloatArray:
        """The counted noise per entry that every round requires, `[device, row]`."""
        return self.uplink.required(self.num_rounds)

    def design(self, channel: ComplexArray, round_index: int = 1, spent: FloatArray | None = None) -> RoundDesign:
        """The gains of a round for this channel `[device]` as it is known; with sampling, of that very round.

        `spent` `[device, row]` is what earlier rounds have cost, for plans that carry budget over.
        """
        return self.uplink.design(channel, self.num_rounds, round_index, spent)

    def power_slack(self, channel: ComplexArray) -> FloatArray:
        """1 − power/limit in a round with this channel, `[device, row]`."""
        return self.design(channel).power_slack(self.fleet.peak_power_w)

    def privacy_slack(self, channel: ComplexArray) -> FloatArray:
        """Counted over required noise, minus one, in a round with this channel, `[device, row]`."""
        return self.design(channel).privacy_slack(self.required_noise_var())

    def to_dict(self) -> dict[str, Any]:
        """The whole plan as JSON values: lists for arrays, null for infinity."""
        from airdistill.planning.plan_json import plan_to_dict

        return plan_to_dict(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Plan:
        """Restore a plan from `to_dict`."""
        from airdistill.planning.plan_json import plan_from_dict

        return plan_from_dict(stored)


def plan(
    scenario: Scenario,
    uplink: str = "knowledge",
    num_parameters: int | None = None,
    earlier: EarlierRuns | None = None,
) -> Plan:
    """Plan a scenario:

    1. draw the fleet: counts, powers, privacy targets and the μ that they grant;
    2. draw the channels to plan with, from a random stream of their own, and choose the truncation threshold;
    3. find the number of rounds under each rule, and choose;
    4. design every drawn round for that number, and sum up noise, power and time;
    5. forecast every device's ε at the end under each sensitivity model;
    6. state assumptions and warnings.

    `uplink` is a payload's kind ("knowledge", "public_knowledge", "gradient" or `package.module:Class`), or
    "orthogonal_knowledge" for TDMA. A gradient needs the `num_parameters` of the model. `earlier` is what
    earlier runs of the same devices have spent: the plan uses the rest.
    """
    report_stage(STAGE, 0, _STEPS)
    channels = planning_draws(scenario)
    report_stage(STAGE, 1, _STEPS)
    fleet, objective, rounds = _fleet_and_rounds(scenario, uplink, num_parameters, earlier, channels)
    sent, radio = objective.uplink, scenario.radio
    report_stage(STAGE, 2, _STEPS)

    def forecast_of(of: Uplink) -> RoundForecast:
        noise_var = channel_noise_var(scenario)
        number_s = number_seconds(scenario)
        return forecast_round(of, fleet, channels, rounds.chosen, noise_var, radio.outage, number_s)

    forecast = forecast_of(sent)
    correlation = correlation_comparison(scenario, sent, rounds.chosen, forecast, forecast_of)
    report_stage(STAGE, 3, _STEPS)
    epsilon_by_model = _epsilon_by_model(scenario, fleet, sent, forecast, rounds.chosen, channels)
    report_stage(STAGE, 4, _STEPS)
    made = Plan(
        scenario=scenario,
        fleet=fleet,
        rounds=rounds,
        forecast=forecast,
        convergence_gap=_gap(objective, rounds.chosen, forecast, fleet),
        epsilon_by_model=epsilon_by_model,
        assumptions=assumptions_of(scenario, sent, rounds.chosen),
        warnings=(
            *_about_earlier_runs(scenario, fleet, earlier),
            *warnings_of(scenario, fleet, sent, rounds, forecast, epsilon_by_model),
            *correlation_warnings(correlation),
        ),
        uplink=sent,
        participation=participation_comparison(sent, rounds.chosen, forecast_of),
        amplification=amplification_comparison(scenario, sent, channels, rounds.chosen, forecast_of),
        correlation=correlation,
    )
    check_duty_cycle(made.on_air_seconds, made.duty_cycle)
    report_stage(STAGE, _STEPS, _STEPS)
    return made


def _fleet_and_rounds(
    scenario: Scenario,
    kind: str,
    num_parameters: int | None,
    earlier: EarlierRuns | None,
    channels: ComplexArray,
) -> tuple[RealisedFleet, GapObjective, RoundsChoice]:
    """The number of rounds, and the fleet that it was chosen for.

    With secret participation the μ of a fleet depends on T: T is chosen for the μ of the previous choice, until it does
    not change.
    """
    neighbours = (ClassMeans if kind == TDMA_KIND else payload_named(kind)).neighbours

    def chosen_with(num_rounds: int) -> tuple[RealisedFleet, GapObjective, RoundsChoice]:
        fleet = fleet_for_rounds(scenario, neighbours, num_rounds, earlier)
        sent = choose_uplink(scenario, fleet, kind, num_parameters, channels)
        objective = gap_objective(scenario, sent, channels)
        return fleet, objective, _choose_rounds(scenario, objective)

    asked, largest = scenario.learning.rounds, scenario.learning.max_rounds
    tried = asked if isinstance(asked, int) else largest
    fleet, objective, rounds = chosen_with(tried)
    if not scenario.fleet.participation_hidden:
        return fleet, objective, rounds
    for _ in range(_MOST_TRIES):
        if rounds.chosen == tried:
            break
        tried = rounds.chosen
        fleet, objective, rounds = chosen_with(tried)
    # The fleet's μ belongs to these rounds; if the choice alternates, the last one tried is taken.
    exact = tried if rounds.rule == "optimal" else rounds.exact
    return fleet, objective, replace(rounds, chosen=tried, exact=exact)


def _about_earlier_runs(scenario: Scenario, fleet: RealisedFleet, earlier: EarlierRuns | None) -> tuple[str, ...]:
    if earlier is None:
        return ()
    most = float(epsilon_of_mu(np.sqrt(earlier.squared_mu), fleet.delta, scenario.privacy.noise).max())
    late = f", and δ = {earlier.excess_delta:.3g} for their channel errors" if earlier.excess_delta > 0 else ""
    return (
        f"Earlier runs have spent up to ε = {most:.3g}{late}. This plan uses the rest of every device's budget, and "
        "its ε values cover its own rounds only.",
    )


def planning_draws(scenario: Scenario) -> ComplexArray:
    """The channels to plan with, as they would be estimated, `[draw, device]` or `[draw, device, antenna]`."""
    wide = scenario.waveform.kind == "ofdm" and is_threegpp(scenario.radio.fading)
    affordable = max(FEWER_DRAWS, min(NUM_DRAWS, _DRAWN_DEVICES // scenario.num_devices))
    num_draws = FEWER_DRAWS if wide or scenario.radio.antennas > 1 else affordable
    return planning_estimates(scenario, channel_source(scenario).planning_channels(num_draws))


def choose_uplink(
    scenario: Scenario, fleet: RealisedFleet, kind: str, num_parameters: int | None, channels: ComplexArray
) -> Uplink:
    """The uplink with what the scenario leaves to the planner: truncation threshold, and budget by class."""

    observation = _observation(scenario, fleet, kind, num_parameters)

    def choice(truncation: float, draws: ComplexArray) -> Uplink:
        made = uplink_for(kind, scenario, fleet, num_parameters, Choices(truncation, observation=observation))
        # If the receiver noise counts, classes have some noise anyway.
        if isinstance(made, SuperposedUplink) and made.split_budget and trust_named(made.trust).counts_receiver:
            return replace(made, floor=typical_floor(made, draws))
        return made

    learning, asked = scenario.learning, scenario.radio.truncation
    if scenario.privacy.correlation != "none":
        return uplink_for(kind, scenario, fleet, num_parameters, correlated_choices(scenario, fleet, channels))
    if asked != "optimal" or kind == TDMA_KIND:
        return choice(asked if isinstance(asked, float) else 0.0, channels)
    fixed = learning.rounds if isinstance(learning.rounds, int) else None
    if learning.rounds == "paper":
        by_paper = choice(0.0, channels).paper_rounds(LearningConstants.of_scenario(scenario))
        fixed = int(min(by_paper, learning.max_rounds))
    threshold = best_truncation(
        channels,
        lambda threshold, draws: gap_objective(scenario, choice(threshold, draws), draws),
        choice(0.0, channels).num_rows,
        fixed,
        learning.max_rounds,
    )
    return choice(threshold, channels)


def _observation(scenario: Scenario, fleet: RealisedFleet, kind: str, num_parameters: int | None) -> Observation:
    """What of the noise is certain through the scenario's waveform; all of it without one."""
    if scenario.waveform.kind == "single_tone":
        return Observation()
    source = channel_source(scenario)
    assert isinstance(source, WideChannel)
    sent = uplink_for(kind, scenario, fleet, num_parameters)
    return planned_observation(scenario, source, sent)


def gap_objective(
    scenario: Scenario, uplink: Uplink, channels: ComplexArray, receiver: str | None = None
) -> GapObjective:
    """The gap as a function of T for these draws `[draw, device]`, with the scenario's receiver or another."""
    constants, learning = LearningConstants.of_scenario(scenario), scenario.learning
    name = receiver or learning.receiver
    errors: dict[str, ReceiverError] = {
        "projected": ProjectedError(),
        "tracking": TrackingError(Parts.for_drift(learning.knowledge_drift)),
    }
    error = errors.get(name) if uplink.payload.neighbours.is_class_mean else None
    return GapObjective.over(uplink, channels, constants, scenario.radio.outage, error)


def _gap(objective: GapObjective, num_rounds: int, forecast: RoundForecast, fleet: RealisedFleet) -> float:
    """The gap of the very rounds that were forecast, if only their mean noise matters."""
    if objective.receiver is not None or objective.squared_bias.any():
        return objective.gap(num_rounds)
    return objective.gap_at(num_rounds, forecast.effective_noise * fleet.num_devices)


def rounds_with(scenario: Scenario, choices: Iterable[Mapping[str, float]]) -> list[RoundsChoice]:
    """The rounds of class means for each choice of constants, with the same fleet and channels."""
    channels = planning_draws(scenario)
    varied = [changed(scenario, {"constants": constants}) for constants in choices]
    return [_fleet_and_rounds(each, "knowledge", None, None, channels)[2] for each in varied]


def _choose_rounds(scenario: Scenario, objective: GapObjective) -> RoundsChoice:
    largest, asked = scenario.learning.max_rounds, scenario.learning.rounds
    exact = objective.best_rounds(largest)
    by_paper = objective.uplink.paper_rounds(objective.constants)
    answers = {"optimal": exact, "paper": int(min(by_paper, largest))}
    return RoundsChoice(
        chosen=asked if isinstance(asked, int) else answers[asked],
        rule="fixed" if isinstance(asked, int) else asked,
        exact=exact,
        exact_smaller_constants=objective.with_constants_scaled(SMALLER_CONSTANTS).best_rounds(largest),
        paper=by_paper,
        privacy_limited=objective.privacy_limited_rounds(),
        largest=largest,
    )


def _epsilon_by_model(
    scenario: Scenario,
    fleet: RealisedFleet,
    uplink: Uplink,
    forecast: RoundForecast,
    num_rounds: int,
    channels: ComplexArray,
) -> dict[str, FloatArray]:
    """ε at the end by the exact accountant, whatever the plan's own, `[device]` for each sensitivity model.

    A record is protected at least as well as its device, whose privacy secret participation amplifies.
    """
    most = np.array(np.inf)
    if uplink.participation.is_secret:
        most = amplified_epsilon(scenario, uplink, channels, fleet.delta, num_rounds)
    in_full = {
        model: epsilon_of_shift(
            uplink.shift(model),
            forecast.inverse_counted_noise,
            fleet.delta,
            num_rounds,
            model,
            scenario.privacy.relabel,
            scenario.privacy.noise,
        )
        for model in SENSITIVITY_MODELS
    }
    return {model: without_rounding(np.minimum(each, most), fleet.epsilon) for model, each in in_full.items()}
