"""A real federation in which a device and the server are killed with SIGKILL: the same result as without a network.

There are three devices, one of which is killed. Each device is three processes that import Flower and PyTorch, and so
this is done once, with the steps of a secure sum; test_rounds.py has the same faults of signals without a network.
The devices stop at fixed points (`faulty_app`), and so the result does not depend on the speed of a process.
"""

import time
from pathlib import Path

import numpy as np
import pytest
from against_simulator import records
from near_federation import federation
from small_worlds import small_scenario

pytest.importorskip("flwr")
pytest.importorskip("opendp")

from airdistill.flower.coordinator import Coordinator
from airdistill.flower.demo import PRELOAD, follow_rounds, node_settings, prepare
from airdistill.flower.endpoint import SESSION
from airdistill.flower.machine.cluster import Cluster
from airdistill.runs.accounts import certify

FAULTY_APP = Path(__file__).parent / "faulty_app"
TIMEOUT_S = 600


def with_two_kills(folder, scenario, scheme):
    """Kill device 1 in round 2, and the server's app in round 3; start the app again and return the folders."""
    folders = prepare(folder, scenario, scheme)
    settings = {"folder": str(folders.server), "scheme": scheme}
    rounds = folders.server / "rounds.jsonl"
    with Cluster(folder / "cluster", node_settings(folders, scheme), preload=PRELOAD) as cluster:
        run_id = cluster.submit(FAULTY_APP, settings)
        records_so_far = follow_rounds(cluster, run_id, rounds, TIMEOUT_S)
        next(records_so_far)
        wait_for_files([folders.devices[1] / "replied-2"])
        cluster.kill_node(1)
        cluster.report_killed_nodes([1])
        next(records_so_far)
        # Both devices have their questions: Flower keeps a device busy for a minute if the server's app is killed while
        # a message is being delivered.
        wait_for_files([folders.devices[number] / "replied-3" for number in (0, 2)])
        cluster.kill_server_app()
        (folders.devices[0] / "continue").touch()
        run_id = cluster.submit(FAULTY_APP, settings)
        for _ in follow_rounds(cluster, run_id, rounds, TIMEOUT_S, seen=2):
            pass
    return folders


def wait_for_files(paths):
    deadline = time.monotonic() + TIMEOUT_S
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def without_network(folder, scenario, scheme, of):
    """The records of the same run in one process, with the noise of the federation whose server's folder is `of`.

    Device 1 does not reply from round 2 on.
    """
    server, devices = federation(folder, scenario, scheme, session=(of / SESSION).read_text())
    devices.tamper = lambda _step, t, device, real: None if device == 1 and t >= 2 else real
    Coordinator(server, scheme, devices).play()
    return records(server)


def check_same(seen, expected):
    assert [sorted(record["without_signal"]) for record in seen] == [
        sorted(record["without_signal"]) for record in expected
    ]
    for mine, theirs in zip(seen, expected, strict=True):
        assert np.abs(np.array(mine["knowledge"]) - np.array(theirs["knowledge"])).max() < 1e-6
        assert mine["epsilon_spent"] == theirs["epsilon_spent"]


def test_a_secure_sum_continues_without_a_killed_device_and_after_its_server_was_killed(tmp_path):
    """The noise is seeded, and so the sums can be compared: they are integers and must be equal."""
    scenario = small_scenario(
        tmp_path, "fleet.devices=3", "data.samples_per_device=15", "learning.rounds=3", "air.medium=secure_sum",
        "fleet.expected_dropouts=1",
    )  # fmt: skip
    folders = with_two_kills(tmp_path / "run", scenario, "ota_fd")
    seen = records(folders.server)
    check_same(seen, without_network(tmp_path / "near", scenario, "ota_fd", folders.server))
    assert all(record["loss"] is None for record in seen)
    assert [certify(folder).num_releases for folder in folders.devices] == [3, 2, 3]
