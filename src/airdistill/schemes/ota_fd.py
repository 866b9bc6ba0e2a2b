from __future__ import annotations

from airdistill.air.exchange import over_the_air
from airdistill.schemes.base import Outcome, Round, Scheme


class OtaFd(Scheme):
    """Over-the-air federated distillation with differential privacy, for the planned number of rounds: the paper's."""

    name = "ota_fd"

    def play(self, this: Round) -> Outcome:
        knowledge, channel = this.local_knowledge(), this.channel()
        design = this.plan.design(channel)
        heard = over_the_air(
            this.plan.fleet.class_counts, knowledge, design, channel, this.noise(), this.scenario.radio.slot
        )
        return Outcome(this.learn(heard.received), heard, design.counted_noise_var)
