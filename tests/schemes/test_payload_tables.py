"""The tables of class means in records, against the errors that are recorded with them."""

from dataclasses import replace

import numpy as np
import pytest
from audit_contexts import planned
from small_worlds import small_scenario

import airdistill as ad
from airdistill.data.public import Comparison, PublicSet
from airdistill.radio.superposition import Reception
from airdistill.runs.options import RunOptions
from airdistill.schemes.payloads import payload_protocol
from airdistill.schemes.protocol import MOST_CLASSES


def reception(ideal, received=None):
    zeros = np.zeros(len(ideal))
    return Reception(ideal if received is None else received, ideal, zeros, zeros)


def test_evaluated_rounds_have_tables_whose_error_is_the_recorded_one(tmp_path):
    record = ad.run(small_scenario(tmp_path), "ota_fd", out=tmp_path / "run", options=RunOptions(eval_every=4))
    assert [line["round"] for line in record.rounds if "knowledge" in line] == [4, 6]
    tables = {name: np.array(table) for name, table in record.rounds[-1]["knowledge"].items()}
    assert tables["ideal"].sum(axis=1) == pytest.approx(1, abs=1e-5)
    squared = ((tables["received"] - tables["ideal"]) ** 2).mean(axis=1)
    assert squared == pytest.approx(record.rounds[-1]["measured_noise_var"], rel=1e-3)
    assert np.array_equal(tables["broadcast"], tables["received"])


def test_the_table_of_the_broadcast_is_the_receivers_estimate(tmp_path):
    record = ad.run(small_scenario(tmp_path), "airdistill", out=tmp_path / "run", options=RunOptions(eval_every=6))
    tables = {name: np.array(table) for name, table in record.rounds[-1]["knowledge"].items()}
    squared = ((tables["broadcast"] - tables["ideal"]) ** 2).mean(axis=1)
    assert squared == pytest.approx(record.rounds[-1]["estimate_error"], rel=1e-3)


@pytest.mark.parametrize("scheme", ["local_only", "ota_fl"])
def test_schemes_without_class_means_have_no_table(tmp_path, scheme):
    record = ad.run(small_scenario(tmp_path), scheme, rounds=2, out=tmp_path / "run")
    assert not any("knowledge" in line for line in record.rounds)


def test_public_predictions_are_averaged_by_the_label_of_their_sample(tmp_path):
    plan, _ = planned(tmp_path, "ota_proxy_fd", "public.samples=5", "learning.local_epochs=1")
    labels, rows = np.array([0, 2, 2, 0, 1]), np.random.default_rng(1).random((5, 3))
    rows[4] = np.nan
    public = PublicSet(np.zeros((5, 4)), Comparison(5, 9, 9, 0, 0), labels)
    protocol, received = payload_protocol(plan), reception(rows.reshape(1, -1), rows)
    found = protocol.tables(received, 1, public)["knowledge"]
    assert found["ideal"][0] == pytest.approx(rows[[0, 3]].mean(axis=0), rel=1e-5)
    assert found["broadcast"][2] == pytest.approx(rows[[1, 2]].mean(axis=0), rel=1e-5)
    assert found["ideal"][1] == [None] * 3
    assert protocol.tables(received, 1, replace(public, hidden_labels=None)) == {}


def test_other_shapes_and_very_many_classes_are_left_out(tmp_path):
    plan, _ = planned(tmp_path)
    assert payload_protocol(plan).tables(reception(np.ones((1, 50))), 1, None) == {}
    many = MOST_CLASSES + 1
    wide = replace(plan, fleet=replace(plan.fleet, class_counts=np.ones((3, many), dtype=int)))
    assert payload_protocol(wide).tables(reception(np.ones((many, many))), 1, None) == {}
    assert payload_protocol(plan).tables(reception(np.ones((3, 3))), 1, None)["knowledge"]["ideal"] == [[1.0] * 3] * 3
