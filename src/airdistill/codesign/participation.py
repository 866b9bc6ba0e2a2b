"""Who takes part in a round of federated learning, and with what weight."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from airdistill.arrays import FloatArray, IntArray
from airdistill.streams import stream


@dataclass(frozen=True)
class Participation:
    """Everybody with weight B_i/B, or `num_draws` draws with replacement, p_i = B_i/B, and weight m_i/N.

    The draws are public, for the server must know whom to align: a plan knows them, too.
    """

    samples_per_device: IntArray
    num_draws: int | None
    seed: int

    @cached_property
    def usual_weights(self) -> FloatArray:
        """B_i/B, `[device]`, which m_i/N has as its mean."""
        return np.asarray(self.samples_per_device / self.samples_per_device.sum())

    def weights(self, round_index: int) -> FloatArray:
        """Of a round, `[device]`; zero for who stays silent."""
        if self.num_draws is None:
            return self.usual_weights
        drawn = stream(self.seed, "device-sampling", round_index).multinomial(self.num_draws, self.usual_weights)
        return np.asarray(drawn / self.num_draws)

    def rounds_taken(self, num_rounds: int) -> FloatArray:
        """In how many of the first T rounds each device takes part, `[device]`."""
        if self.num_draws is None:
            return np.full(len(self.samples_per_device), float(num_rounds))
        for round_index in range(len(self._taken_until), num_rounds + 1):
            self._taken_until.append(self._taken_until[-1] + (self.weights(round_index) > 0))
        return self._taken_until[num_rounds]

    @cached_property
    def _taken_until(self) -> list[FloatArray]:
        return [np.zeros(len(self.samples_per_device))]

    def expected_rounds(self, num_rounds: int) -> FloatArray:
        """q_i T with q_i = 1 − (1 − p_i)^N, `[device]`: a count that no single run needs to keep."""
        if self.num_draws is None:
            return self.rounds_taken(num_rounds)
        return np.asarray(num_rounds * (1 - (1 - self.usual_weights) ** self.num_draws))
