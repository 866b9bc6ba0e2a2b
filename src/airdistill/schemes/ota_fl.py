from __future__ import annotations

from typing import ClassVar

import numpy as np

from airdistill.air.exchange import vector_over_the_air
from airdistill.codesign.gradient_uplink import GradientUplink
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Outcome, Round
from airdistill.schemes.federated_learning import FederatedLearning, without_distillation


class OtaFl(FederatedLearning):
    """Over-the-air federated learning with differential privacy and the planned number of rounds: gradients clipped per
    sample; every device takes part, or those that `fleet.sampling` or `fleet.participation` draws."""

    name = "ota_fl"
    inherits: ClassVar[tuple[str, ...]] = ()

    def adapt(self, scenario: Scenario) -> Scenario:
        return without_distillation(scenario)

    def play(self, this: Round) -> Outcome:
        uplink, radio = this.plan.uplink, this.scenario.radio
        assert isinstance(uplink, GradientUplink)
        gradients, losses = this.fleet.gradients(uplink.clip_norm)
        design, weights = this.design(), uplink.participation.weights(this.index)
        heard = vector_over_the_air(
            weights, gradients, design, this.channel(), this.noise(design), radio.slot, uplink.clip_norm, this.there()
        )
        if np.isfinite(heard.received).all():  # else a device has no channel, and nothing could be sent
            this.fleet.descend(heard.received[0], this.lr)
        return Outcome(losses, heard)
