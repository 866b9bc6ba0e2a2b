"""Results: the types of a run's records, and a comparison in numbers (means and 95 % intervals over seeds, curves)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.runs.comparison import ComparisonRecord, Task
from airdistill.runs.record import RunRecord

LOCAL = "local_only"
_END_COUNTS_UNTIL = 1.1  # times the last round

Table = list[list[float | None]]  # [class, class]; None: no device holds the class, or its label is not known


class SampleRecord(TypedDict):
    """The random sample on which accuracy was measured, `--eval-devices` and `--eval-samples`."""

    devices: int
    of_devices: int  # in the fleet
    test_samples: int
    of_test_samples: int  # in the test set
    half_width: float | None  # of the mean's 95 % interval for all devices and test samples; None: of a single one


class AccuracyRecord(TypedDict):
    """Share of the common test set that the devices' models classify correctly, 0 to 1."""

    mean: float  # over devices
    worst: float  # of the worst device that was measured
    best: float  # of the best device that was measured
    own_classes: float  # over devices, each on the classes that it holds
    sample: NotRequired[SampleRecord]  # only if not all devices and test samples were measured


class KnowledgeTables(TypedDict):
    """One row per class: the average without noise, what the server received, and what it broadcast."""

    ideal: Table
    received: Table
    broadcast: Table


class LabelsRight(TypedDict):
    """Share of public samples whose largest entry is at the true label, 0 to 1."""

    ideal: NotRequired[float]  # of the sum without noise; not of feature means, which are no labels yet
    received: NotRequired[float]  # of feature means: as the server read them
    broadcast: NotRequired[float]  # of feature means: as its model predicts


class RoundRecord(TypedDict):
    """A line of `rounds.jsonl`. Keys that are not required are present only if they apply to the round.

    A row is a class; for public predictions and gradients there is one row. None in a list: infinite or undefined.
    """

    round: int  # counted from 1
    lr: float  # step size η_t
    loss: float  # mean over devices: training loss + γ · distillation loss, nats
    training_loss: float  # mean over devices, nats
    distillation_loss: float | None  # mean over devices, nats; None without distillation
    uplink_seconds: float  # airtime so far, s
    planned_joules: float  # transmit energy of the whole fleet so far, J
    measured_joules: float  # the same, of the signals that were transmitted, J
    epsilon_spent: float | None  # ε of the worst device so far, at its δ; None: infinite
    predicted_noise_var: NotRequired[list[float | None]]  # per row: noise variance of an entry, as designed
    measured_noise_var: NotRequired[list[float | None]]  # per row: mean squared error of an entry, as received
    planned_power_w: NotRequired[float]  # transmit power of the whole fleet, mean over slots, W
    measured_power_w: NotRequired[float]  # the same, of the signals that were transmitted, W
    silent_devices: NotRequired[list[int]]  # devices below the truncation threshold
    measured_bias: NotRequired[list[float | None]]  # per row: squared bias of an entry because of inactive devices
    estimate_error: NotRequired[list[float | None]]  # per row: mean squared error of an entry, as broadcast
    expected_error: NotRequired[list[float | None] | None]  # the same, as the receiver expects it
    labels_right: NotRequired[LabelsRight]  # public predictions, if labels are known
    features: NotRequired[dict[str, Any]]  # feature means: the embedding's digest and bytes, and how they were read
    knowledge: NotRequired[KnowledgeTables]  # in evaluated rounds, up to 100 classes
    accuracy: NotRequired[AccuracyRecord]  # in evaluated rounds


class IterateRecord(TypedDict):
    """The random iterate of Theorem 1."""

    round: int  # the round that it starts
    accuracy: AccuracyRecord | None  # None: the run ended before this round


class LinkRecord(TypedDict):
    """Which devices transmit in a round, and to how many antennas."""

    antennas: int
    participation: float  # probability with which a device joins a round
    participation_hidden: bool  # whether the server does not know which devices joined
    draws: int | None  # devices drawn with replacement in a round; None: no such draws
    own_participation: NotRequired[str]  # the user's own participation model, if it has one
    cycle: NotRequired[int]  # of cyclic participation


class RunSummary(TypedDict):
    """`summary.json`, written when a run has finished."""

    name: str
    scheme: str
    rounds: int  # computed
    ended_because: str | None  # None: all planned rounds were computed
    accuracy: AccuracyRecord
    random_iterate: IterateRecord
    uplink_seconds: float  # s
    planned_joules: float  # J
    measured_joules: float  # J
    epsilon_spent: float | None  # of the worst device under the declared sensitivity; None: infinite
    epsilon_by_model: dict[str, float | None]  # the same under every sensitivity model
    sensitivity: str  # as declared
    link: NotRequired[LinkRecord | None]  # None: nothing is transmitted; absent in runs of older versions
    assumptions: list[str]
    class_labels: NotRequired[list[int | str]]  # the stored label of every class, if it is not the class itself


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and half the width of its 95 % interval (Student's t); None for a single seed."""

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

    def side_of(self, value: float) -> Literal["above", "below", "both"] | None:
        """Return on which side of a value the interval lies; None for a single seed, which has no interval."""
        if self.half is None:
            return None
        if self.low > value:
            return "above"
        return "below" if self.high < value else "both"


@dataclass(frozen=True)
class PairedAccuracies:
    """Accuracies of two arms with the same seeds, as shares, `[seed]`. Seeds have data and channels in common, and so
    their difference varies less from seed to seed than either does."""

    ours: FloatArray
    other: FloatArray

    @property
    def gap(self) -> Interval:
        """The mean difference, ours less the other's."""
        return Interval.of((self.ours - self.other).tolist())

    @property
    def in_words(self) -> str:
        """The difference in points: +10.0 ± 0.3 points (by seed +9.9, +10.1)."""
        each = ", ".join(f"{100 * difference:+.1f}" for difference in self.ours - self.other)
        interval = "" if self.gap.half is None else f" ± {100 * self.gap.half:.1f}"
        return f"{100 * self.gap.mean:+.1f}{interval} points (by seed {each})".replace("-", "−")


@dataclass(frozen=True)
class ArmResult:
    """The finished runs of one arm. Accuracies are shares; ε is that of the worst device in the worst run.

    `gain` is the accuracy minus that of `local_only` with the same seed after the same round; None without such an arm.
    `noise_var` is the measured noise variance of a received entry, as the median over rows and rounds; None if nothing
    was received. `link` is a `LinkRecord`; None if nothing is transmitted, and for runs of older versions.
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
    link: LinkRecord | None


def arm_results(record: ComparisonRecord) -> list[ArmResult]:
    """Return the results of every arm with at least one finished run, in order."""
    return [
        _result(record, arm.label, arm.scheme, runs)
        for arm in record.comparison.arms
        if (runs := runs_of(record, arm.label))
    ]


def runs_of(record: ComparisonRecord, label: str) -> dict[int, RunRecord]:
    """Return the finished runs of an arm by seed."""
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
        gain=gain_over_local(record, label, runs) if scheme != LOCAL else None,
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
    """Return the measured noise variance of an entry: the median over rows and rounds; None without noise."""
    rounds = [line["measured_noise_var"] for line in run.rounds if "measured_noise_var" in line]
    found = np.array([[np.nan if value is None else value for value in rows] for rows in rounds])
    known = found[np.isfinite(found)]
    return float(np.median(known)) if known.any() else None


def _noise_var(of_runs: Sequence[float | None]) -> Interval | None:
    known = [value for value in of_runs if value is not None]
    return Interval.of(known) if known else None


def _infinite(value: float | None) -> float:
    return float("inf") if value is None else value


def gain_over_local(record: ComparisonRecord, label: str, runs: dict[int, RunRecord]) -> Interval | None:
    """Return the gain in accuracy over `local_only` at the same point, for the seeds that have finished there too."""
    points = [arm.point for arm in record.comparison.arms if arm.label == label]
    local_label = next(
        (arm.label for arm in record.comparison.arms if arm.scheme == LOCAL and arm.point in points), None
    )
    local = {} if local_label is None else runs_of(record, local_label)
    pairs = [
        (run.summary["accuracy"]["mean"], accuracy_at(local[seed], run.summary["rounds"]))
        for seed, run in runs.items()
        if seed in local
    ]
    gains = [ours - alone for ours, alone in pairs if alone is not None]
    return Interval.of(gains) if gains else None


def accuracy_at(run: RunRecord, round_index: int) -> float | None:
    """Return the mean accuracy after a round, interpolated linearly between evaluations.

    None before the first evaluation and after the last one; a run that ended up to a tenth earlier counts with its last
    accuracy.
    """
    rounds, accuracy = accuracy_curve(run)
    known = rounds[0] <= round_index <= _END_COUNTS_UNTIL * rounds[-1]
    return float(np.interp(round_index, rounds, accuracy)) if known else None


def accuracy_curve(run: RunRecord) -> tuple[FloatArray, FloatArray]:
    """Return the evaluated rounds and the mean accuracy after each."""
    points = [(line["round"], line["accuracy"]["mean"]) for line in run.rounds if "accuracy" in line]
    last = run.summary["rounds"], run.summary["accuracy"]["mean"]
    if last[0] not in [round_index for round_index, _ in points]:  # the privacy budget ended the run early
        points.append(last)
    rounds, accuracy = np.array(points, dtype=np.float64).T
    return rounds, accuracy


@dataclass(frozen=True)
class Curve:
    """Mean accuracy over seeds after every round that a run evaluated, with its 95 % interval.

    A run that ended earlier keeps its last accuracy. `seconds` is the airtime so far. With fewer than three seeds the
    interval would be too wide to draw, and both of its ends are the mean.
    """

    rounds: FloatArray
    seconds: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray


def mean_curve(runs: Sequence[RunRecord]) -> Curve:
    """Return the mean accuracy of several runs as a curve over rounds and airtime."""
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
