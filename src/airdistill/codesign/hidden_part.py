"""What hidden coins buy and cost: the same rounds with everybody, with coins that the server sees, and as published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from airdistill.arrays import ComplexArray
from airdistill.codesign.fleet import RealisedFleet, realise_fleet
from airdistill.codesign.forecast import RoundForecast
from airdistill.codesign.hidden_coins import amplified_epsilon, published_grant
from airdistill.codesign.knowledge_uplink import KnowledgeUplink
from airdistill.codesign.participation import variance_of_division
from airdistill.codesign.uplink import Uplink
from airdistill.codesign.uplinks import Choices, uplink_for
from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario


@dataclass(frozen=True)
class HiddenPart:
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
) -> HiddenPart | None:
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
    return HiddenPart(
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
