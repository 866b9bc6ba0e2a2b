"""Your own scheme in one file: a server that believes what it hears as far as it stands out of the noise.

Run it with `python examples/own_scheme.py [ROUNDS [FIELD=VALUE ...]]` on `quick` (20 devices × 300 digits of MNIST,
whole-device ε = 8), or name it on the command line from this folder:
`airdistill run quick --scheme own_scheme:ShrunkFd`. 30 s on two cores; records lie under runs/.
"""

import sys

import numpy as np

import airdistill as ad
from airdistill.radio import Estimate, over_the_air
from airdistill.schemes import Outcome, Round, Scheme


class Shrinking:
    """James and Stein's estimate: each class's row is drawn to the even guess 1/K, the more the noisier it is."""

    def estimate(self, received: np.ndarray, noise_var: np.ndarray) -> Estimate:
        num_classes = received.shape[1]
        excess = received - 1 / num_classes
        noise = max(num_classes - 2, 0) * noise_var
        believed = np.clip(1 - noise / (excess**2).sum(axis=1), 0, 1)
        return Estimate(1 / num_classes + believed[:, None] * excess)

    def state(self) -> dict[str, np.ndarray]:
        return {}  # it remembers nothing from round to round

    def restore(self, state: dict[str, np.ndarray]) -> None:
        pass


class ShrunkFd(Scheme):
    """What a server computes from what it heard costs no privacy, so that a better estimate is free."""

    name = "shrunk_fd"

    def play(self, this: Round) -> Outcome:
        design, counts = this.design(), this.plan.fleet.class_counts
        noise = this.noise(design)  # the ledger is charged before there is any noise to send with
        slot = this.scenario.radio.slot
        heard = over_the_air(counts, this.local_knowledge(), design, this.channel(), noise, slot, this.there())
        heard = heard.estimated_by(Shrinking())
        return Outcome(this.learn(heard.knowledge), heard)


def main(rounds: int, changes: list[str]) -> None:
    scenario = ad.load("quick", changes)
    print(f"{scenario.num_devices} devices, {rounds} rounds; mean accuracy over devices, worst device's ε")
    for scheme in ("local_only", "ota_fd", "own_scheme:ShrunkFd", "airdistill"):
        summary = ad.run(scenario, scheme, rounds).summary
        reached, spent = summary["accuracy"]["mean"], summary["epsilon_spent"]
        print(f"{summary['scheme']:<11} {reached:.1%}, ε spent {spent:.3g}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, sys.argv[2:])
