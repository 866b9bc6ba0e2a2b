"""Prepare the folders of a federation, and run a whole federation on this machine.

There is one folder for the server and one for each device, to be copied to their machines. Each contains the scenario
and its plan (a plan computed on another machine could differ in its last bits), a random id that no other federation
has, for a scheme on a public set the samples and the fitted embedding, and for a secure sum the roster. Each device
also has its own signing key.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airdistill.channel.sources import channel_source
from airdistill.data.public import load_data
from airdistill.flower.device import UPDATE_REPORTS
from airdistill.flower.endpoint import SESSION, check_playable, endpoint_engine
from airdistill.flower.machine.certificates import A_YEAR, Authority, as_ssh, make_node_key
from airdistill.flower.machine.cluster import Cluster
from airdistill.flower.machine.control import Setting, write_connection
from airdistill.flower.machine.processes import ClusterError
from airdistill.flower.public_set import SharedPublic, write_public
from airdistill.flower.sums.keys import Modulus
from airdistill.flower.sums.messages import Roster, write_identity
from airdistill.learning.models import count_parameters
from airdistill.learning.samples import input_shape
from airdistill.planning.feature_means import FeatureMeans
from airdistill.planning.plan import Plan
from airdistill.radio.sum_grid import SumGrid
from airdistill.runs.accounts import spent_by_earlier_runs
from airdistill.runs.folder import PLAN, ROUNDS, SCENARIO, write_json
from airdistill.scenario.loading import as_toml, load
from airdistill.scenario.model import Scenario
from airdistill.schemes.planning import as_run_by, plan_scheme
from airdistill.schemes.registry import load_scheme

APP = Path(__file__).parent / "app"
PRELOAD = ("airdistill.flower.client_app", "airdistill.flower.server_app")
_BYTES_PER_WEIGHT = 4
_BYTES_PER_SIGNAL = {"emulated": 16, "radio": 0}  # two doubles; with a radio the network carries no payload
_PUBLIC_SAMPLES, _ROUNDS, _TRANSMISSIONS = 400, 5, 1
_POLLING_INTERVAL_S = 0.2

OnRound = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Folders:
    """The folders of a federation, and the scenario that each of them contains."""

    scenario: Scenario
    server: Path
    devices: tuple[Path, ...]


def prepare(folder: Path, scenario: Scenario, scheme: str, ledger: Path | None = None) -> Folders:
    """Make the folders of a federation under `folder`, which may have other content.

    It is planned with what an earlier run of the same devices, that of `ledger`, has left of their budgets. A scenario
    that a federation cannot run is rejected before anything is written.
    """
    chosen = load_scheme(scheme)
    adapted = as_run_by(chosen, scenario)
    check_playable(chosen, adapted)
    made, session = plan_scheme(chosen, adapted, spent_by_earlier_runs(ledger, adapted)), secrets.token_hex(16)
    adapted = made.scenario  # a planner chooses what a scenario leaves to it
    text, plan = as_toml(adapted), made.to_dict()
    # Before any folder: an embedding that cannot be fitted must not leave a half-made federation.
    public = SharedPublic.fitted(made, endpoint_engine()) if made.uplink.payload.needs_public_set else None
    server, *devices = [folder / "server", *(folder / f"device-{number}" for number in range(adapted.num_devices))]
    for own in (server, *devices):
        own.mkdir(mode=0o700, parents=True)
        (own / SCENARIO).write_text(text, encoding="utf-8")
        write_json(own / PLAN, plan)
        (own / SESSION).write_text(f"{session}\n", encoding="utf-8")
    if public is not None:
        write_public([server, *devices], public)
    if adapted.air.medium == "secure_sum":
        roster = Roster.of([write_identity(own) for own in devices])
        for own in (server, *devices):
            roster.write(own)
    return Folders(adapted, server, tuple(devices))


def prepare_keys(folders: Folders, host: str, port: int) -> None:
    """Write a TLS certificate for a server of that name or address, and a key for each device's SuperNode.

    The certificates are valid for a year. The private key of the authority is not stored, and so a device can be added
    only by preparing a new federation.
    """
    authority = Authority(folders.server, host, A_YEAR)
    authority.server("superlink")
    keys = folders.server / "node-keys"
    keys.mkdir(mode=0o700)
    for number, own in enumerate(folders.devices):
        (own / authority.certificate.name).write_bytes(authority.certificate.read_bytes())
        (keys / f"device-{number}.pub").write_bytes(as_ssh(make_node_key(own / "node.key")))
    write_connection(folders.server / "flwr", f"{host}:{port}", authority.certificate)


@dataclass(frozen=True)
class Traffic:
    """Bytes per round and device as the SuperLink counts them, with Flower's overhead.

    For comparison: the bytes of the numbers alone, and those of a model.
    """

    from_device: float
    to_device: float
    num_numbers: int
    payload_bytes: int
    model_bytes: int


@dataclass(frozen=True)
class Demonstration:
    """The server's records, the traffic, and the duration of start-up and rounds in seconds."""

    records: tuple[dict[str, Any], ...]
    traffic: Traffic
    start_s: float
    run_s: float


def demo_scenario(
    num_devices: int, num_rounds: int | None, medium: str, scheme: str, changes: Sequence[str] = ()
) -> Scenario:
    """The preset `quick` with a smaller fleet, secure noise, and one expected drop-out in a secure sum.

    A scheme on a public set gets a small one. Feature means are sent once unless rounds are given.
    """
    payload = load_scheme(scheme).payload
    default = _TRANSMISSIONS if payload is FeatureMeans else _ROUNDS
    set_here = [f"fleet.devices={num_devices}", f"learning.rounds={num_rounds or default}", "privacy.noise=secure"]
    dropouts = 1 if medium == "secure_sum" and num_devices > 2 else 0
    set_here += [f"air.medium={medium}", f"fleet.expected_dropouts={dropouts}"]
    if payload.needs_public_set:
        set_here.append(f"public.samples={_PUBLIC_SAMPLES}")
    return load("quick", [*set_here, *changes])


def demonstrate(
    scenario: Scenario, scheme: str, folder: Path, on_round: OnRound, *, timeout_s: float = 3600.0
) -> Demonstration:
    """Run a scenario in a federation under `folder`; all its processes have ended when this returns or raises."""
    folders = prepare(folder, scenario, scheme)
    began = time.monotonic()
    with Cluster(folder / "cluster", node_settings(folders, scheme), preload=PRELOAD) as cluster:
        started = time.monotonic()
        run_id = cluster.submit(APP, {"folder": str(folders.server.resolve()), "scheme": scheme})
        records = []
        for record in follow_rounds(cluster, run_id, folders.server / ROUNDS, timeout_s):
            records.append(with_own_accuracy(record, folders.devices))
            on_round(records[-1])
        state = cluster.state_of(run_id)
        ended = time.monotonic()
    num_shares = len(folders.devices) * max(len(records), 1)
    traffic = _traffic(folders, state.bytes_from_devices / num_shares, state.bytes_to_devices / num_shares)
    return Demonstration(tuple(records), traffic, started - began, ended - started)


def node_settings(folders: Folders, scheme: str) -> list[dict[str, Setting]]:
    """The settings of each device's SuperNode."""
    return [
        {"folder": str(own.resolve()), "device": number, "scheme": scheme} for number, own in enumerate(folders.devices)
    ]


def with_own_accuracy(record: dict[str, Any], devices: Sequence[Path]) -> dict[str, Any]:
    """A server's record with the mean accuracy from the devices' own folders, which here are on the same machine.

    A device that has not updated its model in the round is not in the mean.
    """
    reports = [report for own in devices for report in _lines(own / UPDATE_REPORTS)]
    measured = [report["mean"] for report in reports if report["round"] == record["round"] and "mean" in report]
    return {**record, "accuracy_in_folders": sum(measured) / len(measured) if measured else None}


def follow_rounds(
    cluster: Cluster, run_id: int, rounds: Path, timeout_s: float, seen: int = 0
) -> Iterator[dict[str, Any]]:
    """Yield the server's records as they are written, after the first `seen`; raise if the run fails."""
    deadline = time.monotonic() + timeout_s
    while True:
        state = cluster.state_of(run_id)  # read before the file: a completed run has written all its records
        for record in _lines(rounds)[seen:]:
            seen += 1
            yield record
        if state.status == "completed":
            return
        if state.ended:
            raise ClusterError(f"the run {state.status}: {state.details or cluster.wait(run_id, timeout_s=5).log}")
        if time.monotonic() > deadline:
            raise ClusterError(f"the run has not ended after {timeout_s:g} s")
        time.sleep(_POLLING_INTERVAL_S)


def _lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file that may still be written."""
    complete = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in complete]


def _traffic(folders: Folders, from_device: float, to_device: float) -> Traffic:
    plan = Plan.from_dict(json.loads((folders.server / PLAN).read_bytes()))
    dataset, _ = load_data(folders.scenario)
    parameters = count_parameters(folders.scenario.model_names[0], input_shape(dataset.x_train), dataset.num_classes)
    num_numbers = plan.uplink.num_rows * plan.uplink.vector_length
    return Traffic(
        from_device, to_device, num_numbers, _payload_bytes(plan, num_numbers), parameters * _BYTES_PER_WEIGHT
    )


def _payload_bytes(plan: Plan, num_numbers: int) -> int:
    if plan.scenario.air.medium != "secure_sum":
        return num_numbers * _BYTES_PER_SIGNAL[plan.scenario.air.medium]
    channel = channel_source(plan.scenario).round_channel(1)
    grid = SumGrid.of(plan, plan.design(channel, 1), channel, 1)
    return Modulus.for_sum(grid.largest, plan.fleet.num_devices).num_bytes(num_numbers)
