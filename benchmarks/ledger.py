"""The cost of the ledger: milliseconds and bytes per round to charge it, and seconds to read and certify it.

    python benchmarks/ledger.py                 # large fleets, of ten kinds and all different; then presets
    python benchmarks/ledger.py --plan 100000   # and the seconds to plan a fleet of so many devices

Milliseconds are wall-clock and processor time, the median of the rounds after the first. Each large fleet is measured
in a process of its own, for its memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import airdistill as ad
from airdistill.channel import channel_source
from airdistill.privacy.certificate import certificate_of
from airdistill.privacy.ledger import Ledger
from airdistill.privacy.ledger_header import LedgerHeader, format_for
from airdistill.privacy.release import Release
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.report.certificate import write_certificate
from airdistill.runs.accounts import ledger_header

FLEETS = {
    "paper, 50 devices": ("paper", []),
    "quick, 20 devices": ("quick", []),
    "small-data, 1000 devices": ("small-data", ["fleet.devices=1000"]),
    "small-data, 5000 devices of 12 samples": ("small-data", ["fleet.devices=5000", "data.samples_per_device=12"]),
}
SIZES, KINDS, NUM_ROWS = (1000, 10_000, 100_000), 10, 10
HEAD = f"{'fleet':<40} {'ms to charge':>13} {'of CPU':>7} {'kB':>8} {'s to certify':>13} {'of CPU':>7} {'GB':>6}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--large", type=int, nargs=2, metavar=("DEVICES", "KINDS"))
    parser.add_argument("--plan", type=int, metavar="DEVICES")
    given = parser.parse_args()
    if given.large is not None:
        print(json.dumps(measure_large(*given.large, given.rounds)))
        return
    if given.plan is not None:
        print(f"plan of {given.plan} devices: {measure_plan(given.plan)}")
        return
    print(f"{HEAD}   ({given.rounds} rounds)", flush=True)
    for devices in SIZES:
        for kinds in (KINDS, devices):
            call = [sys.executable, __file__, "--rounds", str(given.rounds), "--large", str(devices), str(kinds)]
            found = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
            show(f"{devices} devices, {'all different' if kinds == devices else f'{kinds} kinds'}", found)

    for label, (name, changes) in FLEETS.items():
        show(label, measure_preset(name, changes, given.rounds))


def show(label: str, found: dict[str, float]) -> None:
    charged = f"{1e3 * found['charge']:>13.1f} {1e3 * found['charge_cpu']:>7.1f} {found['bytes'] / 1e3:>8.1f}"
    print(
        f"{label:<40} {charged} {found['certify']:>13.2f} {found['certify_cpu']:>7.2f} {found['memory']:>6.2f}",
        flush=True,
    )


def measure_preset(name: str, changes: list[str], num_rounds: int) -> dict[str, float]:
    """The rounds of a plan, with what its design releases."""
    made = ad.plan(ad.load(name, [*changes, f"learning.rounds={num_rounds}"]), "ota_fd")
    source = channel_source(made.scenario)
    channels = [source.round_channel(t) for t in range(1, num_rounds + 1)]
    designs = [made.design(channel, t) for t, channel in enumerate(channels, start=1)]

    def release(t: int) -> Release:
        return made.uplink.release(designs[t - 1], channels[t - 1], t)

    return measure(ledger_header(made, "ota_fd", "private"), release, num_rounds)


def measure_large(num_devices: int, num_kinds: int, num_rounds: int) -> dict[str, float]:
    """Class means of ten classes: weights and sensitivities of a kind stay, and its own noise changes every round."""
    rng, shape = np.random.default_rng(0), (num_kinds, NUM_ROWS)
    kind = np.arange(num_devices) % num_kinds
    weights = (rng.uniform(0.5, 2, shape) / num_devices)[kind]
    sensitivity = {model: rng.uniform(0.1, 1, shape)[kind] for model in SENSITIVITY_MODELS}

    def release(t: int) -> Release:
        fleet = np.broadcast_to(rng.uniform(0.5, 2, NUM_ROWS), (num_devices, NUM_ROWS))
        own = (rng.uniform(0.5, 2, shape) / num_devices)[kind]
        noise = {"receiver_noise": 2 * fleet, "fleet_noise": fleet, "own_noise": own}
        return Release(t, weights.copy(), {model: each.copy() for model, each in sensitivity.items()}, noise)

    header = LedgerHeader(
        name=f"{num_devices}", scheme="ota_fd", payload="knowledge", num_rows=NUM_ROWS,
        epsilon=rng.uniform(4, 8, num_kinds)[kind], delta=np.full(num_devices, 1e-5), mu=np.full(num_devices, np.inf),
        sensitivity="device", trust="fleet_noise", accountant="exact", relabel=False, noise="seeded",
        terms={
            "uplink": "knowledge", "releases": "private", "planned_rounds": num_rounds, "sampling": "none",
            "transceiver": "optimal", "device_data": "the same", "noise_key": "benchmark",
        },
        format=format_for(num_devices),
    )  # fmt: skip
    return measure(header, release, num_rounds)


def measure(header: LedgerHeader, release, num_rounds: int) -> dict[str, float]:
    """Seconds of a charge, bytes of a round, and seconds to certify from the disk and to write the certificate."""
    seconds, cpu = [], []
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "ledger.jsonl"
        ledger = Ledger.begin(header, path)
        for t in range(1, num_rounds + 1):
            made = release(t)
            started, busy = time.perf_counter(), time.process_time()
            ledger.charge(made)
            seconds.append(time.perf_counter() - started)
            cpu.append(time.process_time() - busy)
        size, memory = path.stat().st_size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started, busy = time.perf_counter(), time.process_time()
        write_certificate(certificate_of(Ledger.read(path)), Path(name))
        certify, certify_cpu = time.perf_counter() - started, time.process_time() - busy
    charge = {"charge": statistics.median(seconds[1:]), "charge_cpu": statistics.median(cpu[1:])}
    rest = {"certify": certify, "certify_cpu": certify_cpu, "memory": memory * 1024 / 1e9}
    return charge | rest | {"bytes": size / num_rounds}


def measure_plan(num_devices: int) -> str:
    """A plan of `small-data` for devices with 60 samples each, six of each class give or take."""
    counts = np.random.default_rng(0).multinomial(60, [0.1] * 10, size=num_devices)
    scenario = ad.load("small-data", [f"fleet.devices={num_devices}", f"data.class_counts={counts.tolist()}"])
    ad.plan(ad.load("quick"), "ota_fd")  # what is imported does not count
    started, busy = time.perf_counter(), time.process_time()
    made = ad.plan(scenario, "ota_fd")
    took = f"{time.perf_counter() - started:.2f} s, {time.process_time() - busy:.2f} s of CPU"
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return f"{took}, {memory:.2f} GB, {made.num_rounds} rounds, {made.forecast.num_draws} draws"


if __name__ == "__main__":
    main()
