"""A fleet of virtual devices in Flower's simulation engine, running AirDistill's apps.

    pip install 'flwr[simulation]==1.41.0' 'ray==2.55.1'
    python benchmarks/flower_fleet.py [--devices 200] [--rounds 3] [--medium emulated]

Every device has a folder with its model, ledger and reply cache, as in a deployment, and reads it for every message.
The scenario is the preset `quick` with 60 MNIST samples per device. Prints the seconds of the run, and the size of a
device's folder.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path

SCHEME = "airdistill"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--medium", choices=("emulated", "secure_sum"), default="emulated")
    given = parser.parse_args()
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_DISABLE_DOCKER_CPU_WARNING": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), given.devices, given.rounds, given.medium)


def run(folder: Path, num_devices: int, num_rounds: int, medium: str) -> None:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from airdistill.flower.client_app import client_app
    from airdistill.flower.coordinator import Coordinator
    from airdistill.flower.demo import prepare
    from airdistill.flower.server_app import GridDevices
    from airdistill.scenario import load

    changes = [f"fleet.devices={num_devices}", f"learning.rounds={num_rounds}", "data.samples_per_device=60"]
    folders = prepare(folder, load("quick", [*changes, f"air.medium={medium}", "privacy.noise=secure"]), SCHEME)
    began = time.perf_counter()
    server = ServerApp()

    def settings_of(context: Context) -> dict[str, str | int]:
        number = int(context.node_config["partition-id"])
        return {"folder": str(folder / f"device-{number}"), "device": number, "scheme": SCHEME}

    @server.main()
    def serve(grid: Grid, _context: Context) -> None:
        Coordinator(folders.server, SCHEME, GridDevices(grid, wait_s=1200.0)).play()

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server, client_app(settings_of), num_devices, backend_config=resources)
    report(folders.server, folders.devices, time.perf_counter() - began)


def report(server: Path, devices: tuple[Path, ...], seconds: float) -> None:
    """Print time and memory, and how many replies were missing."""
    records = [json.loads(line) for line in (server / "rounds.jsonl").read_text().splitlines()]
    missing = sum(len(record["without_signal"]) for record in records)
    written = sum(file.stat().st_size for file in devices[0].rglob("*") if file.is_file())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(
        f"{len(devices)} devices, {len(records)} rounds, {missing} replies missing: {seconds:.0f} s in total; "
        f"a device's folder has {written / 1e3:.0f} kB; the server's process {peak:.2f} GB"
    )


if __name__ == "__main__":
    main()
