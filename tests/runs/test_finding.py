"""Runs found in a folder, in every state, and selected for a comparison."""

import errno
import fcntl
import os
import shutil
import time
from pathlib import Path

import pytest
from small_worlds import small_scenario

import airdistill as ad
from airdistill.errors import AirDistillError
from airdistill.reproduce.claims import claims_about
from airdistill.runs import folder as run_folder
from airdistill.runs.finding import compare_runs, find_comparisons, find_runs
from airdistill.runs.folder import LOCK, RunError, is_locked, locked, process_in
from airdistill.runs.options import RunOptions
from airdistill.runs.results import arm_results


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """`ota_fd` and `local_only` on two seeds, and `ota_fd` once more at another ε."""
    folder = tmp_path_factory.mktemp("runs")
    options = RunOptions(eval_every=2)
    for seed in (3, 5):
        for scheme in ("ota_fd", "local_only"):
            ad.run(small_scenario(folder, f"seed={seed}"), scheme, out=folder / f"{scheme}-{seed}", options=options)
    ad.run(small_scenario(folder, "privacy.epsilon=4"), "ota_fd", out=folder / "deep" / "stricter", options=options)
    return folder


def states(folder):
    return {run.name: run.state for run in find_runs(folder)}


def test_a_folder_without_permission_does_not_hide_others(runs, tmp_path, monkeypatch):
    """Its files can be listed and not opened, as after `chmod 644`. Root is never refused, and so the test raises."""
    for name in ("closed", "open"):
        shutil.copytree(runs / "ota_fd-3", tmp_path / name)
    real_stat = Path.stat

    def stat(path, **more):
        if "closed" in path.parts:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_stat(path, **more)

    monkeypatch.setattr(Path, "stat", stat)
    assert states(tmp_path) == {"closed": "broken", "open": "ended"}


def test_states_are_distinguished(runs, tmp_path):
    assert states(runs)["deep/stricter"] == "ended"
    for name in ("stopped", "broken", "none"):
        shutil.copytree(runs / "ota_fd-3", tmp_path / name)
        (tmp_path / name / "summary.json").unlink()
    (tmp_path / "broken" / "plan.json").write_text("{}")
    (tmp_path / "none" / "run.json").unlink()
    assert states(tmp_path) == {"stopped": "stopped", "broken": "broken", "none": "not begun"}
    broken = next(run for run in find_runs(tmp_path) if run.state == "broken")
    assert "plan.json was edited or damaged" in broken.problem
    with locked(tmp_path / "stopped"), locked(tmp_path / "none"):
        assert states(tmp_path) == {"stopped": "running", "broken": "broken", "none": "starting"}
    assert states(tmp_path)["stopped"] == "stopped"


def test_the_process_in_a_folder_is_named_while_it_runs(tmp_path):
    assert process_in(tmp_path) is None
    with locked(tmp_path):
        assert process_in(tmp_path) == os.getpid()
        with pytest.raises(RunError, match="another process"), locked(tmp_path):
            pass
        assert process_in(tmp_path) == os.getpid()
    assert process_in(tmp_path) is None
    assert (tmp_path / LOCK).read_text() == ""


def test_a_lock_counts_before_its_holder_has_written_its_id(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "_NAMING_S", 0.0)
    shutil.copytree(runs / "ota_fd-3", tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    with locked(tmp_path / "run"):
        (tmp_path / "run" / LOCK).write_text("")
        assert is_locked(tmp_path / "run")
        assert process_in(tmp_path / "run") is None
        assert states(tmp_path) == {"run": "running"}


def test_a_process_that_has_just_taken_the_lock_is_waited_for_until_it_is_named(tmp_path, monkeypatch):
    with locked(tmp_path):
        (tmp_path / LOCK).write_text("")
        monkeypatch.setattr(run_folder, "_NAMING_S", 600.0)
        monkeypatch.setattr(time, "sleep", lambda _: (tmp_path / LOCK).write_text("7\n"))
        assert process_in(tmp_path) == 7


def test_a_reader_of_the_state_does_not_keep_a_run_out(tmp_path, monkeypatch):
    """A reader holds the lock for an instant, which can be long on a busy machine. A run that starts then waits."""
    with locked(tmp_path):
        pass
    with (tmp_path / LOCK).open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda _: fcntl.flock(reader, fcntl.LOCK_UN))
        with locked(tmp_path, patience_s=0.0):
            assert process_in(tmp_path) == os.getpid()


def test_a_truncated_last_round_is_dropped_and_a_damaged_one_is_named(runs, tmp_path):
    shutil.copytree(runs / "ota_fd-3", tmp_path / "run")
    path = tmp_path / "run" / "rounds.jsonl"
    whole = path.read_bytes()
    (tmp_path / "run" / "summary.json").unlink()  # tests/runs/test_damage.py is about runs that have ended
    path.write_bytes(whole[:-10])
    assert len(ad.RunRecord.read(tmp_path / "run").rounds) == 5
    lines = whole.splitlines(keepends=True)
    for damaged in ([lines[0], b"[1]\n", *lines[2:]], [lines[0], *lines[2:]], [lines[0], b"nonsense\n"]):
        path.write_bytes(b"".join(damaged))
        with pytest.raises(AirDistillError, match=r"line 2.*damaged"):
            ad.RunRecord.read(tmp_path / "run")


def test_runs_that_differ_only_in_their_seed_are_one_arm(runs):
    names = ["ota_fd-3", "ota_fd-5", "local_only-3", "local_only-5"]
    record = compare_runs([runs / name for name in names], runs)
    assert [arm.label for arm in record.comparison.arms] == ["ota_fd", "local_only"]
    assert record.comparison.seeds == (3, 5)
    by_label = {result.label: result for result in arm_results(record)}
    assert by_label["ota_fd"].num_seeds == 2
    ended = [ad.RunRecord.read(runs / f"ota_fd-{seed}").summary["accuracy"]["mean"] for seed in (3, 5)]
    assert by_label["ota_fd"].accuracy.mean == pytest.approx(sum(ended) / 2)
    assert by_label["ota_fd"].gain is not None
    claims = claims_about(record)
    assert [claim.statement.startswith("It gains over") for claim in claims] == [True]


def test_the_same_scheme_with_another_target_is_another_arm(runs):
    record = compare_runs([runs / "ota_fd-3", runs / "deep" / "stricter"], runs)
    assert [arm.label for arm in record.comparison.arms] == ["ota_fd-3", "deep/stricter"]
    assert len(record.runs) == 2


def test_comparisons_are_found_by_their_file(tmp_path):
    (tmp_path / "figures" / "fig2b").mkdir(parents=True)
    (tmp_path / "figures" / "fig2b" / "comparison.json").write_text("{}")
    assert find_comparisons(tmp_path) == [tmp_path / "figures" / "fig2b"]
