"""Reproducing a figure from the command line: compute, draw, write, print."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from airdistill.report.claims_table import print_claims
from airdistill.report.comparison_table import print_comparison
from airdistill.report.figure_page import write_accuracy_page, write_noise_page
from airdistill.report.progress import comparison_bar
from airdistill.reproduce.claims import Checked
from airdistill.reproduce.figures import AccuracyFigure, accuracy_figure, noise_figure, recorded_accuracy_figure
from airdistill.runs.options import RunOptions


def reproduce_fig2a(
    names: list[str], quick: bool, changes: list[str], folder: Path, command: str, silent: bool
) -> dict[str, list[Checked]]:
    """Figure 2(a) of these scenarios; the claims by scenario."""
    console = Console(quiet=silent)
    figures = {name: noise_figure(name, quick, changes) for name in names}
    folder.mkdir(parents=True, exist_ok=True)
    page = write_noise_page(figures, folder, command)
    for name, figure in figures.items():
        print_claims(f"Figure 2(a), scenario {name}", figure.claims, console)
    console.print(f"Report: {page}", highlight=False, markup=False)
    return {name: figure.claims for name, figure in figures.items()}


def reproduce_fig2b(
    names: list[str],
    quick: bool,
    changes: list[str],
    seeds: int,
    folder: Path,
    options: RunOptions,
    jobs: int,
    command: str,
    silent: bool,
) -> dict[str, list[Checked]]:
    """Figure 2(b) of these scenarios; the claims by scenario and step sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    with comparison_bar(Console(stderr=True)) as bar:
        figures = {name: accuracy_figure(name, quick, changes, seeds, folder, options, jobs, bar) for name in names}
    return _shown(figures, folder, command, silent)


def redraw_fig2b(names: list[str], folder: Path, command: str, silent: bool) -> dict[str, list[Checked]]:
    """The same from what the folder holds already."""
    return _shown({name: recorded_accuracy_figure(name, folder) for name in names}, folder, command, silent)


def _shown(figures: dict[str, AccuracyFigure], folder: Path, command: str, silent: bool) -> dict[str, list[Checked]]:
    console = Console(quiet=silent)
    page = write_accuracy_page(figures, folder, command)
    claims = {}
    for name, figure in figures.items():
        for step, record in figure.records.items():
            print_comparison(record, console)
            claims[f"{name}-{step}"] = figure.claims[step]
            print_claims(f"Figure 2(b), scenario {name}, step sizes {step}", figure.claims[step], console)
    console.print(f"Report: {page}", highlight=False, markup=False)
    return claims
