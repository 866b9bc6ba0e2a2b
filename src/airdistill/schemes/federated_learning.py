"""What the federated-learning schemes share: one model for all, and a gradient in place of knowledge."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Round, Scheme


class FederatedLearning(Scheme):
    """One model for all devices; nothing is distilled, and every device takes part."""

    uplink = "gradient"
    one_model = True
    inherits: ClassVar[tuple[str, ...]] = ("ota_fl",)

    def adapt(self, scenario: Scenario) -> Scenario:
        return changed(without_distillation(scenario), {"fleet": {"sampling": "none"}})


def without_distillation(scenario: Scenario) -> Scenario:
    return changed(scenario, {"learning": {"distill_weight": 0.0}})


def shares_of_data(this: Round) -> FloatArray:
    """B_i/B, `[device]`."""
    counts = this.plan.fleet.class_counts
    return np.asarray(counts.sum(axis=1) / counts.sum())
