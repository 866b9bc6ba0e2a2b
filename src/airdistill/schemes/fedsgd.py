from __future__ import annotations

from airdistill.air.exchange import mean_without_error
from airdistill.schemes.base import Outcome, Round
from airdistill.schemes.federated_learning import FederatedLearning, shares_of_data


class FedSgd(FederatedLearning):
    """Federated learning over a perfect channel, with no privacy: one full-batch step of the mean gradient a round."""

    name = "fedsgd"
    releases = "bare"

    def play(self, this: Round) -> Outcome:
        gradients, losses = this.fleet.gradients(clip_norm=None)
        this.release_bare()
        heard = mean_without_error(shares_of_data(this), gradients, this.scenario.radio.slot)
        this.fleet.descend(heard.received[0], this.lr)
        return Outcome(losses, heard)
