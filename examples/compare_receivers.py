"""Compare receivers: what does the server make of the same noisy signals, and do devices learn from it?

Run it with `python examples/compare_receivers.py [ROUNDS [FIELD=VALUE ...]]`. The fleet of `quick` (20 devices × 300
digits of MNIST, whole-device ε = 8, seed 0) trains once alone and once with each receiver: the same data, channels,
noise and privacy. 50 s on two cores, once kernels are compiled; records lie under runs/.
"""

import sys

import numpy as np

import airdistill as ad


def broadcast_error(record: ad.RunRecord) -> float:
    """Squared error of a class's knowledge as it was broadcast, mean over classes and rounds.

    Records hold it per entry; a linear receiver broadcasts what it received, and has no estimate of its own.
    """
    per_entry = np.array([line.get("estimate_error", line["measured_noise_var"]) for line in record.rounds])
    return float(per_entry.mean() * per_entry.shape[1])


def main(rounds: int, changes: list[str]) -> None:
    scenario = ad.load("quick", changes)
    planned = ad.what_if(ad.plan(scenario, "ota_fd", rounds), with_steps=False)
    alone = ad.run(scenario, "local_only", rounds).summary["accuracy"]["mean"]
    print(f"{scenario.num_devices} devices, {rounds} rounds; devices alone reach {alone:.1%} (mean over devices).")
    print("receiver    planned error  measured error  accuracy    over alone   ε spent")
    for receiver in planned.receivers:
        record = ad.run(ad.load("quick", [*changes, f"learning.receiver={receiver.name}"]), "ota_fd", rounds)
        reached, spent = record.summary["accuracy"]["mean"], record.summary["epsilon_spent"]
        print(
            f"{receiver.name:<10} {receiver.squared_error:>14.3g} {broadcast_error(record):>15.3g} {reached:>9.1%} "
            f"{100 * (reached - alone):>+6.1f} points {spent:>9.3g}",
            flush=True,
        )
    print("Errors are squared, of a class's knowledge, whose own squared length is 1 at most. Plans leave out the")
    print(f"worst {scenario.radio.outage:.0%} of rounds, and take projection at its worst. ε is the worst device's.")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40, sys.argv[2:])
