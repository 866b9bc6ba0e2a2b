"""Comparisons: killed and resumed, with failing runs, and their results."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tomli_w
from in_process import exit_code, runs_in_this_process
from small_worlds import small_scenario

import airdistill as ad
from airdistill.errors import AirDistillError, InputError
from airdistill.report.comparison import table_rows
from airdistill.runs.comparison import (
    Arm,
    Comparison,
    ComparisonRecord,
    Task,
    _write_comparison,
    resume_comparison,
    start,
)
from airdistill.runs.executors import reason_of
from airdistill.runs.options import RunOptions
from airdistill.runs.results import Interval, accuracy_at, accuracy_curve, arm_results, mean_curve, runs_of

OPTIONS = RunOptions(eval_every=1, checkpoint_every=2)
SCHEMES = ["ota_fd", "local_only"]


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    with runs_in_this_process():
        return ad.compare(small_scenario(folder), SCHEMES, seeds=2, out=folder / "out", options=OPTIONS)


def test_every_run_is_bit_identical_to_a_run_alone(record, tmp_path):
    """The runs of the record were computed one by one in this process; here two processes compute them in parallel."""
    assert list(record.runs) == [Task(scheme, seed) for seed in (0, 1) for scheme in SCHEMES]
    again = ad.compare(
        record.comparison.arm("ota_fd").with_seed(1), SCHEMES, out=tmp_path / "again", options=OPTIONS, jobs=2
    )
    assert list(again.runs) == [Task(scheme, 1) for scheme in SCHEMES]
    for task in again.runs:
        alone, compared = task.folder_in(record.folder), task.folder_in(again.folder)
        assert (compared / "rounds.jsonl").read_bytes() == (alone / "rounds.jsonl").read_bytes()


def test_the_table_summarises_the_runs(record):
    results = {result.label: result for result in arm_results(record)}
    final = {task: run.summary["accuracy"] for task, run in record.runs.items()}
    ours = [final[Task("ota_fd", seed)]["mean"] for seed in (0, 1)]
    local = [final[Task("local_only", seed)]["mean"] for seed in (0, 1)]
    assert results["ota_fd"].accuracy.mean == pytest.approx(np.mean(ours))
    # Two seeds: Student's t with one degree of freedom is 12.706 at 97.5 %.
    assert results["ota_fd"].accuracy.half == pytest.approx(12.7062 * np.std(ours, ddof=1) / np.sqrt(2), rel=1e-4)
    assert results["ota_fd"].gain.mean == pytest.approx(np.mean(np.subtract(ours, local)))
    assert results["local_only"].gain is None
    assert results["ota_fd"].rounds == (6, 6)
    assert results["ota_fd"].uplink_seconds.mean == pytest.approx(6 * 9 * 3.6e-6)
    assert results["ota_fd"].epsilon_by_model["device"] <= 8 * (1 + 1e-9)
    assert list(results["ota_fd"].epsilon_by_model) == ["paper", "class_mean", "trajectory", "device"]
    rows = table_rows(record)
    assert rows[0][0] == "ota_fd"
    assert rows[0][-1].endswith("*")


def test_gains_compare_the_same_round(record):
    run = record.runs[Task("local_only", 0)]
    rounds, accuracy = accuracy_curve(run)
    assert rounds.tolist() == [1, 2, 3, 4, 5, 6]
    assert accuracy_at(run, 3) == accuracy[2]
    assert accuracy_at(run, 99) is None
    sparse = ad.RunRecord(run.folder, run.rounds[1::2], run.summary)  # rounds 2, 4 and 6
    assert accuracy_at(sparse, 3) == pytest.approx((accuracy[1] + accuracy[3]) / 2)
    assert accuracy_at(sparse, 1) is None


def test_curves_keep_their_last_value(tmp_path):
    short, long = (
        ad.run(small_scenario(tmp_path, f"seed={n}"), "ota_fd", rounds=n, out=tmp_path / str(n), options=OPTIONS)
        for n in (2, 5)
    )
    curve = mean_curve([short, long])
    assert curve.rounds.tolist() == [1, 2, 3, 4, 5]
    expected = [(short.accuracy["mean"] + line["accuracy"]["mean"]) / 2 for line in long.rounds[2:]]
    assert curve.mean[2:] == pytest.approx(expected)
    assert curve.seconds == pytest.approx(np.arange(1, 6) * 9 * 3.6e-6)


def test_one_seed_has_no_interval():
    assert Interval.of([0.5]) == Interval(0.5, None)
    three = Interval.of([1.0, 2.0, 4.0])
    assert three.mean == pytest.approx(7 / 3)
    assert three.half == pytest.approx(4.30265 * np.std([1, 2, 4], ddof=1) / np.sqrt(3), rel=1e-5)


def test_the_same_comparison_is_resumed_and_another_is_rejected(record):
    times = {task: (task.folder_in(record.folder) / "summary.json").stat().st_mtime_ns for task in record.runs}
    again = start(record.comparison, record.folder)
    assert again.runs.keys() == record.runs.keys()
    assert times == {task: (task.folder_in(record.folder) / "summary.json").stat().st_mtime_ns for task in times}
    other = Comparison(record.comparison.name, record.comparison.arms, (7,), OPTIONS.resolved())
    with pytest.raises(InputError, match="holds another comparison"):
        start(other, record.folder)
    with pytest.raises(InputError, match="is listed twice"):
        Comparison("twice", record.comparison.arms * 2, (0,), OPTIONS)


FAILING = """
import sys
from airdistill.schemes import Outcome, Scheme

class Failing(Scheme):
    name = "failing"

    def play(self, this):
        if this.index == 1:
            sys.stdout.buffer.write(b'{"debug": 1} \\xff\\n')
            sys.stdout.flush()
        if this.index == 3:
            raise ArithmeticError("no more")
        return Outcome(this.learn(None))
"""


def test_a_failing_scheme_does_not_affect_the_others_and_what_it_prints_is_no_progress(tmp_path, monkeypatch):
    (tmp_path / "failing_scheme.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    schemes, news = ["failing_scheme:Failing", "local_only"], []
    record = ad.compare(
        small_scenario(tmp_path), schemes, out=tmp_path / "out", options=OPTIONS,
        on_progress=lambda task, told: news.append((task.label, told)),
    )  # fmt: skip
    assert not any("debug" in told for _, told in news)
    assert [told["round"] for label, told in news if label == "failing" and "round" in told] == [1, 2]
    assert list(runs_of(record, "local_only")) == [0]
    assert set(record.failures) == {Task("failing", 0)}
    assert "round 3: your own code failed: ArithmeticError: no more" in record.failures[Task("failing", 0)]
    assert table_rows(record)[0][:2] == ["failing", "failed"]
    # Corrected, it would send other vectors with the noise of a round that was charged: it must begin anew.
    (tmp_path / "failing_scheme.py").write_text(FAILING.replace("this.index == 3", "False"))
    corrected = resume_comparison(tmp_path / "out")
    assert "your own code has changed since it began: failing_scheme" in corrected.failures[Task("failing", 0)]
    assert list(runs_of(corrected, "local_only")) == [0]


@pytest.mark.parametrize(
    ("code", "output", "reason"),
    [
        (-9, ["a warning"], "ended by SIGKILL (out of memory?)"),
        (-15, [], "ended by SIGTERM"),
        (130, [], "was stopped by a signal from another process"),
        (2, ["first", "last"], "last"),
        (3, [], "ended with exit code 3"),
    ],
)
def test_the_reason_of_a_failed_worker(code, output, reason):
    assert reason_of(code, output) == reason


def test_a_folder_keeps_its_comparison(record):
    """A second command that waited for the same new folder finds the comparison of the first one."""
    other = Comparison(record.comparison.name, record.comparison.arms[:1], (0,), OPTIONS.resolved())
    with pytest.raises(InputError, match="holds another comparison"):
        _write_comparison(record.folder, other)
    assert Comparison.read(record.folder) == record.comparison


def test_invalid_input_is_reported_before_a_worker_starts(tmp_path):
    groups = "fleet.groups=[{count=2, model='softmax_regression'}, {count=1, model='mlp'}]"
    with pytest.raises(InputError, match="needs one model"):
        ad.compare(small_scenario(tmp_path, groups), ["ota_fd", "ota_fl"], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="--scheme"):
        ad.compare(small_scenario(tmp_path), ["no_such"], out=tmp_path / "out")
    with pytest.raises(InputError, match=r"--schemes.*empty name"):
        ad.compare(small_scenario(tmp_path), ["ota_fd", ""], out=tmp_path / "out")
    declared = ad.load("quick", ["fleet.devices=2", "data.class_counts=[[5, 5], [5, 5]]"])
    with pytest.raises(InputError, match=r"data\.class_counts.*a run needs data"):
        ad.compare(declared, ["ota_fd"], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Waits in round 20 until a file exists or a stop is requested, which replaces the handler of SIGTERM.
WAITING = """
import signal, time
from pathlib import Path
from airdistill.schemes.registry import SCHEMES

class Waiting(SCHEMES["local_only"]):
    name = "waiting"

    def play(self, this):
        while this.index == 20 and not (Path(__file__).parent / "continue").exists():
            if signal.getsignal(signal.SIGTERM) is signal.default_int_handler:
                break
            time.sleep(0.01)
        return super().play(this)
"""


def alive(pid):
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(listed) and not listed.startswith("Z")


def wait_until(condition, process=None, seconds=600):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_comparison_stopped_half_way_resumes_bit_identically(tmp_path, number, capsys, monkeypatch):
    module = f"waiting_scheme_{int(number)}"
    (tmp_path / f"{module}.py").write_text(WAITING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    schemes, path = [f"{module}:Waiting", "local_only"], tmp_path / "scenario.toml"
    given = small_scenario(tmp_path, "learning.rounds=40").model_dump(mode="json", exclude_none=True)
    path.write_text(tomli_w.dumps(given))
    words = ["compare", path, "--schemes", ",".join(schemes), "--out", tmp_path / "cut"]
    words += ["--eval-every", 10, "--jobs", 2]
    process = subprocess.Popen(
        [sys.executable, "-m", "airdistill", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    waiting = tmp_path / "cut" / "waiting" / "seed-0" / "rounds.jsonl"
    wait_until(lambda: waiting.exists() and waiting.read_bytes().count(b"\n") == 19, process)
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=600)
    # No worker outlives its parent.
    wait_until(lambda: not any(alive(int(child)) for child in children.split()))
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert b"airdistill resume" in errors
    assert len(ComparisonRecord.read(tmp_path / "cut").runs) < 2
    (tmp_path / "continue").touch()
    with runs_in_this_process():  # workers that resume are processes in the test of a failing scheme
        assert exit_code("resume", tmp_path / "cut", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["arms"]) == 2
    options, whole = RunOptions(eval_every=10), tmp_path / "whole"
    with runs_in_this_process():
        ad.compare(path, schemes, out=whole, options=options)
    names = sorted(path.relative_to(whole) for path in whole.glob("*/seed-*/rounds.jsonl"))
    assert len(names) == 2
    for name in names:
        assert (tmp_path / "cut" / name).read_bytes() == (whole / name).read_bytes()
    assert (tmp_path / "cut" / "report.html").exists()


def test_an_edited_comparison_is_rejected(record, tmp_path):
    path = tmp_path / "comparison.json"
    path.write_text((record.folder / "comparison.json").read_text().replace('"eval_every": 1', '"eval_every": 2'))
    with pytest.raises(AirDistillError, match="edited or damaged"):
        Comparison.read(tmp_path)


def test_arms_may_have_different_scenarios(tmp_path):
    scenario = small_scenario(tmp_path)
    arms = (
        Arm("slow", "local_only", small_scenario(tmp_path, "learning.initial_lr=1e-6")),
        Arm("fast", "local_only", scenario),
    )
    with runs_in_this_process():
        record = start(Comparison("rates", arms, (0,), OPTIONS.resolved()), tmp_path / "out")
    slow, fast = (record.runs[Task(label, 0)].rounds[-1]["loss"] for label in ("slow", "fast"))
    assert fast < slow
