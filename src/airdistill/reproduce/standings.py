"""How the schemes of a leaderboard stand in each setting, with a verdict on each from differences by seed.

A verdict says where our scheme is against another: ahead or behind if the 95 % interval of the difference excludes 0,
level if it contains 0, and undecided with fewer than two seeds in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from airdistill.privacy.trust import TRUSTED_AGGREGATOR
from airdistill.reproduce.leaderboard import Question, Setting, Tuned, records_in, tuned_for
from airdistill.runs.accounts import certify
from airdistill.runs.comparison import Arm, ComparisonRecord, Task
from airdistill.runs.record import RunRecord
from airdistill.runs.results import ArmResult, PairedAccuracies, arm_results, runs_of
from airdistill.schemes.planning import as_run_by
from airdistill.schemes.registry import load_scheme

OURS, BASELINE = "airdistill_features", "ota_fl"
Word = Literal["ahead", "level", "behind", "undecided"]
Kind = Literal["private", "trusted aggregator", "nothing sent", "without privacy"]
_WORDS: dict[str | None, Word] = {"above": "ahead", "both": "level", "below": "behind", None: "undecided"}


@dataclass(frozen=True)
class Against:
    """Two schemes in one setting: the verdict on the first, and the differences by seed if any seed has both."""

    verdict: Word
    paired: PairedAccuracies | None

    @property
    def numbers(self) -> str:
        """The difference in words, with the width of an interval that contains 0."""
        if self.paired is None:
            return "no seed that both have finished"
        half = self.paired.gap.half
        width = (
            f"; the interval is {200 * half:.1f} points wide" if self.verdict == "level" and half is not None else ""
        )
        return self.paired.in_words + width


@dataclass(frozen=True)
class Standing:
    """A scheme in a setting. `epsilon` is that of the worst device and seed, by sensitivity model and trust model;
    `trusts` names the assumptions that can turn out false. Without a finished run, `result` is None."""

    scheme: str
    kind: Kind
    result: ArmResult | None
    epsilon: Mapping[str, Mapping[str, float]]
    trusts: tuple[str, ...]
    tuned: Tuned
    ours_against: Against | None
    against_baseline: Against | None
    problems: tuple[str, ...]

    @property
    def mean(self) -> float:
        return -1.0 if self.result is None else self.result.accuracy.mean


@dataclass(frozen=True)
class Board:
    """The standings of every setting that has runs: private schemes first, the most accurate first."""

    question: Question
    standings: Mapping[Setting, tuple[Standing, ...]]

    def leader(self, setting: Setting) -> Standing | None:
        """Return the private scheme with the highest mean that trusts no aggregator."""
        rows = [row for row in self.standings[setting] if row.kind == "private" and row.result is not None]
        return max(rows, key=lambda row: row.mean, default=None)


def read_board(folder: Path) -> Board:
    """Return how the schemes stand, from the runs in a folder."""
    question = Question.read(folder)
    found = records_in(folder, question)
    return Board(question, {setting: standings_of(setting, arms) for setting, arms in found.items()})


def standings_of(setting: Setting, arms: Mapping[str, ComparisonRecord]) -> tuple[Standing, ...]:
    """Return the standings of one setting, from the comparison of each of its arms."""
    runs = {label: runs_of(record, label) for label, record in arms.items()}
    rows = [_standing(setting, label, record, runs) for label, record in arms.items()]
    return tuple(sorted(rows, key=lambda row: (get_args(Kind).index(row.kind), -row.mean)))


def _standing(
    setting: Setting, label: str, record: ComparisonRecord, runs: Mapping[str, Mapping[int, RunRecord]]
) -> Standing:
    scheme, own = load_scheme(label), runs[label]
    certificates = [certify(run.folder) for run in own.values()]
    models = certificates[0].devices[0].by_model if certificates else {}
    trusts = dict.fromkeys(name for each in certificates for name in each.fallible)
    has_epsilon = scheme.releases == "private"
    return Standing(
        scheme=label,
        kind=_kind(record.comparison.arm(label)),
        result=next((result for result in arm_results(record) if result.label == label), None),
        epsilon={
            model: {trust: max(each.worst(model, trust) for each in certificates) for trust in by_trust}
            for model, by_trust in models.items()
        },
        trusts=tuple(trusts) if has_epsilon else (),
        tuned=tuned_for(label, setting if has_epsilon else Setting(setting.data, setting.split, None)),
        ours_against=None if label == OURS else against(runs.get(OURS, {}), own, record.comparison.seeds),
        against_baseline=None if label == BASELINE else against(own, runs.get(BASELINE, {}), record.comparison.seeds),
        problems=_problems(record, label),
    )


def _kind(arm: Arm) -> Kind:
    scheme = load_scheme(arm.scheme)
    if scheme.releases != "private":
        return "nothing sent" if scheme.releases == "nothing" else "without privacy"
    trust = as_run_by(scheme, arm.scenario).privacy.trust
    return "trusted aggregator" if trust == TRUSTED_AGGREGATOR.name else "private"


def _problems(record: ComparisonRecord, label: str) -> tuple[str, ...]:
    """What failed or is damaged of the runs of one arm."""
    failed = [
        f"{task.label}, seed {task.seed}: {line}" for task, line in record.failures.items() if task.label == label
    ]
    tasks = [Task(label, seed) for seed in record.comparison.seeds]
    ended = [(task, record.runs[task]) for task in tasks if task in record.runs]
    return (*failed, *(f"{label}, seed {task.seed}: {line}" for task, run in ended for line in run.damage))


def against(first: Mapping[int, RunRecord], second: Mapping[int, RunRecord], asked: Sequence[int]) -> Against:
    """Compare two schemes by the accuracies of the same seeds; undecided until both have ended for all of them."""
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return Against("undecided", None)
    pairs = np.array([[run[seed].summary["accuracy"]["mean"] for run in (first, second)] for seed in seeds])
    paired = PairedAccuracies(*pairs.T)
    return Against(_WORDS[paired.gap.side_of(0.0)] if len(seeds) == len(asked) else "undecided", paired)
