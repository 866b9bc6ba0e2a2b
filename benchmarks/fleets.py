"""Large fleets on one machine: seconds and memory of a round by devices and samples.

    python benchmarks/fleets.py

Each size is measured in its own process. If a fleet holds more than the 60,000 training images of MNIST, devices share
images.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np
import torch

from airdistill.data.datasets import load_dataset
from airdistill.learning.evaluation import TestSet
from airdistill.learning.fleet import LearningFleet
from airdistill.learning.gradients import Target
from airdistill.learning.samples import to_tensor
from airdistill.runs.options import RunOptions

SIZES = [(50, 1200), (100, 1200), (250, 1200), (500, 1200), (500, 60), (1000, 60), (2500, 60), (5000, 60)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", type=int, nargs=2, metavar=("DEVICES", "SAMPLES"))
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(measure(*given.one)))
        return
    print("| devices | samples each | full batch, s | µs per sample | minibatches, s | µs per sample | peak memory |")
    print("|---|---|---|---|---|---|---|")
    for devices, samples in SIZES:
        call = [sys.executable, __file__, "--one", str(devices), str(samples)]
        found = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
        each = [f"{found[kind]:.2f} | {1e6 * found[kind] / (devices * samples):.1f}" for kind in ("full", "minibatch")]
        print(f"| {devices} | {samples} | {each[0]} | {each[1]} | {found['bytes'] / 1e9:.2f} GB |", flush=True)


def measure(devices: int, samples: int) -> dict[str, float]:
    engine = RunOptions().learning_engine()
    dataset, rng = load_dataset("mnist"), np.random.default_rng(0)
    held = [rng.integers(0, len(dataset.y_train), samples) for _ in range(devices)]
    fleet = LearningFleet.of(dataset, held, ["paper_cnn"] * devices, 0, engine)
    orders = [[rng.permutation(samples)] for _ in range(devices)]

    def full_batch() -> None:
        knowledge = np.nanmean(fleet.knowledge(for_full_batch=True), axis=0)
        fleet.full_batch_step(Target.of(knowledge, engine.dtype, engine.device), 0.01, 1.0)

    def minibatch() -> None:
        knowledge = np.nanmean(fleet.knowledge(for_full_batch=False), axis=0)
        fleet.local_epochs(Target.of(knowledge, engine.dtype, engine.device), 0.01, 1.0, orders, 60)

    found = {"full": fastest(full_batch), "minibatch": fastest(minibatch)}
    few = to_tensor(dataset.x_test[:100], engine.dtype, engine.device)
    TestSet.of(few, dataset.y_test[:100], 10, 300).evaluate(fleet, np.ones((devices, 10), dtype=np.int64))
    return {**found, "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def fastest(work) -> float:
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
