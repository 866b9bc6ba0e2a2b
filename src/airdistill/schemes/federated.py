"""Federated learning: one model for all devices, and a gradient, an update or a model in place of class means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.planning.payloads import Gradient, HeadUpdate, Payload, Update, declared_public
from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, Look, Outcome, Round, Scheme
from airdistill.schemes.planning import for_updates, with_fixed_rounds

if TYPE_CHECKING:  # PyTorch is loaded when a round is played
    from airdistill.learning.learner import Losses


class FederatedLearning(Scheme):
    """One model for all devices, which all participate; nothing is distilled."""

    payload: ClassVar[type[Payload]] = Gradient
    one_model = True
    inherits: ClassVar[tuple[str, ...]] = ("ota_fl",)

    def adapt(self, scenario: Scenario) -> Scenario:
        return changed(without_distillation(scenario), {"fleet": {"sampling": "none", "cycle": None}})


def without_distillation(scenario: Scenario) -> Scenario:
    return changed(scenario, {"learning": {"distill_weight": 0.0}})


def shares_of_data(this: Round) -> FloatArray:
    """B_i/B, `[device]`."""
    counts = this.plan.fleet.class_counts
    return np.asarray(counts.sum(axis=1) / counts.sum())


class FedSgd(FederatedLearning):
    """Federated learning over a perfect channel, without privacy: one full-batch step of the mean gradient a round."""

    name = "fedsgd"
    releases = "bare"
    look = Look(BLACK, "--", "x")

    def play(self, this: Round) -> Outcome:
        gradients, losses = this.fleet.gradients(clip_norm=None)
        reception = this.release_without_privacy((shares_of_data(this) @ gradients)[None])
        this.fleet.descend(reception.received[0], this.lr)
        return Outcome(losses, reception)


class FedAvg(FederatedLearning):
    """Federated averaging over a perfect channel, without privacy: local epochs, then the mean of all models."""

    name = "fedavg"
    releases = "bare"
    look = Look(BLACK, "-.", "*")

    def play(self, this: Round) -> Outcome:
        losses, weights = this.learn(None), shares_of_data(this)
        reception = this.release_without_privacy((weights @ this.fleet.parameters())[None])
        this.fleet.average(weights)
        return Outcome(losses, reception)


class FedDf(FedAvg):
    """Federated averaging without privacy, whose mean model then learns the devices' mean logits on the public samples
    (FedDF; Lin et al. 2020)."""

    name = "feddf"
    inherits: ClassVar[tuple[str, ...]] = ("ota_fl", "fedavg")
    look = Look(SKY, "-.", "*")

    def adapt(self, scenario: Scenario) -> Scenario:
        declared_public(scenario)
        return super().adapt(scenario)

    def play(self, this: Round) -> Outcome:
        from airdistill.schemes.ceilings import distil_mean_model, mean_logits

        losses, weights = this.learn(None), shares_of_data(this)
        rows = mean_logits(this.fleet, weights)
        reception = this.release_without_privacy((weights @ this.fleet.parameters())[None])
        this.fleet.average(weights)
        distil_mean_model(this.fleet, this.plan, this.index, rows)
        return Outcome(losses, reception)


class Centralised(FederatedLearning):
    """One model trained on the samples of all devices together, without privacy: what no federation can exceed by
    much."""

    name = "centralised"
    releases = "bare"
    look = Look(GREY, "--", "*")

    def play(self, this: Round) -> Outcome:
        from airdistill.schemes.ceilings import trained_on_all

        weights = trained_on_all(this.fleet, this.scenario, this.index)
        reception = this.release_without_privacy(weights[None])
        return Outcome(this.fleet.use_model(weights), reception)


class OtaFl(FederatedLearning):
    """Over-the-air federated learning with differential privacy for the planned number of rounds: gradients clipped per
    sample, from all devices or from those that `fleet.sampling` or `fleet.participation` draws."""

    name = "ota_fl"
    inherits: ClassVar[tuple[str, ...]] = ()
    look = Look(RED, "--", "D")

    def adapt(self, scenario: Scenario) -> Scenario:
        return without_distillation(scenario)

    def play(self, this: Round) -> Outcome:
        gradients, losses = this.fleet.gradients(this.plan.uplink.largest_norm)
        reception = this.transmit(gradients[:, None])
        this.learn(reception.received)
        return Outcome(losses, reception)


class OtaFlFixed(OtaFl):
    """The same with a constant T (400), in the privacy design and as the stop: the paper's "FL Constant T"."""

    name = "ota_fl_fixed"
    inherits = ("ota_fl",)
    look = Look(ORANGE, "--", "v")

    def adapt(self, scenario: Scenario) -> Scenario:
        return with_fixed_rounds(super().adapt(scenario))


class OtaFlSampled(OtaFl):
    """The same with Poisson sampling: each device joins a round with probability `fleet.participation`, by default one
    half. The paper's reference DP-FL."""

    name = "ota_fl_sampled"
    inherits = ("ota_fl",)
    look = Look(PURPLE, ":", "d")

    def adapt(self, scenario: Scenario) -> Scenario:
        given = scenario.fleet.participation
        sampling: dict[str, Any] = {"sampling": "none", "sampled_devices": None, "cycle": None}
        sampling["participation"] = 0.5 if given == 1 else given
        return super().adapt(changed(scenario, {"fleet": sampling}))


class OtaFedAvg(FederatedLearning):
    """Federated averaging over the air with differential privacy for whole devices: local training, clipped updates,
    and a server with momentum or Adam."""

    name = "ota_fedavg"
    payload = Update
    inherits: ClassVar[tuple[str, ...]] = ()
    look = Look(BLUE, "--", "p")

    def adapt(self, scenario: Scenario) -> Scenario:
        return for_updates(scenario)

    def play(self, this: Round) -> Outcome:
        reception = this.transmit(this.vectors())
        this.learn(reception.broadcast)
        return Outcome(_losses(this), reception)


class OtaHead(OtaFedAvg):
    """The same for a linear head on the public embedding of feature means: a model of few parameters needs little
    noise."""

    name = "ota_head"
    payload = HeadUpdate
    inherits: ClassVar[tuple[str, ...]] = ()
    look = Look(GREEN, "--", "P")

    def adapt(self, scenario: Scenario) -> Scenario:
        """Every device has embedding and head, whatever model the scenario gives it."""
        groups = {"fleet": {"groups": (), "devices": scenario.num_devices}}
        return for_updates(changed(scenario, groups), model="softmax_regression")


class FedOpt(FederatedLearning):
    """Federated averaging with the server's optimiser over a perfect channel, without privacy and without a clip:
    FedAvgM and FedAdam."""

    name = "fedopt"
    payload = Update
    releases = "bare"
    inherits: ClassVar[tuple[str, ...]] = ()
    look = Look(SKY, "--", "P")

    def adapt(self, scenario: Scenario) -> Scenario:
        unclipped = changed(scenario, {"federated": {"clip_quantile": None}})
        return super().adapt(for_updates(unclipped))

    def play(self, this: Round) -> Outcome:
        from airdistill.schemes.updates import UpdateProtocol

        assert isinstance(this.protocol, UpdateProtocol)
        updates = this.protocol.updates(this.fleet, this.index, range(len(this.fleet.learners)))
        reception = this.release_without_privacy((shares_of_data(this) @ updates)[None])
        assert this.receiver is not None
        estimate = this.receiver.estimate(reception.received, reception.predicted_noise_var)
        this.learn(estimate.knowledge)
        return Outcome(_losses(this), replace(reception, estimate=estimate))


def _losses(this: Round) -> Sequence[Losses]:
    """Those of the local training before the last vectors."""
    from airdistill.schemes.updates import UpdateProtocol

    assert isinstance(this.protocol, UpdateProtocol)
    return this.protocol.losses
