""""""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from airdistill.learning.public_predictions import certain_rows
from airdistill.planning.transceiver.superposed import KnowledgeUplink
from airdistill.planning.uplinks import declared_public
from airdistill.radio.receivers import Estimate
from airdistill.radio.superposition import mean_of_answers, vector_over_the_air
from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Outcome, Round, Scheme
from airdistill.schemes.payloads import rows_of_round
from airdistill.schemes.planning import for_public_set, refuse_server_selector, truncation_threshold


class ProxyFd(Scheme):
    """Predictions on a public set averaged over a perfect channel, with no privacy, and sharpened: FedMD and DS-FL."""

    name = "proxy_fd"
    uplink = "public_knowledge"
    releases = "bare"

    def adapt(self, scenario: Scenario) -> Scenario:
        return for_public_set(scenario, abstain=False)

    def play(self, this: Round) -> Outcome:
        public, vectors = declared_public(this.scenario), this.vectors()
        this.release_without_privacy()
        heard = mean_of_answers(vectors.reshape(len(vectors), public.rows_a_round, -1), this.scenario.radio.slot)
        rows = heard.received.reshape(public.rows_a_round, -1)
        if public.server_selector is not None:
            rows = np.where(certain_rows(rows, public.server_selector)[:, None], rows, np.nan)
        broadcast = np.full((public.samples, rows.shape[1]), np.nan)
        broadcast[rows_of_round(public, this.index)] = rows
        return Outcome(this.learn(broadcast), replace(heard, estimate=Estimate(broadcast)))


_SERVER_SELECTOR = 1.0  # a label that most of those who answered give


class SelectiveFd(ProxyFd):
    """The same with two selectors (Selective-FD, the paper's reference S-FD): a device answers only samples that look
    like its own, and the server leaves out rows that no label stands out of."""

    name = "selective_fd"
    inherits = ("proxy_fd",)

    def adapt(self, scenario: Scenario) -> Scenario:
        adapted = super().adapt(scenario)
        assert adapted.public is not None
        kept = adapted.public.server_selector
        selectors = {"client_selector": "density", "server_selector": _SERVER_SELECTOR if kept is None else kept}
        return changed(adapted, {"public": selectors})


class OtaProxyFd(Scheme):
    """Predictions on a public set, added up in the air with differential privacy for whole devices, and taken as they
    arrive."""

    name = "ota_proxy_fd"
    uplink = "public_knowledge"

    def adapt(self, scenario: Scenario) -> Scenario:
        adapted = for_public_set(scenario, abstain=False)
        refuse_server_selector(adapted)
        return adapted

    def play(self, this: Round) -> Outcome:
        uplink, design, slot = this.plan.uplink, this.design(), this.scenario.radio.slot
        assert isinstance(uplink, KnowledgeUplink)
        # Paid for first: devices train before they answer, and must not for a round that cannot be paid.
        noise, weights = this.noise(design), uplink.nominal_weights[:, 0]
        heard = vector_over_the_air(
            weights, this.vectors()[:, 0], design, this.channel(), noise, slot, uplink.largest_norm, this.there()
        ).estimated_by(this.receiver)
        return Outcome(this.learn(heard.knowledge), heard)


class AirDistillProxy(OtaProxyFd):
    """This project's own for devices that hold different classes: they vote on what they know of a public set, the air
    adds the votes up, and a model of the server's own learns what the noisy sums mean."""

    name = "airdistill_proxy"
    inherits = ("ota_proxy_fd",)

    def adapt(self, scenario: Scenario) -> Scenario:
        """Takes every step; a threshold of silence and a receiver of the scenario's own choice stay."""
        radio, learning = scenario.radio, scenario.learning
        refuse_server_selector(scenario)
        return changed(
            for_public_set(scenario, abstain=True),
            {
                "privacy": {"accountant": "exact", "carry_over": not scenario.fleet.participation_hidden},
                "radio": {"transceiver": "optimal", "truncation": truncation_threshold(radio)},
                "learning": {"receiver": "learning" if learning.receiver == "linear" else learning.receiver},
            },
        )
