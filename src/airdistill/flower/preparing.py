"""The folders from which a federation starts: one for the server and one for each device, to be carried to where they
belong. In each lies the scenario with its plan, whose last bits could be others on another machine, and for a secure
sum the roster; each device has its own signing key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airdistill.flower.machine.certificates import A_YEAR, Authority, as_ssh, make_node_key
from airdistill.flower.machine.connection import write_connection
from airdistill.flower.station import check_playable
from airdistill.flower.sums.roster import Roster, write_identity
from airdistill.runs.folder import PLAN, SCENARIO, write_json
from airdistill.scenario.loading import as_toml
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
