from __future__ import annotations

from airdistill.air.exchange import vector_over_the_air
from airdistill.codesign.knowledge_uplink import KnowledgeUplink
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Outcome, Round, Scheme
from airdistill.schemes.planning import for_public_set, refuse_server_selector


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
        noise, weights = this.noise(design), uplink.usual_weights[:, 0]
        heard = vector_over_the_air(
            weights, this.vectors()[:, 0], design, this.channel(), noise, slot, uplink.largest_norm, this.there()
        ).estimated_by(this.receiver)
        return Outcome(this.learn(heard.knowledge), heard)
