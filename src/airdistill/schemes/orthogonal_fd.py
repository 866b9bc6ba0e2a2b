from __future__ import annotations

from airdistill.air.exchange import one_after_another
from airdistill.schemes.base import Outcome, Round, Scheme


class OrthogonalFd(Scheme):
    """The same knowledge sent by one device after the other, each hidden by its own noise: M times the air time."""

    name = "orthogonal_fd"
    uplink = "orthogonal_knowledge"
    inherits = ("ota_fd",)

    def play(self, this: Round) -> Outcome:
        counts, knowledge, design = this.plan.fleet.class_counts, this.local_knowledge(), this.design()
        noise, slot = this.noise(design), this.scenario.radio.slot
        heard = one_after_another(counts, knowledge, design, this.channel(), noise, slot).estimated_by(this.receiver)
        return Outcome(this.learn(heard.knowledge), heard)
