"""Runs that the page starts, stops and goes on with: processes of their own, which outlive the page and its server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from airdistill.errors import AirDistillError
from airdistill.files import write_whole
from airdistill.runs.folder import LOCK, SCENARIO, new_folder, process_in
from airdistill.scenario.loading import as_toml
from airdistill.scenario.model import Scenario

_processes: dict[Path, subprocess.Popen[bytes]] = {}


def start_run(runs: Path, scenario: Scenario, scheme: str, rounds: int | None, eval_every: int) -> Path:
    """Starts `airdistill run` in a new folder under `runs`; it goes on whatever becomes of the page."""
    folder = new_folder(None, f"{scenario.name}-{scheme}", runs)
    write_whole(folder / SCENARIO, as_toml(scenario).encode())
    (folder / LOCK).touch()  # so that it is seen as a run before it has begun
    asked = ["--scheme", scheme, "--eval-every", str(eval_every), "--out", str(folder)]
    asked += [] if rounds is None else ["--rounds", str(rounds)]
    _launch(folder, ["run", str(folder / SCENARIO), *asked])
    return folder


def go_on(folder: Path) -> None:
    _launch(folder, ["resume", str(folder)])


def stop_run(folder: Path) -> None:
    """As Ctrl-C does: the round in progress ends and is saved."""
    process = process_in(folder)
    if process is None:
        raise AirDistillError(f"{folder.name}: nobody runs in it any more")
    os.kill(process, signal.SIGINT)


def _launch(folder: Path, arguments: list[str]) -> None:
    with log_of(folder).open("wb") as log:
        _processes[folder] = subprocess.Popen(
            [sys.executable, "-m", "airdistill", *arguments, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def is_starting(folder: Path) -> bool:
    """Whether a process that this server started for the folder is still there."""
    process = _processes.get(folder)
    return process is not None and process.poll() is None


def log_of(folder: Path) -> Path:
    """Beside the folder, which must be empty when a run begins."""
    return folder.with_name(f"{folder.name}.log")


def last_words(folder: Path) -> str:
    """The last line that a start from this page left, or nothing."""
    try:
        lines = log_of(folder).read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
