"""A comparison in numbers: for each arm mean and 95 % interval over seeds, and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.runs.comparison import ComparisonRecord, Task
from airdistill.runs.record import RunRecord

LOCAL = "local_only"
_END_COUNTS_UNTIL = 1.1


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and half the width of its 95 % interval by Student's t; None for a single seed."""

    mean: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        if len(values) == 1 or not np.isfinite(values).all():
            return cls(float(np.mean(values)), None)
        from scipy.stats import t

        error = np.std(values, ddof=1) / np.sqrt(len(values))
        return cls(float(np.mean(values)), float(t.ppf(0.975, len(values) - 1) * error))

    @property
    def low(self) -> float:
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        return self.mean + (self.half or 0.0)


@dataclass(frozen=True)
class ArmResult:
    """One arm over its seeds that ended. Accuracies are shares; ε is the worst device's of the worst seed.

    `gain` is over `local_only` of the same seed at the same round, None where there is no such arm. `noise_var` is of
    what was received, per entry, measured: the median over rows and rounds; None where nothing came over the air.
    `link` is who sends to how many antennas, None where nothing is sent or a run of old does not say.
    """

    label: str
    scheme: str
    num_seeds: int
    accuracy: Interval
    worst_device: Interval
    gain: Interval | None
    rounds: tuple[int, int]
    uplink_seconds: Interval
    joules: Interval
    epsilon_by_model: dict[str, float]
    sensitivity: str
    noise_var: Interval | None
    link: dict[str, Any] | None


def arm_results(record: ComparisonRecord) -> list[ArmResult]:
    """Every arm with at least one run that ended, in order."""
    return [
        _result(record, arm.label, arm.scheme, runs)
        for arm in record.comparison.arms
        if (runs := runs_of(record, arm.label))
    ]


def runs_of(record: ComparisonRecord, label: str) -> dict[int, RunRecord]:
    """The runs of an arm that ended, by seed."""
    tasks = [Task(label, seed) for seed in record.comparison.seeds]
    return {task.seed: record.runs[task] for task in tasks if task in record.runs}


def _result(record: ComparisonRecord, label: str, scheme: str, runs: dict[int, RunRecord]) -> ArmResult:
    summaries = [run.summary for run in runs.values()]
    rounds = [summary["rounds"] for summary in summaries]
    models = summaries[0]["epsilon_by_model"]
    return ArmResult(
        label=label,
        scheme=scheme,
        num_seeds=len(runs),
        accuracy=Interval.of([summary["accuracy"]["mean"] for summary in summaries]),
        worst_device=Interval.of([summary["accuracy"]["worst"] for summary in summaries]),
        gain=gain_over_local(record, runs) if scheme != LOCAL else None,
        rounds=(min(rounds), max(rounds)),
        uplink_seconds=Interval.of([summary["uplink_seconds"] for summary in summaries]),
        joules=Interval.of([summary["measured_joules"] for summary in summaries]),
        epsilon_by_model={
            model: max(_infinite(summary["epsilon_by_model"][model]) for summary in summaries) for model in models
        },
        sensitivity=summaries[0]["sensitivity"],
        noise_var=_noise_var([received_noise(run) for run in runs.values()]),
        link=summaries[0].get("link"),
    )


def received_noise(run: RunRecord) -> float | None:
    """The median over rows and rounds of the noise that was measured in what was received; None if there was none."""
    rounds = [line["measured_noise_var"] for line in run.rounds if "measured_noise_var" in line]
    found = np.array([[np.nan if value is None else value for value in rows] for rows in rounds])
    known = found[np.isfinite(found)]
    return float(np.median(known)) if known.any() else None


def _noise_var(of_runs: Sequence[float | None]) -> Interval | None:
    known = [value for value in of_runs if value is not None]
    return Interval.of(known) if known else None


def _infinite(value: float | None) -> float:
    return float("inf") if value is None else value


def gain_over_local(record: ComparisonRecord, runs: dict[int, RunRecord]) -> Interval | None:
    """Over the seeds that `local_only` ended, too."""
    local_label = next((arm.label for arm in record.comparison.arms if arm.scheme == LOCAL), None)
    local = {} if local_label is None else runs_of(record, local_label)
    pairs = [
        (run.summary["accuracy"]["mean"], accuracy_at(local[seed], run.summary["rounds"]))
        for seed, run in runs.items()
        if seed in local
    ]
    gains = [ours - alone for ours, alone in pairs if alone is not None]
    return Interval.of(gains) if gains else None


def accuracy_at(run: RunRecord, round_index: int) -> float | None:
    """The mean accuracy after a round, on a straight line between the evaluations about it.

    None before the first evaluation and after the last; but a run that ended up to a tenth earlier counts with its end.
    """
    rounds, accuracy = accuracy_curve(run)
    known = rounds[0] <= round_index <= _END_COUNTS_UNTIL * rounds[-1]
    return float(np.interp(round_index, rounds, accuracy)) if known else None


def accuracy_curve(run: RunRecord) -> tuple[FloatArray, FloatArray]:
    """The rounds that were evaluated, and the mean accuracy after each."""
    points = [(line["round"], line["accuracy"]["mean"]) for line in run.rounds if "accuracy" in line]
    last = run.summary["rounds"], run.summary["accuracy"]["mean"]
    if last[0] not in [round_index for round_index, _ in points]:  # its budget ended it before its time
        points.append(last)
    rounds, accuracy = np.array(points, dtype=np.float64).T
    return rounds, accuracy


@dataclass(frozen=True)
class Curve:
    """Mean accuracy over seeds after every round that any of them evaluated, with its 95 % interval.

    A run that has ended keeps its last accuracy: the time axis goes on without it. `seconds` is uplink time so far. Of
    fewer than three seeds no interval is worth drawing: it is the mean itself.
    """

    rounds: FloatArray
    seconds: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray


def mean_curve(runs: Sequence[RunRecord]) -> Curve:
    curves = [accuracy_curve(run) for run in runs]
    grid = np.unique(np.concatenate([rounds for rounds, _ in curves]))
    first = max(rounds[0] for rounds, _ in curves)
    grid = grid[grid >= first]
    held = np.array([accuracy[np.searchsorted(rounds, grid, side="right") - 1] for rounds, accuracy in curves])
    intervals = [Interval.of(column.tolist() if len(runs) > 2 else [column.mean()]) for column in held.T]
    seconds_a_round = runs[0].summary["uplink_seconds"] / max(1, runs[0].summary["rounds"])
    return Curve(
        rounds=grid,
        seconds=grid * seconds_a_round,
        mean=np.array([interval.mean for interval in intervals]),
        low=np.array([interval.low for interval in intervals]),
        high=np.array([interval.high for interval in intervals]),
    )
