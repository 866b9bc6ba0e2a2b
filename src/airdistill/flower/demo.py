"""A whole federation on this machine: folders for a server and its devices, Flower's processes, one run, the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airdistill.data.public import load_data
from airdistill.flower.cluster import Cluster
from airdistill.flower.control import Setting
from airdistill.flower.processes import ClusterError
from airdistill.flower.station import check_playable
from airdistill.learning.models import count_parameters
from airdistill.learning.samples import input_shape
from airdistill.runs.folder import ROUNDS, SCENARIO
from airdistill.scenario.loading import as_toml, load
from airdistill.scenario.model import Scenario
from airdistill.schemes.planning import as_run_by
from airdistill.schemes.registry import load_scheme

APP = Path(__file__).parent / "app"
WARM = ("airdistill.flower.client_app", "airdistill.flower.server_app")
_BYTES_OF_WEIGHT = 4
_BYTES_OF_SYMBOL = 16  # a complex number of two doubles
_LOOK_S = 0.2

OnRound = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Traffic:
    """Bytes a round and device as the SuperLink counts them, with all that Flower puts around the numbers; beside
    them what the numbers alone take, and what a model would."""

    from_device: float
    to_device: float
    num_symbols: int
    model_bytes: int

    @property
    def payload_bytes(self) -> int:
        return self.num_symbols * _BYTES_OF_SYMBOL


@dataclass(frozen=True)
class Demonstration:
    """How it went: the server's records, the traffic, and the seconds that start and rounds took."""

    records: tuple[dict[str, Any], ...]
    traffic: Traffic
    start_s: float
    run_s: float


def demo_scenario(num_devices: int, num_rounds: int) -> Scenario:
    """The preset `quick` with a smaller fleet."""
    return load("quick", [f"fleet.devices={num_devices}", f"learning.rounds={num_rounds}"])


def demonstrate(
    scenario: Scenario, scheme: str, folder: Path, on_round: OnRound, *, timeout_s: float = 3600.0
) -> Demonstration:
    """Runs a scenario in a federation under `folder`; every process has ended when this returns or raises."""
    chosen = load_scheme(scheme)
    adapted = as_run_by(chosen, scenario)
    check_playable(chosen, adapted)
    server, devices = _prepared(folder, adapted)
    settings: list[dict[str, Setting]] = [
        {"folder": str(own.resolve()), "device": number, "scheme": scheme} for number, own in enumerate(devices)
    ]
    began = time.monotonic()
    with Cluster(folder / "cluster", settings, preload=WARM) as cluster:
        started = time.monotonic()
        run_id = cluster.submit(APP, {"folder": str(server.resolve()), "scheme": scheme})
        records = []
        for record in _followed(cluster, run_id, server / ROUNDS, timeout_s):
            records.append(record)
            on_round(record)
        state = cluster.state_of(run_id)
        ended = time.monotonic()
    shares = len(devices) * max(len(records), 1)
    traffic = _traffic(adapted, state.bytes_from_devices / shares, state.bytes_to_devices / shares)
    return Demonstration(tuple(records), traffic, started - began, ended - started)


def _prepared(folder: Path, scenario: Scenario) -> tuple[Path, list[Path]]:
    """The server's folder and the devices', each with the scenario: none of them has it from another."""
    text = as_toml(scenario)
    server, *devices = [folder / "server", *(folder / f"device-{number}" for number in range(scenario.num_devices))]
    for own in (server, *devices):
        own.mkdir(mode=0o700, parents=True)
        (own / SCENARIO).write_text(text, encoding="utf-8")
    return server, devices


def _followed(cluster: Cluster, run_id: int, rounds: Path, timeout_s: float) -> Iterator[dict[str, Any]]:
    """The server's records as they come; a run that does not end well is an error."""
    deadline, seen = time.monotonic() + timeout_s, 0
    while True:
        state = cluster.state_of(run_id)  # before the file: what the run wrote is then all there
        lines = rounds.read_text(encoding="utf-8").split("\n")[:-1] if rounds.exists() else []
        for line in lines[seen:]:
            yield json.loads(line)
        seen = len(lines)
        if state.status == "completed":
            return
        if state.ended:
            raise ClusterError(f"the run {state.status}: {state.details or cluster.wait(run_id, timeout_s=5).log}")
        if time.monotonic() > deadline:
            raise ClusterError(f"the run has not ended after {timeout_s:g} s")
        time.sleep(_LOOK_S)


def _traffic(scenario: Scenario, from_device: float, to_device: float) -> Traffic:
    dataset, _ = load_data(scenario)
    parameters = count_parameters(scenario.model_names[0], input_shape(dataset.x_train), dataset.num_classes)
    return Traffic(from_device, to_device, dataset.num_classes**2, parameters * _BYTES_OF_WEIGHT)
