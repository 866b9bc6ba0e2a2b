"""What costs seconds in a process of its own, done in this one, for tests that are about something else.

Processes, and what happens to them, are what tests/runs/test_killed.py and tests/runs/test_comparison.py are about.
"""

import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest

from airdistill.cli import main
from airdistill.runs import comparison
from airdistill.runs.runner import run


def exit_code(*arguments):
    """Of a command line; what it prints goes where this process prints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["airdistill", *map(str, arguments)])
        try:
            main()
        except SystemExit as stop:
            return stop.code or 0
        return 0


@contextmanager
def runs_in_this_process():
    """A comparison's runs one after the other, from the question on the disk, as its workers take them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "_play_all", _one_after_the_other)
        yield


def _one_after_the_other(folder, _given, waiting, _jobs, _on_progress):
    asked = comparison.Comparison.read(folder)
    for task in waiting:
        arm, options = asked.arm(task.label), replace(asked.options, threads=1)
        run(arm.with_seed(task.seed), arm.scheme, arm.rounds, task.folder_in(folder), options)
