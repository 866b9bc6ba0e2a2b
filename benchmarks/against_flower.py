"""The same rounds in Flower's simulation, with handwritten clients, and in AirDistill.

    pip install 'flwr[simulation]==1.41.0' 'ray==2.55.1'
    python benchmarks/against_flower.py [--rounds N]

50 devices × 1200 MNIST samples, the paper's network, error-free distillation: every device trains towards the last
target and sends its new class means; the server averages them. A device's weights stay in its Flower context. Both
sides train with full batches and with one epoch of batches of 60. PyTorch has one thread in each of Flower's two
workers.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

DEVICES, SAMPLES, CLASSES, BATCH, LR = 50, 1200, 10, 60, 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("FRAMEWORK", "BATCHES"))
    given = parser.parse_args()
    if given.one is not None:
        framework, batches = given.one
        print(
            json.dumps((in_flower if framework == "flower" else in_airdistill)(given.rounds, batches == "minibatches"))
        )
        return
    print("| | full batch, s per round | minibatches, s per round | peak memory |")
    print("|---|---|---|---|")
    for framework in ("flower", "airdistill"):
        call = [sys.executable, __file__, "--rounds", str(given.rounds), "--one", framework]
        results = []
        for batches in ("full", "minibatches"):
            done = subprocess.run(
                [*call, batches], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            results.append(json.loads(done.stdout.splitlines()[-1]))
        memory = max(each["bytes"] for each in results) / 1e9
        print(
            f"| {framework} | {results[0]['seconds']:.2f} | {results[1]['seconds']:.2f} | {memory:.2f} GB |", flush=True
        )


def in_airdistill(rounds: int, minibatches: bool) -> dict[str, float]:
    from airdistill.bench.engines import rounds_of, timed

    full_batch, minibatch, _ = rounds_of("paper", "auto")
    _, seconds = timed(minibatch if minibatches else full_batch, rounds)
    return {"seconds": seconds, "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def in_flower(rounds: int, minibatches: bool) -> dict[str, float]:
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_DISABLE_DOCKER_CPU_WARNING": "1"}
    from flwr.simulation import run_simulation

    measured: dict[str, float] = {}
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server_app(rounds, measured), client_app(minibatches), DEVICES, backend_config=resources)
    return measured


def client_app(minibatches: bool) -> Any:
    """A device as a user of Flower would write it: weights in its context, data cached in the worker."""
    import torch
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from torch import nn

    from airdistill.learning.models import PaperCnn

    client, loaders = ClientApp(), {}

    @client.train()
    def learn(message: Message, context: Context) -> Message:
        device = int(context.node_config["partition-id"])
        if device not in loaders:
            loaders[device] = samples_of(device, minibatches)
        model, loader = PaperCnn((1, 28, 28), CLASSES), loaders[device]
        if "model" in context.state:
            model.load_state_dict(context.state["model"].to_torch_state_dict())
        target = message.content["target"].to_torch_state_dict()["target"]
        optimiser = torch.optim.SGD(model.parameters(), lr=LR)
        for images, labels in loader:
            optimiser.zero_grad()
            logits = model(images)
            distance = ((logits.softmax(dim=1) - target[labels]) ** 2).sum(dim=1).mean()
            (nn.functional.cross_entropy(logits, labels) + distance).backward()
            optimiser.step()
        sums, counts = torch.zeros(CLASSES, CLASSES), torch.zeros(CLASSES)
        with torch.no_grad():
            for images, labels in loader:
                sums.index_add_(0, labels, model(images).softmax(dim=1))
                counts += torch.bincount(labels, minlength=CLASSES)
        context.state["model"] = ArrayRecord(model.state_dict())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        payload = {"knowledge": ArrayRecord({"knowledge": sums / counts[:, None]})}
        metrics = {"about": MetricRecord({"bytes": peak, "process": os.getpid()})}
        return Message(RecordDict({**payload, **metrics}), reply_to=message)

    return client


def samples_of(device: int, minibatches: bool) -> Any:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from airdistill.data.datasets import load_dataset

    torch.set_num_threads(1)
    dataset, held = load_dataset("mnist"), slice(device * SAMPLES, (device + 1) * SAMPLES)
    images = torch.tensor(dataset.x_train[held])[:, None].float().div(255).sub(0.1307).div(0.3081)
    labels = torch.tensor(dataset.y_train[held])
    return DataLoader(TensorDataset(images, labels), BATCH if minibatches else SAMPLES, shuffle=minibatches)


def server_app(rounds: int, measured: dict[str, float]) -> Any:
    """A server that averages the class means and writes the seconds per round and the memory to `measured`."""
    import torch
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.serverapp import Grid, ServerApp

    server = ServerApp()

    @server.main()
    def serve(grid: Grid, _context: Context) -> None:
        while len(list(grid.get_node_ids())) < DEVICES:
            time.sleep(0.1)
        target, seconds, workers = torch.full((CLASSES, CLASSES), 1 / CLASSES), [], {}
        for number in range(rounds + 1):  # in the first round the workers start and load their data
            started = time.perf_counter()
            content = {"target": ArrayRecord({"target": target}), "config": ConfigRecord({"round": number})}
            requests = [Message(RecordDict(content), node, "train") for node in grid.get_node_ids()]
            replies = [reply.content for reply in grid.send_and_receive(requests)]
            target = torch.stack([each["knowledge"].to_torch_state_dict()["knowledge"] for each in replies]).nanmean(0)
            seconds.append(time.perf_counter() - started)
            workers |= {int(each["about"]["process"]): float(each["about"]["bytes"]) for each in replies}
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        measured.update(seconds=float(np.min(seconds[1:])), bytes=own + sum(workers.values()))

    return server


if __name__ == "__main__":
    main()
