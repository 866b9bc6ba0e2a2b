from __future__ import annotations

from airdistill.air.exchange import mean_of_answers
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
        public, vectors = this.scenario.public, this.vectors()
        assert public is not None  # there would be no plan without one
        this.release_bare()
        heard = mean_of_answers(
            vectors.reshape(len(vectors), public.rows_a_round, -1),
            rows_of_round(public, this.index),
            public.samples,
            this.scenario.radio.slot,
            public.server_selector,
        )
        return Outcome(this.learn(heard.knowledge), heard)
