"""Reproduce a figure of the paper: compute it, check the claims, draw it, and write files, one page and tables."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airdistill import __version__
from airdistill.files import json_text, write_whole
from airdistill.report.comparison import (
    curves_csv,
    curves_of,
    draw_against_time,
    print_comparison,
    results_blocks,
    runs_csv,
    settings_table,
)
from airdistill.report.drawing import LOOKS, legend_below, new_figure, save, svg_of
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
from airdistill.report.plan import plan_section, privacy_section
from airdistill.report.progress import comparison_bar
from airdistill.report.run import plan_of
from airdistill.report.wording import number
from airdistill.reproduce.claims import (
    AccuracyFigure,
    Checked,
    NoiseFigure,
    accuracy_figure,
    noise_figure,
    recorded_accuracy_figure,
)
from airdistill.reproduce.noise_curves import DELTA, NoiseCurve, curves_as_rows
from airdistill.reproduce.recipes import PROPOSED, SAME_TERMS_FD, SAME_TERMS_FL
from airdistill.runs.comparison import ComparisonRecord
from airdistill.runs.options import RunOptions
from airdistill.runs.results import runs_of
from airdistill.schemes.base import BLACK, ORANGE, PURPLE, RED, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
_NOISE_LOOKS = {
    **LOOKS,
    "ota_fl_same_link": Look(RED, ":", "D"),
    "ota_fl_fixed_same_link": Look(ORANGE, ":", "v"),
    "orthogonal_fd_fixed": Look(PURPLE, "-", "P"),
    "own_noise_fixed": Look(BLACK, "-.", "*"),
    "airdistill_fixed": LOOKS["airdistill"],
}
_NOISE_NAMES = {
    "ota_fd": "FD, T optimised",
    "ota_fd_fixed": "FD, T constant",
    "ota_fl": "FL, T optimised",
    "ota_fl_fixed": "FL, T constant",
    "ota_fl_same_link": "FL on FD's link, T optimised",
    "ota_fl_fixed_same_link": "FL on FD's link, T constant",
    "orthogonal_fd_fixed": "FD, TDMA",
    "own_noise_fixed": "FD, own noise only",
    "airdistill_fixed": "airdistill, after its receiver",
}
_PAPERS = ("ota_fd", "ota_fd_fixed", "ota_fl", "ota_fl_fixed")
_PANELS = {
    "raw, as the paper plots it": (_PAPERS, "noise"),
    "in units of the gradient": ((*_PAPERS, "ota_fl_same_link", "ota_fl_fixed_same_link"), "gradient_noise"),
    "T constant: TDMA, superposed, tracked": (
        ("ota_fd_fixed", "orthogonal_fd_fixed", "own_noise_fixed", "airdistill_fixed"),
        "noise",
    ),
}


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


def draw_noise(curves: dict[str, NoiseCurve], title: str) -> Figure:
    """Draw Figure 2(a) in three panels: raw, in one unit, and the gain of superposition."""
    figure, panels = new_figure(columns=len(_PANELS), height=4.8)
    for axes, name in zip(panels, _PANELS, strict=True):
        _draw_noise_panel(axes, curves, name)
    figure.suptitle(title)
    _one_legend(figure, panels, columns=4)
    return figure


def noise_panels(curves: dict[str, NoiseCurve]) -> dict[str, Figure]:
    """Draw each panel as a figure, which a narrow screen can show."""
    drawn = {}
    for name in _PANELS:
        figure, (axes,) = new_figure(height=4.6)
        _draw_noise_panel(axes, curves, name)
        _one_legend(figure, [axes], columns=2)
        drawn[name] = figure
    return drawn


def _draw_noise_panel(axes: Axes, curves: dict[str, NoiseCurve], name: str) -> None:
    labels, quantity = _PANELS[name]
    for label in labels:
        values, style = getattr(curves[label], quantity), _NOISE_LOOKS[label].style()
        axes.loglog(curves[label].epsilon, values, label=_NOISE_NAMES[label], markevery=3, **style)
    axes.set(xlabel="ε of every device", ylabel="noise Φ of a round (squared error)", title=name)


def _one_legend(figure: Figure, panels: list[Axes], columns: int) -> None:
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False, handlelength=3.4
    )


def draw_accuracy(records: dict[str, ComparisonRecord], title: str) -> Figure:
    """Draw Figure 2(b), a panel for each choice of step sizes. The arms with exchanged terms are in the table only."""
    figure, panels = new_figure(columns=len(records), height=4.8)
    for axes, (step, record) in zip(panels, records.items(), strict=True):
        curves = curves_of(record)
        shown = {label: curve for label, curve in curves.items() if label not in (SAME_TERMS_FL, SAME_TERMS_FD)}
        draw_against_time(axes, shown)
        axes.set(title=f"step sizes {step}", ylim=(0, 100))
    figure.suptitle(title)
    legend_below(figure, panels[-1], columns=2 + len(panels))
    return figure
