"""Runs picked by hand, as if they had been one comparison."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from airdistill.runs.comparison import Arm, Comparison, ComparisonRecord, Task
from airdistill.runs.folder import RUN, SCENARIO
from airdistill.runs.options import RunOptions
from airdistill.runs.record import RunRecord, ended_run
from airdistill.scenario.loading import changed, load
from airdistill.scenario.model import Scenario


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
