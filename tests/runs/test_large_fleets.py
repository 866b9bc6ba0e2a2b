"""Runs of large fleets in small: evaluation on a sample, and devices that share samples."""

import json
from dataclasses import replace

import numpy as np
import pytest
from in_process import exit_code, runs_in_this_process
from small_worlds import small_scenario

import airdistill as ad
from airdistill.errors import InputError
from airdistill.privacy.assumptions import RESAMPLED
from airdistill.runs.checkpoint import newest_checkpoint
from airdistill.runs.options import RunOptions
from airdistill.runs.simulation import random_iterate_round

SAMPLED = RunOptions(eval_every=2, checkpoint_every=2, threads=1, eval_devices=3, eval_samples=20)
MANY = ("fleet.devices=9", "data.samples_per_device=6", "learning.rounds=4")


class PulledPlugError(Exception):
    """Ends a run at once."""


def pulled_after(last):
    def on_round(record, _num_rounds):
        if record["round"] == last:
            raise PulledPlugError

    return on_round


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampled")
    scenario = small_scenario(folder, *MANY)
    return scenario, ad.run(scenario, "ota_fd", out=folder / "run", options=SAMPLED)


def test_a_sampled_run_learns_what_a_whole_one_does_and_says_what_it_measured(sampled, tmp_path):
    scenario, record = sampled
    whole = ad.run(scenario, "ota_fd", out=tmp_path / "whole", options=replace(SAMPLED, eval_devices=None))
    again = ad.run(scenario, "ota_fd", out=tmp_path / "again", options=SAMPLED)
    assert again.summary == record.summary
    weights, all_weights = (newest_checkpoint(each.folder).tensors for each in (record, whole))
    assert weights.keys() == {name for name in all_weights if not name.startswith("iterate.")}
    assert all((tensor == all_weights[name]).all() for name, tensor in weights.items())
    for line, whole_line in zip(record.rounds, whole.rounds, strict=True):
        assert line | {"accuracy": None} == whole_line | {"accuracy": None} or "accuracy" not in line
    sample = record.accuracy["sample"]
    assert {**sample, "half_width": None} == {
        "devices": 3, "of_devices": 9, "test_samples": 20, "of_test_samples": 30, "half_width": None
    }  # fmt: skip
    assert sample["half_width"] > 0
    assert whole.accuracy["sample"]["devices"] == 9


def test_the_random_iterate_is_measured_in_its_round(tmp_path):
    """As the one whose weights a small fleet keeps until the end: here everything is in the sample but one test."""
    seed = next(seed for seed in range(20) if random_iterate_round(seed, 4) == 3)
    scenario = small_scenario(tmp_path, *MANY, f"seed={seed}")
    options = replace(SAMPLED, eval_devices=None, eval_samples=29)
    record = ad.run(scenario, "ota_fd", out=tmp_path / "run", options=options)
    assert record.summary["random_iterate"] == {"round": 3, "accuracy": record.rounds[1]["accuracy"]}


@pytest.mark.parametrize("at", [1, 3])
def test_a_sampled_run_resumes_to_the_same_bytes(sampled, tmp_path, at):
    scenario, record = sampled
    with pytest.raises(PulledPlugError):
        ad.run(scenario, "ota_fd", out=tmp_path / "cut", options=SAMPLED, on_round=pulled_after(at))
    ad.resume(tmp_path / "cut")
    for name in ("rounds.jsonl", "summary.json", "checkpoint-00000004.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (record.folder / name).read_bytes()


def test_a_resumed_run_can_be_measured_on_more(sampled, tmp_path, capsys):
    scenario, record = sampled
    with pytest.raises(PulledPlugError):
        ad.run(scenario, "ota_fd", out=tmp_path / "cut", options=SAMPLED, on_round=pulled_after(3))
    assert exit_code("resume", tmp_path / "cut", "--eval-devices", 10) == 2
    assert capsys.readouterr().err == "error: --eval-devices = 10: the fleet has only 9 devices\n"
    assert exit_code("resume", tmp_path / "cut", "--eval-devices", 9, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["accuracy"]["sample"]["devices"] == 9
    assert shown["epsilon_spent"] == record.summary["epsilon_spent"]
    assert exit_code("report", tmp_path / "cut") == 0
    page = (tmp_path / "cut" / "report.html").read_text()
    assert "all 9 devices, 20 of 30 test samples, drawn at random" in page


def test_schemes_of_a_comparison_are_measured_on_the_same_sample(tmp_path, capsys):
    scenario = small_scenario(tmp_path, *MANY)
    with runs_in_this_process():
        record = ad.compare(scenario, ["ota_fd", "local_only"], out=tmp_path / "all", options=SAMPLED)
    accuracies = [run.accuracy for run in record.runs.values()]
    assert [each["sample"]["devices"] for each in accuracies] == [3, 3]
    with pytest.raises(InputError, match="the fleet has only 9 devices"):
        ad.compare(scenario, ["ota_fd"], out=tmp_path / "no", options=replace(SAMPLED, eval_devices=99))
    assert not (tmp_path / "no").exists()
    assert exit_code("resume", tmp_path / "all", "--eval-samples", 3) == 2
    assert "is for a run" in capsys.readouterr().err


RESAMPLED_FLEET = ("fleet.devices=12", "data.samples_per_device=20", "data.resample=true", "learning.rounds=2")


def test_a_fleet_may_be_larger_than_its_data_and_its_certificate_says_so(tmp_path):
    scenario = small_scenario(tmp_path, *RESAMPLED_FLEET)
    record = ad.run(scenario, "ota_fd", out=tmp_path / "run", options=RunOptions(threads=1))
    assert record.accuracy is not None
    certificate = ad.certify(record)
    assert RESAMPLED in certificate.statement
    assert RESAMPLED in ad.plan(scenario, "ota_fd").assumptions
    assert "whole-device" in certificate.headline
    plain = ad.run(small_scenario(tmp_path), "ota_fd", 1, out=tmp_path / "plain", options=RunOptions(threads=1))
    assert RESAMPLED not in ad.certify(plain).statement


def test_no_figure_for_one_record_is_given_if_several_devices_may_hold_it(tmp_path):
    public = ("public.samples=12", "public.embedding=raw", "public.features=2", "learning.rounds=1")
    found = []
    for number, more in enumerate(([], ["data.resample=true"])):
        scenario = small_scenario(tmp_path, *public, *more)
        record = ad.run(scenario, "airdistill_features", out=tmp_path / str(number), options=RunOptions(threads=1))
        certificate = ad.certify(record)
        found.append(
            (certificate.record_epsilon is None, any("For one record" in line for line in certificate.statement))
        )
    assert found == [(False, True), (True, False)]


@pytest.mark.parametrize(
    ("changes", "field", "rule"),
    [
        (["privacy.sensitivity=class_mean"], "privacy.sensitivity", 'use "device", or data.resample = false'),
        (["privacy.sensitivity=paper"], "privacy.sensitivity", "counts one copy"),
        (["data.samples_per_device=61"], "data.samples_per_device", "the training set has 60"),
        (["data.class_counts=[[1,2],[2,1],[1,1]]", "fleet.devices=3"], "data.resample", "class counts are not drawn"),
    ],
)
def test_resampling_that_cannot_be_sound_is_refused(tmp_path, changes, field, rule):
    with pytest.raises(InputError, match=rule) as error:
        ad.plan(small_scenario(tmp_path, *RESAMPLED_FLEET, *changes), "ota_fd")
    assert error.value.field == field


def test_a_small_training_set_names_resampling(tmp_path):
    with pytest.raises(InputError, match=r"the training set has 60; data\.resample lets devices share samples"):
        ad.plan(small_scenario(tmp_path, "fleet.devices=12"), "ota_fd")


def test_the_ledger_of_a_resampled_fleet_records_it(tmp_path):
    scenario = small_scenario(tmp_path, *RESAMPLED_FLEET)
    record = ad.run(scenario, "ota_fd", 1, out=tmp_path / "run", options=RunOptions(threads=1))
    header = json.loads((record.folder / "ledger.jsonl").read_text().splitlines()[0])
    assert header["terms"]["resampled"] is True
    assert np.isfinite(record.summary["epsilon_spent"])
