from __future__ import annotations

from airdistill.schemes.base import Outcome, Round, Scheme


class LocalOnly(Scheme):
    """Every device alone: no radio, no distillation. What federation must beat."""

    name = "local_only"
    releases = "nothing"

    def play(self, this: Round) -> Outcome:
        return Outcome(this.learn(None))
