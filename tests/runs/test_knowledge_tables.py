"""The tables of class averages in records, against the errors that are recorded with them."""

import numpy as np
import pytest
from small_worlds import small_scenario

import airdistill as ad
from airdistill.radio.superposition import Reception
from airdistill.runs.options import RunOptions
from airdistill.runs.record import MOST_CLASSES, class_mean_tables, public_tables


def reception(ideal, received=None):
    nothing = np.zeros(len(ideal))
    return Reception(ideal if received is None else received, ideal, nothing, nothing)


def test_evaluated_rounds_have_tables_whose_error_is_the_recorded_one(tmp_path):
    record = ad.run(small_scenario(tmp_path), "ota_fd", out=tmp_path / "run", options=RunOptions(eval_every=4))
    assert [line["round"] for line in record.rounds if "knowledge" in line] == [4, 6]
    tables = {name: np.array(table) for name, table in record.rounds[-1]["knowledge"].items()}
    assert tables["ideal"].sum(axis=1) == pytest.approx(1, abs=1e-5)
    squared = ((tables["received"] - tables["ideal"]) ** 2).mean(axis=1)
    assert squared == pytest.approx(record.rounds[-1]["measured_noise_var"], rel=1e-3)
    assert np.array_equal(tables["broadcast"], tables["received"])


def test_a_receivers_estimate_is_the_table_of_what_was_broadcast(tmp_path):
    record = ad.run(small_scenario(tmp_path), "airdistill", out=tmp_path / "run", options=RunOptions(eval_every=6))
    tables = {name: np.array(table) for name, table in record.rounds[-1]["knowledge"].items()}
    squared = ((tables["broadcast"] - tables["ideal"]) ** 2).mean(axis=1)
    assert squared == pytest.approx(record.rounds[-1]["estimate_error"], rel=1e-3)


@pytest.mark.parametrize("scheme", ["local_only", "ota_fl"])
def test_schemes_without_class_averages_have_no_table(tmp_path, scheme):
    record = ad.run(small_scenario(tmp_path), scheme, rounds=2, out=tmp_path / "run")
    assert not any("knowledge" in line for line in record.rounds)


def test_public_rows_are_averaged_by_their_label():
    rng = np.random.default_rng(1)
    labels = np.array([0, 2, 2, 0, 1])
    rows = rng.random((5, 3))
    rows[4] = np.nan
    found = public_tables(reception(rows.reshape(1, -1), rows), 3, labels, labels)["knowledge"]
    assert found["ideal"][0] == pytest.approx(rows[[0, 3]].mean(axis=0), rel=1e-5)
    assert found["broadcast"][2] == pytest.approx(rows[[1, 2]].mean(axis=0), rel=1e-5)
    assert found["ideal"][1] == [None] * 3


def test_other_shapes_and_very_many_classes_are_left_out():
    assert class_mean_tables(reception(np.ones((1, 50))), 3) == {}
    many = MOST_CLASSES + 1
    assert class_mean_tables(reception(np.ones((many, many))), many) == {}
