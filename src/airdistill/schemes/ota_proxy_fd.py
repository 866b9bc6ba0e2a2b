from __future__ import annotations

from airdistill.air.exchange import vector_over_the_air
from airdistill.codesign.knowledge_uplink import KnowledgeUplink
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Outcome, Round, Scheme
from airdistill.schemes.planning import for_public_set


class OtaProxyFd(Scheme):
    """Predictions on a public set, added up in the air with differential privacy for whole devices, and taken as they
    arrive."""

    name = "ota_proxy_fd"
    uplink = "public_knowledge"

    def adapt(self, scenario: Scenario) -> Scenario:
        return for_public_set(scenario, abstain=False)

    def play(self, this: Round) -> Outcome:
        uplink, vectors, design = this.plan.uplink, this.vectors(), this.design()
        assert isinstance(uplink, KnowledgeUplink)
        noise, slot = this.noise(design), this.scenario.radio.slot
        heard = vector_over_the_air(
            uplink.usual_weights[:, 0], vectors[:, 0], design, this.channel(), noise, slot, uplink.largest_norm
        ).estimated_by(this.receiver)
        return Outcome(this.learn(heard.knowledge), heard)
