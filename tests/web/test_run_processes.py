"""Runs started, stopped and resumed from the page: the state that is shown at every step."""

import subprocess
import sys
import time

import pytest

from airdistill.errors import AirDistillError
from airdistill.runs.finding import FoundRun
from airdistill.runs.folder import is_locked
from airdistill.web import run_processes
from airdistill.web.run_processes import last_error, resume_run, state_of, stop_run

# Stands for a run. It takes the lock, holds it until it is interrupted and the file `save` exists, and ends when the
# file `end` exists: the test decides how long each step takes.
PROCESS = """
import signal, sys, time
from pathlib import Path
from airdistill.runs.folder import locked

folder, asked = Path(sys.argv[1]), []
signal.signal(signal.SIGINT, lambda *_: asked.append(1))

def wait_for(condition):
    while not condition():
        time.sleep(0.01)

wait_for((folder / "begin").exists)
with locked(folder):
    wait_for(lambda: asked and (folder / "save").exists())
wait_for((folder / "end").exists)
print("interrupted", len(asked))
"""
TIMEOUT_S = 600  # only a failing test waits so long


def wait_until(condition):
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A stopped run's folder; the page launches the process above in place of `airdistill resume`."""
    launch = subprocess.Popen
    started = []

    def popen(command, **options):
        started.append(launch([sys.executable, "-c", PROCESS, command[4]], **options))
        return started[-1]

    monkeypatch.setattr(run_processes.subprocess, "Popen", popen)
    yield tmp_path
    for process in started:
        process.kill()
        process.wait()


def shown(folder):
    """The state that the page shows of a run with rounds and without a summary."""
    return state_of(FoundRun("run", folder, "running" if is_locked(folder) else "stopped"))


def test_a_run_is_stopped_only_after_its_lock_is_free_and_its_process_has_ended(folder):
    assert shown(folder) == "stopped"
    resume_run(folder)
    assert shown(folder) == "resuming"
    (folder / "begin").touch()
    wait_until(lambda: shown(folder) == "running")
    stop_run(folder)
    assert is_locked(folder)
    assert shown(folder) == "stopping"
    (folder / "save").touch()
    wait_until(lambda: not is_locked(folder))
    assert shown(folder) == "stopping"
    (folder / "end").touch()
    wait_until(lambda: shown(folder) == "stopped")


def test_a_run_cannot_be_resumed_while_its_process_is_ending(folder):
    resume_run(folder)
    for step in ("starting", "running", "saving", "ending"):
        with pytest.raises(AirDistillError, match="a process is still running in it; wait until it has ended"):
            resume_run(folder)
        if step == "starting":
            (folder / "begin").touch()
            wait_until(lambda: shown(folder) == "running")
        elif step == "running":
            stop_run(folder)
            (folder / "save").touch()
        elif step == "saving":
            wait_until(lambda: not is_locked(folder))
    for name in ("begin", "save"):
        (folder / name).unlink()
    (folder / "end").touch()
    wait_until(lambda: shown(folder) == "stopped")
    resume_run(folder)
    assert shown(folder) == "resuming"


def test_a_second_stop_does_not_interrupt_the_round_that_is_being_saved(folder):
    resume_run(folder)
    (folder / "begin").touch()
    wait_until(lambda: shown(folder) == "running")
    stop_run(folder)
    stop_run(folder)
    (folder / "save").touch()
    (folder / "end").touch()
    wait_until(lambda: shown(folder) == "stopped")
    assert last_error(folder) == "interrupted 1"
    with pytest.raises(AirDistillError, match="no process is running in it"):
        stop_run(folder)
