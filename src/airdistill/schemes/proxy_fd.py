from __future__ import annotations

from dataclasses import replace

import numpy as np

from airdistill.air.exchange import mean_of_answers
from airdistill.air.receivers import Estimate
from airdistill.codesign.uplinks import declared_public
from airdistill.learning.density_ratio import certain_rows
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Outcome, Round, Scheme
from airdistill.schemes.planning import for_public_set
from airdistill.schemes.public_sharing import rows_of_round


class ProxyFd(Scheme):
    """Predictions on a public set averaged over a perfect channel, with no privacy, and sharpened: FedMD and DS-FL."""

    name = "proxy_fd"
    uplink = "public_knowledge"
    releases = "bare"

    def adapt(self, scenario: Scenario) -> Scenario:
        return for_public_set(scenario, abstain=False)

    def play(self, this: Round) -> Outcome:
        public, vectors = declared_public(this.scenario), this.vectors()
        this.release_bare()
        heard = mean_of_answers(vectors.reshape(len(vectors), public.rows_a_round, -1), this.scenario.radio.slot)
        rows = heard.received.reshape(public.rows_a_round, -1)
        if public.server_selector is not None:
            rows = np.where(certain_rows(rows, public.server_selector)[:, None], rows, np.nan)
        broadcast = np.full((public.samples, rows.shape[1]), np.nan)
        broadcast[rows_of_round(public, this.index)] = rows
        return Outcome(this.learn(broadcast), replace(heard, estimate=Estimate(broadcast)))
