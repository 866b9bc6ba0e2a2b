"""Your own scheme in one file: a server that shrinks what it receives towards the even guess, by its noise.

Run it with `python examples/own_scheme.py [ROUNDS [FIELD=VALUE ...]]` on `quick` (20 devices × 300 digits of MNIST,
whole-device ε = 8), or name it on the command line from this folder:
`airdistill run quick --scheme own_scheme:ShrunkFd`. It takes 30 s on two cores and writes records under runs/.
"""

import sys

import numpy as np

import airdistill as ad
from airdistill.radio import Estimate
from airdistill.schemes import Outcome, Round, Scheme


class Shrinking:
    """James and Stein's estimate: each class mean moves towards the even guess 1/K, the further the noisier it is."""

    def estimate(self, received: np.ndarray, noise_var: np.ndarray) -> Estimate:
        num_classes = received.shape[1]
        excess = received - 1 / num_classes
        noise = max(num_classes - 2, 0) * noise_var
        kept = np.clip(1 - noise / (excess**2).sum(axis=1), 0, 1)
        return Estimate(1 / num_classes + kept[:, None] * excess)

    def state(self) -> dict[str, np.ndarray]:
        return {}  # it has no memory

    def restore(self, state: dict[str, np.ndarray]) -> None:
        pass


class ShrunkFd(Scheme):
    """Whatever a server computes from what it received costs no privacy: a better estimate is free."""

    name = "shrunk_fd"

    def play(self, this: Round) -> Outcome:
        reception = this.transmit(this.vectors()).estimated_by(Shrinking())
        return Outcome(this.learn(reception.broadcast), reception)


def main(rounds: int, changes: list[str]) -> None:
    scenario = ad.load("quick", changes)
    print(f"{scenario.num_devices} devices, {rounds} rounds; mean accuracy over devices, ε of the worst device")
    for scheme in ("local_only", "ota_fd", "own_scheme:ShrunkFd", "airdistill"):
        summary = ad.run(scenario, scheme, rounds).summary
        reached, spent = summary["accuracy"]["mean"], summary["epsilon_spent"]
        print(f"{summary['scheme']:<11} {reached:.1%}, ε spent {spent:.3g}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, sys.argv[2:])
