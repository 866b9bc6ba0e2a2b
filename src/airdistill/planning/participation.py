"""Who takes part in a round, and with what weight."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from airdistill.arrays import BoolArray, FloatArray, IntArray
from airdistill.streams import stream

MANY_ROUNDS = 200  # that stand for all, where means over them are wanted


def every_round_alike(num_draws: int, num_rounds: int) -> int:
    """About so many rounds to forecast from that each of the T counts equally often: ε adds up over the very rounds."""
    return num_rounds * max(1, round(num_draws / num_rounds))


@dataclass(frozen=True)
class Coins:
    """Every device takes part in a round with the same probability, by its own coin.

    Where the server sees whom it aligns the coins count as public, and a plan knows them, too. A round in which fewer
    than `at_least` would take part does not happen. Hidden ones have a `stream` of their own: what the ledger of a run
    with seen ones shows is not theirs.
    """

    num_devices: int
    probability: float
    seed: int
    at_least: int = 1
    stream: str = "fleet.participation"

    def there(self, round_index: int) -> BoolArray:
        """Who takes part, `[device]`."""
        drawn = stream(self.seed, self.stream, round_index).random(self.num_devices) < self.probability
        return np.asarray(drawn & (np.count_nonzero(drawn) >= self.at_least))

    def over_rounds(self, num_rounds: int, num_draws: int) -> BoolArray:
        """Who takes part in rounds 1 to T, over and over until there are so many, `[draw, device]`."""
        each = np.stack([self.there(round_index) for round_index in range(1, min(num_rounds, num_draws) + 1)])
        return each[np.arange(num_draws) % len(each)]

    def rounds_taken(self, num_rounds: int) -> FloatArray:
        """In how many of the first T rounds each device takes part, `[device]`."""
        for round_index in range(len(self._taken_until), num_rounds + 1):
            self._taken_until.append(self._taken_until[-1] + self.there(round_index))
        return self._taken_until[num_rounds]

    @cached_property
    def _taken_until(self) -> list[FloatArray]:
        return [np.zeros(self.num_devices)]


def variance_of_division(hidden: Coins | None) -> float:
    """How many times as large a server that divides the sum by p makes its variances; 1 where no coins are hidden."""
    return 1.0 if hidden is None else hidden.probability**-2


@dataclass(frozen=True)
class Participation:
    """Everybody with weight B_i/B, or `num_draws` draws with replacement, p_i = B_i/B, and weight m_i/N; or those whom
    their `coins` bring, with weights in proportion to B_i.

    The draws are public, for the server must know whom to align: a plan knows them, too.
    """

    samples_per_device: IntArray
    num_draws: int | None
    seed: int
    coins: Coins | None = None

    @property
    def everybody(self) -> bool:
        """Whether all devices take part in all rounds."""
        return self.num_draws is None and self.coins is None

    @cached_property
    def nominal_weights(self) -> FloatArray:
        """B_i/B, `[device]`, which m_i/N has as its mean."""
        return np.asarray(self.samples_per_device / self.samples_per_device.sum())

    def weights(self, round_index: int) -> FloatArray:
        """Of a round, `[device]`; zero for who stays silent."""
        if self.coins is not None:
            there = np.where(self.coins.there(round_index), self.nominal_weights, 0.0)
            return np.asarray(there / (there.sum() or 1.0))
        if self.num_draws is None:
            return self.nominal_weights
        drawn = stream(self.seed, "device-sampling", round_index).multinomial(self.num_draws, self.nominal_weights)
        return np.asarray(drawn / self.num_draws)

    def rounds_taken(self, num_rounds: int) -> FloatArray:
        """In how many of the first T rounds each device takes part, `[device]`."""
        if self.coins is not None:
            return self.coins.rounds_taken(num_rounds)
        if self.num_draws is None:
            return np.full(len(self.samples_per_device), float(num_rounds))
        for round_index in range(len(self._taken_until), num_rounds + 1):
            self._taken_until.append(self._taken_until[-1] + (self.weights(round_index) > 0))
        return self._taken_until[num_rounds]

    @cached_property
    def _taken_until(self) -> list[FloatArray]:
        return [np.zeros(len(self.samples_per_device))]

    def expected_rounds(self, num_rounds: int) -> FloatArray:
        """q_i T with q_i = 1 − (1 − p_i)^N, or p T with coins, `[device]`: a count that no single run needs to keep."""
        if self.coins is not None:
            return np.full(len(self.samples_per_device), num_rounds * self.coins.probability)
        if self.num_draws is None:
            return self.rounds_taken(num_rounds)
        return np.asarray(num_rounds * (1 - (1 - self.nominal_weights) ** self.num_draws))
