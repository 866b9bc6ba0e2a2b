"""The leaderboard: what is run, what the page says, and the same bytes after an interruption."""

import csv
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from in_process import exit_code, runs_in_this_process
from small_worlds import write_dataset

import airdistill as ad
from airdistill.errors import InputError
from airdistill.reproduce.leaderboard import (
    EPSILONS,
    FIRST_TUNING_SEED,
    SPLITS,
    Question,
    Setting,
    all_tuned,
    comparison_of,
    ranked_schemes,
    records_in,
    run_leaderboard,
    sources_of,
    tuned_for,
)
from airdistill.reproduce.standings import OURS, against, read_board
from airdistill.runs.executors import LocalExecutor
from airdistill.runs.options import RunOptions
from airdistill.runs.record import RunRecord
from airdistill.scenario.loading import for_scheme, load
from airdistill.schemes.planning import as_run_by
from airdistill.schemes.registry import SCHEMES, load_scheme

SMALL = ("fleet.devices=4", "data.samples_per_device=20", "public.samples=30")
SOME = ("blobs-*-8/airdistill_features", "blobs-*-8/ota_head", "blobs-iid-2/ota_fl", "blobs-iid-*/centralised")
RAN = {
    "blobs-two-classes-8": ["airdistill_features", "ota_head"],
    "blobs-iid-8": ["airdistill_features", "ota_head"],
    "blobs-iid-2": ["ota_fl"],
    "blobs-iid-without-privacy": ["centralised"],
}


def command_in(folder, *options):
    data = folder.parent / "blobs.npz"
    if not data.exists():
        write_dataset(data, num_train=300, num_test=60)
    changes = [word for change in SMALL for word in ("--set", change)]
    only = [word for pattern in SOME for word in ("--only", pattern)]
    named = ["--data", f"blobs={data}", "--quick", "--seeds", "2", "--out", folder]
    return ["leaderboard", *named, *changes, *only, *options]


def files_of(folder):
    return {name: (folder / name).read_bytes() for name in ("leaderboard.html", "leaderboard.csv", "leaderboard.json")}


@pytest.fixture(scope="module")
def board_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranked") / "board"
    with runs_in_this_process():
        assert exit_code(*command_in(folder, "--json")) == 0
    return folder


# What is run.


def test_only_what_is_asked_for_is_run_and_schemes_without_privacy_once_for_all_epsilon(board_folder):
    found = {}
    for summary in sorted(board_folder.glob("*/*/seed-*/summary.json")):
        found.setdefault(summary.parts[-4], {}).setdefault(summary.parts[-3], []).append(summary.parts[-2])
    assert {name: sorted(schemes) for name, schemes in found.items()} == RAN
    assert all(seeds == ["seed-0", "seed-1"] for schemes in found.values() for seeds in schemes.values())
    records = records_in(board_folder, Question.read(board_folder))
    strict, loose = (Setting("blobs", "iid", epsilon) for epsilon in (2.0, 8.0))
    assert records[strict]["centralised"].folder == records[loose]["centralised"].folder


def test_the_arms_of_a_setting_differ_in_nothing_but_their_own_tuned_settings():
    question = Question({"mnist": "mnist"}, 3, (), False, RunOptions())
    assert len(question.settings) == len(SPLITS) * len(EPSILONS)
    for setting in question.settings:
        compared = comparison_of(question, setting)
        assert compared.seeds == (0, 1, 2)
        for arm in compared.arms:
            own = tuned_for(arm.scheme, setting).settings
            assert arm.scenario.overrides == {arm.scheme: own}
            plain = arm.scenario.model_copy(update={"overrides": {}})
            assert plain == compared.arms[0].scenario.model_copy(update={"overrides": {}})
        assert plain.data.partition == ("shards" if setting.split == "two-classes" else "iid")
        assert set(plain.privacy.epsilon.numbers) == {setting.epsilon}
        assert plain.num_devices == 200


def test_every_scheme_of_the_table_fits_every_setting():
    """The fields of its settings exist, and agree with the scenario; every scheme has a number of rounds."""
    question = Question({"mnist": "mnist", "cifar10": "mnist"}, 1, (), False, RunOptions())
    for setting in question.settings:
        for own in (setting, replace(setting, epsilon=None)):
            for arm in comparison_of(question, own).arms:
                adapted = as_run_by(load_scheme(arm.scheme), arm.scenario)
                assert isinstance(adapted.learning.rounds, int)


def test_what_the_user_sets_wins_over_the_table():
    changes = ("overrides.ota_fl.learning.rounds=9", "public.samples=50")
    question = Question({"mnist": "mnist"}, 1, changes, False, RunOptions())
    arm = comparison_of(question, question.settings[0]).arm("ota_fl")
    assert for_scheme(arm.scenario, "ota_fl").learning.rounds == 9
    assert arm.scenario.public.samples == 50
    other = comparison_of(question, question.settings[0]).arm("ota_head")
    assert list(other.scenario.overrides) == ["ota_head"]


# Tuning.


def test_tuning_never_saw_a_reported_seed_and_says_what_it_tried():
    for entry in all_tuned():
        assert all(seed >= FIRST_TUNING_SEED for seed in entry.seeds), entry
        assert bool(entry.runs) == bool(entry.seeds) == bool(entry.tried), entry
        assert entry.runs or entry.note, entry
        for name, values in entry.tried.items():
            assert entry.runs >= len(values)
            section, field = name.split(".")
            chosen = entry.settings.get(section, {}).get(field)
            assert chosen is None or chosen in values, f"{entry.schemes}: {name}"
        private = {load_scheme(scheme).releases == "private" for scheme in entry.schemes}
        assert private == {entry.epsilon is not None}
    left_out = {"ota_fd_fixed", "ota_fl_fixed", "ota_fd_antennas"}  # constant T, and no privacy asked
    assert set(ranked_schemes()) == SCHEMES.keys() - left_out


@pytest.mark.parametrize("scheme", ["ota_fedavg", "ota_head"])
def test_the_preset_has_the_tuned_settings_of_its_own_setting(scheme):
    setting = Setting("mnist", "two-classes", 8)
    assert tuned_for(scheme, setting).setting == setting
    assert load("skewed").overrides[scheme] == tuned_for(scheme, setting).settings


def test_settings_are_carried_over_from_the_most_similar_setting():
    found = tuned_for(OURS, Setting("cifar10", "iid", 2))
    assert found.setting == Setting("cifar10", "two-classes", 8)
    assert tuned_for(OURS, Setting("letters", "iid", 2)).setting == Setting("mnist", "two-classes", 8)


# Verdicts.


def runs_with(folder, accuracies):
    return {
        seed: RunRecord(folder, (), {"accuracy": {"mean": mean, "worst": mean, "best": mean, "own_classes": mean}})
        for seed, mean in enumerate(accuracies)
    }


@pytest.mark.parametrize(
    ("ours", "other", "verdict"),
    [
        ([0.90, 0.91, 0.92], [0.80, 0.81, 0.82], "ahead"),
        ([0.80, 0.81, 0.82], [0.90, 0.91, 0.92], "behind"),
        # The accuracies vary by 20 points from seed to seed, the differences by half a point: pairs decide.
        ([0.70, 0.80, 0.91], [0.69, 0.785, 0.90], "ahead"),
        ([0.90, 0.91, 0.92], [0.91, 0.91, 0.91], "level"),
        ([0.90, 0.91, 0.92], [0.90, 0.91, 0.92], "level"),
        ([0.90], [0.10], "undecided"),
        ([0.90, 0.91, 0.92], [0.10, 0.11], "undecided"),  # not ended
        ([0.90, 0.91, 0.92], [], "undecided"),
    ],
)
def test_the_interval_of_differences_by_seed_decides(tmp_path, ours, other, verdict):
    asked = range(max(len(ours), len(other)))
    found = against(runs_with(tmp_path, ours), runs_with(tmp_path, other), asked)
    assert found.verdict == verdict
    if len(other) > 1:
        seeds = min(len(ours), len(other))
        differences = np.subtract(ours[:seeds], other[:seeds])
        quantile = {2: 12.7062, 3: 4.30265}[seeds]  # Student's t, one and two degrees of freedom
        assert found.paired.gap.half == pytest.approx(quantile * differences.std(ddof=1) / np.sqrt(seeds), rel=1e-4)


def test_level_states_how_wide_the_interval_is(tmp_path):
    level = against(runs_with(tmp_path, [0.90, 0.91, 0.92]), runs_with(tmp_path, [0.91, 0.91, 0.91]), range(3))
    assert level.numbers == "+0.0 ± 2.5 points (by seed −1.0, +0.0, +1.0); the interval is 5.0 points wide"
    ahead = against(runs_with(tmp_path, [0.9, 0.9]), runs_with(tmp_path, [0.8, 0.8]), range(2))
    assert ahead.numbers == "+10.0 ± 0.0 points (by seed +10.0, +10.0)"


# The page and the table.


def test_the_table_agrees_with_the_runs_and_their_certificates(board_folder):
    rows = list(csv.DictReader((board_folder / "leaderboard.csv").read_text().splitlines()))
    ended = {(row["setting"], row["scheme"]): row for row in rows if row["seeds"] == "2"}
    head = ended["blobs-two-classes-8", "ota_head"]
    runs = [board_folder / "blobs-two-classes-8" / "ota_head" / f"seed-{seed}" for seed in (0, 1)]
    summaries = [json.loads((run / "summary.json").read_text()) for run in runs]
    assert float(head["accuracy"]) == pytest.approx(np.mean([each["accuracy"]["mean"] for each in summaries]))
    assert float(head["uplink_seconds"]) == pytest.approx(summaries[0]["uplink_seconds"])
    worst = [max(ad.certify(run).worst("device", "own_noise") for run in runs)]
    assert float(head["epsilon_device_own_noise"]) == pytest.approx(worst[0])
    assert float(head["epsilon_device_own_noise"]) > float(head["epsilon_device_fleet_noise"])
    assert float(head["epsilon_device_fleet_noise"]) <= 8 * (1 + 1e-9)
    assert head["trusts"] == "honest fleet; exact channels"
    ours = [
        json.loads((board_folder / "blobs-two-classes-8" / OURS / f"seed-{seed}" / "summary.json").read_text())
        for seed in (0, 1)
    ]
    differences = [
        first["accuracy"]["mean"] - second["accuracy"]["mean"] for first, second in zip(ours, summaries, strict=True)
    ]
    assert float(head["ours_against_gap"]) == pytest.approx(np.mean(differences))
    # Both values of ε have the same run without privacy.
    for epsilon in ("2", "8"):
        assert ended[f"blobs-iid-{epsilon}", "centralised"]["kind"] == "without privacy"


def test_the_page_shows_results_verdicts_lenses_tuning_and_the_command(board_folder):
    page = (board_folder / "leaderboard.html").read_text()
    for words in (
        "blobs-two-classes-8",
        f"{OURS} is",
        "against ota_fl",
        "84 runs, for mnist-two-classes-8",
        "honest fleet, exact channels",
        "everyone: no protection",
        "receiver noise",
        "trajectory",
        "not run",
        "undecided",
        "reduced by --quick",
    ):
        assert words in page, words
    assert "airdistill leaderboard --data blobs=" in page
    board = read_board(board_folder)
    rows = board.standings[Setting("blobs", "iid", 8.0)]
    kinds = [row.kind for row in rows]
    assert kinds.index("trusted aggregator") > kinds.index("private")
    assert next(row.scheme for row in rows if row.kind == "trusted aggregator") == "pate"
    assert {row.scheme for row in rows if row.kind == "nothing sent"} == {"local_only", "local_public"}
    best = max(row.mean for row in rows if row.kind == "private")
    assert board.leader(Setting("blobs", "iid", 8.0)).mean == best


# Stopped, resumed, refused.


class PulledPlugError(Exception):
    """Ends a leaderboard as a crash would."""


def test_an_interrupted_leaderboard_has_the_same_bytes(board_folder, tmp_path, monkeypatch):
    """It is stopped after four runs of eight, resumed by its folder, and its report is written anew."""
    folder = tmp_path / "board"
    shutil.copy(board_folder.parent / "blobs.npz", tmp_path / "blobs.npz")
    with runs_in_this_process():
        real, count = LocalExecutor.compute, [0]

        def failing(executor, where, given, waiting, jobs, on_progress):
            for task in waiting:
                if count[0] == 4:
                    raise KeyboardInterrupt
                count[0] += 1
                real(executor, where, given, [task], jobs, on_progress)

        monkeypatch.setattr(LocalExecutor, "compute", failing)
        assert exit_code(*command_in(folder)) == 130
        assert len(list(folder.glob("*/*/*/summary.json"))) == 4
        monkeypatch.setattr(LocalExecutor, "compute", real)
        assert exit_code("resume", folder) == 0
    # The folders of the data differ, and with them the command on the page.
    plain = {
        name: content.replace(bytes(tmp_path), bytes(board_folder.parent)) for name, content in files_of(folder).items()
    }
    whole = files_of(board_folder)
    assert plain["leaderboard.html"] == whole["leaderboard.html"]
    assert plain["leaderboard.csv"] == whole["leaderboard.csv"]
    for rounds in board_folder.glob("*/*/*/rounds.jsonl"):
        assert (folder / rounds.relative_to(board_folder)).read_bytes() == rounds.read_bytes()
    before = files_of(folder)
    (folder / "leaderboard.html").unlink()
    assert exit_code("report", folder) == 0
    assert exit_code("leaderboard", "--redraw", "--out", folder) == 0
    assert files_of(folder) == before


def test_a_later_call_may_select_other_runs_but_not_ask_another_question(board_folder, tmp_path, capsys):
    folder = tmp_path / "board"
    shutil.copytree(board_folder, folder)
    stored = Question.read(folder)
    with runs_in_this_process():
        run_leaderboard(replace(stored, only=("blobs-iid-8/local_only",)), folder, 1, lambda _task, _news: None)
    assert len(list(folder.glob("*/local_only/*/summary.json"))) == 2
    assert Question.read(folder).only == ("blobs-iid-8/local_only",)
    with pytest.raises(InputError, match="holds another leaderboard"):
        run_leaderboard(replace(stored, seeds=3), folder, 1, lambda _task, _news: None)
    capsys.readouterr()


def test_a_failed_run_is_named_and_decides_nothing(board_folder, tmp_path, capsys):
    folder = tmp_path / "board"
    shutil.copytree(board_folder, folder)
    lost = folder / "blobs-iid-8" / "ota_head" / "seed-1"
    shutil.rmtree(lost)
    lost.with_suffix(".failed").write_text("out of <memory>")
    assert exit_code("leaderboard", "--redraw", "--out", folder, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["problems"] == ["blobs-iid-8/ota_head, seed 1: out of <memory>"]
    assert said["unfinished"] == ["blobs-iid-8/ota_head"]
    row = next(row for row in said["standings"] if (row["setting"], row["scheme"]) == ("blobs-iid-8", "ota_head"))
    assert (row["seeds"], row["ours_against_verdict"]) == (1, "undecided")
    page = (folder / "leaderboard.html").read_text()
    assert "ota_head (1 of 2 seeds)" in page
    assert "out of &lt;memory&gt;" in page


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--only", "mnist-iid-8/no_such"], "settings are mnist-two-classes-8"),
        (["--only", "mnist-iid-3/ota_fl"], "must be SETTING/SCHEME"),
        (["--only", "ota_fl"], "must be SETTING/SCHEME"),
        (["--data", "letters"], "NAME=SOURCE"),
        (["--data", "../x=mnist"], "small letters"),
        (["--data", "a=mnist", "--data", "a=mnist"], "given twice"),
        (["--set", "privacy.epsilon=3"], "vary privacy.epsilon"),
        (["--set", "data={partition='iid'}"], "vary data.partition"),
        (["--set", "learning.rond=3"], "unknown key"),
        (["--redraw"], "is not a leaderboard's folder"),
    ],
)
def test_invalid_input_is_named_before_anything_is_run(tmp_path, capsys, options, words):
    assert exit_code("leaderboard", "--out", tmp_path / "new", *options) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "new").exists() or not list((tmp_path / "new").glob("*/"))


def test_a_folder_that_is_something_else_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert exit_code("leaderboard", "--only", "mnist-iid-8/ota_fl", "--out", tmp_path) == 2
    assert "is not empty" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


def test_an_edited_question_is_refused(board_folder, tmp_path, capsys):
    stored = json.loads((board_folder / "leaderboard.json").read_text())
    (tmp_path / "leaderboard.json").write_text(json.dumps({**stored, "seeds": 1}))
    assert exit_code("resume", tmp_path) == 2
    assert "edited or damaged" in capsys.readouterr().err


def test_sources_are_found_from_any_folder(tmp_path, monkeypatch):
    write_dataset(tmp_path / "blobs.npz")
    monkeypatch.chdir(tmp_path)
    assert sources_of(["blobs=blobs.npz", "mnist"]) == {"blobs": str(tmp_path / "blobs.npz"), "mnist": "mnist"}
    assert sources_of([]) == {"mnist": "mnist"}
