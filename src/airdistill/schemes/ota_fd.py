from __future__ import annotations

from airdistill.air.exchange import over_the_air
from airdistill.schemes.base import Outcome, Round, Scheme


class OtaFd(Scheme):
    """Over-the-air federated distillation with differential privacy, for the planned number of rounds: the paper's."""

    name = "ota_fd"

    def play(self, this: Round) -> Outcome:
        counts, design, slot = this.plan.fleet.class_counts, this.design(), this.scenario.radio.slot
        noise = this.noise(design)
        knowledge = this.local_knowledge()  # as late as can be: a GPU may still be on its way to it
        heard = over_the_air(counts, knowledge, design, this.channel(), noise, slot, this.there())
        heard = heard.estimated_by(this.receiver)
        return Outcome(this.learn(heard.knowledge), heard)
