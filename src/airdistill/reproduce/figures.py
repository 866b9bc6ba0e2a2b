"""The two figures: what each needs, computed and kept in one folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airdistill.reproduce.claims import Checked, accuracy_claims, noise_claims
from airdistill.reproduce.noise_curves import NoiseCurve, noise_curves
from airdistill.reproduce.recipes import STEPS, accuracy_arms, figure_scenario
from airdistill.runs.comparison import Comparison, ComparisonRecord, OnProgress, start
from airdistill.runs.options import RunOptions
from airdistill.scenario.loading import with_absolute_paths
from airdistill.scenario.model import Scenario


@dataclass(frozen=True)
class NoiseFigure:
    """Figure 2(a) of one scenario."""

    scenario: Scenario
    curves: dict[str, NoiseCurve]
    claims: list[Checked]


def noise_figure(name: str, quick: bool, changes: list[str]) -> NoiseFigure:
    """Seconds, for nothing is trained."""
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
    """Trains what is not there yet; the same call goes on where one was stopped."""
    records = {}
    for step in STEPS:
        scenario = with_absolute_paths(figure_scenario(name, step, quick, changes))
        numbers = tuple(range(scenario.seed, scenario.seed + seeds))
        comparison = Comparison(f"{name}-{step}", accuracy_arms(scenario, step), numbers, options.resolved())
        records[step] = start(comparison, out / f"{name}-{step}", jobs, on_progress)
    return AccuracyFigure(name, records, {step: accuracy_claims(record) for step, record in records.items()})
