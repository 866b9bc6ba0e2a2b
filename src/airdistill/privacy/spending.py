"""What releases have cost each device, under every sensitivity model and every trust model."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.privacy.forecast import spent_squared_mu
from airdistill.privacy.release import TRUST_MODELS, Release
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS

Cost = dict[tuple[str, str], FloatArray]


class Spending:
    """Adds up (w s)²/c of every device and row, release by release.

    Rows of one payload stand for the same classes in every release and are added up row by row. What different
    payloads cost (knowledge, gradients) is added up device by device, which is never less than the truth.
    """

    def __init__(self, num_devices: int, costs: Mapping[str, Cost] | None = None) -> None:
        self.num_devices = num_devices
        self._costs = dict(costs or {})

    def after(self, release: Release, payload: str) -> Spending:
        """The same with one more release."""
        before = self._costs.get(payload, {})
        now = {
            (model, trust): before.get((model, trust), 0.0) + release.cost(model, trust)
            for model, trust in itertools.product(SENSITIVITY_MODELS, TRUST_MODELS)
        }
        return Spending(self.num_devices, {**self._costs, payload: now})

    def squared_mu(self, model: str, trust: str, relabel: bool) -> FloatArray:
        """μ² of every device so far, `[device]`."""
        spent = [spent_squared_mu(cost[model, trust], model, relabel) for cost in self._costs.values()]
        return np.asarray(np.sum([np.zeros(self.num_devices), *spent], axis=0))
