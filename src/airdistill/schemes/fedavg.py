from __future__ import annotations

from airdistill.air.exchange import mean_without_error
from airdistill.schemes.base import Outcome, Round
from airdistill.schemes.federated_learning import FederatedLearning, shares_of_data


class FedAvg(FederatedLearning):
    """Federated averaging over a perfect channel, with no privacy: local epochs, then the mean of all models."""

    name = "fedavg"
    releases = "bare"

    def play(self, this: Round) -> Outcome:
        losses, weights = this.learn(None), shares_of_data(this)
        this.release_bare()
        heard = mean_without_error(weights, this.fleet.parameters(), this.scenario.radio.slot)
        this.fleet.average(weights)
        return Outcome(losses, heard)
