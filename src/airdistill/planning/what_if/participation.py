"""Participation and amplification comparisons: the plan's own rounds against the same rounds with all devices.

With secret participation, also against participation that the server knows, and against the published form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from airdistill.arrays import ComplexArray
from airdistill.planning.amplification import amplified_epsilon, published_grant
from airdistill.planning.fleet import RealisedFleet, realise_fleet
from airdistill.planning.forecast import RoundForecast
from airdistill.planning.transceiver.gradient import GradientUplink
from airdistill.planning.transceiver.superposed import SuperposedUplink
from airdistill.planning.uplink import Uplink
from airdistill.planning.uplinks import Choices, uplink_for
from airdistill.privacy.participation import without_sampling
from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario


@dataclass(frozen=True)
class ParticipationComparison:
    """The fewest and most devices in a round and rounds of a device, over the plan's own rounds.

    `effective_noise_of_all` and `round_joules_of_all` are those of the same number of rounds at the same (ε, δ) with
    all devices in each.
    """

    probability: float
    least_devices: int
    most_devices: int
    least_rounds: int
    most_rounds: int
    effective_noise_of_all: float
    round_joules_of_all: float


def participation_comparison(
    uplink: Uplink, num_rounds: int, forecast_of: Callable[[Uplink], RoundForecast]
) -> ParticipationComparison | None:
    """Compare known Poisson sampling, cyclic participation or a user's own model, with all devices; None for others."""
    sampled = uplink.participation
    if sampled.everyone or sampled.changes_weights or uplink.correlation is not None:
        return None  # correlated noise is compared with independent noise
    devices = sampled.masks(num_rounds, num_rounds).sum(axis=1)
    rounds = sampled.rounds_joined(num_rounds)
    assert isinstance(uplink, GradientUplink | SuperposedUplink)
    of_all = forecast_of(replace(uplink, participation=without_sampling(sampled)))
    return ParticipationComparison(
        probability=sampled.share_joined(num_rounds),
        least_devices=int(devices.min()),
        most_devices=int(devices.max()),
        least_rounds=int(rounds.min()),
        most_rounds=int(rounds.max()),
        effective_noise_of_all=of_all.effective_noise,
        round_joules_of_all=of_all.round_joules,
    )


@dataclass(frozen=True)
class AmplificationComparison:
    """The error of the plan's own rounds at the same (ε, δ) with other participation, and energy if it differs.

    `published_noise` is what the published form would plan, infinite if it does not apply; `published_excess` is the
    largest ratio of a device's true ε to its target under that plan.
    """

    probability: float
    effective_noise_of_all: float
    round_joules_of_all: float
    effective_noise_if_seen: float
    published_noise: float
    published_excess: float


def amplification_comparison(
    scenario: Scenario,
    uplink: Uplink,
    channels: ComplexArray,
    num_rounds: int,
    forecast_of: Callable[[Uplink], RoundForecast],
) -> AmplificationComparison | None:
    """Compare secret participation with its alternatives; None for other participation."""
    if not uplink.participation.is_secret:
        return None

    def with_fleet(adapted: Scenario, fleet: RealisedFleet) -> Uplink:
        return uplink_for(uplink.kind, adapted, fleet, uplink.vector_length, _choices_of(uplink, adapted))

    known = changed(scenario, {"fleet": {"participation_hidden": False}})
    everyone = changed(known, {"fleet": {"participation": 1.0}})
    of_all = forecast_of(with_fleet(everyone, realise_fleet(everyone)))
    noise, excess, fleet = np.inf, 0.0, realise_fleet(scenario)
    published = replace(fleet, mu=published_grant(scenario, fleet))
    if published.mu.all():
        sent = with_fleet(scenario, published)
        forecast = forecast_of(sent)
        true_epsilon = amplified_epsilon(scenario, sent, channels, fleet.delta, num_rounds)
        targeted = np.isfinite(fleet.epsilon)
        excess = float((true_epsilon[targeted] / fleet.epsilon[targeted]).max(initial=0.0))
        noise = forecast.effective_noise
    return AmplificationComparison(
        scenario.fleet.participation,
        of_all.effective_noise,
        of_all.round_joules,
        forecast_of(with_fleet(known, realise_fleet(known))).effective_noise,
        noise,
        excess,
    )


def _choices_of(uplink: Uplink, adapted: Scenario) -> Choices:
    """The plan's own choices, with the floor in units of a sum that may not be divided by p."""
    if not isinstance(uplink, SuperposedUplink):
        return Choices()
    factor = 1.0 if adapted.fleet.participation_hidden else uplink.participation.variance_factor
    return Choices(uplink.truncation, None if uplink.floor is None else uplink.floor / factor)
