"""What hidden coins grant a plan: how loud T rounds may be where the server cannot tell who takes part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.codesign.fleet import RealisedFleet, realise_fleet
from airdistill.codesign.forecast import RoundForecast
from airdistill.codesign.uplink import Uplink
from airdistill.errors import InputError
from airdistill.privacy.hidden_rounds import HiddenCoin, rung_of
from airdistill.privacy.ledger import BudgetExceeded
from airdistill.privacy.subsampling import published_mu
from airdistill.scenario.model import Scenario


def fleet_for_rounds(
    scenario: Scenario, payload: str, num_rounds: int, spent_squared_mu: FloatArray | None = None
) -> RealisedFleet:
    """The fleet with the μ that T rounds may have together; only hidden coins grant more for some T than for others.

    μ² is T times that of a round: T rounds that are alike spend it, and fewer and louder ones must not.
    """
    if not scenario.fleet.participation_hidden:
        return realise_fleet(scenario, spent_squared_mu)
    fleet, privacy = realise_fleet(scenario), scenario.privacy
    spent = np.zeros(fleet.num_devices) if spent_squared_mu is None else spent_squared_mu
    chance = scenario.fleet.participation
    if privacy.accountant == "paper":
        granted = published_grant(scenario, fleet)
        if not granted.all():
            rule = (
                "the published form counts the noises of κ = pM − √(M ln(2/δ)/2) devices, which is not above 0 here: "
                'take accountant = "exact", more devices or a larger fleet.participation'
            )
            raise InputError("privacy.accountant", "paper", rule)
        squared = granted**2 - spent
    else:
        coin = HiddenCoin.for_payload(chance, payload)
        squared = num_rounds * coin.largest_round_mu(num_rounds, fleet.epsilon, fleet.delta, spent) ** 2
    if not (squared > 0).all():
        device = int(np.argmin(squared))
        raise BudgetExceeded(f"device {device} has spent its ε = {fleet.epsilon[device]:g}: it can pay for no more")
    return replace(fleet, mu=np.sqrt(squared))


def published_grant(scenario: Scenario, fleet: RealisedFleet) -> FloatArray:
    """μ of all rounds by the published form, `[device]`; zero where it says nothing."""
    num_noises = fleet.num_devices if scenario.privacy.trust == "fleet_noise" else None
    return published_mu(fleet.epsilon, fleet.delta, scenario.fleet.participation, num_noises)


def amplified_epsilon(
    scenario: Scenario, uplink: Uplink, forecast: RoundForecast, delta: FloatArray, num_rounds: int
) -> FloatArray:
    """ε of every device's whole data after T rounds as they are forecast on average, `[device]`."""
    shift = uplink.shift("device").after(1)
    squared_mu = np.where(shift > 0, shift * np.where(shift > 0, forecast.inverse_counted_noise, 0.0), 0.0).sum(axis=1)
    coin = HiddenCoin.for_payload(scenario.fleet.participation, uplink.payload)
    rungs = rung_of(np.sqrt(squared_mu))
    return np.array(
        [coin.epsilon(((int(rung), num_rounds),), float(each)) for rung, each in zip(rungs, delta, strict=True)]
    )
