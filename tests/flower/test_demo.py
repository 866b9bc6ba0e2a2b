"""A federation of real processes does what the simulator does."""

import pytest
from against_simulator import simulated, worst_difference
from small_worlds import small_scenario

pytest.importorskip("flwr")

from airdistill.flower.demo import demonstrate


def test_four_devices_over_tls_learn_what_the_simulator_learns(tmp_path):
    """Softmax regressions, five rounds: knowledge, losses and accuracy to the sixth decimal."""
    scenario = small_scenario(
        tmp_path, "fleet.devices=4", "data.samples_per_device=15", "learning.rounds=5", "learning.local_epochs=1"
    )
    seen = []
    shown = demonstrate(scenario, "airdistill", tmp_path / "federation", seen.append, timeout_s=120)
    expected, broadcasts = simulated(scenario, "airdistill")
    assert list(shown.records) == seen
    assert all(record["without_signal"] == record["without_lesson"] == {} for record in seen)
    assert worst_difference(seen, expected, broadcasts) < 1e-6
    assert shown.traffic.from_device > 9 * 16  # at least the numbers themselves went over the wire
