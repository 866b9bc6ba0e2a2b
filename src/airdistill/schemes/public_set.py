"""Schemes on a public set: devices send predictions on public samples, or class means of public features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from airdistill.planning.feature_means import FeatureMeans
from airdistill.planning.payloads import PublicPredictions, TeacherVotes, declared_public, rows_of_round
from airdistill.privacy.trust import TRUSTED_AGGREGATOR
from airdistill.radio.receivers import Estimate
from airdistill.radio.superposition import mean_of_answers
from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY, Look, Outcome, Round, Scheme
from airdistill.schemes.distillation import OtaFd
from airdistill.schemes.planning import for_public_set, refuse_server_selector, with_all_steps

_SERVER_SELECTOR = 1.0  # keeps labels given by most devices that answered


class LocalPublic(Scheme):
    """Devices alone that use the public samples too: each trains on its own, labels them with its own model, and learns
    from these labels by the steps of the other schemes on a public set. Schemes on a public set must beat it."""

    name = "local_public"
    payload = PublicPredictions
    releases = "nothing"
    look = Look(BLACK, ":", "x")

    def adapt(self, scenario: Scenario) -> Scenario:
        samples = declared_public(scenario).samples
        every_sample = {"answers_per_device": samples, "samples_per_round": None, "client_selector": "none"}
        return for_public_set(changed(scenario, {"public": every_sample}), abstain=False)

    def play(self, this: Round) -> Outcome:
        public, vectors = declared_public(this.scenario), this.vectors()
        rows = vectors.reshape(len(vectors), public.samples, -1)
        return Outcome(this.learn_alone(rows))


class ProxyFd(Scheme):
    """Predictions on a public set averaged over a perfect channel, without privacy, and sharpened: FedMD and DS-FL."""

    name = "proxy_fd"
    payload = PublicPredictions
    releases = "bare"
    look = Look(PURPLE, "--", "^")

    def adapt(self, scenario: Scenario) -> Scenario:
        return for_public_set(scenario, abstain=False)

    def play(self, this: Round) -> Outcome:
        from airdistill.learning.public_predictions import certain_rows

        public, vectors = declared_public(this.scenario), this.vectors()
        answers = vectors.reshape(len(vectors), public.rows_a_round, -1)
        reception = this.release_without_privacy(mean_of_answers(answers))
        rows = reception.received.reshape(public.rows_a_round, -1)
        if public.server_selector is not None:
            rows = np.where(certain_rows(rows, public.server_selector)[:, None], rows, np.nan)
        broadcast = np.full((public.samples, rows.shape[1]), np.nan)
        broadcast[rows_of_round(public, this.index)] = rows
        return Outcome(this.learn(broadcast), replace(reception, estimate=Estimate(broadcast)))


class SelectiveFd(ProxyFd):
    """The same with two selectors (Selective-FD, the paper's reference S-FD): a device answers only samples that look
    like its own, and the server drops rows without a clear label."""

    name = "selective_fd"
    inherits = ("proxy_fd",)
    look = Look(SKY, "-.", "^")

    def adapt(self, scenario: Scenario) -> Scenario:
        adapted = super().adapt(scenario)
        kept = declared_public(adapted).server_selector
        selectors = {"client_selector": "density", "server_selector": _SERVER_SELECTOR if kept is None else kept}
        return changed(adapted, {"public": selectors})


class OtaProxyFd(OtaFd):
    """Predictions on a public set, superposed on the air with differential privacy for whole devices, and broadcast as
    received."""

    name = "ota_proxy_fd"
    payload = PublicPredictions
    look = Look(BLUE, "-.", "o")

    def adapt(self, scenario: Scenario) -> Scenario:
        adapted = for_public_set(scenario, abstain=False)
        refuse_server_selector(adapted)
        return adapted


class AirDistillProxy(OtaProxyFd):
    """This project's own for devices that hold different classes: they vote on public samples that they know, the air
    adds the votes, and a model of the server learns from the noisy sums."""

    name = "airdistill_proxy"
    inherits = ("ota_proxy_fd",)
    look = Look(ORANGE, "-", "D")

    def adapt(self, scenario: Scenario) -> Scenario:
        refuse_server_selector(scenario)
        return with_all_steps(for_public_set(scenario, abstain=True), "learning")


class Pate(Scheme):
    """Votes on public samples that a trusted aggregator answers with noise if devices agree (PATE, Confident-GNMax): a
    model of the server learns the answers. Nothing goes over the air."""

    name = "pate"
    payload = TeacherVotes
    look = Look(RED, "--", "v")

    def adapt(self, scenario: Scenario) -> Scenario:
        """Devices vote once, on what they know; what describes a channel has no meaning."""
        refuse_server_selector(scenario)
        return changed(
            for_public_set(scenario, abstain=True),
            {
                "privacy": {"accountant": "exact", "trust": TRUSTED_AGGREGATOR.name, "carry_over": False},
                "radio": {"transceiver": "optimal", "truncation": 0.0, "csi_error_db": None, "antennas": 1},
                "air": {"medium": "emulated"},
                "fleet": {"expected_dropouts": 0},
                "learning": {"rounds": 1, "receiver": "learning"},
            },
        )

    def play(self, this: Round) -> Outcome:
        reception = this.transmit(this.vectors())
        return Outcome(this.learn(reception.broadcast), reception)


class FeatureMeansScheme(OtaFd):
    """Class means of public features over the air: one transmission with an exact guarantee for whole devices and for
    single records; the server labels the public samples by linear discriminant analysis."""

    name = "feature_means"
    payload = FeatureMeans
    look = Look(SKY, "-", "X")

    def adapt(self, scenario: Scenario) -> Scenario:
        """Protect whole devices unless the scenario asks for one record; transmit once unless it gives rounds."""
        declared_public(scenario)
        model, rounds = scenario.privacy.sensitivity, scenario.learning.rounds
        return changed(
            scenario,
            {
                "privacy": {"sensitivity": "class_mean" if model == "class_mean" else "device"},
                "learning": {"rounds": rounds if isinstance(rounds, int) else 1},
            },
        )


class AirDistillFeatures(FeatureMeansScheme):
    """This project's own for hard data: feature means, read with the help of the unlabelled public samples, teach a
    model of the server, which devices learn from or take over."""

    name = "airdistill_features"
    inherits = ("feature_means",)
    look = Look(GREEN, "-", "X")

    def adapt(self, scenario: Scenario) -> Scenario:
        return with_all_steps(super().adapt(scenario), "learning")
