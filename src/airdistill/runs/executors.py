"""The local executor: every run in a process of its own on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from airdistill.errors import InputError
from airdistill.files import write_whole
from airdistill.runs.comparison import Comparison, Executor, OnProgress, Task

PROGRESS_MARK = "airdistill-news "  # starts those lines of a worker's output that report progress
WORKER = [sys.executable, "-m", "airdistill.runs.worker"]
KEPT_LINES = 20  # of a worker's messages


class LocalExecutor:
    """Worker processes, each of which computes one run. They watch a pipe to this process and end when it ends."""

    elsewhere = False

    def check(self) -> None:
        """Raise nothing: this machine is there."""

    def compute(
        self, folder: Path, comparison: Comparison, waiting: list[Task], jobs: int, on_progress: OnProgress | None
    ) -> None:
        """Start or resume the runs: see `Executor`."""
        cores = len(os.sched_getaffinity(0))
        jobs = min(jobs or cores, len(waiting))
        threads = comparison.options.threads or max(1, cores // jobs)
        workers = _Workers(folder, threads, on_progress)
        in_parallel(waiting, jobs, workers.run, workers.stop)


def in_parallel(waiting: list[Task], jobs: int, run: Callable[[Task], None], stop: Callable[[], None]) -> None:
    """Call `run` for every task, in threads.

    On Ctrl-C or a full disk the runs finish and save the round in progress, and no new one starts.
    """
    with ThreadPoolExecutor(jobs) as pool:
        futures: list[Future[None]] = [pool.submit(run, task) for task in waiting]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            stop()
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
        failure = fresh_failure(task, self._folder)
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
                    output = [*output[1 - KEPT_LINES :], line.strip()]
        code = process.returncode
        with self._lock:
            self._running.discard(process)
        if code != 0 and not self._stopped:
            reason = reason_of(code, output)
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
                [*WORKER, *arguments],
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


def executor_for(on: str, cpus: float | None = None, gpus: float | None = None) -> Executor:
    """Return the executor for `--on`: "local", "ray", or the address of a Ray cluster."""
    if on != "local":
        from airdistill.runs.cluster import RayExecutor

        return RayExecutor(None if on == "ray" else on, 1.0 if cpus is None else cpus, gpus or 0.0)
    for name, value in (("--cpus", cpus), ("--gpus", gpus)):
        if value is not None:
            raise InputError(name, value, "is a share of a node's resources: give --on ray, or --jobs and --device")
    return LocalExecutor()


def fresh_failure(task: Task, folder: Path) -> Path:
    """Return the file that says why a run failed, which a new attempt has not."""
    failure = task.failure_in(folder)
    failure.parent.mkdir(exist_ok=True)
    failure.unlink(missing_ok=True)
    return failure


def reason_of(code: int, output: list[str]) -> str:
    """Return why a worker failed, in one line."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}{' (out of memory?)' if code == -signal.SIGKILL else ''}"
    if code == 130:
        return "was stopped by a signal from another process"
    return output[-1] if output else f"ended with exit code {code}"
