"""What random participation buys and costs: the same rounds with those whom coins bring, and with everybody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from airdistill.codesign.forecast import RoundForecast
from airdistill.codesign.gradient_uplink import GradientUplink
from airdistill.codesign.knowledge_uplink import KnowledgeUplink
from airdistill.codesign.participation import Coins
from airdistill.codesign.uplink import Uplink


@dataclass(frozen=True)
class TakingPart:
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


def taking_part(uplink: Uplink, num_rounds: int, forecast_of: Callable[[Uplink], RoundForecast]) -> TakingPart | None:
    """Beside everybody, who are forecast as the plan's own rounds are; None where there are no coins."""
    coins = coins_of(uplink)
    if coins is None:
        return None
    devices = [int(np.count_nonzero(coins.there(round_index))) for round_index in range(1, num_rounds + 1)]
    rounds = coins.rounds_taken(num_rounds)
    all_of_them = forecast_of(_with_everybody(uplink))
    return TakingPart(
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
