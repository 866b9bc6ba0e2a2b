"""Seconds and memory per round of each engine, against a naive implementation and the machine's matrix-product rate.

Each engine is measured in its own process. The naive implementation is what a typical repository does: a Python loop
over models with DataLoader batches, one pass for the class means and one for the gradient or the minibatch steps.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from airdistill.arrays import FloatArray
from airdistill.channel.sources import channel_source
from airdistill.data.partition import assign_samples
from airdistill.data.public import load_data
from airdistill.errors import AirDistillError, InputError
from airdistill.learning.fleet import Engine, LearningFleet
from airdistill.planning.plan import Plan, plan
from airdistill.privacy.sensitivity import aggregation_weights
from airdistill.runs.options import RunOptions
from airdistill.runs.simulation import Simulation
from airdistill.scenario.loading import changed, load
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Round
from airdistill.schemes.registry import load_scheme

ENGINES = ("naive", "torch", "fused")
_NAIVE_BATCH = 64
# Floating-point operations of the paper's network per sample: forward, and twice that backward, without the gradient of
# the first layer's input.
_CONV_FLOPS = 2 * (26 * 26 * 10 * 9 + 9 * 9 * 20 * 250)
_DENSE_FLOPS = 2 * (320 * 50 + 50 * 10)
_FIRST_LAYER_INPUT_FLOPS = 2 * 26 * 26 * 10 * 9
FLOPS_PER_SAMPLE = 3 * (_CONV_FLOPS + _DENSE_FLOPS) - _FIRST_LAYER_INPUT_FLOPS


def measure_engines(scenario_name: str, repeats: int) -> dict[str, Any]:
    """Measure every engine on a scenario's fleet, and the lower bound by the machine's matrix-product rate."""
    scenario = load(scenario_name)
    if set(scenario.model_names) != {"paper_cnn"}:
        raise InputError(
            "learning.model",
            scenario.learning.model,
            "the benchmark counts the operations of paper_cnn only; use a scenario with this model",
        )
    fleet = plan(scenario).fleet
    results = {engine: _in_own_process(scenario_name, engine, repeats) for engine in ENGINES}
    num_samples = int(fleet.class_counts.sum())
    rate = sgemm_flops_per_second()
    return {
        "scenario": scenario_name,
        "devices": fleet.num_devices,
        "samples": num_samples,
        "engines": results,
        "speedup": {
            kind: results["naive"][kind] / results["fused"][kind]
            for kind in ("seconds_per_round", "seconds_per_minibatch_round")
        },
        "flops_per_round": num_samples * FLOPS_PER_SAMPLE,
        "sgemm_flops_per_second": rate,
        "sgemm_floor_seconds": num_samples * FLOPS_PER_SAMPLE / rate,
        "threads": torch.get_num_threads(),
    }


def _in_own_process(scenario_name: str, engine: str, repeats: int) -> dict[str, float]:
    """Measure one engine in its own process, because peak memory is measured per process."""
    call = f"from airdistill.bench.engines import report; report({scenario_name!r}, {engine!r}, {repeats})"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True)
    if done.returncode != 0:
        messages = done.stderr.strip().splitlines()
        raise AirDistillError(f"bench {engine}: {messages[-1] if messages else f'ended with code {done.returncode}'}")
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def report(scenario_name: str, engine: str, repeats: int) -> None:
    """Print the measurements of one engine; called in its own process."""
    full_batch, minibatch, evaluate = (_naive_rounds if engine == "naive" else rounds_of)(scenario_name, engine)
    first, seconds = timed(full_batch, repeats)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    first_minibatch, minibatch_seconds = timed(minibatch, repeats)
    measured = {
        "seconds_per_round": seconds,
        "peak_rss_bytes": peak,
        "seconds_per_minibatch_round": minibatch_seconds,
        "first_rounds_extra_seconds": first - seconds + first_minibatch - minibatch_seconds,
    }
    if evaluate is not None:
        measured["seconds_per_evaluation"] = timed(evaluate, repeats)[1]
    sys.stdout.write(json.dumps(measured))


def timed(run: Callable[[int], object], repeats: int) -> tuple[float, float]:
    """Seconds of the first call, which compiles or loads kernels, and of the fastest later call."""
    seconds = []
    for repeat in range(repeats + 1):
        started = time.perf_counter()
        run(repeat)
        seconds.append(time.perf_counter() - started)
    return seconds[0], min(seconds[1:])


def _scenario(scenario_name: str, local_epochs: int) -> Scenario:
    return changed(load(scenario_name), {"learning": {"local_epochs": local_epochs, "rounds": 400}})


_Rounds = tuple[Callable[[int], object], Callable[[int], object], Callable[[int], object] | None]


def rounds_of(scenario_name: str, engine: str) -> _Rounds:
    """A full-batch round, a minibatch round and an evaluation of the same simulation."""
    full_batch, minibatch = (plan(_scenario(scenario_name, epochs)) for epochs in (0, 1))
    simulation = Simulation(full_batch, load_scheme("fd_error_free"), RunOptions(engine=engine))
    source = channel_source(full_batch.scenario)

    def run(planned: Plan, repeat: int) -> None:
        this = Round(repeat + 1, planned.scenario, planned, source, simulation.fleet, simulation.ledger)
        simulation.scheme.play(this)

    return partial(run, full_batch), partial(run, minibatch), lambda _: simulation.accuracy()


def _naive_rounds(scenario_name: str, _engine: str) -> _Rounds:
    """The rounds of `naive_round` with PyTorch's defaults: one thread per core, default layout and memory allocator."""
    scenario = _scenario(scenario_name, 0)
    dataset, _ = load_data(scenario)
    shares, learning = assign_samples(scenario, dataset.y_train), scenario.learning
    fleet = LearningFleet.of(dataset, shares.indices, scenario.model_names, scenario.seed, Engine(kernels="torch"))
    devices = [
        NaiveDevice(learner.model, *learner.samples_and_labels(), learning.batch_size) for learner in fleet.learners
    ]
    weights = aggregation_weights(shares.class_counts)

    def run(minibatches: bool, repeat: int) -> None:
        lr = learning.initial_lr / (repeat + 1) ** 0.5
        naive_round(devices, weights, lr, learning.distill_weight, minibatches)

    return partial(run, False), partial(run, True), None


def sgemm_flops_per_second(size: int = 2048, repeats: int = 5) -> float:
    """The rate of float32 matrix products on all cores, the best of several measurements."""
    first, second = torch.rand(size, size), torch.rand(size, size)
    seconds = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        torch.mm(first, second)
        seconds.append(time.perf_counter() - started)
    return 2 * size**3 / min(seconds[1:])


class NaiveDevice:
    """A model and its DataLoaders: sequential for full batches, shuffled for minibatches of `batch_size`."""

    def __init__(self, model: nn.Module, samples: Tensor, labels: Tensor, batch_size: int) -> None:
        self.model = model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.num_samples = len(labels)
        dataset = TensorDataset(samples.contiguous(), labels)
        self.loader = DataLoader(dataset, batch_size=_NAIVE_BATCH)
        self.shuffled = DataLoader(dataset, batch_size=batch_size, shuffle=True)

    @torch.no_grad()
    def knowledge(self, num_classes: int) -> Tensor:
        """The mean prediction of every class, `[class, class]`."""
        sums, counts = torch.zeros(num_classes, num_classes), torch.zeros(num_classes)
        for samples, labels in self.loader:
            predictions = torch.softmax(self.model(samples), dim=1)
            for klass in range(num_classes):
                sums[klass] += predictions[labels == klass].sum(dim=0)
                counts[klass] += (labels == klass).sum()
        return sums / counts[:, None]

    def step(self, target: Tensor, lr: float, distill_weight: float) -> None:
        """One full-batch step of eq. (4), with the gradient accumulated over batches."""
        optimiser = torch.optim.SGD(self.model.parameters(), lr=lr)
        optimiser.zero_grad()
        for samples, labels in self.loader:
            loss = self._loss(samples, labels, target, distill_weight)
            torch.autograd.backward(loss * len(labels) / self.num_samples)
        optimiser.step()

    def epoch(self, target: Tensor, lr: float, distill_weight: float) -> None:
        """One epoch of minibatch steps."""
        optimiser = torch.optim.SGD(self.model.parameters(), lr=lr)
        for samples, labels in self.shuffled:
            optimiser.zero_grad()
            torch.autograd.backward(self._loss(samples, labels, target, distill_weight))
            optimiser.step()

    def _loss(self, samples: Tensor, labels: Tensor, target: Tensor, distill_weight: float) -> Tensor:
        logits = self.model(samples)
        distance = ((torch.softmax(logits, dim=1) - target[labels]) ** 2).sum(dim=1).mean()
        return nn.functional.cross_entropy(logits, labels) + distill_weight * distance


def naive_round(
    devices: list[NaiveDevice], weights: FloatArray, lr: float, distill_weight: float, minibatches: bool
) -> None:
    """One round: class means, their weighted mean, and the update of all devices."""
    num_classes = weights.shape[1]
    knowledge = np.stack([device.knowledge(num_classes).numpy() for device in devices])
    target = torch.from_numpy(np.einsum("ik,ikd->kd", weights, knowledge)).to(torch.float32)
    for device in devices:
        learn = device.epoch if minibatches else device.step
        learn(target, lr, distill_weight)
