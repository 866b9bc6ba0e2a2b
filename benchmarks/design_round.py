"""Transceiver design of one round at scale: time and peak memory by devices × classes, for every trust model.

    python benchmarks/design_round.py [DEVICES] [CLASSES]

Memory is what the design allocates, including its outputs, in units of float64 arrays of devices × classes.
"""

import sys
import time
import tracemalloc

import numpy as np

from airdistill.planning.transceiver.design import design_round
from airdistill.privacy.sensitivity import required_noise_var

TRUSTS = ("receiver_noise", "fleet_noise", "own_noise")
REPEATS = 3


def fleet(num_devices: int, num_classes: int) -> dict[str, object]:
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 20, (num_devices, num_classes))
    counts[:, 0] += 1
    fading = rng.standard_normal((2, num_devices)) * np.sqrt(0.5)
    return {
        "class_counts": counts,
        "channel": 1e-6 * (fading[0] + 1j * fading[1]),
        "peak_power_w": np.full(num_devices, 1e-3),
        "channel_noise_var": 2.5e-15,
        "required_noise_var": required_noise_var(counts, np.full(num_devices, 1.7), 100, "device"),
    }


def measure(given: dict[str, object], trust: str) -> tuple[float, int]:
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        design_round(**given, trust=trust)
        seconds.append(time.perf_counter() - start)
    tracemalloc.start()
    design_round(**given, trust=trust)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return min(seconds), peak


def main(num_devices: int, num_classes: int) -> None:
    print(f"{'trust':<15} {'devices':>8} {'classes':>8} {'seconds':>9} {'ns/entry':>9} {'MB':>8} {'arrays':>7}")
    for trust in TRUSTS:
        for devices in (num_devices // 8, num_devices // 4, num_devices // 2, num_devices):
            seconds, peak = measure(fleet(devices, num_classes), trust)
            entries = devices * num_classes
            print(
                f"{trust:<15} {devices:>8} {num_classes:>8} {seconds:>9.4f} {seconds / entries * 1e9:>9.1f} "
                f"{peak / 1e6:>8.1f} {peak / (8 * entries):>7.2f}"
            )


if __name__ == "__main__":
    sizes = [int(argument) for argument in sys.argv[1:]]
    main(*(sizes or [100_000, 100]))
