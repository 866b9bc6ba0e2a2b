"""The runs and comparisons that a folder holds, whole, half made or broken, and what state each is in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from airdistill.runs.comparison import COMPARISON
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
from airdistill.runs.record import RunRecord

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
