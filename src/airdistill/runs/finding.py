"""Find the runs and comparisons below a folder with their states, and compare selected runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from airdistill.runs.comparison import COMPARISON, Arm, Comparison, ComparisonRecord, Task
from airdistill.runs.folder import (
    FEDERATION,
    LEDGER,
    LOCK,
    PLAN,
    ROUNDS,
    RUN,
    SCENARIO,
    SUMMARY,
    RunError,
    is_locked,
    read_sealed,
)
from airdistill.runs.options import RunOptions
from airdistill.runs.record import RunRecord, ended_run
from airdistill.scenario.loading import changed, load
from airdistill.scenario.model import Scenario

State = Literal["starting", "running", "ended", "stopped", "not begun", "broken", "federation"]
_MAX_DEPTH = 4  # the comparisons of a figure are three levels deep
_RUN_FILES = {RUN, ROUNDS, LEDGER, PLAN}  # any of them shows that a folder is a run's


@dataclass(frozen=True)
class FoundRun:
    """A run's folder and state. `name` is its path below the searched folder; `problem` says why it is broken."""

    name: str
    folder: Path
    state: State
    problem: str = ""

    @property
    def is_active(self) -> bool:
        """Whether a process is running in the folder."""
        return self.state in ("starting", "running")


def find_runs(root: Path) -> list[FoundRun]:
    """The runs below `root`, the newest first."""
    folders = [folder for folder, names in _walk(root) if names & _RUN_FILES or {SCENARIO, LOCK} <= names]
    folders.sort(key=_started_at, reverse=True)
    return [find_run(folder, root) for folder in folders]


def find_comparisons(root: Path) -> list[Path]:
    """The comparisons below `root`, the newest first."""
    return sorted((folder for folder, names in _walk(root) if COMPARISON in names), key=_started_at, reverse=True)


def find_run(folder: Path, root: Path) -> FoundRun:
    """The run in `folder`, which is below `root`."""
    name = folder.relative_to(root).as_posix()
    try:
        return FoundRun(name, folder, _state(folder))
    except (RunError, OSError) as error:  # a folder without read permission must not hide the others
        return FoundRun(name, folder, "broken", str(error))


def _state(folder: Path) -> State:
    # The lock is read before and after the files: a run that starts or ends in between must not look stopped.
    active = is_locked(folder)
    if not (folder / RUN).exists():
        return "starting" if active else "not begun"
    stored, _ = read_sealed(folder)
    if FEDERATION in stored:
        return "federation"
    RunRecord.read(folder)
    if (folder / SUMMARY).exists():
        return "ended"
    return "running" if active or is_locked(folder) else "stopped"


def _walk(root: Path) -> Iterator[tuple[Path, set[str]]]:
    """Yield each folder with the names of its files. Dot folders, links and very deep folders are left out."""
    for here, folders, files in os.walk(root):
        folder = Path(here)
        yield folder, set(files)
        depth = len(folder.relative_to(root).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < _MAX_DEPTH else []


def _started_at(folder: Path) -> float:
    """The time of the folder's first file; 0 if it is unknown."""
    for name in (RUN, COMPARISON, SCENARIO):
        try:
            return (folder / name).stat().st_mtime
        except OSError:
            continue
    return 0.0


@dataclass(frozen=True)
class _SelectedRun:
    scheme: str
    scenario: Scenario
    record: RunRecord

    @property
    def terms(self) -> tuple[str, str]:
        """The key of the arm: runs that differ only in their seed belong to one arm."""
        same = changed(self.scenario, {"seed": 0, "name": "same"})
        return self.scheme, same.model_dump_json()


def compare_runs(folders: Iterable[Path], root: Path) -> ComparisonRecord:
    """A comparison of runs that have ended, in the order given.

    An arm has the name of its scheme, or of its first folder if two arms have the same scheme.
    """
    selected = [_read(folder) for folder in folders]
    groups: dict[tuple[str, str], list[_SelectedRun]] = {}
    for each in selected:
        groups.setdefault(each.terms, []).append(each)
    arms: list[Arm] = []
    runs: dict[Task, RunRecord] = {}
    schemes = [scheme for scheme, _ in groups]
    for (scheme, _), members in groups.items():
        first = members[0]
        own_name = first.record.folder.relative_to(root).as_posix()
        label = scheme if schemes.count(scheme) == 1 else own_name
        arms.append(Arm(label, scheme, first.scenario))
        runs |= {Task(label, each.scenario.seed): each.record for each in members}
    seeds = tuple(sorted({each.scenario.seed for each in selected}))
    return ComparisonRecord(root, Comparison("picked", tuple(arms), seeds, RunOptions()), runs, {})


def _read(folder: Path) -> _SelectedRun:
    record = ended_run(folder)
    scenario = load(folder / SCENARIO)
    return _SelectedRun(json.loads((folder / RUN).read_text())["scheme"], scenario, record)
