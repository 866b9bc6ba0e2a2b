"""Nothing that a run has finished is lost: ended runs are shown and never repeated, and damage is named."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from in_process import exit_code, runs_in_this_process
from small_worlds import small_scenario

import airdistill as ad
from airdistill.audit import AuditOptions, audit_run
from airdistill.report.comparison import comparison_page, print_comparison
from airdistill.report.terminal import Terminal
from airdistill.runs.comparison import ComparisonRecord, compare, resume_comparison
from airdistill.runs.folder import RunError
from airdistill.runs.options import RunOptions
from airdistill.runs.record import RunRecord

OFTEN = RunOptions(eval_every=2, checkpoint_every=2, threads=1)
FINAL = ("rounds.jsonl", "ledger.jsonl", "ledger.head", "summary.json", "certificate.json", "digests.json")


class PulledPlugError(Exception):
    """Ends a run as a crash would."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """An ended and an interrupted run, `ended-seeded`, `cut-seeded` and the same with secure noise; 6 rounds."""
    folder = tmp_path_factory.mktemp("runs")

    def stop_after_5(record, _):
        if record["round"] == 5:
            raise PulledPlugError

    for noise in ("seeded", "secure"):
        scenario = small_scenario(folder, f"privacy.noise={noise}")
        ad.run(scenario, out=folder / f"ended-{noise}", options=OFTEN)
        with pytest.raises(PulledPlugError):
            ad.run(scenario, out=folder / f"cut-{noise}", options=OFTEN, on_round=stop_after_5)
    return folder


@pytest.fixture
def copied(runs, tmp_path):
    def copy(name):
        return shutil.copytree(runs / name, tmp_path / "run")

    return copy


def contents(folder, names=FINAL):
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


def remove_checkpoints(folder):
    for path in folder.glob("checkpoint-*"):
        path.unlink()


def flip_checkpoints(folder):
    for path in folder.glob("checkpoint-*.json"):
        path.write_bytes(path.read_bytes().replace(b'"round": ', b'"round":  '))


NO_CHECKPOINT = [remove_checkpoints, flip_checkpoints]


@pytest.mark.parametrize("damage", NO_CHECKPOINT)
@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_an_ended_run_without_checkpoints_is_shown_and_not_repeated(copied, capsys, noise, damage):
    """With secure noise a repeated run would find its budget spent: no round and another summary would be left."""
    folder = copied(f"ended-{noise}")
    damage(folder)
    before = contents(folder)
    assert exit_code("resume", folder) == 0
    assert "Accuracy" in capsys.readouterr().out
    assert contents(folder) == before
    assert ad.resume(folder).summary["rounds"] == 6


@pytest.mark.parametrize("damage", NO_CHECKPOINT)
@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_an_interrupted_run_without_checkpoints_is_refused_with_what_is_left_to_do(copied, capsys, noise, damage):
    folder = copied(f"cut-{noise}")
    damage(folder)
    before = contents(folder)
    assert exit_code("resume", folder) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "checkpoints were removed or are damaged, and so it cannot be resumed after round 5" in line
    assert f"airdistill certify {folder}" in line
    assert f"--ledger {folder}" in line
    assert contents(folder) == before


def test_a_run_that_was_killed_before_its_first_checkpoint_is_repeated(tmp_path):
    def stop_after_3(record, _):
        if record["round"] == 3:
            raise PulledPlugError

    options = RunOptions(eval_every=2, checkpoint_every=5, threads=1)
    whole = ad.run(small_scenario(tmp_path), out=tmp_path / "whole", options=options)
    with pytest.raises(PulledPlugError):
        ad.run(small_scenario(tmp_path), out=tmp_path / "cut", options=options, on_round=stop_after_3)
    ad.resume(tmp_path / "cut")
    assert contents(tmp_path / "cut") == contents(whole.folder)


def cut(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))


def cut_in_a_line(path):
    path.write_bytes(path.read_bytes()[:-20])


def empty(path):
    path.write_bytes(b"")


def delete(path):
    path.unlink()


def garbage_line(path):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"\xff{garbage\n", *lines[3:]]))


def edit(path):
    path.write_bytes(path.read_bytes().replace(b'"accuracy"', b'"accurate"'))


DAMAGE = [
    (cut, "was cut; 4 of 6 rounds are shown"),
    (cut_in_a_line, "was cut; 5 of 6 rounds are shown"),
    (empty, "was cut; 0 of 6 rounds are shown"),
    (delete, "is missing; 0 of 6 rounds are shown"),
    (garbage_line, "line 3: cannot be read; the file is damaged; 2 of 6 rounds are shown"),
    (edit, "was edited or damaged, and in which rounds is not known; 0 of 6 rounds are shown"),
]


@pytest.mark.parametrize(("damage", "named"), DAMAGE)
def test_damaged_records_of_an_ended_run_are_named_by_every_reader_and_kept(copied, capsys, damage, named):
    folder = copied("ended-secure")
    damage(folder / "rounds.jsonl")
    kept = [name for name in FINAL if name != "certificate.json"]  # which `certify` writes again, with its date
    before = contents(folder, kept)
    for command in ("report", "certify"):
        assert exit_code(command, folder) == 0
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"warning: {folder / 'rounds.jsonl'}")
        assert named in line
    assert named in (folder / "report.html").read_text()
    assert exit_code("resume", folder, "--json") == 0
    assert named in json.loads(capsys.readouterr().out)["damage"][0]
    assert exit_code("resume", folder) == 0
    assert named in " ".join(capsys.readouterr().out.split())
    assert contents(folder, kept) == before
    assert repr(RunRecord.read(folder)).endswith("damaged)")


@pytest.mark.parametrize("damage", [cut, empty, delete, garbage_line, edit])
def test_damaged_records_of_an_interrupted_run_are_named_and_kept(copied, capsys, damage):
    """They are damaged before the checkpoint of round 4, and so the records cannot be completed."""
    folder = copied("cut-seeded")
    path = folder / "rounds.jsonl"
    if damage is cut:
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    else:
        damage(path)
    before = contents(folder)
    assert exit_code("resume", folder) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path}: does not match its checkpoint: it was edited or truncated" in line
    assert "airdistill certify" in line
    assert contents(folder) == before
    assert exit_code("certify", folder) == 0


def cut_to_3(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))


@pytest.mark.parametrize("damage", [cut_to_3, empty, Path.unlink])
def test_an_interrupted_run_that_lost_records_is_not_audited_as_sound(copied, capsys, damage):
    """An audit of no records found nothing, and said so: "not violated"."""
    folder = copied("cut-seeded")
    path = folder / "rounds.jsonl"
    damage(path)
    before = contents(folder, ("rounds.jsonl", "ledger.jsonl"))
    for command in (("audit", folder, "--parts", "recorded"), ("report", folder)):
        assert exit_code(*command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{path}: does not match its checkpoint: it was edited, cut or removed" in line
    assert exit_code("certify", folder) == 0
    assert "does not match its checkpoint" in capsys.readouterr().err
    assert contents(folder, before) == before
    assert not (folder / "audit.json").exists()


def test_an_audit_names_charged_rounds_without_a_record(tmp_path):
    """Before the first checkpoint nothing else tells of records that were removed."""

    def stop_after_3(record, _):
        if record["round"] == 3:
            raise PulledPlugError

    never = RunOptions(eval_every=2, checkpoint_every=100, threads=1)
    with pytest.raises(PulledPlugError):
        ad.run(small_scenario(tmp_path), out=tmp_path / "run", options=never, on_round=stop_after_3)
    (tmp_path / "run" / "rounds.jsonl").write_bytes(b"")
    found = audit_run(tmp_path / "run", AuditOptions(parts=("recorded",)))
    assert any(note.startswith("Charged rounds without a record (1 to 3)") for note in found.recorded.notes)


def test_garbage_after_the_last_checkpoint_is_named_and_computed_again(copied, runs, caplog):
    """A power failure can leave it: records are flushed to the disk with each checkpoint."""
    folder = copied("cut-seeded")
    lines = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_bytes(b"".join([*lines[:4], b"\0\0\0\n"]))
    ad.resume(folder)
    assert "line 5: cannot be read; the file is damaged; the rounds after round 4 are computed again" in caplog.text
    assert contents(folder) == contents(runs / "ended-seeded")


@pytest.mark.parametrize("content", [b"", b"garbage", b"{}", b"[1]"])
def test_a_damaged_summary_is_named_and_can_be_written_again(copied, runs, capsys, content):
    folder = copied("ended-secure")
    (folder / "summary.json").write_bytes(content)
    for command in ("report", "resume"):
        assert exit_code(command, folder) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "summary.json: was edited or damaged; remove it, and airdistill resume writes it again" in line
    assert exit_code("certify", folder) == 0
    assert (folder / "summary.json").read_bytes() == content
    (folder / "summary.json").unlink()
    ad.resume(folder)
    assert contents(folder) == contents(runs / "ended-secure")


@pytest.mark.parametrize("content", [b"", b"garbage", b"{}", b"[1]", None])
def test_damaged_digests_and_those_of_older_versions(copied, content):
    """Runs of older versions have none."""
    folder = copied("ended-seeded")
    (folder / "digests.json").unlink()
    if content is not None:
        (folder / "digests.json").write_bytes(content)
    record = RunRecord.read(folder)
    assert len(record.rounds) == 6
    assert len(record.damage) == (content is not None)


@pytest.mark.parametrize("name", ["certificate.json", "timings.jsonl", "report.html"])
def test_files_that_are_made_from_others_are_not_needed(copied, name):
    folder = copied("ended-seeded")
    (folder / name).write_bytes(b"\xff{garbage\n")
    assert exit_code("resume", folder) == exit_code("report", folder) == exit_code("certify", folder) == 0


def test_a_damaged_run_of_a_comparison_is_named_and_kept_and_hides_no_other(tmp_path, capsys):
    scenario = small_scenario(tmp_path, "learning.rounds=2", "privacy.noise=secure")
    folder = tmp_path / "all"
    with runs_in_this_process():
        compare(scenario, ["ota_fd", "local_only"], 2, out=folder, options=OFTEN)
        (folder / "ota_fd" / "seed-0" / "summary.json").write_text("garbage")
        (folder / "ota_fd" / "seed-1" / "rounds.jsonl").write_text("garbage\n")
        (folder / "local_only" / "seed-0" / "plan.json").write_text("garbage")
        remove_checkpoints(folder / "ota_fd" / "seed-0")
        before = {path: path.read_bytes() for path in sorted(folder.rglob("*.json*"))}
        record = resume_comparison(folder)
    assert {path: path.read_bytes() for path in sorted(folder.rglob("*.json*"))} == before
    assert sorted(f"{task.label} {task.seed}" for task in record.runs) == ["local_only 1", "ota_fd 1"]
    named = [
        "local_only, seed 0, failed: .*plan.json was edited or damaged",
        "ota_fd, seed 0, failed: .*summary.json: was edited or damaged",
        "ota_fd, seed 1: .*rounds.jsonl: line 1: cannot be read",
    ]
    record = ComparisonRecord.read(folder)
    assert len(record.problems) == 3
    print_comparison(record, Terminal())
    comparison_page(record)
    assert exit_code("report", folder) == 0
    printed = capsys.readouterr()
    for shown in ("\n".join(record.problems), " ".join(printed.out.split()), printed.err):
        for pattern in named:
            assert re.search(pattern, shown), (pattern, shown)


def test_a_record_of_a_run_that_has_not_ended_is_not_read_past_damage(copied):
    folder = copied("cut-seeded")
    garbage_line(folder / "rounds.jsonl")
    with pytest.raises(RunError, match="line 3: cannot be read; the file is damaged"):
        RunRecord.read(folder)


NESTED = b"[" * 100_000 + b"]" * 100_000 + b"\n"
ENDLESS = b'{"round": 1e400, "measured_noise_var": [1e400], "run": 1e400}\n'


@pytest.mark.parametrize("content", [NESTED, ENDLESS])
@pytest.mark.parametrize(
    "name", ["run.json", "ledger.jsonl", "ledger.head", "rounds.jsonl", "digests.json", "audits.jsonl"]
)
@pytest.mark.parametrize("command", ["resume", "certify", "report"])
def test_json_that_no_program_writes_is_damage_and_no_traceback(copied, command, name, content):
    folder = copied("ended-seeded")
    (folder / name).write_bytes(content)
    assert exit_code(command, folder) in (0, 2)
    assert (folder / name).read_bytes() == content


@pytest.mark.parametrize("name", ["plan.json", "rounds.jsonl", "ledger.head"])
def test_a_pipe_in_place_of_a_file_is_refused(copied, name):
    """Nothing writes into it: to read it would wait for ever."""
    folder = copied("ended-seeded")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert exit_code("certify", folder) == exit_code("resume", folder) == exit_code("report", folder) == 2
