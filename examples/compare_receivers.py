"""Compare receivers: how well does each estimate class means from the same noisy signals, and do devices learn more?

Run it with `python examples/compare_receivers.py [ROUNDS [FIELD=VALUE ...]]`. The fleet of `quick` (20 devices × 300
digits of MNIST, whole-device ε = 8, seed 0) trains once alone and once with each receiver, on the same data, channels,
noise and privacy. It takes 50 s on two cores, once kernels are compiled, and stores the records under runs/.
"""

import sys

import numpy as np

import airdistill as ad


def broadcast_error(record: ad.RunRecord) -> float:
    """The squared error of a broadcast class mean, averaged over classes and rounds.

    Records have it per entry. A linear receiver broadcasts what it received and has no estimate of its own.
    """
    per_entry = np.array([line.get("estimate_error", line["measured_noise_var"]) for line in record.rounds])
    return float(per_entry.mean() * per_entry.shape[1])


def main(rounds: int, changes: list[str]) -> None:
    scenario = ad.load("quick", changes)
    planned = ad.what_if(ad.plan(scenario, "ota_fd", rounds), with_steps=False)
    alone = ad.run(scenario, "local_only", rounds).summary["accuracy"]["mean"]
    print(f"{scenario.num_devices} devices, {rounds} rounds; local training reaches {alone:.1%} (mean over devices).")
    print("receiver    planned error  measured error  accuracy    over local   ε spent")
    for receiver in planned.receivers:
        record = ad.run(ad.load("quick", [*changes, f"learning.receiver={receiver.name}"]), "ota_fd", rounds)
        reached, spent = record.summary["accuracy"]["mean"], record.summary["epsilon_spent"]
        print(
            f"{receiver.name:<10} {receiver.squared_error:>14.3g} {broadcast_error(record):>15.3g} {reached:>9.1%} "
            f"{100 * (reached - alone):>+6.1f} points {spent:>9.3g}",
            flush=True,
        )
    print("Errors are squared errors of a class mean, whose own squared norm is at most 1. A plan leaves out the worst")
    print(f"{scenario.radio.outage:.0%} of rounds and assumes the worst case for projection. ε is the worst device's.")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40, sys.argv[2:])
