"""Processes of runs: start, stop and resume them. They are independent of the page and outlive its server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Literal

from airdistill.errors import AirDistillError
from airdistill.files import write_whole
from airdistill.runs.finding import FoundRun, State
from airdistill.runs.folder import LOCK, SCENARIO, is_locked, new_folder, process_in
from airdistill.scenario.loading import as_toml
from airdistill.scenario.model import Scenario

ShownState = State | Literal["stopping", "resuming"]
CHANGING: tuple[ShownState, ...] = ("starting", "running", "stopping", "resuming")  # these change without the visitor

_launched: dict[Path, subprocess.Popen[bytes]] = {}
_asked_to_stop: dict[Path, int] = {}  # process ids
_guard = threading.RLock()  # visitors are threads of the server


def start_run(runs: Path, scenario: Scenario, scheme: str, rounds: int | None, eval_every: int) -> Path:
    """Start `airdistill run` in a new folder below `runs`, and return the folder."""
    folder = new_folder(None, f"{scenario.name}-{scheme}", runs)
    write_whole(folder / SCENARIO, as_toml(scenario).encode())
    (folder / LOCK).touch()  # with this file the folder is listed as a run before the process has begun
    options = ["--scheme", scheme, "--eval-every", str(eval_every), "--out", str(folder)]
    options += [] if rounds is None else ["--rounds", str(rounds)]
    with _guard:
        _launch(folder, ["run", str(folder / SCENARIO), *options])
    return folder


def resume_run(folder: Path) -> None:
    """Start `airdistill resume`. Raise if a process is still running in the folder."""
    with _guard:
        if _is_alive(folder) or is_locked(folder):
            raise AirDistillError(f"{folder.name}: a process is still running in it; wait until it has ended")
        _launch(folder, ["resume", str(folder)])


def stop_run(folder: Path) -> None:
    """Interrupt the run as Ctrl-C does: the round in progress is completed and saved."""
    with _guard:
        process = process_in(folder)
        if process is None:
            raise AirDistillError(f"{folder.name}: no process is running in it")
        if _asked_to_stop.get(folder) != process:  # a second signal would interrupt the round before it is saved
            _asked_to_stop[folder] = process
            os.kill(process, signal.SIGINT)


def state_of(run: FoundRun) -> ShownState:
    """The state to show, which accounts for processes that have not taken the lock yet, or are ending.

    A run is "stopping" until its lock is free and, if this server started the process, until that process has ended.
    """
    with _guard:
        alive, asked = _is_alive(run.folder), _asked_to_stop.get(run.folder)
        if asked is not None and run.state in ("running", "stopped"):
            ending = alive and _launched[run.folder].pid == asked
            if ending or process_in(run.folder) == asked:
                return "stopping"
        if alive and run.state == "stopped":
            return "resuming"
        if alive and run.state == "not begun":
            return "starting"
        return run.state


def last_error(folder: Path) -> str:
    """The last line that the process started for the folder has printed; empty without one."""
    try:
        lines = _log_of(folder).read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


# A page started from a background shell ignores SIGINT, and its child processes inherit that: Stop would do nothing.
_STOPPABLE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from airdistill.cli import main; main()"
)


def _launch(folder: Path, arguments: list[str]) -> None:
    _asked_to_stop.pop(folder, None)
    with _log_of(folder).open("wb") as log:
        _launched[folder] = subprocess.Popen(
            [sys.executable, "-c", _STOPPABLE, *arguments, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _is_alive(folder: Path) -> bool:
    """Whether the process that this server started for the folder has not ended."""
    process = _launched.get(folder)
    return process is not None and process.poll() is None


def _log_of(folder: Path) -> Path:
    """Next to the folder, because the folder must be empty when a run begins."""
    return folder.with_name(f"{folder.name}.log")
