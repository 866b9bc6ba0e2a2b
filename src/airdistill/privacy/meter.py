"""What a run has cost each device so far, under the sensitivity model that its scenario declares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airdistill.arrays import FloatArray, IntArray, divide_or
from airdistill.privacy.accountant import gaussian_epsilon
from airdistill.privacy.forecast import spent_squared_mu
from airdistill.privacy.sensitivity import AccumulatedShift, TrajectoryDynamics


@dataclass(frozen=True)
class SpendingRule:
    """Whose privacy is counted and how."""

    class_counts: IntArray
    delta: FloatArray
    model: str
    relabel: bool
    dynamics: TrajectoryDynamics


class PrivacyMeter:
    """Adds up (w s)²/c of every device and class, round by round."""

    def __init__(self, rule: SpendingRule, round_index: int = 0, cost: FloatArray | None = None) -> None:
        """Fresh, or as it stood after `round_index` rounds with that cost `[device, class]`."""
        self._rule = rule
        self._shift = AccumulatedShift(rule.class_counts, rule.model, rule.dynamics)
        self._round_index = round_index
        self._so_far = self._shift.after(round_index) if round_index else np.zeros(rule.class_counts.shape)
        self.cost = np.zeros(rule.class_counts.shape) if cost is None else cost

    def charge(self, counted_noise_var: FloatArray | None) -> None:
        """One round with this counted noise `[device, class]`; None if nothing was sent."""
        self._round_index += 1
        shift = self._shift.after(self._round_index)
        moved, self._so_far = shift - self._so_far, shift
        if counted_noise_var is not None:
            price = divide_or(moved, np.broadcast_to(counted_noise_var, moved.shape), np.inf)
            self.cost = self.cost + np.where(moved > 0, price, 0.0)

    def epsilon(self) -> FloatArray:
        """The exact ε of every device at its δ, `[device]`."""
        mu = np.sqrt(spent_squared_mu(self.cost, self._rule.model, self._rule.relabel))
        return np.atleast_1d(np.asarray(gaussian_epsilon(mu, self._rule.delta), dtype=np.float64))
