"""Amplification: the μ that secret Poisson participation grants a plan, and the ε of its rounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray, divide_or
from airdistill.errors import InputError
from airdistill.planning.fleet import RealisedFleet, realise_fleet
from airdistill.planning.uplink import Uplink
from airdistill.privacy.ledger import BudgetExceeded
from airdistill.privacy.neighbours import Neighbours
from airdistill.privacy.pld import ROUNDING
from airdistill.privacy.poisson_sampling import SubsampledGaussian, composition_groups, grid_index, published_mu
from airdistill.privacy.spending import EarlierRuns
from airdistill.privacy.trust import trust_named
from airdistill.scenario.model import Scenario


def fleet_for_rounds(
    scenario: Scenario, neighbours: Neighbours, num_rounds: int, earlier: EarlierRuns | None = None
) -> RealisedFleet:
    """The fleet with the μ that T rounds may spend together; only secret participation makes it depend on T.

    μ² is T times that of a round: T equal rounds spend it, and fewer rounds of a higher cost must not.
    """
    if not scenario.fleet.participation_hidden:
        return realise_fleet(scenario, earlier)
    earlier = earlier or EarlierRuns(np.zeros(scenario.num_devices))
    spent, privacy = earlier.squared_mu, scenario.privacy
    fleet = realise_fleet(scenario, replace(earlier, squared_mu=np.zeros_like(spent)))
    _check_delta(fleet.delta, num_rounds)
    if privacy.accountant == "paper":
        granted = published_grant(scenario, fleet)
        if not granted.all():
            rule = (
                "the published form counts the noise of κ = pM − √(M ln(2/δ)/2) devices, which is not above 0 here: "
                'use accountant = "exact", more devices or a larger fleet.participation'
            )
            raise InputError("privacy.accountant", "paper", rule)
        # A device without a target (ε = ∞) has no limit, whatever it has spent.
        squared = granted**2 - np.where(np.isinf(granted), 0.0, spent)
    else:
        mechanism = SubsampledGaussian(scenario.fleet.participation, neighbours.geometry)
        squared = num_rounds * mechanism.largest_round_mu(num_rounds, fleet.epsilon, fleet.delta, spent) ** 2
    if not (squared > 0).all():
        device = int(np.argmin(squared))
        raise BudgetExceeded(
            f"device {device} has spent its ε = {fleet.epsilon[device]:g}: no further round is possible"
        )
    return replace(fleet, mu=np.sqrt(squared))


def _check_delta(delta: FloatArray, num_rounds: int) -> None:
    least = 10 * ROUNDING * num_rounds
    if (delta < least).any():
        rule = f"secret participation is accounted in double precision: at least {least:.3g} for {num_rounds} rounds"
        raise InputError("privacy.delta", float(delta.min()), rule)


def published_grant(scenario: Scenario, fleet: RealisedFleet) -> FloatArray:
    """μ of all rounds by the published form, `[device]`; zero if the form does not apply."""
    trust = trust_named(scenario.privacy.trust)
    num_noises = fleet.num_devices if trust.counts_others and not trust.counts_receiver else None
    return published_mu(fleet.epsilon, fleet.delta, scenario.fleet.participation, num_noises)


def amplified_epsilon(
    scenario: Scenario, uplink: Uplink, channels: ComplexArray, delta: FloatArray, num_rounds: int
) -> FloatArray:
    """ε of every whole device after T rounds with these channels `[draw, device]` in turn, `[device]`.

    It is not computed from average rounds: a round of higher cost adds more than one of lower cost saves.
    """
    mechanism = SubsampledGaussian(scenario.fleet.participation, uplink.payload.neighbours.geometry)
    shift = uplink.shift("device").at(1)
    indices = []
    for draw in range(min(num_rounds, len(channels))):
        counted = uplink.design(channels[draw], num_rounds, draw + 1).counted_noise_var
        cost = divide_or(shift, np.broadcast_to(counted, shift.shape), np.inf)
        indices.append(grid_index(np.sqrt(np.where(shift > 0, cost, 0.0).sum(axis=1))))
    rounds = np.stack(indices)[np.arange(num_rounds) % len(indices)]
    spent = [composition_groups(Counter(column.tolist()), len(delta)) for column in rounds.T]
    return np.array([mechanism.epsilon(groups, float(each)) for groups, each in zip(spent, delta, strict=True)])
