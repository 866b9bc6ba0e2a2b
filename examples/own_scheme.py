"""Your own scheme in one file: over-the-air distillation whose server projects what it hears onto the simplex.

Run it with `python examples/own_scheme.py [ROUNDS [FIELD=VALUE ...]]`, or name it on the command line from this folder:
`airdistill run quick --scheme own_scheme:ProjectedFd`.
"""

import sys

import numpy as np

import airdistill as ad
from airdistill.air import over_the_air
from airdistill.schemes import Outcome, Round, Scheme


def onto_simplex(rows: np.ndarray) -> np.ndarray:
    """The nearest probability vector of each row, in the Euclidean distance."""
    falling = -np.sort(-rows, axis=1)
    excess = (np.cumsum(falling, axis=1) - 1) / np.arange(1, rows.shape[1] + 1)
    last = np.count_nonzero(falling > excess, axis=1) - 1
    return np.maximum(rows - excess[np.arange(len(rows)), last][:, None], 0.0)


class ProjectedFd(Scheme):
    """What a server computes from what it heard costs no privacy: knowledge is a probability vector, so make it one."""

    name = "projected_fd"

    def play(self, this: Round) -> Outcome:
        channel, counts = this.channel(), this.plan.fleet.class_counts
        design = this.plan.design(channel)
        knowledge, noise = this.local_knowledge(), this.noise(design)  # the ledger is charged before there is noise
        heard = over_the_air(counts, knowledge, design, channel, noise, this.scenario.radio.slot)
        return Outcome(this.learn(onto_simplex(heard.received)), heard)


def main(rounds: int, changes: list[str]) -> None:
    for scheme in ("ota_fd", "own_scheme:ProjectedFd"):
        summary = ad.run(ad.load("quick", changes), scheme, rounds).summary
        print(f"{summary['scheme']:<14} {summary['accuracy']['mean']:.1%} after {summary['rounds']} rounds")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, sys.argv[2:])
