"""Two rounds of large fleets from the command line: processor time, memory and bytes by number of devices.

    python benchmarks/large_fleets.py --picture large-fleets.png
    python benchmarks/large_fleets.py --devices 5000 --whole         # and the accuracy of the whole fleet

Devices have 12 samples of MNIST and the paper's network; from 6,000 devices on they share samples (`data.resample`).
Processor seconds are user and system time of all threads: they depend little on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZES = (1000, 2000, 5000, 10_000, 20_000)
SAMPLES = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--whole", action="store_true", help="also measure the accuracy of all devices")
    parser.add_argument("--picture", type=Path, help="draw processor time and memory against devices")
    given = parser.parse_args()
    print("| devices | processor s | elapsed s | peak memory, GB | written, MB | accuracy, % |")
    print("|---|---|---|---|---|---|")
    rows = []
    for devices in given.devices:
        row = measured(devices, given.rounds, [])
        rows.append(row)
        print(row_of(devices, row), flush=True)
        if given.whole:
            print(row_of(devices, measured(devices, given.rounds, ["--eval-devices", str(devices)])), flush=True)
    if given.picture is not None:
        draw(given.devices, rows, given.picture)


def measured(devices: int, rounds: int, more: list[str]) -> dict[str, object]:
    """Run the command in a process of its own, and return what it used and left."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        fleet = [f"fleet.devices={devices}", f"data.samples_per_device={SAMPLES}"]
        if devices * SAMPLES > 60_000:
            fleet.append("data.resample=true")
        changes = [part for change in fleet for part in ("--set", change)]
        command = [sys.executable, "-m", "airdistill", "run", "small-data", *changes, "--rounds", str(rounds)]
        started = time.monotonic()
        process = subprocess.Popen([*command, "--json", "--out", str(folder), *more], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            sys.exit(f"{devices} devices: the run failed")
        return {
            "processor_s": used.ru_utime + used.ru_stime,
            "elapsed_s": time.monotonic() - started,
            "peak_gb": used.ru_maxrss * 1024 / 1e9,
            "written_mb": sum(path.stat().st_size for path in folder.iterdir()) / 1e6,
            "accuracy": json.loads((folder / "summary.json").read_text())["accuracy"],
        }


def row_of(devices: int, row: dict[str, object]) -> str:
    numbers = [f"{row[name]:.{digits}f}" for name, digits in (("processor_s", 0), ("elapsed_s", 0), ("peak_gb", 2))]
    half = row["accuracy"].get("sample", {}).get("half_width")
    accuracy = f"{100 * row['accuracy']['mean']:.2f}" + (f" ± {100 * half:.2f}" if half else "")
    return f"| {devices:,} | {' | '.join(numbers)} | {row['written_mb']:.0f} | {accuracy} |"


def draw(sizes: list[int], rows: list[dict[str, object]], path: Path) -> None:
    """Processor time and memory against devices."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, both = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    shown = [("processor_s", "processor time, s"), ("peak_gb", "peak memory, GB")]
    for axes, (name, label) in zip(both, shown, strict=True):
        values = [row[name] for row in rows]
        axes.plot(sizes, values, "o-", color="#1f6f78")
        axes.set(xlabel="devices", ylabel=label, xlim=(0, None), ylim=(0, None))
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
