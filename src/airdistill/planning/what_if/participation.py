"""What random participation buys and costs: the same rounds with those whom coins bring, and with everybody.

What hidden coins buy and cost: the same rounds with everybody, with coins that the server sees, and as published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from airdistill.arrays import ComplexArray
from airdistill.planning.amplification import amplified_epsilon, published_grant
from airdistill.planning.fleet import RealisedFleet, realise_fleet
from airdistill.planning.forecast import RoundForecast
from airdistill.planning.participation import Coins, variance_of_division
from airdistill.planning.transceiver.gradient import GradientUplink
from airdistill.planning.transceiver.superposed import KnowledgeUplink
from airdistill.planning.uplink import Uplink
from airdistill.planning.uplinks import Choices, uplink_for
from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario


@dataclass(frozen=True)
class ParticipationComparison:
    """Of a plan's own rounds: how many devices a round has, how many rounds a device, each from least to most.

    `effective_noise_of_all` and `round_joules_of_all` are what the same number of rounds would have at the same (ε, δ)
    if everybody took part in each.
    """

    probability: float
    least_devices: int
    most_devices: int
    least_rounds: int
    most_rounds: int
    effective_noise_of_all: float
    round_joules_of_all: float


def coins_of(uplink: Uplink) -> Coins | None:
    """None where everybody takes part, or devices are drawn in another way."""
    if isinstance(uplink, GradientUplink):
        return uplink.participation.coins
    return uplink.coins if isinstance(uplink, KnowledgeUplink) else None


def hidden_coins_of(uplink: Uplink) -> Coins | None:
    """None where the server sees who takes part."""
    return uplink.hidden_coins if isinstance(uplink, GradientUplink | KnowledgeUplink) else None


def taking_part(
    uplink: Uplink, num_rounds: int, forecast_of: Callable[[Uplink], RoundForecast]
) -> ParticipationComparison | None:
    """Beside everybody, who are forecast as the plan's own rounds are; None where there are no coins."""
    coins = coins_of(uplink)
    if coins is None:
        return None
    devices = [int(np.count_nonzero(coins.there(round_index))) for round_index in range(1, num_rounds + 1)]
    rounds = coins.rounds_taken(num_rounds)
    all_of_them = forecast_of(_with_everybody(uplink))
    return ParticipationComparison(
        probability=coins.probability,
        least_devices=min(devices),
        most_devices=max(devices),
        least_rounds=int(rounds.min()),
        most_rounds=int(rounds.max()),
        effective_noise_of_all=all_of_them.effective_noise,
        round_joules_of_all=all_of_them.round_joules,
    )


def _with_everybody(uplink: Uplink) -> Uplink:
    if isinstance(uplink, GradientUplink):
        return replace(uplink, participation=replace(uplink.participation, coins=None))
    assert isinstance(uplink, KnowledgeUplink)
    return replace(uplink, coins=None)


@dataclass(frozen=True)
class AmplificationComparison:
    """The error that the plan's own rounds would have at the same (ε, δ) otherwise, and energy where it differs.

    `published_noise` is what the published form would plan, infinite where it says nothing, and `published_excess` how
    many times the ε that it asked for some device would then really have.
    """

    probability: float
    effective_noise_of_all: float
    round_joules_of_all: float
    effective_noise_if_seen: float
    published_noise: float
    published_excess: float


def hidden_part(
    scenario: Scenario,
    uplink: Uplink,
    channels: ComplexArray,
    num_rounds: int,
    forecast_of: Callable[[Uplink], RoundForecast],
) -> AmplificationComparison | None:
    """None where the coins are seen, or where there are none."""
    if not scenario.fleet.participation_hidden:
        return None

    def with_fleet(adapted: Scenario, fleet: RealisedFleet) -> Uplink:
        return uplink_for(uplink.kind, adapted, fleet, uplink.vector_length, _choices_of(uplink, adapted))

    seen = changed(scenario, {"fleet": {"participation_hidden": False}})
    everybody = changed(seen, {"fleet": {"participation": 1.0}})
    of_all = forecast_of(with_fleet(everybody, realise_fleet(everybody)))
    noise, excess, fleet = np.inf, 0.0, realise_fleet(scenario)
    published = replace(fleet, mu=published_grant(scenario, fleet))
    if published.mu.all():
        sent = with_fleet(scenario, published)
        forecast = forecast_of(sent)
        real = amplified_epsilon(scenario, sent, channels, fleet.delta, num_rounds)
        asked = np.isfinite(fleet.epsilon)
        noise, excess = forecast.effective_noise, float((real[asked] / fleet.epsilon[asked]).max(initial=0.0))
    return AmplificationComparison(
        scenario.fleet.participation,
        of_all.effective_noise,
        of_all.round_joules,
        forecast_of(with_fleet(seen, realise_fleet(seen))).effective_noise,
        noise,
        excess,
    )


def _choices_of(uplink: Uplink, adapted: Scenario) -> Choices:
    """The plan's own, with the floor in the units of a sum that may not be divided by p."""
    if not isinstance(uplink, KnowledgeUplink):
        return Choices()
    divided = 1.0 if adapted.fleet.participation_hidden else variance_of_division(uplink.hidden_coins)
    return Choices(uplink.truncation, None if uplink.floor is None else uplink.floor / divided)
