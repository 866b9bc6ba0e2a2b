"""A federation of real processes gives the same records as the simulator."""

import json

import numpy as np
import pytest
from against_simulator import difference_of_numbers, receptions_of, simulated, worst_difference
from public_worlds import public_scenario

pytest.importorskip("flwr")

from airdistill.errors import InputError
from airdistill.flower.coordinator import BROADCAST
from airdistill.flower.demo import demo_scenario, demonstrate
from airdistill.flower.machine.cluster import Cluster
from airdistill.flower.public_set import PUBLIC
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


def test_feature_means_over_tls_teach_the_server_and_the_devices_what_the_simulator_does(tmp_path):
    """The server learns from the sum and the public samples; devices with two models learn from its predictions."""
    scheme, folder = "airdistill_features", tmp_path / "federation"
    scenario = public_scenario(tmp_path)
    shown = demonstrate(scenario, scheme, folder, lambda _: None, timeout_s=600)
    (expected,), (reception,) = receptions_of(scenario, scheme, folder / "server")
    (record,) = shown.records
    assert record["without_signal"] == record["without_lesson"] == {}
    assert difference_of_numbers(record, expected) < 1e-6
    assert np.abs(np.load(folder / "server" / BROADCAST) - reception.broadcast).max() < 1e-6
    assert len({path.read_bytes() for path in folder.glob(f"*/{PUBLIC}")}) == 1
    assert shown.traffic.num_numbers == 4 * 8  # a row of features for each class


def test_votes_in_a_secure_sum_over_tls_are_those_of_the_simulator_up_to_the_quantisation_step(tmp_path):
    """The server reports neither losses nor accuracy here. Its model learns the winning labels of the noisy votes."""
    scheme, folder = "airdistill_proxy", tmp_path / "federation"
    scenario = public_scenario(tmp_path, "air.medium=secure_sum")
    shown = demonstrate(scenario, scheme, folder, lambda _: None, timeout_s=600)
    (expected,), (reception,) = receptions_of(scenario, scheme, folder / "server")
    (record,) = shown.records
    assert record["without_signal"] == record["without_lesson"] == {}
    assert record["loss"] is None
    assert record["accuracy_in_folders"] == pytest.approx(expected["accuracy"]["mean"], abs=1e-6)
    assert record["predicted_noise_var"] == pytest.approx(reception.predicted_noise_var.tolist(), rel=1e-6)
    # The ledger counts what rounding to the grid adds.
    assert record["epsilon_spent"] == pytest.approx(expected["epsilon_spent"], rel=1e-4)
    assert np.abs(np.load(folder / "server" / BROADCAST) - reception.broadcast).max() < 1e-6


def test_a_demonstration_on_a_public_set_has_one_and_sends_features_once():
    named = {name: demo_scenario(4, None, "emulated", name) for name in ("airdistill", "airdistill_features")}
    assert named["airdistill"].public is None
    assert named["airdistill"].learning.rounds == 5
    assert named["airdistill_features"].public.samples == 400
    assert named["airdistill_features"].learning.rounds == 1
    given = demo_scenario(4, 3, "secure_sum", "airdistill_features", ["public.samples=80"])
    assert (given.learning.rounds, given.public.samples, given.fleet.expected_dropouts) == (3, 80, 1)


def test_a_scheme_that_a_federation_cannot_run_is_rejected_before_anything_starts(tmp_path):
    with pytest.raises(InputError, match="scheme"):
        demonstrate(load("quick"), "fedsgd", tmp_path / "federation", print)
    assert not (tmp_path / "federation").exists()
