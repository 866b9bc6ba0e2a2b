"""Many runs as one: schemes × seeds in processes of their own, in one folder that can be gone on with.

Every run is a run like any other, so that nothing is lost when it, or all of this, is killed; a run that fails leaves a
line that says why, and the others go on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airdistill import __version__
from airdistill.errors import InputError
from airdistill.files import json_text, write_whole
from airdistill.runs.folder import SUMMARY, RunError, digest_of, locked, new_folder, write_json, writing
from airdistill.runs.options import RunOptions
from airdistill.runs.record import RunRecord
from airdistill.runs.simulation import check_has_data
from airdistill.scenario.loading import changed, validated, with_absolute_paths
from airdistill.scenario.model import Scenario
from airdistill.schemes.registry import load_scheme, plan_run

COMPARISON = "comparison.json"
NEWS = "airdistill-news "  # what a worker's lines begin with that are meant for us
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
        """Under the scheme's own name."""
        return cls(load_scheme(scheme).name, scheme, scenario, rounds)

    def with_seed(self, seed: int) -> Scenario:
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
    """What is compared: arms, seeds, and how runs are carried out."""

    name: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    options: RunOptions

    def __post_init__(self) -> None:
        labels = [arm.label for arm in self.arms]
        for label in labels:
            if labels.count(label) > 1:
                raise InputError("--schemes", label, "is named twice")
        if not labels or not self.seeds:
            raise InputError("--schemes", ",".join(labels), "at least one scheme and one seed are needed")

    @property
    def tasks(self) -> list[Task]:
        """Seed by seed, so that a comparison stopped early has whole seeds."""
        return [Task(arm.label, seed) for seed in self.seeds for arm in self.arms]

    def arm(self, label: str) -> Arm:
        return next(arm for arm in self.arms if arm.label == label)

    def check(self) -> None:
        """Plans every arm for the first seed, so that bad input is said at once and not from a process of its own."""
        for arm in self.arms:
            check_has_data(arm.scenario)
            plan_run(arm.with_seed(self.seeds[0]), arm.scheme, arm.rounds)

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
        return cls(stored["name"], tuple(arms), tuple(stored["seeds"]), RunOptions(**stored["options"]))

    @classmethod
    def read(cls, folder: Path) -> Comparison:
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
    """What a comparison has so far: the runs that ended, and a line for each that failed."""

    folder: Path
    comparison: Comparison
    runs: dict[Task, RunRecord]
    failures: dict[Task, str]

    @classmethod
    def read(cls, folder: str | Path) -> ComparisonRecord:
        folder = Path(folder)
        comparison = Comparison.read(folder)
        ended = {
            task: RunRecord.read(task.folder_in(folder))
            for task in comparison.tasks
            if (task.folder_in(folder) / SUMMARY).exists()
        }
        failed = {
            task: task.failure_in(folder).read_text().strip()
            for task in comparison.tasks
            if task.failure_in(folder).exists() and task not in ended
        }
        return cls(folder, comparison, ended, failed)


def compare(
    scenario: Scenario,
    schemes: list[str],
    seeds: int = 1,
    rounds: int | None = None,
    out: str | Path | None = None,
    options: RunOptions | None = None,
    jobs: int = 0,
    on_progress: OnProgress | None = None,
) -> ComparisonRecord:
    """Runs schemes on one scenario for so many seeds, counted from the scenario's own; `jobs` 0: one for each core."""
    if seeds < 1:
        raise InputError("--seeds", seeds, "must be at least 1")
    if not all(schemes):
        raise InputError("--schemes", ",".join(schemes), "has an empty name between its commas")
    arms = tuple(Arm.of(scheme, with_absolute_paths(scenario), rounds) for scheme in schemes)
    numbers = tuple(range(scenario.seed, scenario.seed + seeds))
    comparison = Comparison(scenario.name, arms, numbers, (options or RunOptions()).resolved())
    return start(comparison, out, jobs, on_progress)


def start(
    comparison: Comparison, out: str | Path | None, jobs: int = 0, on_progress: OnProgress | None = None
) -> ComparisonRecord:
    """Runs a comparison in a new folder, or goes on with the same one in a folder that holds it."""
    if out is None or not (Path(out) / COMPARISON).exists():
        comparison.check()
        folder = new_folder(None if out is None else Path(out), f"{comparison.name}-comparison")
    else:
        folder = Path(out)
    with locked(folder):
        _write_question(folder, comparison)
        _play_missing(folder, comparison, jobs, on_progress)
    return ComparisonRecord.read(folder)


def _write_question(folder: Path, comparison: Comparison) -> None:
    """Once: a folder that holds another question keeps it."""
    body = comparison.to_dict()
    if not (folder / COMPARISON).exists():
        with writing(folder):
            write_json(folder / COMPARISON, {**body, "digest": digest_of(json_text(body).encode())})
    elif Comparison.read(folder).to_dict() != body:
        raise InputError("--out", str(folder), "holds another comparison; choose another folder")


def go_on(folder: str | Path, jobs: int = 0, on_progress: OnProgress | None = None) -> ComparisonRecord:
    """Runs what is missing in a comparison's folder; what failed is tried again."""
    folder = Path(folder)
    with locked(folder):
        _play_missing(folder, Comparison.read(folder), jobs, on_progress)
    return ComparisonRecord.read(folder)


def _play_missing(folder: Path, comparison: Comparison, jobs: int, on_progress: OnProgress | None) -> None:
    waiting = [task for task in comparison.tasks if not (task.folder_in(folder) / SUMMARY).exists()]
    if waiting:
        _play_all(folder, comparison, waiting, jobs, on_progress)


def _play_all(
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
            # Ctrl-C, or a disk that is full: the rounds in progress end and are saved, nothing new begins.
            for future in futures:
                future.cancel()
            workers.stop()
            raise


class _Workers:
    """Processes that each run one task. They end when this process does, however that ends: they watch a pipe to it."""

    def __init__(self, folder: Path, threads: int, on_progress: OnProgress | None) -> None:
        self._folder, self._threads, self._on_progress = folder, threads, on_progress
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def run(self, task: Task) -> None:
        failure = task.failure_in(self._folder)
        failure.parent.mkdir(exist_ok=True)
        failure.unlink(missing_ok=True)
        process = self._launch(task)
        if process is None:
            return
        said: list[str] = []
        with process:  # which closes the pipes and waits
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(NEWS):
                    self._tell(task, json.loads(line.removeprefix(NEWS)))
                elif line.strip():
                    said = [*said[-20:], line.strip()]
        code = process.returncode
        with self._lock:
            self._running.discard(process)
        if code != 0 and not self._stopped:
            reason = _reason(code, said)
            write_whole(failure, f"{reason}\n".encode())
            self._tell(task, {"failed": reason})

    def _tell(self, task: Task, news: dict[str, Any]) -> None:
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
                start_new_session=True,  # Ctrl-C reaches it through us alone
            )
            self._running.add(process)
            return process

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.send_signal(signal.SIGTERM)


def _reason(code: int, said: list[str]) -> str:
    """Why a worker ended as it did, in a line."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}{' (out of memory?)' if code == -signal.SIGKILL else ''}"
    if code == 130:
        return "was told to stop from outside"
    return said[-1] if said else f"ended with exit code {code}"
