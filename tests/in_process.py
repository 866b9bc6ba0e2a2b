"""Run commands and comparisons in this process, because starting a process takes seconds.

tests/runs/test_killed.py and tests/runs/test_comparison.py test the processes themselves.
"""

import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest

from airdistill.cli import main
from airdistill.runs.comparison import Comparison
from airdistill.runs.executors import LocalExecutor
from airdistill.runs.folder import RUN
from airdistill.runs.runner import resume, run


def exit_code(*arguments):
    """Return the exit code of a command line, which prints to this process's output."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["airdistill", *map(str, arguments)])
        try:
            main()
        except SystemExit as stop:
            return stop.code or 0
        return 0


@contextmanager
def runs_in_this_process():
    """Compute the runs of comparisons one by one in this process, from the files that a worker would read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalExecutor, "compute", _run_one_by_one)
        yield


def _run_one_by_one(_executor, folder, _given, waiting, _jobs, _on_progress):
    stored = Comparison.read(folder)
    for task in waiting:
        if (task.folder_in(folder) / RUN).exists():
            resume(task.folder_in(folder))
            continue
        arm, options = stored.arm(task.label), replace(stored.options, threads=1)
        run(arm.with_seed(task.seed), arm.scheme, arm.rounds, task.folder_in(folder), options)
