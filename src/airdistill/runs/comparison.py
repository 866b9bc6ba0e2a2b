"""Comparisons: runs of several schemes and seeds, each in its own process, in one folder that can be resumed.

Each of them is an ordinary run, so a comparison that is killed loses nothing and resumes bit-identically. A run that
fails leaves one line with the reason, and the others continue.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airdistill import DEFAULT_SCHEME, __version__
from airdistill.errors import AirDistillError, InputError
from airdistill.files import json_text, write_whole
from airdistill.runs.folder import SUMMARY, RunError, digest_of, locked, new_folder, simulated, write_json, writing
from airdistill.runs.options import RunOptions, plan
from airdistill.runs.record import RunRecord
from airdistill.scenario.loading import ScenarioLike, as_scenario, changed, validated, with_absolute_paths
from airdistill.scenario.model import Scenario

COMPARISON = "comparison.json"
COMPARED_SCHEMES = (DEFAULT_SCHEME, "ota_fd", "local_only")  # by default: ours, the paper's, and no federation
PROGRESS_MARK = "airdistill-news "  # starts those lines of a worker's output that report progress
OnProgress = Callable[["Task", dict[str, Any]], None]


@dataclass(frozen=True)
class Arm:
    """A scheme on a scenario, under a label that also names its folder."""

    label: str
    scheme: str
    scenario: Scenario
    rounds: int | None = None

    @classmethod
    def of(cls, scheme: str, scenario: Scenario, rounds: int | None = None) -> Arm:
        """Return an arm whose label is the scheme's own name."""
        from airdistill.schemes.registry import load_scheme

        return cls(load_scheme(scheme).name, scheme, scenario, rounds)

    def with_seed(self, seed: int) -> Scenario:
        """Return the arm's scenario with another seed."""
        return changed(self.scenario, {"seed": seed})


@dataclass(frozen=True)
class Task:
    """One run of a comparison."""

    label: str
    seed: int

    def folder_in(self, comparison: Path) -> Path:
        return comparison / self.label / f"seed-{self.seed}"

    def failure_in(self, comparison: Path) -> Path:
        return comparison / self.label / f"seed-{self.seed}.failed"


@dataclass(frozen=True)
class Comparison:
    """What is compared: arms and seeds, and the options of all runs."""

    name: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    options: RunOptions

    def __post_init__(self) -> None:
        labels = [arm.label for arm in self.arms]
        for label in labels:
            if labels.count(label) > 1:
                raise InputError("--schemes", label, "is listed twice")
        if not labels or not self.seeds:
            raise InputError("--schemes", ",".join(labels), "at least one scheme and one seed are needed")

    @property
    def tasks(self) -> list[Task]:
        """All runs, seed by seed: a comparison that is stopped early then has complete seeds."""
        return [Task(arm.label, seed) for seed in self.seeds for arm in self.arms]

    def arm(self, label: str) -> Arm:
        return next(arm for arm in self.arms if arm.label == label)

    def check(self, labels: Collection[str] | None = None) -> None:
        """Plan every arm, or these, for the first seed: invalid input is reported before any worker is started."""
        from airdistill.runs.simulation import check_has_data

        for arm in (arm for arm in self.arms if labels is None or arm.label in labels):
            check_has_data(arm.scenario)
            plan(arm.with_seed(self.seeds[0]), arm.scheme, arm.rounds)

    def to_dict(self) -> dict[str, Any]:
        return {
            "airdistill": __version__,
            "name": self.name,
            "seeds": list(self.seeds),
            "options": self.options.to_dict(),
            "arms": [
                {
                    "label": arm.label,
                    "scheme": arm.scheme,
                    "rounds": arm.rounds,
                    "scenario": arm.scenario.model_dump(mode="json", exclude_none=True),
                }
                for arm in self.arms
            ],
        }

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Comparison:
        arms = [
            Arm(given["label"], given["scheme"], validated(given["scenario"]), given["rounds"])
            for given in stored["arms"]
        ]
        return cls(stored["name"], tuple(arms), tuple(stored["seeds"]), RunOptions.from_dict(stored["options"]))

    @classmethod
    def read(cls, folder: Path) -> Comparison:
        """Return the comparison that a folder was created for."""
        try:
            stored = json.loads((folder / COMPARISON).read_text())
            digest = stored.pop("digest")
            if digest != digest_of(json_text(stored).encode()):
                raise ValueError("it was edited or damaged")
            return cls.from_dict(stored)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{folder / COMPARISON}: cannot be read: {error}") from None


@dataclass(frozen=True)
class ComparisonRecord:
    """The state of a comparison: the runs that have finished, and one line for each run that failed."""

    folder: Path
    comparison: Comparison
    runs: dict[Task, RunRecord]
    failures: dict[Task, str]

    @classmethod
    def read(cls, folder: str | Path) -> ComparisonRecord:
        """Return the state of the comparison in a folder, finished or not."""
        folder = Path(folder)
        comparison = Comparison.read(folder)
        finished: dict[Task, RunRecord] = {}
        failed: dict[Task, str] = {}
        for task in comparison.tasks:
            try:
                if (task.folder_in(folder) / SUMMARY).exists():
                    finished[task] = RunRecord.read(simulated(task.folder_in(folder)))
                elif task.failure_in(folder).exists():
                    failed[task] = task.failure_in(folder).read_text(errors="replace").strip()
            except AirDistillError as problem:  # one damaged run does not hide the others
                failed[task] = str(problem)
        return cls(folder, comparison, finished, failed)

    @property
    def problems(self) -> list[str]:
        """A line for every run that failed, and for what is damaged of a run that has finished."""
        failed = [f"{task.label}, seed {task.seed}, failed: {reason}" for task, reason in self.failures.items()]
        damaged = [f"{task.label}, seed {task.seed}: {line}" for task, run in self.runs.items() for line in run.damage]
        return failed + damaged


def compare(
    scenario: ScenarioLike,
    schemes: Sequence[str] = COMPARED_SCHEMES,
    seeds: int = 1,
    rounds: int | None = None,
    out: str | Path | None = None,
    options: RunOptions | None = None,
    jobs: int = 0,
    on_progress: OnProgress | None = None,
) -> ComparisonRecord:
    """Run several schemes on one scenario and return their records.

    `seeds` runs of each scheme start from consecutive seeds, the first of which is the scenario's. `rounds` replaces
    the number of rounds of all of them. `out` is a new folder, or that of the same comparison, which is then resumed.
    `jobs` runs are computed in parallel; 0: one for each core. `on_progress(task, news)` is called after every round.
    """
    if seeds < 1:
        raise InputError("--seeds", seeds, "must be at least 1")
    if not all(schemes):
        raise InputError("--schemes", ",".join(schemes), "contains an empty name")
    scenario = as_scenario(scenario)
    arms = tuple(Arm.of(scheme, with_absolute_paths(scenario), rounds) for scheme in schemes)
    numbers = tuple(range(scenario.seed, scenario.seed + seeds))
    comparison = Comparison(scenario.name, arms, numbers, (options or RunOptions()).resolved())
    return start(comparison, out, jobs, on_progress)


def start(
    comparison: Comparison,
    out: str | Path | None,
    jobs: int = 0,
    on_progress: OnProgress | None = None,
    labels: Collection[str] | None = None,
) -> ComparisonRecord:
    """Run a comparison in a new folder, or resume it if `out` already holds the same comparison.

    With `labels` only these arms are run; a later call may run the others.
    """
    if out is None or not (Path(out) / COMPARISON).exists():
        comparison.check(labels)
        folder = new_folder(None if out is None else Path(out), f"{comparison.name}-comparison")
    else:
        folder = Path(out)
    with locked(folder):
        _write_comparison(folder, comparison)
        _run_missing(folder, comparison, jobs, on_progress, labels)
    return ComparisonRecord.read(folder)


def _write_comparison(folder: Path, comparison: Comparison) -> None:
    """Write what is compared, once; a folder that already holds another comparison is rejected."""
    body = comparison.to_dict()
    if not (folder / COMPARISON).exists():
        with writing(folder):
            write_json(folder / COMPARISON, {**body, "digest": digest_of(json_text(body).encode())})
    elif Comparison.read(folder).to_dict() != body:
        raise InputError("--out", str(folder), "holds another comparison; choose another folder")


def resume_comparison(folder: str | Path, jobs: int = 0, on_progress: OnProgress | None = None) -> ComparisonRecord:
    """Run what is missing in a comparison's folder; runs that failed are tried again."""
    folder = Path(folder)
    with locked(folder):
        _run_missing(folder, Comparison.read(folder), jobs, on_progress)
    return ComparisonRecord.read(folder)


def _run_missing(
    folder: Path,
    comparison: Comparison,
    jobs: int,
    on_progress: OnProgress | None,
    labels: Collection[str] | None = None,
) -> None:
    asked = [task for task in comparison.tasks if labels is None or task.label in labels]
    waiting = [task for task in asked if not (task.folder_in(folder) / SUMMARY).exists()]
    if waiting:
        _run_all(folder, comparison, waiting, jobs, on_progress)


def _run_all(
    folder: Path, comparison: Comparison, waiting: list[Task], jobs: int, on_progress: OnProgress | None
) -> None:
    cores = len(os.sched_getaffinity(0))
    jobs = min(jobs or cores, len(waiting))
    threads = comparison.options.threads or max(1, cores // jobs)
    workers = _Workers(folder, threads, on_progress)
    with ThreadPoolExecutor(jobs) as pool:
        futures: list[Future[None]] = [pool.submit(workers.run, task) for task in waiting]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            # Ctrl-C or a full disk: the workers finish and save the round in progress, and no new run starts.
            for future in futures:
                future.cancel()
            workers.stop()
            raise


class _Workers:
    """Worker processes, each of which computes one run. They watch a pipe to this process and end when it ends."""

    def __init__(self, folder: Path, threads: int, on_progress: OnProgress | None) -> None:
        self._folder, self._threads, self._on_progress = folder, threads, on_progress
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def run(self, task: Task) -> None:
        """Compute one run in a worker and wait for it; a failure is written next to the run's folder."""
        failure = task.failure_in(self._folder)
        failure.parent.mkdir(exist_ok=True)
        failure.unlink(missing_ok=True)
        process = self._launch(task)
        if process is None:
            return
        output: list[str] = []
        with process:  # closes the pipes and waits for the process
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(PROGRESS_MARK):
                    self._report(task, json.loads(line.removeprefix(PROGRESS_MARK)))
                elif line.strip():
                    output = [*output[-20:], line.strip()]
        code = process.returncode
        with self._lock:
            self._running.discard(process)
        if code != 0 and not self._stopped:
            reason = _reason(code, output)
            write_whole(failure, f"{reason}\n".encode())
            self._report(task, {"failed": reason})

    def _report(self, task: Task, news: dict[str, Any]) -> None:
        if self._on_progress is not None:
            self._on_progress(task, news)

    def _launch(self, task: Task) -> subprocess.Popen[str] | None:
        arguments = [str(self._folder), task.label, str(task.seed), str(self._threads)]
        with self._lock:
            if self._stopped:
                return None
            process = subprocess.Popen(
                [sys.executable, "-m", "airdistill.runs.worker", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C in a terminal reaches only this process, which then stops the workers
            )
            self._running.add(process)
            return process

    def stop(self) -> None:
        """Ask all workers to save their round in progress and to end."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.send_signal(signal.SIGTERM)


def _reason(code: int, output: list[str]) -> str:
    """Return why a worker failed, in one line."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}{' (out of memory?)' if code == -signal.SIGKILL else ''}"
    if code == 130:
        return "was stopped by a signal from another process"
    return output[-1] if output else f"ended with exit code {code}"
