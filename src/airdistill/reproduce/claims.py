"""Compute the data of the paper's two figures, and check its claims, and claims that it does not make, against them.

A claim about a difference over seeds is decided by the 95 % interval of the difference. It holds if the interval is
above zero, and does not hold if the interval is below zero. It is undecided otherwise, and with a single seed, which
has no interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.reproduce.noise_curves import NoiseCurve, noise_curves
from airdistill.reproduce.recipes import (
    OWN,
    PROPOSED,
    SAME_TERMS_FD,
    SAME_TERMS_FL,
    STEPS,
    accuracy_arms,
    figure_scenario,
)
from airdistill.runs.comparison import Comparison, ComparisonRecord, OnProgress, start
from airdistill.runs.options import RunOptions
from airdistill.runs.record import RunRecord
from airdistill.runs.results import Interval, PairedAccuracies, accuracy_at, accuracy_curve, runs_of
from airdistill.scenario.loading import changed, with_absolute_paths
from airdistill.scenario.model import Scenario
from airdistill.schemes.registry import plan_run

Word = Literal["holds", "does not hold", "undecided"]
PAPER, LEFT_OUT, OURS = "the paper, Fig. 2", "not in the paper", "this project"
# The paper says "approaches"; we take it to mean within one point of accuracy.
CLOSE = 0.01
_WORDS: dict[str | None, Word] = {"above": "holds", "below": "does not hold", "both": "undecided", None: "undecided"}


@dataclass(frozen=True)
class Checked:
    """A claim with its source, the verdict, and the numbers behind it."""

    statement: str
    source: str
    verdict: Word
    numbers: str


def noise_claims(curves: dict[str, NoiseCurve]) -> list[Checked]:
    """Check the claims about Figure 2(a)."""
    fd, fl = curves["ota_fd"], curves["ota_fl"]
    fd_fixed, fl_fixed = curves["ota_fd_fixed"], curves["ota_fl_fixed"]
    optimised, constant = "T optimised", "T constant"
    return [
        _everywhere(
            "The noise of federated learning exceeds that of distillation at every ε (raw quantities, as plotted)",
            f"{PAPER}(a)",
            {optimised: (fl.noise, fd.noise), constant: (fl_fixed.noise, fd_fixed.noise)},
            fd.epsilon,
            "FL over FD",
        ),
        _everywhere(
            "It also exceeds it in one unit: noise as it enters the gradient",
            LEFT_OUT,
            {
                optimised: (fl.gradient_noise, fd.gradient_noise),
                constant: (fl_fixed.gradient_noise, fd_fixed.gradient_noise),
            },
            fd.epsilon,
            "FL over FD",
        ),
        _everywhere(
            "It also exceeds it in one unit and on the same link",
            LEFT_OUT,
            {
                optimised: (curves["ota_fl_same_link"].gradient_noise, fd.gradient_noise),
                constant: (curves["ota_fl_fixed_same_link"].gradient_noise, fd_fixed.gradient_noise),
            },
            fd.epsilon,
            "FL over FD",
        ),
        _everywhere(
            "Optimising T lowers the noise of distillation at every ε",
            f"{PAPER}(a)",
            {"": (fd_fixed.noise, fd.noise)},
            fd.epsilon,
            "constant over optimised",
        ),
        _everywhere(
            "Superposition lowers the noise at every ε, compared with TDMA",
            LEFT_OUT,
            {constant: (curves["orthogonal_fd_fixed"].noise, fd_fixed.noise)},
            fd.epsilon,
            "TDMA over superposition",
        ),
        _everywhere(
            "Counting all noise at the receiver lowers it at every ε, compared with own noise only",
            LEFT_OUT,
            {constant: (curves["own_noise_fixed"].noise, fd_fixed.noise)},
            fd.epsilon,
            "own noise over all noise",
        ),
        _tracked(curves),
    ]


def _tracked(curves: dict[str, NoiseCurve]) -> Checked:
    linear, tracked = curves["ota_fd_fixed"], curves["airdistill_fixed"]
    return _everywhere(
        "airdistill leaves a smaller squared error at every ε than the paper's design with its linear receiver",
        OURS,
        {"T constant": (linear.noise, tracked.noise)},
        linear.epsilon,
        "linear over tracked",
    )


def _everywhere(
    statement: str, source: str, pairs: dict[str, tuple[FloatArray, FloatArray]], epsilon: FloatArray, ratio_of: str
) -> Checked:
    """Check whether the first of each pair is larger at every ε."""
    found, held = [], True
    for name, (larger, smaller) in pairs.items():
        ratio = larger / smaller
        wins = ratio > 1
        held = held and bool(wins.all())
        where = f"at {np.count_nonzero(wins)} of {len(ratio)} values of ε"
        if wins.any() and not wins.all():
            where += f" (ε from {epsilon[wins].min():.3g} to {epsilon[wins].max():.3g})"
        label = f"{name}: " if name else ""
        found.append(f"{label}larger {where}; {ratio_of} {ratio.min():.3g} to {ratio.max():.3g}")
    return Checked(statement, source, "holds" if held else "does not hold", "; ".join(found))


def accuracy_claims(record: ComparisonRecord) -> list[Checked]:
    """Check the claims about Figure 2(b) for the arms with finished runs."""
    labels = {arm.label for arm in record.comparison.arms}
    fixed = record.comparison.arm("ota_fd_fixed").scenario.learning.fixed_rounds
    claims = _claims(fixed)
    return _checked(record, claims if SAME_TERMS_FL in labels else [each for each in claims if not each.same_terms])


def claims_about(record: ComparisonRecord) -> list[Checked]:
    """Check the claims about Figure 2(b) that the arms of a comparison can decide."""
    ended = {arm.label for arm in record.comparison.arms if runs_of(record, arm.label)}
    claims = _claims(_only(_lengths(record, "ota_fd_fixed")))
    decided = [claim for claim in claims if {claim.ours, *claim.others} <= ended]
    return _checked(record, [claim for claim in decided if claim.equal_rounds in (None, _equally_long(record, claim))])


def _lengths(record: ComparisonRecord, *labels: str) -> set[int]:
    return {run.summary["rounds"] for label in labels for run in runs_of(record, label).values()}


def _only(lengths: set[int]) -> int | None:
    return next(iter(lengths)) if len(lengths) == 1 else None


def _equally_long(record: ComparisonRecord, claim: _Claim) -> bool:
    return _only(_lengths(record, claim.ours, *claim.others)) is not None


@dataclass(frozen=True)
class _Claim:
    """A claim that one arm is better than others: in accuracy up to a margin, or in uplink time if `by` is None.

    `equal_rounds` is True for a claim about runs of equal length, False for one about different lengths.
    """

    statement: str
    source: str
    ours: str
    others: tuple[str, ...]
    by: Callable[[RunRecord, RunRecord], tuple[float, float | None]] | None
    margin: float = 0.0
    same_terms: bool = False
    equal_rounds: bool | None = None


def _claims(fixed: int | None = None) -> list[_Claim]:
    constant = "a constant T" if fixed is None else f"T = {fixed}"
    printed, ours = f"{PAPER}(b)", PROPOSED
    return [
        _Claim(
            f"The optimised T beats {constant} in accuracy",
            printed, ours, ("ota_fd_fixed",), final, equal_rounds=False,
        ),
        _Claim(
            f"The proposed scheme comes within {100 * CLOSE:.0f} point of error-free distillation at the same round",
            printed, ours, ("fd_error_free",), same_round, margin=CLOSE,
        ),
        _Claim(
            "It reaches its accuracy in the least uplink time, against the federated-learning alternatives",
            printed, ours, ("ota_fl", "ota_fl_fixed", "fedsgd"), None,
        ),
        _Claim("It ends above over-the-air federated learning", printed, ours, ("ota_fl",), final),
        _Claim("It ends above error-free FedSGD", printed, ours, ("fedsgd",), final),
        _Claim("It gains over local training (at the same round)", LEFT_OUT, ours, ("local_only",), same_round),
        _Claim(
            "Error-free distillation gains over local training",
            LEFT_OUT, "fd_error_free", ("local_only",), same_round,
        ),
        _Claim("Superposition ends above TDMA", LEFT_OUT, ours, ("orthogonal_fd",), final),
        _Claim(
            f"airdistill ends above the paper's design with its linear receiver, both with {constant}",
            OURS, OWN, ("ota_fd_fixed",), final, equal_rounds=True,
        ),
        _Claim("airdistill gains over local training (at the same round)", OURS, OWN, ("local_only",), same_round),
        _Claim(
            "On distillation's own link, ε and δ it ends above over-the-air federated learning",
            LEFT_OUT, ours, (SAME_TERMS_FL,), final, same_terms=True,
        ),
        _Claim(
            "On federated learning's link, ε and δ it ends above over-the-air federated learning",
            LEFT_OUT, SAME_TERMS_FD, ("ota_fl",), final, same_terms=True,
        ),
    ]  # fmt: skip


def _checked(record: ComparisonRecord, claims: list[_Claim]) -> list[Checked]:
    runs = {arm.label: runs_of(record, arm.label) for arm in record.comparison.arms}
    return [_least_time(claim, runs) if claim.by is None else _above(claim, claim.by, runs) for claim in claims]


def final(ours: RunRecord, other: RunRecord) -> tuple[float, float]:
    """Return the accuracies at the end of each run."""
    return ours.summary["accuracy"]["mean"], other.summary["accuracy"]["mean"]


def same_round(ours: RunRecord, other: RunRecord) -> tuple[float, float | None]:
    """Return the accuracies after our last round; None if the other run was not evaluated before it."""
    return ours.summary["accuracy"]["mean"], accuracy_at(other, ours.summary["rounds"])


def _above(
    claim: _Claim,
    accuracies: Callable[[RunRecord, RunRecord], tuple[float, float | None]],
    runs: dict[str, dict[int, RunRecord]],
) -> Checked:
    """Check whether our accuracy is above the other's minus a margin, seed by seed."""
    statement, source, ours, (other,) = claim.statement, claim.source, claim.ours, claim.others
    seeds = runs.get(ours, {}).keys() & runs.get(other, {}).keys()
    if not seeds:
        return Checked(statement, source, "undecided", f"{ours} or {other} has no finished run")
    found = [accuracies(runs[ours][seed], runs[other][seed]) for seed in sorted(seeds)]
    pairs = np.array([pair for pair in found if pair[1] is not None], dtype=np.float64)
    if not len(pairs):
        return Checked(statement, source, "undecided", f"{other} was not evaluated by the end of {ours}")
    paired = PairedAccuracies(*pairs.T)
    shares = f"{ours} {100 * paired.ours.mean():.1f} %, {other} {100 * paired.other.mean():.1f} %"
    verdict = _WORDS[paired.gap.side_of(-claim.margin)]
    return Checked(statement, source, verdict, f"{shares}: {paired.in_words}")


def _least_time(claim: _Claim, runs: dict[str, dict[int, RunRecord]]) -> Checked:
    """Check whether the federated-learning rivals need more time, or never reach our accuracy, in two or more seeds.

    A rival reaches the accuracy between two evaluations. It is slower for certain only if the earlier of the two is
    after our end.
    """
    statement, source, ours = claim.statement, claim.source, claim.ours
    found, verdicts = [], []
    for rival in claim.others:
        seeds = sorted(runs.get(ours, {}).keys() & runs.get(rival, {}).keys())
        if not seeds:
            return Checked(statement, source, "undecided", f"{ours} or {rival} has no finished run")
        spans = [_relative_time(runs[ours][seed], runs[rival][seed]) for seed in seeds]
        slower = all(low > 1 for low, _ in spans)
        faster_once = any(high <= 1 for _, high in spans)
        verdicts.append("does not hold" if faster_once else "holds" if slower and len(seeds) > 1 else "undecided")
        reached = [high for _, high in spans if np.isfinite(high)]
        least = min(low for low, _ in spans)
        times = f", in {least:.3g} to {max(reached):.3g} times our time" if reached else ""
        found.append(f"{rival} reaches the accuracy in {len(reached)} of {len(seeds)} seeds{times}")
    level = Interval.of([run.summary["accuracy"]["mean"] for run in runs[ours].values()])
    found.append(f"the accuracy is {100 * level.mean:.1f} %")
    order: tuple[Word, ...] = ("does not hold", "undecided", "holds")
    return Checked(statement, source, next(word for word in order if word in verdicts), "; ".join(found))


def _relative_time(ours: RunRecord, rival: RunRecord) -> tuple[float, float]:
    """Return the multiples of our uplink time between which a rival first reaches our accuracy."""
    low, high = seconds_to(rival, ours.summary["accuracy"]["mean"])
    return low / ours.summary["uplink_seconds"], high / ours.summary["uplink_seconds"]


def seconds_to(run: RunRecord, accuracy: float) -> tuple[float, float]:
    """Return the uplink times of the two evaluations between which an accuracy is first reached; infinite if never."""
    rounds, measured = accuracy_curve(run)
    seconds_a_round = run.summary["uplink_seconds"] / run.summary["rounds"]
    reached = np.flatnonzero(measured >= accuracy)
    if not len(reached):
        return float("inf"), float("inf")
    first = reached[0]
    # At the earliest after the evaluation before it, or after the first round.
    earliest = rounds[first - 1] if first else 1.0
    return float(earliest * seconds_a_round), float(rounds[first] * seconds_a_round)


@dataclass(frozen=True)
class NoiseFigure:
    """Figure 2(a) of one scenario."""

    scenario: Scenario
    curves: dict[str, NoiseCurve]
    claims: list[Checked]


def noise_figure(name: str, quick: bool, changes: list[str]) -> NoiseFigure:
    """Compute Figure 2(a) of a scenario. This takes seconds because nothing is trained."""
    scenario = figure_scenario(name, "printed", quick, changes)
    curves = noise_curves(scenario)
    return NoiseFigure(scenario, curves, noise_claims(curves))


@dataclass(frozen=True)
class AccuracyFigure:
    """Figure 2(b) of one scenario: a comparison for each choice of step sizes."""

    name: str
    records: dict[str, ComparisonRecord]
    claims: dict[str, list[Checked]]


def accuracy_figure(
    name: str,
    quick: bool,
    changes: list[str],
    seeds: int,
    out: Path,
    options: RunOptions,
    jobs: int,
    on_progress: OnProgress,
) -> AccuracyFigure:
    """Train the runs that the folder does not hold yet. Repeating a stopped call resumes it."""
    for step in STEPS:
        scenario = with_absolute_paths(figure_scenario(name, step, quick, changes))
        comparison = _comparison(f"{name}-{step}", scenario, step, seeds, options.resolved())
        start(comparison, out / comparison.name, jobs, on_progress)
    return recorded_accuracy_figure(name, out)


def _comparison(name: str, scenario: Scenario, step: str, seeds: int, options: RunOptions) -> Comparison:
    """Build the comparison. All schemes are also evaluated at the last round of the proposed scheme."""
    numbers = tuple(range(scenario.seed, scenario.seed + seeds))
    planned = [plan_run(changed(scenario, {"seed": seed}), PROPOSED) for seed in numbers]
    ends = {plan.num_rounds for plan in planned}
    arms = accuracy_arms(scenario, step, max(*ends, scenario.learning.fixed_rounds))
    return Comparison(name, arms, numbers, replace(options, eval_also=tuple(sorted(ends))))


def recorded_accuracy_figure(name: str, out: Path) -> AccuracyFigure:
    """Read the figure from the runs in a folder, without training."""
    records = {step: ComparisonRecord.read(out / f"{name}-{step}") for step in STEPS}
    return AccuracyFigure(name, records, {step: accuracy_claims(record) for step, record in records.items()})
