"""The constants of the convergence bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from airdistill.arrays import FloatArray, fields_of
from airdistill.scenario.model import Scenario


@dataclass(frozen=True)
class LearningConstants:
    """γ, η0, L1, L2, S and f_max of Theorem 1; `loss_bound` may be one number or one for each device."""

    distill_weight: float
    initial_lr: float
    grad_lipschitz: float
    model_lipschitz: float
    loss_bound: float | FloatArray
    grad_norm_bound: float = float("inf")

    @classmethod
    def of(cls, given: Any) -> LearningConstants:
        """From anything that holds the constants by these names: a mapping, or an object with such attributes."""
        return given if isinstance(given, cls) else cls(**fields_of(given, cls))

    @classmethod
    def of_scenario(cls, scenario: Scenario) -> LearningConstants:
        return cls.of(scenario.learning_numbers())

    @property
    def misalignment_factor(self) -> float:
        """A1 = 6γη0L2, below eq. (41)."""
        return 6 * self.distill_weight * self.initial_lr * self.model_lipschitz

    @property
    def noise_factor(self) -> float:
        """A2 = 6η0γ²L2²L1, below eq. (41)."""
        return 6 * self.initial_lr * self.distill_weight**2 * self.model_lipschitz**2 * self.grad_lipschitz

    @property
    def gradient_noise_factor(self) -> float:
        """3η0L1/2, of a gradient's noise in the gap of federated learning."""
        return 1.5 * self.initial_lr * self.grad_lipschitz

    def total_loss_bound(self, num_devices: int) -> float:
        """Σ_i f_max,i."""
        return float(np.sum(np.broadcast_to(self.loss_bound, (num_devices,))))
