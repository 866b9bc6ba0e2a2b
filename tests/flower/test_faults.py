"""Real federations in which devices and the server are killed (kill -9): the same result as without a network.

Three devices: one for each fault, and one that has none. Each more is three processes that import Flower and PyTorch.
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
from airdistill.flower.demo import WARM, followed, node_settings, prepare
from airdistill.flower.machine.cluster import Cluster
from airdistill.flower.records import packed
from airdistill.privacy.ledger import Ledger
from airdistill.runs.accounts import certify

FAULTY_APP = Path(__file__).parent / "faulty_app"
NO_NUMBER = {"signal": packed(np.full((3, 3), np.nan + 0j))}


def with_two_kills(folder, scenario, scheme):
    """Device 1 is killed in round 2, and the server's app in round 3 and started again; the server's folder."""
    folders = prepare(folder, scenario, scheme)
    settings = {"folder": str(folders.server), "scheme": scheme}
    rounds = folders.server / "rounds.jsonl"
    with Cluster(folder / "cluster", node_settings(folders, scheme), preload=WARM) as cluster:
        run_id = cluster.submit(FAULTY_APP, settings)
        watched = followed(cluster, run_id, rounds, 400)
        next(watched)
        cluster.kill_node(1)
        next(watched)
        until_charged(3, [folders.devices[number] for number in (0, 2)])
        cluster.kill_server_app()
        run_id = cluster.submit(FAULTY_APP, settings)
        for _ in followed(cluster, run_id, rounds, 400, seen=2):
            pass
    return folders


def until_charged(round_index, folders):
    """The devices have paid for the round, so that its question has come: Flower keeps a device busy for a minute whose
    message was cut off by the server's death."""
    deadline = time.monotonic() + 180
    while any(Ledger.read(folder / "ledger.jsonl").last_round < round_index for folder in folders):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def expected_by(folder, scenario, scheme, seen, spoiled):
    """The same faults without a network: device 1 is silent in the rounds in which it was, `spoiled` says the rest."""
    server, devices = federation(folder, scenario, scheme)
    lost = [record["round"] for record in seen if "1" in record["without_signal"]]
    assert lost in ([2, 3], [3])  # it may have answered in round 2 before it was killed

    def spoil(step, round_index, device, real):
        if device == 1 and round_index in lost:
            return None
        return spoiled.get((step, round_index, device), real)

    devices.spoil = spoil
    Coordinator(server, scheme, devices).play()
    return records(server), server


def check_same(seen, expected):
    for mine, theirs in zip(seen, expected, strict=True):
        assert sorted(mine["without_signal"]) == sorted(theirs["without_signal"])
        assert np.abs(np.array(mine["knowledge"]) - np.array(theirs["knowledge"])).max() < 1e-6
        assert mine["epsilon_spent"] == theirs["epsilon_spent"]


def test_a_device_killed_one_that_sends_no_numbers_and_a_server_killed(tmp_path):
    scenario = small_scenario(
        tmp_path, "fleet.devices=3", "data.samples_per_device=15", "learning.rounds=3", "privacy.trust=own_noise"
    )
    folders = with_two_kills(tmp_path / "run", scenario, "ota_fd")
    seen = records(folders.server)
    expected, _ = expected_by(tmp_path / "near", scenario, "ota_fd", seen, {("signal", 2, 2): NO_NUMBER})
    assert "2" in seen[1]["without_signal"]
    assert "no number" in seen[1]["without_signal"]["2"]
    check_same(seen, expected)
    for mine, theirs in zip(seen, expected, strict=True):
        if "1" not in mine["without_signal"]:
            continue
        assert mine["training_loss"] == pytest.approx(theirs["training_loss"], abs=1e-6)
        assert mine["accuracy"]["mean"] == pytest.approx(theirs["accuracy"]["mean"], abs=1e-6)
    # Each device has paid for what it was asked: who was killed for fewer rounds, who sent nonsense for all.
    paid = [certify(folder).num_releases for folder in folders.devices]
    assert paid[0] == paid[2] == 3
    assert paid[1] in (1, 2)
    of_all = certify(folders.server)
    for number, folder in enumerate(folders.devices):
        account, known = certify(folder).devices[number], of_all.devices[number]
        if number == 1:
            assert account.spent < known.spent  # the server counts a device in that might have been there
        else:
            assert account.spent == known.spent
        assert known.kept


def test_a_secure_sum_goes_on_without_a_device_and_after_its_server(tmp_path):
    """With seeded noise, so that the sums can be compared: they are whole numbers and must be the same."""
    scenario = small_scenario(
        tmp_path, "fleet.devices=3", "data.samples_per_device=15", "learning.rounds=3", "air.medium=secure_sum",
        "fleet.expected_dropouts=1",
    )  # fmt: skip
    folders = with_two_kills(tmp_path / "run", scenario, "ota_fd")
    seen = records(folders.server)
    expected, _ = expected_by(tmp_path / "near", scenario, "ota_fd", seen, {})
    check_same(seen, expected)
    assert all(record["loss"] is None for record in seen)
    assert [certify(folders.devices[number]).num_releases for number in (0, 2)] == [3, 3]
