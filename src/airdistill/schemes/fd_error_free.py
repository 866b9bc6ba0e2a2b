from __future__ import annotations

from airdistill.air.exchange import error_free
from airdistill.schemes.base import Outcome, Round, Scheme


class FdErrorFree(Scheme):
    """Federated distillation over a perfect channel, with no privacy at all."""

    name = "fd_error_free"
    releases = "bare"

    def play(self, this: Round) -> Outcome:
        counts = this.plan.fleet.class_counts
        knowledge = this.local_knowledge()
        this.release_bare()
        heard = error_free(counts, knowledge, this.scenario.radio.slot)
        return Outcome(this.learn(heard.received), heard)
