"""One run of a comparison, in a process of its own: `python -m airdistill.runs.worker FOLDER LABEL SEED THREADS`.

News of every round goes to standard output as a marked line of JSON; anything else is what the run had to say.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from airdistill.errors import AirDistillError
from airdistill.runs.comparison import NEWS, Comparison, Task
from airdistill.runs.folder import RUN
from airdistill.runs.runner import resume, run


def main() -> None:
    folder, label, seed, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
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
    """Begins the run, or goes on with it."""
    out = task.folder_in(folder)
    if (out / RUN).exists():
        resume(out, _tell)
        return
    comparison = Comparison.read(folder)
    arm = comparison.arm(task.label)
    options = replace(comparison.options, threads=threads)
    run(arm.with_seed(task.seed), arm.scheme, arm.rounds, out, options, _tell)


def _tell(record: dict[str, Any], num_rounds: int) -> None:
    news = {"round": record["round"], "rounds": num_rounds}
    if "accuracy" in record:
        news["accuracy"] = record["accuracy"]["mean"]
    sys.stdout.write(f"{NEWS}{json.dumps(news)}\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    """Standard input is a pipe from the parent that never says anything: its end is the parent's.

    A run may be ended at any moment, so this one is. Read below Python's buffers, which an exit would wait for.
    """
    os.read(0, 1)
    os._exit(3)


if __name__ == "__main__":
    main()
