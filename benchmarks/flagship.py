"""Seconds of the flagship: a round of votes, a round of feature means, and a fleet of small ResNets.

    python benchmarks/flagship.py --tree /path/to/an/older/tree
    python benchmarks/flagship.py --device cuda --tree /path/to/an/older/tree

Every number is measured in a process of its own, of this tree and of the older one in turn, after a small run that
compiles kernels. Embeddings are fitted anew. A tree without a scheme or a model is reported as such.
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

HERE = Path(__file__).resolve().parents[1]
_SMALL = ["fleet.devices=3", "data.samples_per_device=40", "public.samples=80", "learning.local_epochs=1"]
_RESNET_ROUNDS = 3
_RESULT = "result: "


def main() -> None:
    options = _arguments()
    if options.part:
        print(_RESULT + json.dumps(_PARTS[options.part](options)), flush=True)
        return
    lines = []
    with tempfile.TemporaryDirectory() as caches:
        for part in options.parts or _parts_of(options.device):
            results = {}
            for place, tree in enumerate([HERE, *([options.tree] if options.tree else [])]):
                results["now" if tree == HERE else "before"] = _measured(part, tree, Path(caches) / str(place), options)
            lines.append(_line(part, results))
            print(lines[-1], flush=True)
    print("\n" + "\n".join([f"{'':26} seconds now, before (ratio)", *lines]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tree", type=Path, help="an older tree of the project, timed too")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    parser.add_argument("--threads", type=int, default=0, help="devices trained in parallel; 0: one per core")
    parser.add_argument("--parts", nargs="*", choices=sorted(_PARTS), help="only these")
    parser.add_argument("--part", choices=sorted(_PARTS), help=argparse.SUPPRESS)
    return parser.parse_args()


def _parts_of(device: str) -> list[str]:
    scenario = "votes-skewed-50" if device == "cpu" else "votes-skewed"
    return [scenario, "features-model", "features-predictions", "resnets"]


def _measured(part: str, tree: Path, cache: Path, options: argparse.Namespace) -> dict[str, object]:
    """What a process of this tree measures, or its error."""
    cache.mkdir(parents=True, exist_ok=True)
    for fitted in cache.glob("embedding-*"):
        fitted.unlink()
    paths = [str(tree.resolve() / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    paths = [str(Path(path).resolve()) for path in paths if path]
    command = [sys.executable, __file__, "--part", part, "--device", options.device, "--threads", str(options.threads)]
    done = subprocess.run(
        command + ["--quick"] * options.quick,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "AIRDISTILL_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith(_RESULT)]
    if not found:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    result: dict[str, object] = json.loads(found[-1].removeprefix(_RESULT))
    return result


def _line(part: str, results: dict[str, dict[str, object]]) -> str:
    texts = []
    for result in results.values():
        others = ", ".join(f"{name} {value:.3g}" for name, value in result.items() if isinstance(value, float))
        texts.append(str(result.get("error", others)))
    ratio = ""
    if all("seconds" in result for result in results.values()) and len(results) > 1:
        ratio = f"   {float(str(results['before']['seconds'])) / float(str(results['now']['seconds'])):.2f} times"
    return f"{part:26} " + " | ".join(texts) + ratio


def _round(scenario: str, scheme: str, options: argparse.Namespace, changes: list[str]) -> dict[str, float]:
    """Seconds of a first round with its evaluation, the processor's seconds, and the mean accuracy."""
    changes = changes + _SMALL * options.quick
    _play(scenario, scheme, options, changes + _SMALL)
    start, used = time.perf_counter(), time.process_time()
    simulation = _simulation(scenario, scheme, options, changes)
    prepared = time.perf_counter()
    accuracy = simulation.advance()["accuracy"]["mean"]
    end = time.perf_counter()
    cpu = time.process_time() - used
    return {"seconds": end - prepared, "with preparation": end - start, "CPU": cpu, "accuracy": 100 * accuracy}


def _play(scenario: str, scheme: str, options: argparse.Namespace, changes: list[str]) -> None:
    _simulation(scenario, scheme, options, changes).advance()


def _simulation(scenario: str, scheme: str, options: argparse.Namespace, changes: list[str]):  # type: ignore[no-untyped-def]
    from airdistill.runs.options import RunOptions, plan
    from airdistill.runs.simulation import Simulation
    from airdistill.scenario.loading import load
    from airdistill.schemes.registry import load_scheme

    planned = plan(load(scenario, [*changes, "learning.rounds=1"]), scheme)
    return Simulation(planned, load_scheme(scheme), RunOptions(device=options.device, threads=options.threads))


def _resnets(options: argparse.Namespace) -> dict[str, float]:
    """Seconds of an epoch of a fleet of small ResNets, stacked and one after another, and their distances."""
    import numpy as np
    import torch

    from airdistill.data.datasets import load_dataset

    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    fleet_size = 200 if options.device == "cuda" else 20
    devices, samples, batch = (3, 8, 4) if options.quick else (fleet_size, 60, 20)
    dataset, rng = load_dataset("mnist"), np.random.default_rng(0)
    indices = [rng.permutation(len(dataset.y_train))[:samples] for _ in range(devices)]
    orders = [[[rng.permutation(samples)] for _ in range(devices)] for _ in range(_RESNET_ROUNDS)]
    (stacked, *now), (single, *then) = (
        _trained_fleet(dataset, indices, orders, batch, options.device, is_stacked) for is_stacked in (True, False)
    )
    weights, losses = (float(np.abs(np.subtract(one, other)).max()) for one, other in zip(now, then, strict=True))
    times = {"seconds": stacked, "one after another": single, "times": single / stacked}
    return {**times, "weights differ": weights, "losses differ": losses}


def _trained_fleet(dataset, indices, orders, batch, device, is_stacked):  # type: ignore[no-untyped-def]
    """Seconds of the last epoch (the first captures graphs), the weights after it, and its losses."""
    import torch

    from airdistill.learning.fleet import Engine, LearningFleet

    engine = Engine(torch.device(device), stacked=is_stacked, kernels="torch")
    fleet = LearningFleet.of(dataset, indices, ["resnet8"] * len(indices), 0, engine)
    if is_stacked and fleet.stacked is None:
        raise SystemExit("the fleet cannot be stacked")
    for order in orders:
        start = time.perf_counter()
        losses = [loss.training for loss in fleet.local_epochs(None, 0.02, 0.0, order, batch)]
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    return seconds, fleet.parameters(), losses


_PARTS = {
    "votes-skewed-50": lambda options: _round("skewed-50", "airdistill_proxy", options, []),
    "votes-skewed": lambda options: _round("skewed", "airdistill_proxy", options, []),
    "features-model": lambda options: _round("skewed", "airdistill_features", options, ["public.broadcast=model"]),
    "features-predictions": lambda options: _round("skewed", "airdistill_features", options, []),
    "resnets": _resnets,
}

if __name__ == "__main__":
    main()
