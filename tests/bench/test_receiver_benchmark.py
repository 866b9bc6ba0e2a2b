"""The benchmark of receivers as a whole, on a fleet that trains in milliseconds."""

import json

import numpy as np
import pytest
from small_worlds import small_scenario

from airdistill.bench.receivers import Work, design_noise, measure_receivers, record_class_means
from airdistill.errors import InputError
from airdistill.scenario.loading import changed, load

WORK = Work(rounds=8, seeds=2, tuning_seeds=2, paths=6, repeats=2)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return measure_receivers(small_scenario(tmp_path_factory.mktemp("blobs")), (1.0, 8.0), WORK)


def test_gains_and_distances_are_those_of_the_errors(measured):
    assert json.loads(json.dumps(measured)) == measured
    for level in measured["levels"]:
        for of_kind in level["class_means"].values():
            receivers, bound = of_kind["receivers"], of_kind["bound"]
            linear = receivers["linear"]["squared_error"]
            assert receivers["linear"]["gain_db"] == 0
            for found in receivers.values():
                assert found["squared_error"] == pytest.approx(linear / 10 ** (found["gain_db"] / 10))
                assert found["squared_error"] == pytest.approx(bound * 10 ** (found["above_bound_db"] / 10))


def test_the_linear_error_is_that_of_the_design(measured):
    """K v of the plan, and more of it at a smaller ε."""
    tight, loose = measured["levels"]
    assert tight["noise_var"] > 2 * loose["noise_var"]
    for level in (tight, loose):
        for of_kind in level["class_means"].values():
            linear = of_kind["receivers"]["linear"]
            allowed = max(4 * linear["standard_error"], 0.3 * linear["squared_error"])
            assert linear["squared_error"] == pytest.approx(measured["classes"] * level["noise_var"], abs=allowed)


def test_the_fitted_filters_win_and_no_receiver_is_below_a_proven_bound(measured):
    for level in measured["levels"]:
        for kind in ("gaussian", "simplex"):
            found = level["class_means"][kind]
            receivers = found["receivers"]
            best = receivers["kalman" if kind == "gaussian" else "logistic_normal"]
            assert best["squared_error"] < receivers["tracking"]["squared_error"] + 4 * best["standard_error"]
            assert receivers["tracking"]["squared_error"] < receivers["best_unbiased"]["squared_error"]
            for each in receivers.values():
                assert each["squared_error"] > found["bound"] - 4 * each["standard_error"]


def test_constants_are_fitted_to_other_seeds_than_those_that_are_reported(measured):
    assert not set(measured["seeds"]) & set(measured["tuning_seeds"])


def test_only_receivers_that_need_no_simplex_are_measured_off_it(measured):
    kinds = measured["levels"][0]["class_means"]
    assert set(kinds["gaussian"]["receivers"]) == {"linear", "best_unbiased", "one_filter", "tracking", "kalman"}
    assert (
        set(kinds["simplex"]["receivers"]) == set(kinds["recorded"]["receivers"]) > set(kinds["gaussian"]["receivers"])
    )


def test_recorded_class_means_are_those_of_a_fleet_that_learns(tmp_path):
    scenario = changed(small_scenario(tmp_path), {"privacy": {"epsilon": float("inf")}})
    path = record_class_means(scenario, 8)
    assert path.shape == (8, 3, 3)
    assert path.sum(axis=2) == pytest.approx(np.ones((8, 3)))
    own = path[:, range(3), range(3)].mean(axis=1)
    assert own[-1] > own[0] + 0.1
    assert np.array_equal(record_class_means(scenario, 4), path[:4])
    assert not np.array_equal(record_class_means(changed(scenario, {"seed": 1}), 4), path[:4])


def test_noise_is_that_of_the_rounds_that_ota_fd_designs(tmp_path):
    import airdistill as ad

    scenario = small_scenario(tmp_path, "learning.receiver=tracking")
    record = ad.run(scenario, "ota_fd", rounds=4, out=tmp_path / "run")
    used = np.array([each["predicted_noise_var"] for each in record.rounds])
    assert design_noise(scenario, 4) == pytest.approx(used)


def test_a_class_that_no_device_sends_is_refused(tmp_path):
    scenario = small_scenario(tmp_path, "fleet.participation=0.3")
    with pytest.raises(InputError, match=r"fleet\.participation"):
        design_noise(scenario, 30)
    with pytest.raises(InputError, match="rounds"):
        measure_receivers(load("quick"), (8.0,), Work(rounds=2))
