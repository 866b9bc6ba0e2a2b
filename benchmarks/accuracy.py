"""Accuracy of schemes on a scenario over seeds: mean over the devices' own models on the whole test set.

    python benchmarks/accuracy.py paper --schemes fd_error_free,local_only --rounds 100 --seeds 3 [--device cuda]

Each run is a process of its own, so many at once as --jobs says. The table has mean and 95 % interval over seeds.
"""

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ONE_RUN = """
import sys
import airdistill as ad
from airdistill.runs.options import RunOptions

scenario, scheme, seed, rounds, device, eval_every, out, *changes = sys.argv[1:]
ad.run(
    ad.load(scenario, [f"seed={seed}", *changes]), scheme, int(rounds), out,
    RunOptions(device=device, eval_every=int(eval_every), checkpoint_every=10**6, threads=THREADS),
)
"""
# Student's t at 97.5 % for one to nine degrees of freedom.
STUDENT = [12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]


def start(arguments: argparse.Namespace, scheme: str, seed: int, out: Path) -> subprocess.Popen[bytes]:
    threads = 1 if arguments.jobs > 1 else 0
    return subprocess.Popen(
        [
            sys.executable, "-c", ONE_RUN.replace("THREADS", str(threads)), arguments.scenario, scheme, str(seed),
            str(arguments.rounds), arguments.device, str(arguments.eval_every), str(out), *arguments.set,
        ]
    )  # fmt: skip


def run_all(arguments: argparse.Namespace, folder: Path) -> dict[str, list[Path]]:
    waiting = [(scheme, seed) for seed in range(arguments.seeds) for scheme in arguments.schemes.split(",")]
    folders: dict[str, list[Path]] = {scheme: [] for scheme in arguments.schemes.split(",")}
    running: list[subprocess.Popen[bytes]] = []
    while waiting or running:
        running = [process for process in running if process.poll() is None]
        while waiting and len(running) < arguments.jobs:
            scheme, seed = waiting.pop(0)
            folders[scheme].append(folder / f"{scheme}-{seed}")
            running.append(start(arguments, scheme, seed, folders[scheme][-1]))
        time.sleep(0.2)
    return folders


def interval(values: list[float]) -> str:
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:7.2%}"
    half = STUDENT[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:7.2%} ± {half:.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario")
    parser.add_argument("--schemes", default="fd_error_free,local_only")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--eval-every", type=int, default=25)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    from airdistill.runs.record import RunRecord

    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for scheme, folders in run_all(arguments, Path(folder)).items():
            records = [RunRecord.read(run) for run in folders]
            for line in range(arguments.rounds):
                if all(len(record.rounds) > line and "accuracy" in record.rounds[line] for record in records):
                    accuracies = [record.rounds[line]["accuracy"] for record in records]
                    mean, worst = ([accuracy[key] for accuracy in accuracies] for key in ("mean", "worst"))
                    print(
                        f"{scheme:<16} round {line + 1:>4}  mean {interval(mean)}  worst {interval(worst)}", flush=True
                    )
    print(f"{time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()
