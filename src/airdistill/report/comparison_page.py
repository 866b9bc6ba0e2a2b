"""A comparison as one page, with its table, curves and numbers beside it."""

from __future__ import annotations

from pathlib import Path

import tomli_w

from airdistill import __version__
from airdistill.files import write_whole
from airdistill.planning.plan import Plan
from airdistill.report.accuracy_figure import accuracy_figure, accuracy_panels
from airdistill.report.comparison_table import (
    COLUMNS,
    EPSILON_COLUMNS,
    LINK_COLUMNS,
    NOTES,
    curves_csv,
    parts_of_table,
    runs_csv,
)
from airdistill.report.drawing import save, svg_of
from airdistill.report.page import Block, Bullets, Command, DataTable, Drawing, Page, Paragraph, Section, render
from airdistill.report.plan_page import plan_section, privacy_section
from airdistill.report.run_page import REPORT, plan_of
from airdistill.report.words import number, span
from airdistill.runs.comparison import Comparison, ComparisonRecord
from airdistill.runs.results import runs_of
from airdistill.schemes.registry import load_scheme


def write_comparison_page(record: ComparisonRecord) -> Path:
    """`report.html`, the curves as PNG and SVG, and the numbers as CSV, in the comparison's folder."""
    folder = record.folder
    write_whole(folder / "runs.csv", runs_csv(record).encode())
    write_whole(folder / "curves.csv", curves_csv(record).encode())
    if record.runs:
        save(accuracy_figure(record), folder, "accuracy")
    write_whole(folder / REPORT, render(comparison_page(record)).encode())
    return folder / REPORT


_CURVES_CAPTION = (
    "with 95 % intervals; a run that has ended keeps its last accuracy. Error-free schemes take the slots that an "
    "analogue sum would take."
)


def _drawings(record: ComparisonRecord) -> list[Drawing]:
    if not record.runs:
        return []
    against = ("rounds", "uplink time")
    return [
        Drawing(svg_of(figure), f"Mean test accuracy against {axis}, {_CURVES_CAPTION}", f"Accuracy against {axis}")
        for axis, figure in zip(against, accuracy_panels(record), strict=True)
    ]


def comparison_page(record: ComparisonRecord) -> Page:
    comparison = record.comparison
    seeds = ", ".join(map(str, comparison.seeds))
    planned = []
    private = [task for task in record.runs if load_scheme(comparison.arm(task.label).scheme).releases == "private"]
    if private:
        plan, of = plan_of(record.runs[private[0]]), f" of {private[0].label}, seed {private[0].seed}"
        planned = [plan_section(plan, of), privacy_section(plan, of)]
    return Page(
        title=f"{comparison.name}: {len(comparison.arms)} schemes compared",
        subtitle=f"seeds {seeds}; {len(record.runs)} of {len(comparison.tasks)} runs ended",
        sections=(
            Section("Results", (*results_blocks(record), *_drawings(record))),
            Section("What was asked of each scheme", (asked_table(record),)),
            *planned,
            Section("How to repeat it", _repeat(comparison)),
        ),
        made_by=f"airdistill {__version__}",
    )


def results_blocks(record: ComparisonRecord) -> list[Block]:
    """The table in two parts, and what failed."""
    parts = parts_of_table(record, (*COLUMNS, *LINK_COLUMNS), EPSILON_COLUMNS)
    results, privacy = [(columns, tuple(tuple(row) for row in rows)) for columns, rows in parts]
    blocks: list[Block] = [DataTable(*results), DataTable(*privacy, notes=NOTES)]
    if record.failures:
        lines = [f"{task.label}, seed {task.seed}, failed: {reason}" for task, reason in record.failures.items()]
        blocks.append(Bullets(tuple(lines), "warning"))
    return blocks


def asked_table(record: ComparisonRecord) -> DataTable:
    """What differs between the arms: link, privacy, step size, rounds."""
    rows = []
    for arm in record.comparison.arms:
        plans = [plan_of(run) for run in runs_of(record, arm.label).values()]
        if plans:
            rows.append((arm.label, *_asked(plans)))
    columns = ("scheme", "rounds", "step size η0", "asked ε", "slots a round", "planned noise Φ", "what binds")
    return DataTable(
        columns,
        tuple(rows),
        caption="As planned; ε, noise and what binds for the first seed. Error-free and local schemes do not use them.",
    )


def _asked(plans: list[Plan]) -> tuple[str, ...]:
    first = plans[0]
    rounds, epsilon = [plan.num_rounds for plan in plans], first.fleet.epsilon
    asked = f"{number(epsilon.min())}–{number(epsilon.max())}" if epsilon.min() < epsilon.max() else number(epsilon[0])
    return (
        span(min(rounds), max(rounds)),
        number(first.scenario.learning.initial_lr),
        asked,
        str(first.uplink.num_slots),
        number(first.forecast.effective_noise),
        first.forecast.regime,
    )


def _repeat(comparison: Comparison) -> tuple[Block, ...]:
    schemes = ",".join(arm.scheme for arm in comparison.arms)
    rounds = comparison.arms[0].rounds
    command = f"airdistill compare scenario.toml --schemes {schemes} --seeds {len(comparison.seeds)}"
    given = comparison.arms[0].with_seed(comparison.seeds[0]).model_dump(mode="json", exclude_none=True)
    return (
        Paragraph("The same command gives the same numbers on the same machine. The scenario in full:"),
        Command(command if rounds is None else f"{command} --rounds {rounds}"),
        Command(tomli_w.dumps(given)),
    )
