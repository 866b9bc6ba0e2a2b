"""What hidden coins grant a plan: how loud T rounds may be where the server cannot tell who takes part."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray, divide_or
from airdistill.errors import InputError
from airdistill.planning.fleet import RealisedFleet, realise_fleet
from airdistill.planning.uplink import Uplink
from airdistill.privacy.ledger import BudgetExceeded
from airdistill.privacy.pld import ROUNDING
from airdistill.privacy.poisson_sampling import SubsampledGaussian, composition_groups, grid_index, published_mu
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
    _check_delta(fleet.delta, num_rounds)
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
        coin = SubsampledGaussian.for_payload(chance, payload)
        squared = num_rounds * coin.largest_round_mu(num_rounds, fleet.epsilon, fleet.delta, spent) ** 2
    if not (squared > 0).all():
        device = int(np.argmin(squared))
        raise BudgetExceeded(f"device {device} has spent its ε = {fleet.epsilon[device]:g}: it can pay for no more")
    return replace(fleet, mu=np.sqrt(squared))


def _check_delta(delta: FloatArray, num_rounds: int) -> None:
    least = 10 * ROUNDING * num_rounds
    if (delta < least).any():
        rule = f"hidden coins are accounted for in double precision: at least {least:.3g} for {num_rounds} rounds"
        raise InputError("privacy.delta", float(delta.min()), rule)


def published_grant(scenario: Scenario, fleet: RealisedFleet) -> FloatArray:
    """μ of all rounds by the published form, `[device]`; zero where it says nothing."""
    num_noises = fleet.num_devices if scenario.privacy.trust == "fleet_noise" else None
    return published_mu(fleet.epsilon, fleet.delta, scenario.fleet.participation, num_noises)


def amplified_epsilon(
    scenario: Scenario, uplink: Uplink, channels: ComplexArray, delta: FloatArray, num_rounds: int
) -> FloatArray:
    """ε of every device's whole data after T rounds with these channels `[draw, device]` in turn, `[device]`.

    Not of T rounds as they are on average: a louder one costs more than a quieter one spares.
    """
    coin = SubsampledGaussian.for_payload(scenario.fleet.participation, uplink.payload)
    shift = uplink.shift("device").at(1)
    rungs = []
    for draw in range(min(num_rounds, len(channels))):
        counted = uplink.design(channels[draw], num_rounds, draw + 1).counted_noise_var
        cost = divide_or(shift, np.broadcast_to(counted, shift.shape), np.inf)
        rungs.append(grid_index(np.sqrt(np.where(shift > 0, cost, 0.0).sum(axis=1))))
    rounds = np.stack(rungs)[np.arange(num_rounds) % len(rungs)]
    paid = [composition_groups(Counter(column.tolist()), len(delta)) for column in rounds.T]
    return np.array([coin.epsilon(kinds, float(each)) for kinds, each in zip(paid, delta, strict=True)])
