"""The paper's statements, and those that it leaves out, each with the measurement that decides it.

"Does not hold" is a result like any other. Where a difference over seeds decides, its 95 % interval does: above zero it
holds, below zero it does not, and around zero it is undecided, as it is with a single seed, which has no interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.reproduce.noise_curves import NoiseCurve
from airdistill.reproduce.recipes import OWN, PROPOSED, SAME_TERMS_FD, SAME_TERMS_FL
from airdistill.runs.comparison import ComparisonRecord
from airdistill.runs.record import RunRecord
from airdistill.runs.results import Interval, accuracy_at, accuracy_curve, runs_of

Word = Literal["holds", "does not hold", "undecided"]
PAPER, LEFT_OUT, OURS = "the paper, Fig. 2", "left out by the paper", "this project's own"
# "Approaches" needs a number: within one point of accuracy.
CLOSE = 0.01


@dataclass(frozen=True)
class Checked:
    """A statement, who made it, what was found, and the numbers."""

    statement: str
    source: str
    verdict: Word
    numbers: str


def noise_claims(curves: dict[str, NoiseCurve]) -> list[Checked]:
    """Of Figure 2(a)."""
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
            "It does so in one unit, too: noise as it enters the gradient",
            LEFT_OUT,
            {
                optimised: (fl.gradient_noise, fd.gradient_noise),
                constant: (fl_fixed.gradient_noise, fd_fixed.gradient_noise),
            },
            fd.epsilon,
            "FL over FD",
        ),
        _everywhere(
            "It does so in one unit and on the same link",
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
            "Sharing the air lowers the noise at every ε, against one device after the other",
            LEFT_OUT,
            {constant: (curves["orthogonal_fd_fixed"].noise, fd_fixed.noise)},
            fd.epsilon,
            "apart over shared",
        ),
        _everywhere(
            "Counting all noise at the receiver lowers it at every ε, against each device's own alone",
            LEFT_OUT,
            {constant: (curves["own_noise_fixed"].noise, fd_fixed.noise)},
            fd.epsilon,
            "own over shared",
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
    """Whether the first of each pair is the larger one at every ε."""
    said, held = [], True
    for name, (larger, smaller) in pairs.items():
        ratio = larger / smaller
        wins = ratio > 1
        held = held and bool(wins.all())
        where = f"at {np.count_nonzero(wins)} of {len(ratio)} values of ε"
        if wins.any() and not wins.all():
            where += f" (ε from {epsilon[wins].min():.3g} to {epsilon[wins].max():.3g})"
        label = f"{name}: " if name else ""
        said.append(f"{label}larger {where}; {ratio_of} {ratio.min():.3g} to {ratio.max():.3g}")
    return Checked(statement, source, "holds" if held else "does not hold", "; ".join(said))


def accuracy_claims(record: ComparisonRecord) -> list[Checked]:
    """Of Figure 2(b), for the arms that ended."""
    labels = {arm.label for arm in record.comparison.arms}
    fixed = record.comparison.arm("ota_fd_fixed").scenario.learning.fixed_rounds
    claims = _claims(fixed)
    return _checked(record, claims if SAME_TERMS_FL in labels else [each for each in claims if not each.same_terms])


def claims_about(record: ComparisonRecord) -> list[Checked]:
    """Those of Figure 2(b) that the arms of any comparison can decide."""
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
    """That one arm is better than others: in accuracy less a margin, or, where `by` is None, in uplink time.

    `equal_rounds` says whether it is about runs of the same length, or of different ones.
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
        _Claim("It gains over every device alone (at the same round)", LEFT_OUT, ours, ("local_only",), same_round),
        _Claim(
            "Error-free distillation gains over every device alone",
            LEFT_OUT, "fd_error_free", ("local_only",), same_round,
        ),
        _Claim("Sharing the air ends above one device after the other", LEFT_OUT, ours, ("orthogonal_fd",), final),
        _Claim(
            f"airdistill ends above the paper's design with its linear receiver, both with {constant}",
            OURS, OWN, ("ota_fd_fixed",), final, equal_rounds=True,
        ),
        _Claim("airdistill gains over every device alone (at the same round)", OURS, OWN, ("local_only",), same_round),
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
    """Accuracies at each one's own end."""
    return ours.summary["accuracy"]["mean"], other.summary["accuracy"]["mean"]


def same_round(ours: RunRecord, other: RunRecord) -> tuple[float, float | None]:
    """Accuracies after our last round; None if the other was not yet evaluated by then."""
    return ours.summary["accuracy"]["mean"], accuracy_at(other, ours.summary["rounds"])


def _above(
    claim: _Claim,
    accuracies: Callable[[RunRecord, RunRecord], tuple[float, float | None]],
    runs: dict[str, dict[int, RunRecord]],
) -> Checked:
    """Whether our accuracy is above the other's, less a margin, seed by seed."""
    statement, source, ours, (other,) = claim.statement, claim.source, claim.ours, claim.others
    seeds = runs.get(ours, {}).keys() & runs.get(other, {}).keys()
    if not seeds:
        return Checked(statement, source, "undecided", f"{ours} or {other} did not end")
    found = [accuracies(runs[ours][seed], runs[other][seed]) for seed in sorted(seeds)]
    pairs = np.array([pair for pair in found if pair[1] is not None], dtype=np.float64)
    if not len(pairs):
        return Checked(statement, source, "undecided", f"{other} was not evaluated by the end of {ours}")
    gap = Interval.of((pairs[:, 0] - pairs[:, 1]).tolist())
    each = ", ".join(f"{100 * difference:+.1f}" for difference in pairs[:, 0] - pairs[:, 1])
    interval = "" if gap.half is None else f" ± {100 * gap.half:.1f}"
    numbers = (
        f"{ours} {100 * pairs[:, 0].mean():.1f} %, {other} {100 * pairs[:, 1].mean():.1f} %: "
        f"{100 * gap.mean:+.1f}{interval} points (by seed {each})"
    )
    return Checked(statement, source, _verdict(gap, -claim.margin), numbers.replace("-", "−"))


def _verdict(gap: Interval, least: float) -> Word:
    if gap.half is None:  # one seed says nothing about another
        return "undecided"
    if gap.low > least:
        return "holds"
    return "does not hold" if gap.high < least else "undecided"


def _least_time(claim: _Claim, runs: dict[str, dict[int, RunRecord]]) -> Checked:
    """Whether the federated-learning rivals take longer, or never get there, in every seed of two at least.

    A rival gets there between two evaluations: only if the earlier one is later than our end has it lost for sure.
    """
    statement, source, ours = claim.statement, claim.source, claim.ours
    said, verdicts = [], []
    for rival in claim.others:
        seeds = sorted(runs.get(ours, {}).keys() & runs.get(rival, {}).keys())
        if not seeds:
            return Checked(statement, source, "undecided", f"{ours} or {rival} did not end")
        spans = [_relative_time(runs[ours][seed], runs[rival][seed]) for seed in seeds]
        lost = all(low > 1 for low, _ in spans)
        won = any(high <= 1 for _, high in spans)
        verdicts.append("does not hold" if won else "holds" if lost and len(seeds) > 1 else "undecided")
        reached = [high for _, high in spans if np.isfinite(high)]
        least = min(low for low, _ in spans)
        times = f", in {least:.3g} to {max(reached):.3g} times our time" if reached else ""
        said.append(f"{rival} gets there in {len(reached)} of {len(seeds)} seeds{times}")
    level = Interval.of([run.summary["accuracy"]["mean"] for run in runs[ours].values()])
    said.append(f"the accuracy is {100 * level.mean:.1f} %")
    order: tuple[Word, ...] = ("does not hold", "undecided", "holds")
    return Checked(statement, source, next(word for word in order if word in verdicts), "; ".join(said))


def _relative_time(ours: RunRecord, rival: RunRecord) -> tuple[float, float]:
    """Between which multiples of our uplink time a rival first reaches our accuracy."""
    low, high = seconds_to(rival, ours.summary["accuracy"]["mean"])
    return low / ours.summary["uplink_seconds"], high / ours.summary["uplink_seconds"]


def seconds_to(run: RunRecord, accuracy: float) -> tuple[float, float]:
    """Between which uplink times an accuracy is first reached, as far as evaluations tell; infinite if never."""
    rounds, seen = accuracy_curve(run)
    seconds_a_round = run.summary["uplink_seconds"] / run.summary["rounds"]
    there = np.flatnonzero(seen >= accuracy)
    if not len(there):
        return float("inf"), float("inf")
    first = there[0]
    # After the evaluation before it, or after the first round.
    earliest = rounds[first - 1] if first else 1.0
    return float(earliest * seconds_a_round), float(rounds[first] * seconds_a_round)
