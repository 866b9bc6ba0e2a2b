"""Compute the data and the claims of the paper's two figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from airdistill.reproduce.claims import Checked, accuracy_claims, noise_claims
from airdistill.reproduce.noise_curves import NoiseCurve, noise_curves
from airdistill.reproduce.recipes import PROPOSED, STEPS, accuracy_arms, figure_scenario
from airdistill.runs.comparison import Comparison, ComparisonRecord, OnProgress, start
from airdistill.runs.options import RunOptions
from airdistill.scenario.loading import changed, with_absolute_paths
from airdistill.scenario.model import Scenario
from airdistill.schemes.registry import plan_run


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
