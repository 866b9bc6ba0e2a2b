"""The record of a run, resuming it, and the input that is rejected."""

import json
import math

import numpy as np
import pytest
from safetensors.numpy import load_file
from small_worlds import small_scenario, write_dataset

import airdistill as ad
from airdistill.errors import InputError
from airdistill.learning.fleet import TrainingDivergedError
from airdistill.privacy.gaussian import gaussian_epsilon
from airdistill.runs.checkpoint import newest_checkpoint
from airdistill.runs.folder import RunError, locked
from airdistill.runs.options import RunOptions
from airdistill.runs.simulation import random_iterate_round
from airdistill.scenario import load

OFTEN = RunOptions(eval_every=2, checkpoint_every=2, threads=1)


def bytes_of(folder):
    """What must not depend on how a run was interrupted."""
    final = sorted(folder.glob("checkpoint-*.safetensors"))[-1]
    return (folder / "rounds.jsonl").read_bytes(), (folder / "summary.json").read_bytes(), final.read_bytes()


def test_a_run_leaves_a_record(tmp_path):
    scenario = small_scenario(tmp_path)
    record = ad.run(scenario, "ota_fd", out=tmp_path / "run", options=OFTEN)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"scenario.toml", "plan.json", "run.json", "rounds.jsonl", "timings.jsonl", "summary.json"} <= names
    assert sorted(name for name in names if "checkpoint" in name) == [
        "checkpoint-00000004.json", "checkpoint-00000004.safetensors",
        "checkpoint-00000006.json", "checkpoint-00000006.safetensors",
    ]  # fmt: skip
    assert [line["round"] for line in record.rounds] == [1, 2, 3, 4, 5, 6]
    assert ["accuracy" in line for line in record.rounds] == [False, True] * 3
    assert record.accuracy == record.summary["accuracy"]
    assert "seconds" not in json.dumps(record.rounds).replace("uplink_seconds", "")
    assert load(tmp_path / "run" / "scenario.toml") == scenario
    assert ad.Plan.from_dict(json.loads((tmp_path / "run" / "plan.json").read_text())).num_rounds == 6


def test_privacy_spent_is_what_the_plan_forecast(tmp_path):
    """Under fleet_noise every round counts exactly the required noise, and so the strictest device ends at its ε."""
    scenario = small_scenario(tmp_path, "data.partition=shards", "data.classes_per_device=3")
    record = ad.run(scenario, "ota_fd", out=tmp_path / "run", options=OFTEN)
    plan = ad.plan(scenario, "ota_fd")
    assert record.summary["epsilon_spent"] == pytest.approx(plan.epsilon_by_model["device"].max(), rel=1e-9)
    assert record.summary["epsilon_spent"] <= 8 * (1 + 1e-9)
    # After t of T rounds a share t/T of μ² is spent.
    weights = plan.fleet.class_counts / plan.fleet.class_counts.sum(axis=0)
    noise = plan.required_noise_var().max(axis=0)
    mu = np.sqrt((2 * weights**2 / noise).sum(axis=1) * 2).max()
    assert record.rounds[1]["epsilon_spent"] == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-9)


def test_schemes_differ_in_what_they_transmit(tmp_path):
    runs = {
        name: ad.run(small_scenario(tmp_path), name, out=tmp_path / name, options=OFTEN)
        for name in ("ota_fd", "fd_error_free", "local_only")
    }
    assert runs["local_only"].summary["epsilon_spent"] == 0
    assert runs["local_only"].summary["uplink_seconds"] == 0
    assert "measured_noise_var" not in runs["local_only"].rounds[0]
    assert runs["fd_error_free"].summary["epsilon_spent"] is None
    assert runs["fd_error_free"].rounds[0]["measured_noise_var"] == [0, 0, 0]
    assert runs["ota_fd"].summary["uplink_seconds"] == pytest.approx(6 * 9 * 3.6e-6)
    assert runs["ota_fd"].rounds[0]["training_loss"] == runs["local_only"].rounds[0]["training_loss"]
    assert runs["ota_fd"].rounds[1]["training_loss"] != runs["local_only"].rounds[1]["training_loss"]


def test_the_fixed_scheme_plans_and_stops_at_400(tmp_path):
    record = ad.run(small_scenario(tmp_path), "ota_fd_fixed", out=tmp_path / "run", options=RunOptions(eval_every=400))
    assert record.summary["rounds"] == 400
    planned = ad.Plan.from_dict(json.loads((tmp_path / "run" / "plan.json").read_text()))
    assert planned.num_rounds == 400
    assert record.summary["epsilon_spent"] <= 8 * (1 + 1e-9)
    short = ad.run(small_scenario(tmp_path), "ota_fd_fixed", rounds=3, out=tmp_path / "short", options=OFTEN)
    assert short.summary["rounds"] == 3


def test_without_a_privacy_target_only_channel_noise_remains(tmp_path):
    record = ad.run(small_scenario(tmp_path, "privacy.epsilon=inf"), out=tmp_path / "run", options=OFTEN)
    private = ad.run(small_scenario(tmp_path), out=tmp_path / "private", options=OFTEN)
    assert record.summary["epsilon_spent"] is None
    assert np.mean(record.rounds[0]["predicted_noise_var"]) < 0.1 * np.mean(private.rounds[0]["predicted_noise_var"])


def test_a_seed_gives_bit_identical_runs_for_any_number_of_threads(tmp_path):
    scenario = small_scenario(tmp_path, "learning.local_epochs=1", "learning.batch_size=6", "learning.model=mlp")
    for name, threads in [("a", 1), ("b", 1), ("c", 3)]:
        ad.run(scenario, out=tmp_path / name, options=RunOptions(threads=threads, eval_every=2))
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b") == bytes_of(tmp_path / "c")
    other = small_scenario(tmp_path, "seed=1")
    ad.run(other, out=tmp_path / "d", options=OFTEN)
    assert bytes_of(tmp_path / "a") != bytes_of(tmp_path / "d")


def test_memory_limits_and_checkpoints_do_not_change_the_result(tmp_path):
    scenario = small_scenario(tmp_path)
    ad.run(scenario, out=tmp_path / "a", options=RunOptions(eval_every=2, kept_bytes=0, checkpoint_every=1))
    ad.run(scenario, out=tmp_path / "b", options=RunOptions(eval_every=2, checkpoint_every=100))
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


def test_the_chunk_size_changes_last_bits_only(tmp_path):
    scenario = small_scenario(tmp_path)
    first, second = (
        ad.run(scenario, out=tmp_path / str(chunk), options=RunOptions(chunk_samples=chunk, eval_every=2))
        for chunk in (3, 300)
    )
    losses = [[line["loss"] for line in record.rounds] for record in (first, second)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


class PulledPlugError(Exception):
    """Ends a run as a crash would."""


def stop_after(num_rounds):
    def on_round(record, _):
        if record["round"] == num_rounds:
            raise PulledPlugError

    return on_round


def assert_resumes_bit_identically(scenario, folder, options=OFTEN, at=3):
    """Compare a run that is stopped in round `at` and resumed with an uninterrupted one."""
    ad.run(scenario, out=folder / "whole", options=options)
    with pytest.raises(PulledPlugError):
        ad.run(scenario, out=folder / "cut", options=options, on_round=stop_after(at))
    assert ad.resume(folder / "cut").summary["rounds"] == 6
    assert bytes_of(folder / "cut") == bytes_of(folder / "whole")


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """Write a user's own module to a folder from which it can be imported."""

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)

    return write


@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_a_stopped_run_resumes_bit_identically(tmp_path, at):
    scenario = small_scenario(tmp_path, "privacy.sensitivity=trajectory")
    assert_resumes_bit_identically(scenario, tmp_path, at=at)
    # Resuming a finished run changes nothing.
    ad.resume(tmp_path / "cut")
    assert bytes_of(tmp_path / "cut") == bytes_of(tmp_path / "whole")


@pytest.mark.parametrize("part", ["safetensors", "json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_checkpoint_is_detected_and_the_previous_one_used(tmp_path, part, damage, caplog):
    scenario = small_scenario(tmp_path)
    ad.run(scenario, out=tmp_path / "whole", options=OFTEN)
    with pytest.raises(PulledPlugError):
        ad.run(scenario, out=tmp_path / "cut", options=OFTEN, on_round=stop_after(5))
    newest = sorted((tmp_path / "cut").glob(f"checkpoint-*.{part}"))[-1]
    content = bytearray(newest.read_bytes())
    if damage == "cut":
        newest.write_bytes(content[: len(content) // 2])
    elif damage == "gone":
        newest.unlink()
    else:
        content[len(content) // 2] ^= 1
        newest.write_bytes(content)
    assert newest_checkpoint(tmp_path / "cut").round_index == 2
    if (part, damage) != ("json", "gone"):
        assert "checkpoint-00000004: damaged" in caplog.text
    ad.resume(tmp_path / "cut")
    assert bytes_of(tmp_path / "cut") == bytes_of(tmp_path / "whole")


def test_an_edited_round_file_is_rejected(tmp_path):
    with pytest.raises(PulledPlugError):
        ad.run(small_scenario(tmp_path), out=tmp_path / "cut", options=OFTEN, on_round=stop_after(5))
    rounds = tmp_path / "cut" / "rounds.jsonl"
    rounds.write_text(rounds.read_text().replace('"round": 2', '"round": 9'))
    with pytest.raises(RunError, match="edited or truncated"):
        ad.resume(tmp_path / "cut")


def test_a_second_run_in_the_same_folder_is_rejected(tmp_path):
    ad.run(small_scenario(tmp_path), out=tmp_path / "run", options=OFTEN)
    with locked(tmp_path / "run"), pytest.raises(RunError, match="another process"):
        ad.resume(tmp_path / "run")
    with pytest.raises(InputError, match="not empty"):
        ad.run(small_scenario(tmp_path), out=tmp_path / "run", options=OFTEN)


def test_runs_get_new_folders_by_default(tmp_path, monkeypatch):
    scenario = small_scenario(tmp_path)
    monkeypatch.chdir(tmp_path)
    folders = [ad.run(scenario, rounds=1, options=OFTEN).folder for _ in range(2)]
    assert [str(folder) for folder in folders] == ["runs/quick-airdistill", "runs/quick-airdistill-2"]


def test_a_run_can_be_resumed_from_any_working_directory(tmp_path, monkeypatch):
    small_scenario(tmp_path)
    monkeypatch.chdir(tmp_path)
    scenario = small_scenario(tmp_path, "data.dataset=blobs.npz")
    ad.run(scenario, out=tmp_path / "whole", options=OFTEN)
    with pytest.raises(PulledPlugError):
        ad.run(scenario, out=tmp_path / "cut", options=OFTEN, on_round=stop_after(3))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ad.resume(tmp_path / "cut")
    assert bytes_of(tmp_path / "cut") == bytes_of(tmp_path / "whole")


def test_models_with_dropout_and_batch_norm_resume_bit_identically(tmp_path, user_module):
    user_module(
        "wobbly",
        "from torch import nn\n"
        "def model(num_classes):\n"
        "    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, num_classes))\n",
    )
    scenario = small_scenario(tmp_path, "learning.model=wobbly:model")
    options = RunOptions(eval_every=2, checkpoint_every=2, threads=3)
    assert_resumes_bit_identically(scenario, tmp_path, options)


@pytest.mark.parametrize("name", ["run.json", "plan.json", "scenario.toml"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "text"])
def test_a_run_whose_files_were_changed_is_not_resumed(tmp_path, name, damage):
    with pytest.raises(PulledPlugError):
        ad.run(small_scenario(tmp_path), out=tmp_path / "cut", options=OFTEN, on_round=stop_after(3))
    path = tmp_path / "cut" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"flip": content, "cut": content[:30], "text": b"\xff\xfe"}[damage])
    with pytest.raises(ad.AirDistillError) as caught:
        ad.resume(tmp_path / "cut")
    assert "\n" not in str(caught.value)


def test_a_run_whose_data_changed_is_not_resumed(tmp_path):
    with pytest.raises(PulledPlugError):
        ad.run(small_scenario(tmp_path), out=tmp_path / "cut", options=OFTEN, on_round=stop_after(3))
    write_dataset(tmp_path / "blobs.npz", seed=1)
    with pytest.raises(RunError, match="dataset, trace or embedding has changed"):
        ad.resume(tmp_path / "cut")


def test_a_change_anywhere_in_a_trace_is_detected(tmp_path):
    """The planner uses a selection of a long trace; a run uses every row."""
    gains = 1e-6 * (1 + np.arange(1500).reshape(500, 3) / 1500 + 0j)
    np.savez(tmp_path / "trace.npz", channel=gains)
    scenario = small_scenario(tmp_path, f"radio.trace={tmp_path / 'trace.npz'}", "learning.rounds=20")
    with pytest.raises(PulledPlugError):
        ad.run(scenario, out=tmp_path / "cut", options=OFTEN, on_round=stop_after(3))
    gains[11, 1] *= 2
    np.savez(tmp_path / "trace.npz", channel=gains)
    with pytest.raises(RunError, match="dataset, trace or embedding has changed"):
        ad.resume(tmp_path / "cut")


def test_a_start_that_failed_does_not_block_its_folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("lock", "scenario.toml", ".plan.json.x.tmp"):
        (folder / name).write_text("left behind")
    assert ad.run(small_scenario(tmp_path), out=folder, options=OFTEN).summary["rounds"] == 6
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; choose a folder"):
        ad.run(small_scenario(tmp_path), out=tmp_path / "file", options=OFTEN)


def test_overrides_apply_to_their_scheme(tmp_path):
    scenario = small_scenario(tmp_path, "overrides.local_only.learning.initial_lr=0.02")
    runs = [ad.run(scenario, name, out=tmp_path / name, options=OFTEN) for name in ("local_only", "fd_error_free")]
    assert [run.rounds[0]["lr"] for run in runs] == [0.02, 0.1]


def test_the_worst_device_is_the_one_reported(tmp_path):
    scenario = small_scenario(tmp_path, "data.samples_per_device={values=[6, 20, 30]}")
    record = ad.run(scenario, "ota_fd", out=tmp_path / "run", options=OFTEN)
    spent = ad.plan(scenario, "ota_fd").epsilon_by_model["device"]
    assert spent.max() > 1.2 * spent.min()
    assert record.summary["epsilon_spent"] == pytest.approx(spent.max(), rel=1e-9)


def test_the_accuracy_of_the_random_iterate_is_that_of_its_round(tmp_path):
    scenario = small_scenario(tmp_path, "learning.initial_lr=1.0")
    record = ad.run(scenario, "local_only", out=tmp_path / "run", options=RunOptions(eval_every=1))
    drawn = record.summary["random_iterate"]
    before = record.rounds[drawn["round"] - 2]["accuracy"]
    assert drawn["accuracy"] == before
    assert drawn["accuracy"] != record.summary["accuracy"]


def test_files_are_flushed_before_they_are_renamed(tmp_path, monkeypatch):
    from airdistill import files

    steps = []
    sync, replace = files.os.fsync, files.Path.replace
    monkeypatch.setattr(files.os, "fsync", lambda handle: (steps.append("sync"), sync(handle)))
    monkeypatch.setattr(files.Path, "replace", lambda path, to: (steps.append("replace"), replace(path, to)))
    files.write_whole(tmp_path / "file", b"content")
    assert steps == ["sync", "replace", "sync"]
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize("epochs", [0, 1])
def test_convolutions_in_channels_last_layout_resume_bit_identically(tmp_path, epochs):
    write_dataset(tmp_path / "images.npz", features=(16, 16))
    changes = [f"data.dataset={tmp_path / 'images.npz'}", "learning.model=paper_cnn", f"learning.local_epochs={epochs}"]
    scenario = small_scenario(tmp_path, *changes)
    assert_resumes_bit_identically(scenario, tmp_path)


def test_a_model_that_fails_in_training_is_an_error_of_one_line(tmp_path, user_module):
    user_module(
        "picky",
        "from torch import nn\n"
        "class OneSampleIsTooFew(nn.Module):\n"
        "    def forward(self, samples):\n"
        "        if self.training and len(samples) == 1:\n"
        "            raise ValueError('one sample')\n"
        "        return samples\n"
        "def model(num_classes):\n"
        "    return nn.Sequential(OneSampleIsTooFew(), nn.Linear(4, num_classes))\n",
    )
    changes = ["learning.model=picky:model", "learning.local_epochs=1", "learning.batch_size=19"]  # leaves one of 20
    with pytest.raises(ad.AirDistillError, match="round 1: your own code failed: ValueError") as caught:
        ad.run(small_scenario(tmp_path, *changes), out=tmp_path / "run", options=OFTEN)
    assert "\n" not in str(caught.value)


def test_models_that_share_weights_can_be_saved(tmp_path, user_module):
    user_module(
        "tied",
        "from torch import nn\n"
        "def model(num_classes):\n"
        "    first, second = nn.Linear(4, 4), nn.Linear(4, 4)\n"
        "    second.weight = first.weight\n"
        "    return nn.Sequential(first, nn.ReLU(), second, nn.LazyLinear(num_classes))\n",
    )
    scenario = small_scenario(tmp_path, "learning.model=tied:model")
    assert_resumes_bit_identically(scenario, tmp_path)


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path):
    with pytest.raises(InputError, match=r"has no run\.json"):
        ad.resume(tmp_path)


def test_a_diverging_run_stops_and_keeps_its_record(tmp_path):
    scenario = small_scenario(tmp_path, "learning.initial_lr=1e30", "learning.model=mlp")
    with pytest.raises(TrainingDivergedError, match=r"round \d+, device \d+"):
        ad.run(scenario, out=tmp_path / "run", options=OFTEN)
    wild = small_scenario(tmp_path, "learning.initial_lr=1e30", "learning.distill_weight=1e20")
    with pytest.raises(TrainingDivergedError, match="round 1, device 0"):
        ad.run(wild, rounds=1, out=tmp_path / "one", options=OFTEN)
    assert (tmp_path / "run" / "rounds.jsonl").exists()
    assert (tmp_path / "run" / "plan.json").exists()


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        (["learning.model=paper_cnn"], "needs images"),
        (["learning.model=guess"], "must be one of"),
        (["data.class_counts=[[5,5,5],[5,5,5],[5,5,5]]"], "a run needs data"),
        (["data.samples_per_device=21"], "training set has 60"),
        (["fleet.devices=70", "data.samples_per_device=1"], "training set has 60"),
    ],
)
def test_invalid_input_is_rejected_before_a_folder_is_created(tmp_path, changes, rule):
    with pytest.raises(InputError, match=rule):
        ad.run(small_scenario(tmp_path, *changes), out=tmp_path / "run", options=OFTEN)
    assert not (tmp_path / "run").exists()


def test_labels_out_of_range_are_rejected(tmp_path):
    path = write_dataset(tmp_path / "blobs.npz")
    arrays = dict(np.load(path))
    arrays["y_test"][0] = 3
    np.savez(path, **arrays)
    with pytest.raises(ad.AirDistillError, match="label 3"):
        ad.run(small_scenario(tmp_path), out=tmp_path / "run", options=OFTEN)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"device": "tpu"}, "cpu, cuda or auto"),
        ({"threads": -1}, "negative"),
        ({"eval_every": 0}, "at least 1"),
        ({"dtype": "float8"}, "float32"),
        ({"engine": "steam"}, "--engine.*auto, torch, fused"),
    ],
)
def test_invalid_options_are_rejected(tmp_path, options, rule):
    with pytest.raises(InputError, match=rule):
        ad.run(small_scenario(tmp_path), out=tmp_path / "run", options=RunOptions(**options))


def test_the_random_iterate_is_drawn_by_the_inverse_of_the_step_size():
    rounds = np.array([random_iterate_round(seed, 4) for seed in range(4000)])
    weights = np.sqrt([1, 2, 3, 4])
    expected = weights / weights.sum()
    shares = np.bincount(rounds, minlength=5)[1:] / 4000
    assert np.abs(shares - expected).max() < 5 * math.sqrt(0.25 / 4000)


def test_the_random_iterate_is_the_start_of_its_round(tmp_path):
    record = ad.run(small_scenario(tmp_path), out=tmp_path / "run", options=RunOptions(checkpoint_every=1))
    drawn = record.summary["random_iterate"]["round"]
    assert 1 < drawn < 6
    final = load_file(sorted((tmp_path / "run").glob("*.safetensors"))[-1])
    with pytest.raises(PulledPlugError):
        ad.run(
            small_scenario(tmp_path),
            out=tmp_path / "cut",
            options=RunOptions(checkpoint_every=1),
            on_round=stop_after(drawn),
        )
    # It is stopped in round t̂ before its checkpoint, and so the newest one is the start of that round.
    start = load_file(sorted((tmp_path / "cut").glob("*.safetensors"))[-1])
    for name in (name for name in final if name[0].isdigit()):
        assert np.array_equal(final[f"iterate.{name}"], start[name])
        assert not np.array_equal(final[f"iterate.{name}"], final[name])
