"""Run the scenario of a federation in the simulator and compare the records of the two."""

import json

import numpy as np

from airdistill.flower.endpoint import SESSION, of_session
from airdistill.privacy.ledger import Ledger
from airdistill.runs.accounts import ledger_header
from airdistill.runs.options import RunOptions
from airdistill.runs.simulation import Simulation
from airdistill.schemes.planning import as_run_by, plan_scheme
from airdistill.schemes.registry import SCHEMES


def records(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def simulated(scenario, scheme, endpoint):
    """The simulator's records and broadcasts for the scenario, with the noise of the federation of this folder."""
    expected, receptions = receptions_of(scenario, scheme, endpoint)
    return expected, [reception.broadcast for reception in receptions]


def receptions_of(scenario, scheme, endpoint):
    """The same with everything that the simulated server received and estimated."""
    receptions = []

    class Recording(SCHEMES[scheme]):
        def play(self, this):
            outcome = super().play(this)
            receptions.append(outcome.reception)
            return outcome

    chosen = Recording()
    plan = plan_scheme(chosen, as_run_by(chosen, scenario))
    simulation = Simulation(plan, chosen, RunOptions(threads=1, engine="torch", eval_every=1))
    # The noise of a federation depends on its session, and not on a digest of all data: no endpoint has all data.
    session = (endpoint / SESSION).read_text().strip()
    simulation.ledger = Ledger(of_session(ledger_header(plan, chosen.name, chosen.releases), session))
    return [simulation.advance() for _ in range(plan.num_rounds)], receptions


def worst_difference(recorded, expected, broadcasts):
    """The largest difference in knowledge, losses, accuracy and ε over all rounds."""
    assert len(recorded) == len(expected)
    worst = 0.0
    for mine, theirs, broadcast in zip(recorded, expected, broadcasts, strict=True):
        known = np.array([[np.nan if entry is None else entry for entry in row] for row in mine["knowledge"]])
        assert np.array_equal(np.isnan(known), np.isnan(broadcast))
        worst = max(worst, float(np.nanmax(np.abs(known - broadcast))), difference_of_numbers(mine, theirs))
    return worst


def difference_of_numbers(mine, theirs):
    """The largest difference in losses, accuracy, air time and ε of a round."""
    numbers = [(mine[name], theirs[name]) for name in ("loss", "training_loss", "epsilon_spent", "uplink_seconds")]
    numbers += [(mine["accuracy"][name], theirs["accuracy"][name]) for name in theirs["accuracy"]]
    return max(abs(one - other) for one, other in numbers)
