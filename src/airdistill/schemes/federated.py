"""What the federated-learning schemes share: one model for all, and a gradient in place of knowledge."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.planning.transceiver.gradient import GradientUplink
from airdistill.radio.superposition import mean_without_error, vector_over_the_air
from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Outcome, Round, Scheme
from airdistill.schemes.planning import with_fixed_rounds


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


class FedSgd(FederatedLearning):
    """Federated learning over a perfect channel, with no privacy: one full-batch step of the mean gradient a round."""

    name = "fedsgd"
    releases = "bare"

    def play(self, this: Round) -> Outcome:
        gradients, losses = this.fleet.gradients(clip_norm=None)
        this.release_without_privacy()
        heard = mean_without_error(shares_of_data(this), gradients, this.scenario.radio.slot)
        this.fleet.descend(heard.received[0], this.lr)
        return Outcome(losses, heard)


class FedAvg(FederatedLearning):
    """Federated averaging over a perfect channel, with no privacy: local epochs, then the mean of all models."""

    name = "fedavg"
    releases = "bare"

    def play(self, this: Round) -> Outcome:
        losses, weights = this.learn(None), shares_of_data(this)
        this.release_without_privacy()
        heard = mean_without_error(weights, this.fleet.parameters(), this.scenario.radio.slot)
        this.fleet.average(weights)
        return Outcome(losses, heard)


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


class OtaFlFixed(OtaFl):
    """The same with a constant T (400), in the privacy design and as the stop: the paper's "FL Constant T"."""

    name = "ota_fl_fixed"
    inherits = ("ota_fl",)

    def adapt(self, scenario: Scenario) -> Scenario:
        return with_fixed_rounds(super().adapt(scenario))


_HALF = 0.5


class OtaFlSampled(OtaFl):
    """The same with those whom a coin brings, `fleet.participation` of them on average, by default half: the paper's
    reference DP-FL."""

    name = "ota_fl_sampled"
    inherits = ("ota_fl",)

    def adapt(self, scenario: Scenario) -> Scenario:
        chance = scenario.fleet.participation
        coins = {"sampling": "none", "sampled_devices": None, "participation": _HALF if chance == 1 else chance}
        return super().adapt(changed(scenario, {"fleet": coins}))
