"""A worker process for one run of a comparison: `python -m airdistill.runs.worker FOLDER LABEL SEED THREADS`.

It reports every round to standard output as a marked line of JSON. Other lines are messages of the run.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from airdistill.errors import AirDistillError
from airdistill.runs.comparison import Comparison, Task
from airdistill.runs.executors import PROGRESS_MARK
from airdistill.runs.folder import RUN
from airdistill.runs.runner import resume, run


def main() -> None:
    """Compute the run that the command line names."""
    folder, label, seed, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    # A shell starts background jobs with SIGINT ignored, and child processes inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    try:
        play(folder, Task(label, seed), threads)
    except AirDistillError as error:
        sys.stdout.write(f"{error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def play(folder: Path, task: Task, threads: int) -> None:
    """Start the run, or resume it."""
    out = task.folder_in(folder)
    if (out / RUN).exists():
        resume(out, _report)
        return
    comparison = Comparison.read(folder)
    arm = comparison.arm(task.label)
    options = replace(comparison.options, threads=threads)
    run(arm.with_seed(task.seed), arm.scheme, arm.rounds, out, options, _report)


def _report(record: dict[str, Any], num_rounds: int) -> None:
    news = {"round": record["round"], "rounds": num_rounds}
    if "accuracy" in record:
        news["accuracy"] = record["accuracy"]["mean"]
    sys.stdout.write(f"{PROGRESS_MARK}{json.dumps(news)}\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    """End this process when its parent ends, which closes the pipe at standard input.

    A run may be killed at any moment without loss. The pipe is read below Python's buffers, because an exit of the
    interpreter would wait for their locks.
    """
    os.read(0, 1)
    os._exit(3)


if __name__ == "__main__":
    main()
