"""Comparisons and sweeps: runs of schemes, seeds and points of a grid, in one folder that can be resumed.

Each of them is an ordinary run, so a comparison that is killed loses nothing and resumes bit-identically. A run that
fails leaves one line with the reason, and the others continue. An executor computes the runs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from airdistill import DEFAULT_SCHEME, __version__
from airdistill.data.public import num_test_samples
from airdistill.errors import AirDistillError, InputError
from airdistill.files import json_text
from airdistill.runs.folder import SUMMARY, RunError, digest_of, locked, new_folder, simulated, write_json, writing
from airdistill.runs.grid import OVER, Grid, Point, at_point, label_of, overridden, said_where
from airdistill.runs.options import RunOptions, plan
from airdistill.runs.record import RunRecord
from airdistill.runs.tracking import MakeTracker, Tracking, chosen_trackers
from airdistill.scenario.loading import ScenarioLike, as_scenario, changed, validated, with_absolute_paths
from airdistill.scenario.model import Scenario

COMPARISON = "comparison.json"
COMPARED_SCHEMES = (DEFAULT_SCHEME, "ota_fd", "local_only")  # by default: ours, the paper's, and no federation
OnProgress = Callable[["Task", dict[str, Any]], None]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arm:
    """A scheme on a scenario, under a label that also names its folder; in a sweep, at a point of its grid."""

    label: str
    scheme: str
    scenario: Scenario
    rounds: int | None = None
    point: Point = field(default_factory=dict)

    @classmethod
    def of(cls, scheme: str, scenario: Scenario, rounds: int | None = None, point: Point | None = None) -> Arm:
        """Return an arm whose label is the scheme's own name and the point, with the scenario at that point."""
        from airdistill.schemes.registry import load_scheme

        point = point or {}
        label = ",".join(filter(None, (load_scheme(scheme).name, label_of(point))))
        return cls(label, scheme, at_point(scenario, point), rounds, point)

    def with_seed(self, seed: int) -> Scenario:
        """Return the arm's scenario with another seed."""
        return changed(self.scenario, {"seed": seed})


@dataclass(frozen=True)
class Task:
    """One run of a comparison."""

    label: str
    seed: int

    def folder_in(self, comparison: Path) -> Path:
        return comparison / self.label / f"seed-{self.seed}"

    def failure_in(self, comparison: Path) -> Path:
        return comparison / self.label / f"seed-{self.seed}.failed"


@dataclass(frozen=True)
class Comparison:
    """What is compared: arms and seeds, and the options of all runs."""

    name: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    options: RunOptions

    def __post_init__(self) -> None:
        labels = [arm.label for arm in self.arms]
        if len(set(labels)) < len(labels):
            twice = next(label for label in labels if labels.count(label) > 1)
            raise InputError("--schemes", twice, "is listed twice")
        if not labels or not self.seeds:
            raise InputError("--schemes", ",".join(labels), "at least one scheme and one seed are needed")

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a sweep's grid; none of a comparison."""
        return tuple(self.arms[0].point)

    @property
    def tasks(self) -> list[Task]:
        """All runs, seed by seed: a comparison that is stopped early then has complete seeds."""
        return [Task(arm.label, seed) for seed in self.seeds for arm in self.arms]

    def arm(self, label: str) -> Arm:
        return next(arm for arm in self.arms if arm.label == label)

    def check(self, labels: Collection[str] | None = None) -> None:
        """Plan every arm, or these, for the first seed: invalid input is reported before any worker is started."""
        from airdistill.runs.simulation import check_has_data

        for arm in (arm for arm in self.arms if labels is None or arm.label in labels):
            with said_where(arm.label) if arm.point else nullcontext():
                check_has_data(arm.scenario)
                planned = plan(arm.with_seed(self.seeds[0]), arm.scheme, arm.rounds).scenario
                if self.options.eval_devices is not None or self.options.eval_samples is not None:
                    self.options.for_fleet(planned.num_devices, num_test_samples(planned))

    def to_dict(self) -> dict[str, Any]:
        return {
            "airdistill": __version__,
            "name": self.name,
            "seeds": list(self.seeds),
            "options": self.options.to_dict(),
            "arms": [
                {
                    "label": arm.label,
                    "scheme": arm.scheme,
                    "rounds": arm.rounds,
                    "scenario": arm.scenario.model_dump(mode="json", exclude_none=True),
                    **({"point": arm.point} if arm.point else {}),
                }
                for arm in self.arms
            ],
        }

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Comparison:
        arms = [
            Arm(given["label"], given["scheme"], validated(given["scenario"]), given["rounds"], given.get("point", {}))
            for given in stored["arms"]
        ]
        return cls(stored["name"], tuple(arms), tuple(stored["seeds"]), RunOptions.from_dict(stored["options"]))

    @classmethod
    def read(cls, folder: Path) -> Comparison:
        """Return the comparison that a folder was created for."""
        try:
            stored = json.loads((folder / COMPARISON).read_text())
            digest = stored.pop("digest")
            if digest != digest_of(json_text(stored).encode()):
                raise ValueError("it was edited or damaged")
            return cls.from_dict(stored)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{folder / COMPARISON}: cannot be read: {error}") from None


@dataclass(frozen=True)
class ComparisonRecord:
    """The state of a comparison: the runs that have finished, and one line for each run that failed."""

    folder: Path
    comparison: Comparison
    runs: dict[Task, RunRecord]
    failures: dict[Task, str]

    @classmethod
    def read(cls, folder: str | Path) -> ComparisonRecord:
        """Return the state of the comparison in a folder, finished or not."""
        folder = Path(folder)
        comparison = Comparison.read(folder)
        finished: dict[Task, RunRecord] = {}
        failed: dict[Task, str] = {}
        for task in comparison.tasks:
            try:
                if (task.folder_in(folder) / SUMMARY).exists():
                    finished[task] = RunRecord.read(simulated(task.folder_in(folder)))
                elif task.failure_in(folder).exists():
                    failed[task] = task.failure_in(folder).read_text(errors="replace").strip()
            except AirDistillError as problem:  # one damaged run does not hide the others
                failed[task] = str(problem)
        return cls(folder, comparison, finished, failed)

    @property
    def problems(self) -> list[str]:
        """A line for every run that failed, and for what is damaged of a run that has finished."""
        failed = [f"{task.label}, seed {task.seed}, failed: {reason}" for task, reason in self.failures.items()]
        damaged = [f"{task.label}, seed {task.seed}: {line}" for task, run in self.runs.items() for line in run.damage]
        return failed + damaged


def _check_points_differ(arms: Sequence[Arm]) -> None:
    """Raise if two points of a grid mean the same for every scheme; warn if they do for some, which set fields."""
    from airdistill.schemes.planning import as_run_by
    from airdistill.schemes.registry import load_scheme

    schemes: dict[str, dict[str, list[Arm]]] = {}
    for arm in arms:
        with said_where(arm.label):
            adapted = as_run_by(load_scheme(arm.scheme), arm.scenario)
        same = adapted.model_dump_json(exclude={"name", "overrides"})
        schemes.setdefault(arm.scheme, {}).setdefault(same, []).append(arm)
    repeated = {scheme: [each for each in found.values() if len(each) > 1] for scheme, found in schemes.items()}
    for groups in repeated.values():
        for first, second, *_ in groups:
            if all(repeated.values()):
                values = f"{label_of(first.point)} and {label_of(second.point)}"
                raise InputError(
                    OVER, values, "are the same scenario: the values are equal, or the scheme sets the field"
                )
            logger.warning("%s and %s are the same: the scheme sets the field itself", first.label, second.label)


def sweep(
    scenario: ScenarioLike,
    over: Mapping[str, Sequence[Any]] | Grid,
    schemes: Sequence[str] = COMPARED_SCHEMES,
    seeds: int = 1,
    rounds: int | None = None,
    out: str | Path | None = None,
    options: RunOptions | None = None,
    jobs: int = 0,
    on_progress: OnProgress | None = None,
    executor: Executor | None = None,
    track: Sequence[str | MakeTracker] = (),
) -> ComparisonRecord:
    """Run several schemes at every point of a grid of scenario fields and return their records.

    `over` has the values of every field, as `{"privacy.epsilon": [1, 2, 4]}`. The other arguments are those of
    `compare`. All points and schemes have the same seeds: what does not depend on a field is drawn alike.
    """
    options = (options or RunOptions()).resolved(executor is not None and executor.elsewhere)
    comparison = swept(scenario, over, schemes, seeds, rounds, options)
    return start(comparison, out, jobs, on_progress, executor, track)


def swept(
    scenario: ScenarioLike,
    over: Mapping[str, Sequence[Any]] | Grid,
    schemes: Sequence[str],
    seeds: int,
    rounds: int | None = None,
    options: RunOptions | None = None,
) -> Comparison:
    """Return what `sweep` with the same arguments runs: point by point, the schemes in their order."""
    if seeds < 1:
        raise InputError("--seeds", seeds, "must be at least 1")
    if not all(schemes):
        raise InputError("--schemes", ",".join(schemes), "contains an empty name")
    grid, scenario = over if isinstance(over, Grid) else Grid.of(over), as_scenario(scenario)
    points = list(grid.points())
    for name in overridden(scenario, points[0]):
        logger.warning("%s is left out: the grid sets this field for every scheme", name)
    placed = with_absolute_paths(scenario)
    arms = tuple(Arm.of(scheme, placed, rounds, point) for point in points for scheme in schemes)
    if grid.axes:
        _check_points_differ(arms)
    numbers = tuple(range(scenario.seed, scenario.seed + seeds))
    return Comparison(scenario.name, arms, numbers, (options or RunOptions()).resolved())


def compare(
    scenario: ScenarioLike,
    schemes: Sequence[str] = COMPARED_SCHEMES,
    seeds: int = 1,
    rounds: int | None = None,
    out: str | Path | None = None,
    options: RunOptions | None = None,
    jobs: int = 0,
    on_progress: OnProgress | None = None,
    executor: Executor | None = None,
    track: Sequence[str | MakeTracker] = (),
) -> ComparisonRecord:
    """Run several schemes on one scenario and return their records: a sweep whose grid has one point.

    `seeds` runs of each scheme start from consecutive seeds, the first of which is the scenario's. `rounds` replaces
    the number of rounds of all of them. `out` is a new folder, or that of the same comparison, which is then resumed.
    `jobs` runs are computed in parallel; 0: one for each core. `on_progress(task, news)` is called after every round.
    `executor` computes the runs; by default in processes of this machine. `track` is that of `run`, for every run.
    """
    return sweep(scenario, {}, schemes, seeds, rounds, out, options, jobs, on_progress, executor, track)


class Executor(Protocol):
    """What computes the runs of a comparison, here or `elsewhere`, on other machines."""

    elsewhere: bool

    def check(self) -> None:
        """Raise if the runs cannot be computed; called before anything is written."""

    def compute(
        self, folder: Path, comparison: Comparison, waiting: list[Task], jobs: int, on_progress: OnProgress | None
    ) -> None:
        """Start or resume the runs, at most `jobs` at once, and leave a line next to the folder of one that fails.

        When interrupted, stop the runs with their rounds saved, and raise.
        """


def start(
    comparison: Comparison,
    out: str | Path | None,
    jobs: int = 0,
    on_progress: OnProgress | None = None,
    executor: Executor | None = None,
    track: Sequence[str | MakeTracker] = (),
    labels: Collection[str] | None = None,
) -> ComparisonRecord:
    """Run a comparison in a new folder, or resume it if `out` already holds the same comparison.

    With `labels` only these arms are run; a later call may run the others.
    """
    chosen_trackers(track)
    if out is None or not (Path(out) / COMPARISON).exists():
        comparison.check(labels)
        if executor is not None:
            executor.check()
        name = f"{comparison.name}-{'sweep' if comparison.fields else 'comparison'}"
        folder = new_folder(None if out is None else Path(out), name)
    else:
        folder = Path(out)
    with locked(folder):
        _write_comparison(folder, comparison)
        _run_missing(folder, comparison, jobs, on_progress, executor, track, labels)
    return ComparisonRecord.read(folder)


def _write_comparison(folder: Path, comparison: Comparison) -> None:
    """Write what is compared, once; a folder that already holds another comparison is rejected."""
    body = comparison.to_dict()
    if not (folder / COMPARISON).exists():
        with writing(folder):
            write_json(folder / COMPARISON, {**body, "digest": digest_of(json_text(body).encode())})
    elif Comparison.read(folder).to_dict() != body:
        raise InputError("--out", str(folder), "holds another comparison; choose another folder")


def resume_comparison(
    folder: str | Path,
    jobs: int = 0,
    on_progress: OnProgress | None = None,
    executor: Executor | None = None,
    track: Sequence[str | MakeTracker] = (),
) -> ComparisonRecord:
    """Run what is missing in a comparison's folder; runs that failed are tried again."""
    folder = Path(folder)
    with locked(folder):
        _run_missing(folder, Comparison.read(folder), jobs, on_progress, executor, track)
    return ComparisonRecord.read(folder)


def _run_missing(
    folder: Path,
    comparison: Comparison,
    jobs: int,
    on_progress: OnProgress | None,
    executor: Executor | None,
    track: Sequence[str | MakeTracker],
    labels: Collection[str] | None = None,
) -> None:
    from airdistill.runs.executors import LocalExecutor

    asked = [task for task in comparison.tasks if labels is None or task.label in labels]
    waiting = [task for task in asked if not (task.folder_in(folder) / SUMMARY).exists()]
    with Tracking(chosen_trackers(track), folder) as tracking:

        def update(task: Task, news: dict[str, Any]) -> None:
            tracking.follow(task.folder_in(folder))
            if on_progress is not None:
                on_progress(task, news)

        if waiting:
            (executor or LocalExecutor()).compute(folder, comparison, waiting, jobs, update)
        for task in asked:  # those that had ended before, too
            tracking.follow(task.folder_in(folder))
