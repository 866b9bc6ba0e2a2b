"""The folders from which a federation starts: one for the server and one for each device, to be carried to where they
belong. In each lies the scenario with its plan, whose last bits could be others on another machine, and for a secure
sum the roster; each device has its own signing key.

A whole federation on this machine: folders for a server and its devices, Flower's processes, one run, the end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airdistill.data.public import load_data
from airdistill.flower.device import LESSONS
from airdistill.flower.endpoint import check_playable
from airdistill.flower.machine.certificates import A_YEAR, Authority, as_ssh, make_node_key
from airdistill.flower.machine.cluster import Cluster
from airdistill.flower.machine.control import Setting, write_connection
from airdistill.flower.machine.processes import ClusterError
from airdistill.flower.sums.messages import Roster, write_identity
from airdistill.learning.models import count_parameters
from airdistill.learning.samples import input_shape
from airdistill.runs.folder import PLAN, ROUNDS, SCENARIO, write_json
from airdistill.scenario.loading import as_toml, load
from airdistill.scenario.model import Scenario
from airdistill.schemes.planning import as_run_by, plan_scheme
from airdistill.schemes.registry import load_scheme


@dataclass(frozen=True)
class Folders:
    """With the scenario as it lies in each of them."""

    scenario: Scenario
    server: Path
    devices: tuple[Path, ...]


def prepare(folder: Path, scenario: Scenario, scheme: str) -> Folders:
    """Under `folder`, which may hold other things. Raises before it writes anything if it could not be played."""
    chosen = load_scheme(scheme)
    adapted = as_run_by(chosen, scenario)
    check_playable(chosen, adapted)
    text, plan = as_toml(adapted), plan_scheme(chosen, adapted).to_dict()
    server, *devices = [folder / "server", *(folder / f"device-{number}" for number in range(adapted.num_devices))]
    for own in (server, *devices):
        own.mkdir(mode=0o700, parents=True)
        (own / SCENARIO).write_text(text, encoding="utf-8")
        write_json(own / PLAN, plan)
    if adapted.air.medium == "secure_sum":
        roster = Roster.of([write_identity(own) for own in devices])
        for own in (server, *devices):
            roster.write(own)
    return Folders(adapted, server, tuple(devices))


def prepare_keys(folders: Folders, host: str, port: int) -> None:
    """TLS for a server of that name or address, and a key by which the server knows each device's SuperNode.

    They hold for a year. The authority's own key is not kept: a device that comes later needs a new federation.
    """
    authority = Authority(folders.server, host, A_YEAR)
    authority.server("superlink")
    keys = folders.server / "node-keys"
    keys.mkdir(mode=0o700)
    for number, own in enumerate(folders.devices):
        (own / authority.certificate.name).write_bytes(authority.certificate.read_bytes())
        (keys / f"device-{number}.pub").write_bytes(as_ssh(make_node_key(own / "node.key")))
    write_connection(folders.server / "flwr", f"{host}:{port}", authority.certificate)


APP = Path(__file__).parent / "app"
WARM = ("airdistill.flower.client_app", "airdistill.flower.server_app")
_BYTES_OF_WEIGHT = 4
# A complex number of two doubles; a masked whole number; on a radio nothing goes over the wire.
_BYTES_OF_NUMBER = {"emulated": 16, "secure_sum": 8, "radio": 0}
_LOOK_S = 0.2

OnRound = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Traffic:
    """Bytes a round and device as the SuperLink counts them, with all that Flower puts around the numbers; beside
    them what the numbers alone take, and what a model would."""

    from_device: float
    to_device: float
    num_numbers: int
    payload_bytes: int
    model_bytes: int


@dataclass(frozen=True)
class Demonstration:
    """How it went: the server's records, the traffic, and the seconds that start and rounds took."""

    records: tuple[dict[str, Any], ...]
    traffic: Traffic
    start_s: float
    run_s: float


def demo_scenario(num_devices: int, num_rounds: int, medium: str) -> Scenario:
    """The preset `quick` with a smaller fleet, noise that protects, and room for one device to be lost."""
    changes = [f"fleet.devices={num_devices}", f"learning.rounds={num_rounds}", "privacy.noise=secure"]
    dropouts = 1 if medium == "secure_sum" and num_devices > 2 else 0
    return load("quick", [*changes, f"air.medium={medium}", f"fleet.expected_dropouts={dropouts}"])


def demonstrate(
    scenario: Scenario, scheme: str, folder: Path, on_round: OnRound, *, timeout_s: float = 3600.0
) -> Demonstration:
    """Runs a scenario in a federation under `folder`; every process has ended when this returns or raises."""
    folders = prepare(folder, scenario, scheme)
    began = time.monotonic()
    with Cluster(folder / "cluster", node_settings(folders, scheme), preload=WARM) as cluster:
        started = time.monotonic()
        run_id = cluster.submit(APP, {"folder": str(folders.server.resolve()), "scheme": scheme})
        records = []
        for record in followed(cluster, run_id, folders.server / ROUNDS, timeout_s):
            records.append(with_own_accuracy(record, folders.devices))
            on_round(records[-1])
        state = cluster.state_of(run_id)
        ended = time.monotonic()
    shares = len(folders.devices) * max(len(records), 1)
    traffic = _traffic(folders.scenario, state.bytes_from_devices / shares, state.bytes_to_devices / shares)
    return Demonstration(tuple(records), traffic, started - began, ended - started)


def node_settings(folders: Folders, scheme: str) -> list[dict[str, Setting]]:
    """What each device's SuperNode is started with."""
    return [
        {"folder": str(own.resolve()), "device": number, "scheme": scheme} for number, own in enumerate(folders.devices)
    ]


def with_own_accuracy(record: dict[str, Any], devices: Sequence[Path]) -> dict[str, Any]:
    """A server's record, and beside it what the devices have kept for themselves: here all folders are on one machine.

    A device that has not learned in the round is not in the mean.
    """
    lessons = [lesson for own in devices for lesson in _lines(own / LESSONS) if lesson["round"] == record["round"]]
    measured = [lesson["mean"] for lesson in lessons if "mean" in lesson]
    return {**record, "accuracy_in_folders": sum(measured) / len(measured) if measured else None}


def followed(cluster: Cluster, run_id: int, rounds: Path, timeout_s: float, seen: int = 0) -> Iterator[dict[str, Any]]:
    """The server's records as they come, after so many; a run that does not end well is an error."""
    deadline = time.monotonic() + timeout_s
    while True:
        state = cluster.state_of(run_id)  # before the file: what the run wrote is then all there
        for record in _lines(rounds)[seen:]:
            seen += 1
            yield record
        if state.status == "completed":
            return
        if state.ended:
            raise ClusterError(f"the run {state.status}: {state.details or cluster.wait(run_id, timeout_s=5).log}")
        if time.monotonic() > deadline:
            raise ClusterError(f"the run has not ended after {timeout_s:g} s")
        time.sleep(_LOOK_S)


def _lines(path: Path) -> list[dict[str, Any]]:
    """Of a file that may still be written: a line that has no end yet does not count."""
    whole = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in whole]


def _traffic(scenario: Scenario, from_device: float, to_device: float) -> Traffic:
    dataset, _ = load_data(scenario)
    parameters = count_parameters(scenario.model_names[0], input_shape(dataset.x_train), dataset.num_classes)
    num_numbers = dataset.num_classes**2
    payload_bytes = num_numbers * _BYTES_OF_NUMBER[scenario.air.medium]
    return Traffic(from_device, to_device, num_numbers, payload_bytes, parameters * _BYTES_OF_WEIGHT)
