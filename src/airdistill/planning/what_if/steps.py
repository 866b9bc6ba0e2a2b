"""What-if: receivers, the steps of the co-design, and antennas, at the rounds and the guarantee of a plan."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.channel.waveform import number_seconds
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
    """One receiver: the T of the smallest gap, and at the plan's T the gap and the mean squared error of a class mean.

    The gaps belong to different bounds: Theorem 1 for the linear receiver, which is unbiased, and the bound for biased
    receivers for the others. The errors of the others are bounds too: before projection, at a constant drift. None of
    them counts budget that is carried over.
    """

    name: str
    best_rounds: int
    squared_error: float
    convergence_gap: float


@dataclass(frozen=True)
class Step:
    """The received noise variance per entry after a step of the co-design and all steps before it.

    `holds` is false if the noise is less than (ε, δ) requires.
    """

    name: str
    noise_var: float
    holds: bool = True


@dataclass(frozen=True)
class WhatIf:
    """A comparison of receivers, and the steps from the paper's design to this project's own."""

    receivers: tuple[ReceiverWhatIf, ...]
    steps: tuple[Step, ...]


def what_if(plan: Plan, with_steps: bool = True) -> WhatIf | None:
    """The what-if of a plan for superposed class means with the optimal transceiver; None for other plans.

    Steps assume that devices have their whole budget: leave them out for a plan that continues an earlier ledger.
    """
    if not plan.uplink.payload.has_paper_design or plan.uplink.uses_tdma or plan.scenario.radio.transceiver == "paper":
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
        # Whether truncation helps depends on the receiver: take that of airdistill.
        "learning": {"rounds": plan.num_rounds, "receiver": "tracking"},
    }
    scenario = changed(scenario, plain)
    secret = plan.uplink.participation.is_secret  # its comparison with the published form stands elsewhere
    if np.isfinite(plan.fleet.epsilon).any() and not secret:
        yield Step("the paper's accountant", _noise_var(scenario, plan, channels), _paper_suffices(scenario, plan))
    for name, change in _taken_in_turn(scenario):
        scenario = changed(scenario, change)
        yield Step(name, _noise_var(scenario, plan, channels))


def _taken_in_turn(scenario: Scenario) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "exact accountant", {"privacy": {"accountant": "exact"}}
    if scenario.privacy.sensitivity in JOINT_MODELS:
        yield "budget divided among classes", {"privacy": {"class_budget": "optimal"}}
    if not scenario.fleet.participation_hidden:
        yield "budget carried over", {"privacy": {"carry_over": True}}
    if scenario.radio.antennas == 1:
        yield "truncated channel inversion", {"radio": {"truncation": "optimal"}}


def _paper_suffices(scenario: Scenario, plan: Plan) -> bool:
    fleet, noise = plan.fleet, scenario.privacy.noise
    granted = target_mu(fleet.epsilon, fleet.delta, "paper", noise)
    return bool((granted <= target_mu(fleet.epsilon, fleet.delta, "exact", noise)).all())


def _noise_var(scenario: Scenario, plan: Plan, channels: ComplexArray) -> float:
    """The mean noise variance over entries, devices and all rounds below the outage."""
    payload, radio = plan.uplink.payload, scenario.radio
    fleet = fleet_for_rounds(scenario, payload.neighbours, plan.num_rounds)
    uplink = choose_uplink(scenario, fleet, payload.kind, None, channels)
    forecast = forecast_round(
        uplink, fleet, channels, plan.num_rounds, channel_noise_var(scenario), radio.outage, number_seconds(scenario)
    )
    return forecast.effective_noise / uplink.vector_length


@dataclass(frozen=True)
class AntennaWhatIf:
    """Noise variance per entry with all antennas and with the first only, over rows, devices and rounds below the
    outage.

    `floor` is the channel's part, `noise_var` that of the whole design. `gap` is the combiners' cost over its bound,
    minus one, in the median and at worst; `design_s` is the measured time of one round's design.
    """

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
    """The what-if of a plan for several antennas; None for one antenna."""
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
    """The measured time of a design. Combiners are cached: a common phase makes the channel a new one."""
    started = time.perf_counter()
    plan.design(channel * np.exp(1j * started))
    return time.perf_counter() - started
