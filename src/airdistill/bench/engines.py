"""Seconds and memory of one full-batch round of a fleet, each engine in a process of its own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from airdistill.bench.naive import NaiveDevice, naive_round
from airdistill.channel.sources import channel_source
from airdistill.codesign.plan import plan
from airdistill.data.assignment import assign_samples
from airdistill.data.public import load_data
from airdistill.errors import AirDistillError, InputError
from airdistill.learning.fleet import Engine, LearningFleet
from airdistill.privacy.sensitivity import aggregation_weights
from airdistill.runs.options import RunOptions
from airdistill.runs.simulation import Simulation
from airdistill.scenario.loading import changed, load
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Round
from airdistill.schemes.registry import load_scheme

ENGINES = ("naive", "torch")
# Dense operations of the paper's network: forward, and twice that backward, less the first layer's input gradient.
_CONV_FLOPS = 2 * (26 * 26 * 10 * 9 + 9 * 9 * 20 * 250)
_DENSE_FLOPS = 2 * (320 * 50 + 50 * 10)
_FIRST_LAYER_INPUT_FLOPS = 2 * 26 * 26 * 10 * 9
FLOPS_A_SAMPLE = 3 * (_CONV_FLOPS + _DENSE_FLOPS) - _FIRST_LAYER_INPUT_FLOPS


def measure_engines(scenario_name: str, repeats: int) -> dict[str, Any]:
    """Every engine on one scenario's fleet, and the floor that the machine's matrix product sets."""
    scenario = load(scenario_name)
    if set(scenario.model_names) != {"paper_cnn"}:
        raise InputError("learning.model", scenario.learning.model, "the bench knows the operations of paper_cnn alone")
    fleet = plan(scenario).fleet
    results = {engine: _in_own_process(scenario_name, engine, repeats) for engine in ENGINES}
    num_samples = int(fleet.class_counts.sum())
    rate = sgemm_flops_a_second()
    return {
        "scenario": scenario_name,
        "devices": fleet.num_devices,
        "samples": num_samples,
        "engines": results,
        "speedup": results["naive"]["seconds_per_round"] / results["torch"]["seconds_per_round"],
        "flops_per_round": num_samples * FLOPS_A_SAMPLE,
        "sgemm_flops_per_second": rate,
        "sgemm_floor_seconds": num_samples * FLOPS_A_SAMPLE / rate,
        "threads": torch.get_num_threads(),
    }


def _in_own_process(scenario_name: str, engine: str, repeats: int) -> dict[str, float]:
    """Its peak memory is then its own."""
    call = f"from airdistill.bench.engines import report; report({scenario_name!r}, {engine!r}, {repeats})"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise AirDistillError(f"bench {engine}: {said[-1] if said else f'ended with code {done.returncode}'}")
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def report(scenario_name: str, engine: str, repeats: int) -> None:
    """Prints one engine's numbers; called in a process of its own."""
    play = _naive(scenario_name) if engine == "naive" else _torch(scenario_name)
    play(0)
    seconds = []
    for repeat in range(1, repeats + 1):
        started = time.perf_counter()
        play(repeat)
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stdout.write(json.dumps({"seconds_per_round": min(seconds), "peak_rss_bytes": peak}))


def _full_batch(scenario_name: str) -> Scenario:
    return changed(load(scenario_name), {"learning": {"local_epochs": 0, "rounds": 400}})


def _torch(scenario_name: str) -> Callable[[int], None]:
    planned = plan(_full_batch(scenario_name))
    simulation = Simulation(planned, load_scheme("fd_error_free"), RunOptions())
    source = channel_source(planned.scenario)

    def play(repeat: int) -> None:
        this = Round(repeat + 1, planned.scenario, planned, source, simulation.fleet, simulation.ledger)
        simulation.scheme.play(this)

    return play


def _naive(scenario_name: str) -> Callable[[int], None]:
    """With PyTorch as it comes: a thread for each core, the ordinary layout, memory as the system hands it out."""
    scenario = _full_batch(scenario_name)
    dataset, _ = load_data(scenario)
    shares = assign_samples(scenario, dataset.y_train)
    fleet = LearningFleet.of(dataset, shares.indices, scenario.model_names, scenario.seed, Engine())
    devices = [NaiveDevice(learner.model, *learner.samples_and_labels()) for learner in fleet.learners]
    weights = aggregation_weights(shares.class_counts)
    lr, distill_weight = scenario.learning.initial_lr, scenario.learning.distill_weight
    return lambda repeat: naive_round(devices, weights, lr / (repeat + 1) ** 0.5, distill_weight)


def sgemm_flops_a_second(size: int = 2048, repeats: int = 5) -> float:
    """The rate of float32 matrix products on all cores, the best of several."""
    first, second = torch.rand(size, size), torch.rand(size, size)
    seconds = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        torch.mm(first, second)
        seconds.append(time.perf_counter() - started)
    return 2 * size**3 / min(seconds[1:])
