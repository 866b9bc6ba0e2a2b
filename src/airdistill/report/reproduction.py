"""Reproduce a figure of the paper: compute it, check the claims, and write files, one page and terminal tables."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airdistill import __version__
from airdistill.files import json_text, write_whole
from airdistill.report.comparison import curves_csv, print_comparison, results_blocks, runs_csv, settings_table
from airdistill.report.drawing import save, svg_of
from airdistill.report.page import (
    Block,
    Bullets,
    Command,
    DataTable,
    Drawing,
    Page,
    Paragraph,
    Section,
    Verdict,
    Verdicts,
    render,
)
from airdistill.report.paper_figures import draw_accuracy, draw_noise, noise_panels
from airdistill.report.plan import plan_section, privacy_section
from airdistill.report.progress import comparison_bar
from airdistill.report.run import plan_of
from airdistill.report.wording import number
from airdistill.reproduce.claims import Checked
from airdistill.reproduce.figures import (
    AccuracyFigure,
    NoiseFigure,
    accuracy_figure,
    noise_figure,
    recorded_accuracy_figure,
)
from airdistill.reproduce.noise_curves import DELTA, curves_as_rows
from airdistill.reproduce.recipes import PROPOSED
from airdistill.runs.options import RunOptions
from airdistill.runs.results import runs_of

_SIGNS = {"holds": "[green]✓ holds[/green]", "does not hold": "[red]✗ does not hold[/red]", "undecided": "? undecided"}
_NOISE_TEXT = (
    f"Every device has the same target ε with δ = {DELTA:g}. Noise is the squared error of the received payload in a "
    "round, mean over devices and over all channel draws except the outage. Federated learning has the better link and "
    "the smaller step size that the paper gives it, unless its curve says otherwise. Noise of knowledge enters the "
    "gradient multiplied by 2γL2, and so raw curves of knowledge and of gradients have different units. The second "
    "panel has one unit."
)
_ACCURACY_TEXT = (
    "In every scheme each device passes over its samples once a round. Error-free schemes and local training run for "
    "the constant T; error-free schemes take the slots that an analogue sum would take. A run that has ended keeps its "
    "last accuracy. Bands are 95 % intervals over seeds; the horizontal line is local training alone."
)


# Commands.


def reproduce_fig2a(
    names: list[str], quick: bool, changes: list[str], folder: Path, command: str, quiet: bool
) -> dict[str, list[Checked]]:
    """Reproduce Figure 2(a) of these scenarios, and return the claims by scenario."""
    console = Console(quiet=quiet)
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
    quiet: bool,
) -> dict[str, list[Checked]]:
    """Reproduce Figure 2(b) of these scenarios, and return the claims by scenario and step sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    with comparison_bar(Console(stderr=True)) as bar:
        figures = {name: accuracy_figure(name, quick, changes, seeds, folder, options, jobs, bar) for name in names}
    return _written(figures, folder, command, quiet)


def redraw_fig2b(names: list[str], folder: Path, command: str, quiet: bool) -> dict[str, list[Checked]]:
    """Draw Figure 2(b) from the runs in the folder, without training."""
    return _written({name: recorded_accuracy_figure(name, folder) for name in names}, folder, command, quiet)


def _written(figures: dict[str, AccuracyFigure], folder: Path, command: str, quiet: bool) -> dict[str, list[Checked]]:
    console = Console(quiet=quiet)
    page = write_accuracy_page(figures, folder, command)
    claims = {}
    for name, figure in figures.items():
        for step, record in figure.records.items():
            print_comparison(record, console)
            claims[f"{name}-{step}"] = figure.claims[step]
            print_claims(f"Figure 2(b), scenario {name}, step sizes {step}", figure.claims[step], console)
    console.print(f"Report: {page}", highlight=False, markup=False)
    return claims


def print_claims(title: str, claims: list[Checked], console: Console) -> None:
    """Print every claim with its verdict and its numbers."""
    table = Table(title=escape(title), title_justify="left", show_lines=True)
    table.add_column("claim", ratio=4)
    table.add_column("verdict", no_wrap=True)
    table.add_column("measured", ratio=4)
    for claim in claims:
        statement = f"{escape(claim.statement)}\n[dim]{escape(claim.source)}[/dim]"
        table.add_row(statement, _SIGNS[claim.verdict], escape(claim.numbers))
    console.print(table)


# Figure 2(a).


def write_noise_page(figures: dict[str, NoiseFigure], folder: Path, command: str) -> Path:
    """Write PNG, SVG and CSV of every scenario, the claims as JSON, and the page; return the page's path."""
    sections = []
    for name, figure in figures.items():
        save(draw_noise(figure.curves, f"Figure 2(a), scenario {name}"), folder, f"fig2a-{name}")
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows(curves_as_rows(figure.curves))
        write_whole(folder / f"fig2a-{name}.csv", buffer.getvalue().encode())
        pictures = [
            Drawing(svg_of(drawn), f"Noise against ε, scenario {name}: {panel}.", f"Noise against epsilon, {panel}")
            for panel, drawn in noise_panels(figure.curves).items()
        ]
        sections.append(Section(f"Scenario {name}", (*pictures, _noise_table(figure), _verdicts(figure.claims))))
    _write_claims(folder / "fig2a-claims.json", {name: figure.claims for name, figure in figures.items()})
    page = _page("Figure 2(a): noise against ε", _NOISE_TEXT, sections, command)
    return _write(folder / "fig2a.html", page)


def _noise_table(figure: NoiseFigure) -> DataTable:
    """Return every fifth ε; the CSV file has all."""
    curves = list(figure.curves.values())
    shown = range(0, len(curves[0].epsilon), 5)
    rows = [(curve.label, *(f"{number(curve.noise[at])} ({curve.rounds[at]:.0f})" for at in shown)) for curve in curves]
    columns = ("curve", *(f"ε = {number(curves[0].epsilon[at])}" for at in shown))
    return DataTable(columns, tuple(rows), caption="Raw noise Φ, and in brackets the number of rounds T.")


# Figure 2(b).


def write_accuracy_page(figures: dict[str, AccuracyFigure], folder: Path, command: str) -> Path:
    """Write PNG and SVG of every scenario, CSV of every comparison, the claims as JSON, and the page."""
    sections = []
    for name, figure in figures.items():
        if all(record.runs for record in figure.records.values()):
            save(draw_accuracy(figure.records, f"Figure 2(b), scenario {name}"), folder, f"fig2b-{name}")
        for step, record in figure.records.items():
            write_whole(folder / f"fig2b-{name}-{step}-runs.csv", runs_csv(record).encode())
            write_whole(folder / f"fig2b-{name}-{step}.csv", curves_csv(record).encode())
            sections.append(_accuracy_section(figure, step))
        sections += _plan_sections(figure)
    _write_claims(
        folder / "fig2b-claims.json",
        {f"{name}-{step}": claims for name, figure in figures.items() for step, claims in figure.claims.items()},
    )
    page = _page("Figure 2(b): accuracy against uplink time", _ACCURACY_TEXT, sections, command)
    return _write(folder / "fig2b.html", page)


def _accuracy_section(figure: AccuracyFigure, step: str) -> Section:
    record, title = figure.records[step], f"{figure.name}, step sizes {step}"
    blocks: list[Block] = []
    if record.runs:
        drawn = svg_of(draw_accuracy({step: record}, ""))
        blocks.append(Drawing(drawn, f"Accuracy against uplink time, {title}.", f"Accuracy over time, {title}"))
    blocks += [*results_blocks(record), settings_table(record), _verdicts(figure.claims[step])]
    return Section(title, tuple(blocks))


def _plan_sections(figure: AccuracyFigure) -> list[Section]:
    """Return the plan of the proposed scheme, for the first finished seed."""
    runs = runs_of(figure.records["printed"], PROPOSED)
    if not runs:
        return []
    seed, run = next(iter(runs.items()))
    of = f" of {figure.name}, {PROPOSED}, seed {seed}"
    return [plan_section(plan_of(run), of), privacy_section(plan_of(run), of)]


# Both pages.


def _verdicts(claims: list[Checked]) -> Verdicts:
    return Verdicts(tuple(Verdict(claim.statement, claim.verdict, claim.numbers, claim.source) for claim in claims))


def _page(title: str, text: str, sections: list[Section], command: str) -> Page:
    about: tuple[Block, ...] = (
        Paragraph(text),
        Bullets(
            (
                "paper: the paper's experiment with the receiver noise that its figures require.",
                "paper-literal: the numbers as printed; the noise exceeds the knowledge by far.",
                "The paper's sensitivity (Lemma 1) is not a valid bound: no ε in the column `paper` is a guarantee.",
            )
        ),
    )
    command_section = Section("How to reproduce", (Command(command),))
    shown = (Section("About this figure", about), *sections, command_section)
    return Page(title, "Computed with this version", shown, f"airdistill {__version__}")


def _write_claims(path: Path, claims: dict[str, list[Checked]]) -> None:
    plain = {name: [vars(claim) for claim in found] for name, found in claims.items()}
    write_whole(path, json_text(plain).encode())


def _write(path: Path, page: Page) -> Path:
    write_whole(path, render(page).encode())
    return path
