"""What a run has cost each device so far, under every sensitivity model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from airdistill.arrays import FloatArray, divide_or
from airdistill.privacy.accountant import gaussian_epsilon
from airdistill.privacy.forecast import spent_squared_mu
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS, Shift


@dataclass(frozen=True)
class SpendingRule:
    """Whose privacy is counted and how: `shift_of(model)` is what T rounds move, `[device, row]`; δ is `[device]`."""

    shift_of: Callable[[str], Shift]
    delta: FloatArray
    relabel: bool


class PrivacyMeter:
    """Adds up (w s)²/c of every device and row, round by round, for each sensitivity model."""

    def __init__(self, rule: SpendingRule, round_index: int = 0, costs: Mapping[str, FloatArray] | None = None) -> None:
        """Fresh, or as it stood after `round_index` rounds with those costs `[device, row]` by model."""
        self._rule = rule
        self._shifts = {model: rule.shift_of(model) for model in SENSITIVITY_MODELS}
        self._round_index = round_index
        self._so_far = {model: _after(shift, round_index) for model, shift in self._shifts.items()}
        self.costs = {model: np.zeros_like(shift) for model, shift in self._so_far.items()} | dict(costs or {})

    def charge(self, counted_noise_var: FloatArray | None) -> None:
        """One round with this counted noise `[device, row]`; None if nothing was sent."""
        self._round_index += 1
        for model, accumulated in self._shifts.items():
            shift = accumulated.after(self._round_index)
            moved, self._so_far[model] = shift - self._so_far[model], shift
            if counted_noise_var is not None:
                price = divide_or(moved, np.broadcast_to(counted_noise_var, moved.shape), np.inf)
                self.costs[model] = self.costs[model] + np.where(moved > 0, price, 0.0)

    def epsilon(self, model: str) -> FloatArray:
        """The exact ε of every device at its δ, `[device]`."""
        mu = np.sqrt(spent_squared_mu(self.costs[model], model, self._rule.relabel))
        return np.atleast_1d(np.asarray(gaussian_epsilon(mu, self._rule.delta), dtype=np.float64))


def _after(shift: Shift, round_index: int) -> FloatArray:
    """Nothing has moved before the first round."""
    return shift.after(round_index) if round_index else np.zeros_like(shift.after(1))
