"""The runs and comparisons that a folder holds, whole, half made or broken, and what state each is in.

Runs picked by hand, as if they had been one comparison.
"""

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
    process_in,
    read_sealed,
)
from airdistill.runs.options import RunOptions
from airdistill.runs.record import RunRecord, ended_run
from airdistill.scenario.loading import changed, load
from airdistill.scenario.model import Scenario

State = Literal["starting", "running", "ended", "stopped", "not begun", "broken", "federation"]
_DEEPEST = 4  # comparisons of a figure lie at the third
_LEFT_BY_RUNS = {RUN, ROUNDS, LEDGER, PLAN}


@dataclass(frozen=True)
class FoundRun:
    """A run's folder, named by its way from where it was looked for; `trouble` says why a broken one is."""

    name: str
    folder: Path
    state: State
    trouble: str = ""

    @property
    def goes_on(self) -> bool:
        return self.state in ("starting", "running")


def find_runs(root: Path) -> list[FoundRun]:
    """The newest first."""
    folders = [folder for folder, names in _walk(root) if names & _LEFT_BY_RUNS or {SCENARIO, LOCK} <= names]
    folders.sort(key=_begun, reverse=True)
    return [found_run(folder, root) for folder in folders]


def find_comparisons(root: Path) -> list[Path]:
    """The newest first."""
    return sorted((folder for folder, names in _walk(root) if COMPARISON in names), key=_begun, reverse=True)


def found_run(folder: Path, root: Path) -> FoundRun:
    name = folder.relative_to(root).as_posix()
    try:
        if not (folder / RUN).exists():
            return FoundRun(name, folder, "not begun" if process_in(folder) is None else "starting")
        stored, _ = read_sealed(folder)
        if FEDERATION in stored:
            return FoundRun(name, folder, "federation")
        RunRecord.read(folder)
        if (folder / SUMMARY).exists():
            return FoundRun(name, folder, "ended")
        return FoundRun(name, folder, "stopped" if process_in(folder) is None else "running")
    except (RunError, OSError) as error:  # one that may not be looked into hides no others
        return FoundRun(name, folder, "broken", str(error))


def _walk(root: Path) -> Iterator[tuple[Path, set[str]]]:
    """Folders with the names of their files; neither hidden ones nor links are followed, and nothing very deep."""
    for here, folders, files in os.walk(root):
        folder = Path(here)
        yield folder, set(files)
        depth = len(folder.relative_to(root).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < _DEEPEST else []


def _begun(folder: Path) -> float:
    """When its first file was written, as far as can be told."""
    for name in (RUN, COMPARISON, SCENARIO):
        try:
            return (folder / name).stat().st_mtime
        except OSError:
            continue
    return 0.0


@dataclass(frozen=True)
class _Picked:
    scheme: str
    scenario: Scenario
    record: RunRecord

    @property
    def terms(self) -> tuple[str, str]:
        """Runs that differ in nothing but their seed are of one arm."""
        same = changed(self.scenario, {"seed": 0, "name": "same"})
        return self.scheme, same.model_dump_json()


def picked_comparison(folders: Iterable[Path], root: Path) -> ComparisonRecord:
    """Of runs that ended, in the order given. An arm bears its scheme's name, or that of its first folder where two
    arms have the same scheme."""
    picked = [_read(folder) for folder in folders]
    groups: dict[tuple[str, str], list[_Picked]] = {}
    for each in picked:
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
    seeds = tuple(sorted({each.scenario.seed for each in picked}))
    return ComparisonRecord(root, Comparison("picked", tuple(arms), seeds, RunOptions()), runs, {})


def _read(folder: Path) -> _Picked:
    record = ended_run(folder)
    scenario = load(folder / SCENARIO)
    return _Picked(json.loads((folder / RUN).read_text())["scheme"], scenario, record)
