"""The residual error of each receiver on class means of error-free runs on MNIST with added noise.

The tracking receiver with its three filters is compared with one filter for all entries, with equal drift and initial
variance for every part.
"""

from __future__ import annotations

from functools import partial

import numpy as np

import airdistill as ad
from airdistill.planning.convergence.receiver_error import Part, Parts
from airdistill.radio.receivers import Projected, Receiver, Tracking
from airdistill.runs.options import RunOptions
from airdistill.runs.simulation import Simulation
from airdistill.schemes.base import Outcome, Round
from airdistill.schemes.distillation import FdErrorFree
from airdistill.schemes.planning import as_run_by, plan_scheme

RUNS = [("small-data", 20, 60, 100), ("paper", 4, 1200, 100)]
NOISE_VARS = (1e-4, 0.026, 0.5, 3.6)
REPEATS = 5
ONE_FILTER = Parts(Part(0.1, 1e-3), Part(0.1, 1e-3), Part(0.1, 1e-3))


class Recording(FdErrorFree):
    """Error-free distillation that records the received class means."""

    def __init__(self) -> None:
        self.path: list[np.ndarray] = []

    def play(self, this: Round) -> Outcome:
        outcome = super().play(this)
        assert outcome.reception is not None
        self.path.append(outcome.reception.received)
        return outcome


def knowledge_of(name: str, devices: int, samples: int, rounds: int) -> np.ndarray:
    """The received class means of a run, `[round, class, class]`."""
    scheme = Recording()
    changes = [f"fleet.devices={devices}", f"data.samples_per_device={samples}", "privacy.epsilon=inf"]
    scenario = as_run_by(scheme, ad.load(name, changes), rounds)
    # Without evaluation: the last round, which is always evaluated, is left out.
    simulation = Simulation(plan_scheme(scheme, scenario), scheme, RunOptions(eval_every=10**6).resolved())
    for _ in range(rounds - 1):
        simulation.advance()
    return np.stack(scheme.path)


def error_of(receiver: Receiver, path: np.ndarray, noise_var: float, seed: int) -> float:
    rng, errors, num_classes = np.random.default_rng(seed), [], path.shape[1]
    for truth in path:
        received = truth + np.sqrt(noise_var) * rng.standard_normal(truth.shape)
        estimate = receiver.estimate(received, np.full(num_classes, noise_var))
        errors.append(((estimate.knowledge - truth) ** 2).sum(axis=1).mean())
    return float(np.mean(errors))


def main() -> None:
    print("| class means of | noise variance | linear | projected | one filter | tracking |\n|---|---|---|---|---|---|")
    for name, devices, samples, rounds in RUNS:
        path = knowledge_of(name, devices, samples, rounds)
        num_classes = path.shape[1]
        makers = (
            Projected,
            partial(Tracking, num_classes, ONE_FILTER),
            partial(Tracking, num_classes, Parts.for_drift(1e-3)),
        )
        for noise_var in NOISE_VARS:
            found = [np.mean([error_of(make(), path, noise_var, seed) for seed in range(REPEATS)]) for make in makers]
            cells = " | ".join(f"{value:.3g}" for value in (num_classes * noise_var, *found))
            print(f"| `{name}` | {noise_var:g} | {cells} |")


if __name__ == "__main__":
    main()
