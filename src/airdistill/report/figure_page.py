"""A reproduced figure as one page, with its pictures and numbers beside it."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from airdistill import __version__
from airdistill.files import json_text, write_whole
from airdistill.report.comparison_page import asked_table, results_blocks
from airdistill.report.comparison_table import curves_csv, runs_csv
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
from airdistill.report.plan_page import plan_section, privacy_section
from airdistill.report.run_page import plan_of
from airdistill.report.words import number
from airdistill.reproduce.claims import Checked
from airdistill.reproduce.figures import AccuracyFigure, NoiseFigure
from airdistill.reproduce.noise_curves import DELTA, curves_as_rows
from airdistill.reproduce.recipes import PROPOSED
from airdistill.runs.results import runs_of

_NOISE_TEXT = (
    f"Every device asks for the same ε with δ = {DELTA:g}. Noise is the squared error of what the server receives in a "
    "round, mean over devices and over channel draws but for the outage. Federated learning has the better link and "
    "the smaller step that the paper gives to it, unless its curve says otherwise. Noise of knowledge enters the "
    "gradient times 2γL2, so that raw curves of knowledge and of gradients are not in one unit; the second panel is."
)
_ACCURACY_TEXT = (
    "Every device passes once over its samples a round in every scheme. Error-free schemes and devices alone run for "
    "the constant T; error-free ones take the slots that an analogue sum would take. A run that has ended keeps its "
    "last accuracy. Bands are 95 % intervals over seeds; the level line is every device alone."
)


def write_noise_page(figures: dict[str, NoiseFigure], folder: Path, command: str) -> Path:
    """PNG, SVG and CSV of every scenario, the claims as JSON, and the page."""
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
        sections.append(Section(f"Scenario {name}", (*pictures, _noise_table(figure), verdicts(figure.claims))))
    _write_claims(folder / "fig2a-claims.json", {name: figure.claims for name, figure in figures.items()})
    page = _page("Figure 2(a): noise against ε", _NOISE_TEXT, sections, command)
    return _write(folder / "fig2a.html", page)


def _noise_table(figure: NoiseFigure) -> DataTable:
    """Every fifth ε; all are in the CSV file."""
    curves = list(figure.curves.values())
    shown = range(0, len(curves[0].epsilon), 5)
    rows = [(curve.label, *(f"{number(curve.noise[at])} ({curve.rounds[at]:.0f})" for at in shown)) for curve in curves]
    columns = ("curve", *(f"ε = {number(curves[0].epsilon[at])}" for at in shown))
    return DataTable(columns, tuple(rows), caption="Noise Φ as it is, and in brackets the rounds T that it is for.")


def write_accuracy_page(figures: dict[str, AccuracyFigure], folder: Path, command: str) -> Path:
    """PNG and SVG of every scenario, CSV of every comparison, the claims as JSON, and the page."""
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
    return _write(
        folder / "fig2b.html", _page("Figure 2(b): accuracy against uplink time", _ACCURACY_TEXT, sections, command)
    )


def _accuracy_section(figure: AccuracyFigure, step: str) -> Section:
    record, title = figure.records[step], f"{figure.name}, step sizes {step}"
    blocks: list[Block] = []
    if record.runs:
        drawn = svg_of(draw_accuracy({step: record}, ""))
        blocks.append(Drawing(drawn, f"Accuracy against uplink time, {title}.", f"Accuracy over time, {title}"))
    blocks += [*results_blocks(record), asked_table(record), verdicts(figure.claims[step])]
    return Section(title, tuple(blocks))


def _plan_sections(figure: AccuracyFigure) -> list[Section]:
    """Of the proposed scheme, for the first seed that ended."""
    runs = runs_of(figure.records["printed"], PROPOSED)
    if not runs:
        return []
    seed, run = next(iter(runs.items()))
    of = f" of {figure.name}, {PROPOSED}, seed {seed}"
    return [plan_section(plan_of(run), of), privacy_section(plan_of(run), of)]


def verdicts(claims: list[Checked]) -> Verdicts:
    return Verdicts(tuple(Verdict(claim.statement, claim.verdict, claim.numbers, claim.source) for claim in claims))


def _page(title: str, text: str, sections: list[Section], command: str) -> Page:
    about: tuple[Block, ...] = (
        Paragraph(text),
        Bullets(
            (
                "paper: the paper's experiment with the receiver noise that its figures need.",
                "paper-literal: its numbers as printed; the knowledge drowns in the noise.",
                "The paper's sensitivity bound (Lemma 1) is not a bound: no ε of the column `paper` is a guarantee.",
            )
        ),
    )
    repeat = Section("How to repeat it", (Command(command),))
    return Page(
        title, "Computed anew", (Section("What is shown", about), *sections, repeat), f"airdistill {__version__}"
    )


def _write_claims(path: Path, claims: dict[str, list[Checked]]) -> None:
    plain = {name: [vars(claim) for claim in found] for name, found in claims.items()}
    write_whole(path, json_text(plain).encode())


def _write(path: Path, page: Page) -> Path:
    write_whole(path, render(page).encode())
    return path
