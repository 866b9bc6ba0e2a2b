"""From a scenario to a plan: how many rounds, which gains in each, what binds, what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.channel.sources import channel_source
from airdistill.codesign.cautions import assumptions_of, warnings_of
from airdistill.codesign.constants import LearningConstants
from airdistill.codesign.convergence import fleet_gap
from airdistill.codesign.fleet import RealisedFleet, channel_noise_var, realise_fleet, training_dynamics
from airdistill.codesign.forecast import RoundForecast, forecast_round
from airdistill.codesign.links import Links
from airdistill.codesign.paper_transceiver import design_round_paper, privacy_stringency
from airdistill.codesign.rounds import GapObjective, RoundsChoice, paper_rounds
from airdistill.codesign.transceiver import RoundDesign, design_round
from airdistill.privacy.forecast import epsilon_after
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS, required_noise_var
from airdistill.scenario.model import Scenario

NUM_DRAWS = 200
# The other end of what pilots measure for the paper's network: L1 2 to 22, L2 0.7 to 7.7.
SMALLER_CONSTANTS = 0.1


@dataclass(frozen=True)
class Plan:
    """The choices made for a scenario, and what they promise."""

    scenario: Scenario
    fleet: RealisedFleet
    rounds: RoundsChoice
    forecast: RoundForecast
    convergence_gap: float
    epsilon_by_model: dict[str, FloatArray]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def num_rounds(self) -> int:
        return self.rounds.chosen

    @property
    def uplink_seconds(self) -> float:
        """K² slots a round."""
        return self.num_rounds * self.fleet.num_classes**2 * self.scenario.radio.slot

    @property
    def uplink_joules(self) -> float:
        """Of the whole fleet over the whole run, planned."""
        return self.num_rounds * self.forecast.round_joules

    def required_noise_var(self) -> FloatArray:
        """The counted noise per entry that every round must have, `[device, class]`."""
        return _required(self.scenario, self.fleet, self.num_rounds)

    def design(self, channel: ComplexArray) -> RoundDesign:
        """The gains of a round with this channel `[device]`."""
        return _design(self.scenario, self.fleet, self.num_rounds, self.required_noise_var(), channel)

    def power_slack(self, channel: ComplexArray) -> FloatArray:
        """1 − power/limit in a round with this channel, `[device, class]`."""
        return self.design(channel).power_slack(self.fleet.peak_power_w)

    def privacy_slack(self, channel: ComplexArray) -> FloatArray:
        """Counted over required noise, less one, in a round with this channel, `[device, class]`."""
        return self.design(channel).privacy_slack(self.required_noise_var())

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON: lists for arrays, null for infinite."""
        from airdistill.codesign.plan_json import plan_to_dict

        return plan_to_dict(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Plan:
        """The plan that `to_dict` wrote."""
        from airdistill.codesign.plan_json import plan_from_dict

        return plan_from_dict(stored)


def plan(scenario: Scenario) -> Plan:
    """Plans a scenario:

    1. draw the fleet: counts, powers, privacy targets and the μ that they grant;
    2. draw the channels to plan with, from a stream of their own;
    3. find the number of rounds under each rule, and choose;
    4. design every drawn round for that number, and sum up noise, power and time;
    5. forecast every device's ε at the end under each sensitivity model;
    6. say what all this assumes and what to beware of.
    """
    fleet = realise_fleet(scenario)
    channels = channel_source(scenario).planning_channels(NUM_DRAWS)
    constants = LearningConstants.of_scenario(scenario)
    objective = gap_objective(scenario, fleet, channels)
    rounds = _choose_rounds(scenario, fleet, objective)
    required = _required(scenario, fleet, rounds.chosen)
    forecast = forecast_round(
        fleet,
        objective.links,
        channels,
        required,
        lambda channel: _design(scenario, fleet, rounds.chosen, required, channel),
        scenario.radio.outage,
        scenario.radio.slot,
    )
    fleet_total = forecast.effective_noise * fleet.num_devices
    epsilon_by_model = _epsilon_by_model(scenario, fleet, forecast, rounds.chosen)
    return Plan(
        scenario=scenario,
        fleet=fleet,
        rounds=rounds,
        forecast=forecast,
        convergence_gap=fleet_gap(rounds.chosen, constants, fleet.num_devices, fleet_total),
        epsilon_by_model=epsilon_by_model,
        assumptions=assumptions_of(scenario),
        warnings=warnings_of(scenario, fleet, rounds, forecast, epsilon_by_model),
    )


def gap_objective(scenario: Scenario, fleet: RealisedFleet, channels: ComplexArray) -> GapObjective:
    """The gap as a function of T for this fleet and these draws `[draw, device]`."""
    return GapObjective(
        class_counts=fleet.class_counts.astype(np.float64),
        mu=fleet.mu,
        links=Links.of(fleet.class_counts, channels, fleet.peak_power_w, channel_noise_var(scenario)),
        constants=LearningConstants.of_scenario(scenario),
        model=scenario.privacy.sensitivity,
        trust=scenario.privacy.trust,
        relabel=scenario.privacy.relabel,
        dynamics=training_dynamics(scenario),
        outage=scenario.radio.outage,
    )


def _choose_rounds(scenario: Scenario, fleet: RealisedFleet, objective: GapObjective) -> RoundsChoice:
    largest, asked = scenario.learning.max_rounds, scenario.learning.rounds
    exact = objective.best_rounds(largest)
    by_paper = paper_rounds(fleet.class_counts, fleet.epsilon, fleet.delta, objective.constants)
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


def _required(scenario: Scenario, fleet: RealisedFleet, num_rounds: int) -> FloatArray:
    privacy = scenario.privacy
    return required_noise_var(
        fleet.class_counts,
        fleet.mu,
        num_rounds,
        privacy.sensitivity,
        privacy.relabel,
        training_dynamics(scenario),
    )


def _design(
    scenario: Scenario, fleet: RealisedFleet, num_rounds: int, required: FloatArray, channel: ComplexArray
) -> RoundDesign:
    noise_var = channel_noise_var(scenario)
    if scenario.radio.transceiver == "paper":
        stringency = privacy_stringency(fleet.class_counts, fleet.epsilon, fleet.delta)
        return design_round_paper(fleet.class_counts, channel, fleet.peak_power_w, noise_var, stringency, num_rounds)
    return design_round(fleet.class_counts, channel, fleet.peak_power_w, noise_var, required, scenario.privacy.trust)


def _epsilon_by_model(
    scenario: Scenario, fleet: RealisedFleet, forecast: RoundForecast, num_rounds: int
) -> dict[str, FloatArray]:
    """ε at the end, by the exact accountant whatever the plan's own, `[device]` for each sensitivity model."""
    return {
        model: epsilon_after(
            fleet.class_counts,
            forecast.inverse_counted_noise,
            fleet.delta,
            num_rounds,
            model,
            scenario.privacy.relabel,
            training_dynamics(scenario),
        )
        for model in SENSITIVITY_MODELS
    }
