"""A federation of real processes gives the same records as the simulator."""

import json

import pytest
from against_simulator import simulated, worst_difference

pytest.importorskip("flwr")

from airdistill.errors import InputError
from airdistill.flower.demo import demonstrate
from airdistill.flower.machine.cluster import Cluster
from airdistill.scenario import load
from airdistill.scenario.loading import changed


def test_devices_over_tls_learn_the_same_as_the_simulator(tmp_path, few_digits, monkeypatch):
    """Compare all fields of the records for two softmax regressions and one paper network over two rounds."""
    groups = [{"count": 2, "model": "softmax_regression"}, {"count": 1, "model": "paper_cnn"}]
    preset = load("quick", [f"data.dataset={few_digits}", "data.samples_per_device=60", "learning.rounds=2"])
    scenario = changed(preset, {"fleet": {"devices": 3, "groups": groups}})
    # A device compiles kernels in its first round, which takes minutes where none are cached and the machine is busy.
    submit = Cluster.submit
    monkeypatch.setattr(Cluster, "submit", lambda *given: submit(*given[:2], {**given[2], "wait-seconds": 600.0}))
    seen = []
    shown = demonstrate(scenario, "airdistill", tmp_path / "federation", seen.append, timeout_s=600)
    expected, broadcasts = simulated(scenario, "airdistill", tmp_path / "federation/server")
    assert list(shown.records) == seen
    assert [(record["without_signal"], record["without_lesson"]) for record in seen] == [({}, {})] * 2
    assert worst_difference(seen, expected, broadcasts) < 1e-6
    folders = [tmp_path / "federation" / name for name in ("server", *(f"device-{number}" for number in range(3)))]
    assert (
        len({(folder / "ledger.jsonl").read_text() for folder in folders}) == 1
    )  # each has computed the same designs by itself
    certificate = json.loads((folders[0] / "certificate.json").read_text())
    assert any("emulated" in reason for reason in certificate["reasons"])
    # The traffic is at least the numbers themselves, and much less than a model.
    assert shown.traffic.payload_bytes < shown.traffic.from_device < shown.traffic.model_bytes


def test_a_scheme_that_a_federation_cannot_run_is_rejected_before_anything_starts(tmp_path):
    with pytest.raises(InputError, match="scheme"):
        demonstrate(load("quick"), "fedsgd", tmp_path / "federation", print)
    assert not (tmp_path / "federation").exists()
