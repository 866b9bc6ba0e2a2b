"""What the receivers and the steps of the co-design would each bring, at the rounds and the guarantee of a plan.

What several antennas buy and cost: less noise of the receiver's, and a server that sees more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.planning.amplification import fleet_for_rounds
from airdistill.planning.antennas.uplink import AntennaUplink
from airdistill.planning.convergence.rounds import below_outage
from airdistill.planning.fleet import channel_noise_var
from airdistill.planning.forecast import forecast_round
from airdistill.planning.plan import Plan, choose_uplink, gap_objective, planning_draws
from airdistill.privacy.sensitivity import JOINT_MODELS
from airdistill.privacy.targets import target_mu
from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario

RECEIVERS = ("linear", "projected", "tracking")


@dataclass(frozen=True)
class ReceiverWhatIf:
    """One receiver: T of least gap, and at the plan's T the gap and the mean squared error of a class's vector.

    The gaps are of different bounds: Theorem 1 for the linear receiver, which has no bias, and the one for biased
    receivers for the others. Errors of the others are bounds, too: before projection, at a drift that stays as given.
    None of it counts on privacy that is carried over.
    """

    name: str
    best_rounds: int
    squared_error: float
    convergence_gap: float


@dataclass(frozen=True)
class Step:
    """The noise variance per entry of what is received once a step is taken, all those before it taken too.

    `holds` is false where the noise is less than (ε, δ) needs.
    """

    name: str
    noise_var: float
    holds: bool = True


@dataclass(frozen=True)
class WhatIf:
    """Receivers side by side; and from the paper's design to this project's own, step by step."""

    receivers: tuple[ReceiverWhatIf, ...]
    steps: tuple[Step, ...]


def what_if(plan: Plan, with_steps: bool = True) -> WhatIf | None:
    """Of a plan for knowledge that devices send at once, by the optimal transceiver; None of any other.

    Steps are of devices with their whole budget before them: leave them out for a plan that has only the rest of it.
    """
    if plan.uplink.kind != "knowledge" or plan.scenario.radio.transceiver == "paper":
        return None
    channels = planning_draws(plan.scenario)
    receivers = tuple(_receiver(plan, channels, name) for name in RECEIVERS)
    return WhatIf(receivers, tuple(_steps(plan, channels)) if with_steps else ())


def _receiver(plan: Plan, channels: ComplexArray, name: str) -> ReceiverWhatIf:
    objective = gap_objective(plan.scenario, plan.uplink, channels, name)
    return ReceiverWhatIf(
        name,
        objective.best_rounds(plan.scenario.learning.max_rounds),
        objective.squared_error(plan.num_rounds),
        objective.gap(plan.num_rounds),
    )


def _steps(plan: Plan, channels: ComplexArray) -> Iterator[Step]:
    scenario = plan.scenario
    plain: dict[str, Any] = {
        "privacy": {"accountant": "paper", "carry_over": False, "class_budget": "equal"},
        "radio": {"truncation": 0.0},
        # Silence is worth it by the receiver that airdistill has.
        "learning": {"rounds": plan.num_rounds, "receiver": "tracking"},
    }
    scenario = changed(scenario, plain)
    hidden = scenario.fleet.participation_hidden  # what the published form says of them stands with the coins
    if np.isfinite(plan.fleet.epsilon).any() and not hidden:
        yield Step("the paper's accountant", _noise_var(scenario, plan, channels), _paper_suffices(scenario, plan))
    for name, change in _taken_in_turn(scenario):
        scenario = changed(scenario, change)
        yield Step(name, _noise_var(scenario, plan, channels))


def _taken_in_turn(scenario: Scenario) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "exact accountant", {"privacy": {"accountant": "exact"}}
    if scenario.privacy.sensitivity in JOINT_MODELS:
        yield "budget shared out over classes", {"privacy": {"class_budget": "optimal"}}
    if not scenario.fleet.participation_hidden:
        yield "privacy carried over", {"privacy": {"carry_over": True}}
    if scenario.radio.antennas == 1:
        yield "silence in deep fades", {"radio": {"truncation": "optimal"}}


def _paper_suffices(scenario: Scenario, plan: Plan) -> bool:
    fleet, noise = plan.fleet, scenario.privacy.noise
    granted = target_mu(fleet.epsilon, fleet.delta, "paper", noise)
    return bool((granted <= target_mu(fleet.epsilon, fleet.delta, "exact", noise)).all())


def _noise_var(scenario: Scenario, plan: Plan, channels: ComplexArray) -> float:
    """Mean over entries, devices and all but the worst rounds."""
    fleet, radio = fleet_for_rounds(scenario, "knowledge", plan.num_rounds), scenario.radio
    uplink = choose_uplink(scenario, fleet, "knowledge", None, channels)
    forecast = forecast_round(
        uplink, fleet, channels, plan.num_rounds, channel_noise_var(scenario), radio.outage, radio.slot
    )
    return forecast.effective_noise / uplink.vector_length


@dataclass(frozen=True)
class AntennaWhatIf:
    """Noise variance per entry over rows, devices and all but the worst planning rounds, with all antennas and with the
    first alone: what the channel alone leaves (`floor`), and what the design has. `gap` is the combiners' cost over its
    bound, less one, in the median and at worst; `design_s` is how long one round's design took here."""

    num_antennas: int
    combining: str
    gap: float
    largest_gap: float
    floor: float
    floor_alone: float
    noise_var: float
    noise_var_alone: float
    design_s: float


def antenna_what_if(plan: Plan) -> AntennaWhatIf | None:
    """None of a plan for one antenna."""
    uplink, scenario = plan.uplink, plan.scenario
    if not isinstance(uplink, AntennaUplink):
        return None
    channels = planning_draws(scenario)
    first = np.ascontiguousarray(channels[:, :, 0])
    alone = choose_uplink(changed(scenario, {"radio": {"antennas": 1}}), plan.fleet, uplink.kind, None, first)
    gaps = [combiner.gap for channel in channels for combiner in uplink.combiners(channel)]

    def mean(noise_var: FloatArray) -> float:
        noise = uplink.fleet_noise(noise_var) / plan.fleet.num_devices
        return float(noise[below_outage(noise, scenario.radio.outage)].mean() / uplink.vector_length)

    return AntennaWhatIf(
        scenario.radio.antennas,
        uplink.combining,
        float(np.median(gaps)),
        float(max(gaps)),
        mean(uplink.channel_floor(channels)),
        mean(alone.channel_floor(first)),
        mean(uplink.noise_over(channels)(plan.num_rounds)),
        mean(alone.noise_over(first)(plan.num_rounds)),
        _seconds_of_a_design(plan, channels[0]),
    )


def _seconds_of_a_design(plan: Plan, channel: ComplexArray) -> float:
    """Measured. Combiners that were found before are kept: turned by another phase the channel is as good as new."""
    started = time.perf_counter()
    plan.design(channel * np.exp(1j * started))
    return time.perf_counter() - started
