"""A comparison as tables, files, figures and one page."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airdistill import __version__
from airdistill.files import jsonable, write_whole
from airdistill.planning.plan import Plan
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.privacy.trust import TRUSTED_AGGREGATOR
from airdistill.report.drawing import count_rounds, legend_below, looks_for, new_figure, save, svg_of
from airdistill.report.page import Block, Bullets, Command, DataTable, Drawing, Page, Paragraph, Section, render
from airdistill.report.plan import plan_section, privacy_section
from airdistill.report.run import REPORT, plan_of
from airdistill.report.sweep import drawings_of, sweep_figures
from airdistill.report.wording import (
    antennas_in_words,
    extent,
    limiting_factor,
    number,
    participation_in_words,
    percent,
    points,
    quantity,
    sample_in_words,
    span,
)
from airdistill.runs.comparison import Comparison, ComparisonRecord, Task
from airdistill.runs.grid import over_options
from airdistill.runs.results import ArmResult, Curve, arm_results, mean_curve, received_noise, runs_of
from airdistill.runs.tables import write_results
from airdistill.schemes.registry import load_scheme
from airdistill.units import rounded_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = ("scheme", "accuracy", "gain over local", "worst device", "rounds", "uplink", "energy")
LINK_COLUMNS = ("antennas", "participation", "noise")
EPSILON_COLUMNS = tuple(f"ε {model}" for model in SENSITIVITY_MODELS)
_ALL_COLUMNS = (*COLUMNS, *LINK_COLUMNS, *EPSILON_COLUMNS)
NOTES = (
    "Accuracy: of the devices' own models on the common test set, mean over devices, then over seeds ± 95 % interval.",
    "Gain over local: in points, against local training alone at the same round and seed.",
    "Noise: measured variance per received entry; median over rows and rounds, mean over seeds. Participation: all, or "
    "the probability with which each device joins a round, known to the server or secret from it, or the user's own "
    "model.",
    "ε: exact, of the worst device and seed, if a neighbouring dataset moves the payload as far as each sensitivity "
    "model allows; * is the model that the scenario declares. For knowledge of trained models only `device` is a valid "
    "bound; for gradients all are. ∞: not private; 0: nothing is sent.",
)
TWO_SEEDS = (
    "Two seeds: a 95 % interval of two numbers is 12.7 standard errors to each side, and says little. Use --seeds 5."
)
_NARROW = 5  # of COLUMNS: those of a table in a terminal; the others are in the table below it
_CURVES_CAPTION = (
    "with 95 % intervals; a run that has ended keeps its last accuracy. Error-free schemes take the slots that an "
    "analogue sum would take."
)
_MOST_MARKS = 12


# Tables.


def notes_of(record: ComparisonRecord) -> tuple[str, ...]:
    """What a reader of the tables must know; and which schemes trust a party with every device's vectors."""
    sentence = TRUSTED_AGGREGATOR.sentence
    trusting = {task.label for task, run in record.runs.items() if sentence in run.summary["assumptions"]}
    few = [TWO_SEEDS] if len(record.comparison.seeds) == 2 else []
    samples = {sample_in_words(run.summary["accuracy"]) for run in record.runs.values()}
    sampled = [f"Accuracy of each run was measured on {words} of that run." for words in samples if words is not None]
    return (*NOTES, *few, *sorted(sampled), *([f"{', '.join(sorted(trusting))}: {sentence}"] if trusting else []))


def table_rows(record: ComparisonRecord) -> list[list[str]]:
    """Return one row for each arm. An arm without a finished run says why."""
    results = {result.label: result for result in arm_results(record)}
    rows = []
    for arm in record.comparison.arms:
        if arm.label in results:
            rows.append(_row(results[arm.label], len(record.comparison.seeds)))
        else:
            failed = any(task.label == arm.label for task in record.failures)
            rows.append([arm.label, "failed" if failed else "not run", *[""] * (len(_ALL_COLUMNS) - 2)])
    return rows


def parts_of_table(record: ComparisonRecord, *parts: tuple[str, ...]) -> list[tuple[tuple[str, ...], list[list[str]]]]:
    """Split the table into parts that fit the screen; return columns and rows of each, with the schemes first."""
    rows = [dict(zip(_ALL_COLUMNS, row, strict=True)) for row in table_rows(record)]
    wanted = [part if part[0] == COLUMNS[0] else (COLUMNS[0], *part) for part in parts]
    return [(columns, [[row[name] for name in columns] for row in rows]) for columns in wanted]


def _row(result: ArmResult, num_seeds: int) -> list[str]:
    complete = result.num_seeds == num_seeds
    epsilons = [
        rounded_up(result.epsilon_by_model[model]) + ("*" if model == result.sensitivity else "")
        for model in SENSITIVITY_MODELS
    ]
    return [
        result.label if complete else f"{result.label} ({result.num_seeds} of {num_seeds} seeds)",
        percent(result.accuracy),
        points(result.gain),
        percent(result.worst_device),
        span(*result.rounds),
        quantity(result.uplink_seconds, "s"),
        quantity(result.joules, "J"),
        antennas_in_words(result.link),
        participation_in_words(result.link),
        "" if result.noise_var is None else number(result.noise_var.mean),
        *epsilons,
    ]


def print_comparison(record: ComparisonRecord, console: Console) -> None:
    """Print the table in parts that fit a terminal, and the failures."""
    # In 80 columns no number is parted from its interval or its unit.
    results, link, privacy = parts_of_table(
        record, COLUMNS[:_NARROW], (*COLUMNS[_NARROW:], *LINK_COLUMNS), EPSILON_COLUMNS
    )
    console.print(f"[bold]{escape(record.comparison.name)}[/bold], seeds {_seeds(record)}")
    console.print(terminal_table(*results))
    console.print("[bold]Over the air[/bold]")
    console.print(terminal_table(*link))
    console.print("[bold]Privacy[/bold]: ε of the worst device under each sensitivity model")
    console.print(terminal_table(*privacy))
    for note in notes_of(record):
        console.print(f"[dim]{escape(note)}[/dim]", highlight=False)
    for problem in record.problems:
        console.print(escape(problem))


def terminal_table(columns: tuple[str, ...], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table for a terminal, with the schemes first."""
    table = Table(box=SIMPLE_HEAD)
    for column in columns:
        first = column == COLUMNS[0]
        cells = (row[columns.index(column)] for row in rows)
        widest = max(map(len, (*column.split(), *cells)))
        table.add_column(column, justify="left" if first else "right", no_wrap=first, min_width=widest)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _seeds(record: ComparisonRecord) -> str:
    return ", ".join(map(str, record.comparison.seeds))


# Files.


def comparison_to_dict(record: ComparisonRecord) -> dict[str, Any]:
    """Return every arm's numbers for JSON. Null is infinity, or an interval that a single seed does not have."""
    written: dict[str, Any] = jsonable(
        {
            "folder": str(record.folder),
            "name": record.comparison.name,
            "seeds": record.comparison.seeds,
            "arms": [asdict(result) for result in arm_results(record)],
            "failures": [
                {"label": task.label, "seed": task.seed, "reason": reason} for task, reason in record.failures.items()
            ],
            "damage": [line for run in record.runs.values() for line in run.damage],
        }
    )
    return written


def runs_csv(record: ComparisonRecord) -> str:
    """Return a line for each run."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        ["label", "scheme", "seed", "rounds", "accuracy", "worst_device", "best_device", "uplink_seconds", "joules"]
        + ["noise_var", "antennas", "participation", "participation_hidden"]
        + [f"epsilon_{model}" for model in SENSITIVITY_MODELS]
    )
    for task, run in record.runs.items():
        summary, accuracy = run.summary, run.summary["accuracy"]
        epsilon = [summary["epsilon_by_model"][model] for model in SENSITIVITY_MODELS]
        link: Mapping[str, Any] = summary.get("link") or {}
        writer.writerow(
            [task.label, summary["scheme"], task.seed, summary["rounds"]]
            + [accuracy["mean"], accuracy["worst"], accuracy["best"]]
            + [summary["uplink_seconds"], summary["measured_joules"], received_noise(run)]
            + [link.get(name) for name in ("antennas", "participation", "participation_hidden")]
            + ["inf" if value is None else value for value in epsilon]
        )
    return buffer.getvalue()


def curves_csv(record: ComparisonRecord) -> str:
    """Return a line for each evaluated round of each run."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["label", "seed", "round", "uplink_seconds", "accuracy", "worst_device", "epsilon_spent"])
    for task, run in record.runs.items():
        for line in run.rounds:
            if "accuracy" in line:
                spent = "inf" if line["epsilon_spent"] is None else line["epsilon_spent"]
                mean, worst = line["accuracy"]["mean"], line["accuracy"]["worst"]
                writer.writerow([task.label, task.seed, line["round"], line["uplink_seconds"], mean, worst, spent])
    return buffer.getvalue()


# Figures.


def accuracy_figure(record: ComparisonRecord) -> Figure:
    """Draw accuracy against rounds and against uplink time in one figure, with 95 % bands over several seeds."""
    curves = curves_of(record)
    figure, (by_round, by_time) = new_figure(columns=2)
    draw_against_rounds(by_round, curves)
    draw_against_time(by_time, curves)
    legend_below(figure, by_round, columns=5)
    return figure


def accuracy_panels(record: ComparisonRecord) -> list[Figure]:
    """Draw the same as two figures, which a narrow screen can show."""
    drawn = []
    for draw in (draw_against_rounds, draw_against_time):
        figure, (axes,) = new_figure(height=4.4)
        draw(axes, curves_of(record))
        legend_below(figure, axes, columns=3)
        drawn.append(figure)
    return drawn


def curves_of(record: ComparisonRecord) -> dict[str, Curve]:
    """Return the mean curve of every arm with a finished run, by label."""
    found = {arm.label: list(runs_of(record, arm.label).values()) for arm in record.comparison.arms}
    return {label: mean_curve(runs) for label, runs in found.items() if runs}


def draw_against_rounds(axes: Axes, curves: dict[str, Curve]) -> None:
    looks = looks_for(list(curves))
    for label, curve in curves.items():
        every = max(1, len(curve.rounds) // _MOST_MARKS)
        axes.plot(curve.rounds, 100 * curve.mean, label=label, markevery=every, **looks[label].style())
        axes.fill_between(curve.rounds, 100 * curve.low, 100 * curve.high, color=looks[label].colour, alpha=0.15, lw=0)
    count_rounds(axes)
    axes.set_ylabel("test accuracy, mean over devices (%)")


def draw_against_time(axes: Axes, curves: dict[str, Curve]) -> None:
    """Draw on a logarithmic axis. A scheme that does not transmit is a horizontal line."""
    looks = looks_for(list(curves))
    for label, curve in curves.items():
        if curve.seconds[-1] == 0:
            axes.axhline(100 * curve.mean[-1], label=label, color=looks[label].colour, linestyle=looks[label].line)
            continue
        every = max(1, len(curve.rounds) // _MOST_MARKS)
        axes.plot(curve.seconds, 100 * curve.mean, label=label, markevery=every, **looks[label].style())
        axes.fill_between(curve.seconds, 100 * curve.low, 100 * curve.high, color=looks[label].colour, alpha=0.15, lw=0)
    axes.set(xscale="log", xlabel="uplink time (s)", ylabel="test accuracy, mean over devices (%)")


# The page.


def write_comparison_page(record: ComparisonRecord) -> Path:
    """Write `report.html`, the figures as PNG and SVG and the numbers as tables; return the page's path."""
    folder = record.folder
    write_whole(folder / "runs.csv", runs_csv(record).encode())
    write_whole(folder / "curves.csv", curves_csv(record).encode())
    write_results(record)
    for name, (figure, _) in figures_of(record).items():
        save(figure, folder, name)
    write_whole(folder / REPORT, render(comparison_page(record)).encode())
    return folder / REPORT


def figures_of(record: ComparisonRecord) -> dict[str, tuple[Figure, str]]:
    """Return the figures that are saved, with their captions: of a sweep, by facet."""
    if record.comparison.fields:
        return sweep_figures(record)
    return {"accuracy": (accuracy_figure(record), _CURVES_CAPTION)} if record.runs else {}


def comparison_page(record: ComparisonRecord) -> Page:
    """Return the results, the settings of each scheme, the plan of the first private scheme, and the commands."""
    comparison, task = record.comparison, _first_private(record)
    planned: list[Section] = []
    if task is not None:
        plan, of = plan_of(record.runs[task]), f" of {task.label}, seed {task.seed}"
        planned = [plan_section(plan, of), privacy_section(plan, of)]
    return Page(
        title=f"{comparison.name}: {_compared(comparison)}",
        subtitle=f"seeds {_seeds(record)}; {len(record.runs)} of {len(comparison.tasks)} runs ended",
        sections=(
            Section("Results", (*results_blocks(record), *_drawings(record))),
            Section("Settings of each scheme", (settings_table(record),)),
            *planned,
            Section("How to reproduce", _commands(comparison)),
        ),
        made_by=f"airdistill {__version__}",
    )


def _compared(comparison: Comparison) -> str:
    if comparison.fields:
        return f"a sweep over {', '.join(comparison.fields)}"
    return f"{len(comparison.arms)} schemes compared"


def _first_private(record: ComparisonRecord) -> Task | None:
    schemes = {task: record.comparison.arm(task.label).scheme for task in record.runs}
    return next((task for task, scheme in schemes.items() if load_scheme(scheme).releases == "private"), None)


def _drawings(record: ComparisonRecord) -> list[Drawing]:
    if record.comparison.fields:
        return drawings_of(sweep_figures(record))
    if not record.runs:
        return []
    against = ("rounds", "uplink time")
    return [
        Drawing(svg_of(figure), f"Mean test accuracy against {axis}, {_CURVES_CAPTION}", f"Accuracy against {axis}")
        for axis, figure in zip(against, accuracy_panels(record), strict=True)
    ]


def results_blocks(record: ComparisonRecord) -> list[Block]:
    """Return the table in two parts, and what failed or is damaged."""
    parts = parts_of_table(record, (*COLUMNS, *LINK_COLUMNS), EPSILON_COLUMNS)
    results, privacy = [(columns, tuple(tuple(row) for row in rows)) for columns, rows in parts]
    blocks: list[Block] = [DataTable(*results), DataTable(*privacy, notes=notes_of(record))]
    if record.problems:
        blocks.append(Bullets(tuple(record.problems), "warning"))
    return blocks


def settings_table(record: ComparisonRecord) -> DataTable:
    """Return the settings in which the arms differ: link, privacy, step size, rounds."""
    rows = []
    for arm in record.comparison.arms:
        plans = [plan_of(run) for run in runs_of(record, arm.label).values()]
        if plans:
            rows.append((arm.label, *_settings(plans)))
    columns = ("scheme", "rounds", "step size η0", "target ε", "slots a round", "planned noise Φ", "limiting factor")
    return DataTable(
        columns,
        tuple(rows),
        caption="As planned; ε, noise and limiting factor for the first seed. Error-free and local schemes do not use "
        "them.",
    )


def _settings(plans: list[Plan]) -> tuple[str, ...]:
    first = plans[0]
    rounds = [plan.num_rounds for plan in plans]
    return (
        span(min(rounds), max(rounds)),
        number(first.scenario.learning.initial_lr),
        extent(first.fleet.epsilon, number),
        str(first.uplink.num_slots),
        number(first.forecast.effective_noise),
        limiting_factor(first.forecast.regime),
    )


def _commands(comparison: Comparison) -> tuple[Block, ...]:
    schemes = ",".join(dict.fromkeys(arm.scheme for arm in comparison.arms))
    rounds = comparison.arms[0].rounds
    command = f"airdistill compare scenario.toml --schemes {schemes} --seeds {len(comparison.seeds)}"
    if comparison.fields:
        over = "".join(f"--over {shlex.quote(text)} " for text in over_options(arm.point for arm in comparison.arms))
        command = command.replace("compare scenario.toml ", f"sweep scenario.toml {over}")
    given = comparison.arms[0].with_seed(comparison.seeds[0]).model_dump(mode="json", exclude_none=True)
    return (
        Paragraph("The same command gives the same numbers on the same machine. The full scenario:"),
        Command(command if rounds is None else f"{command} --rounds {rounds}"),
        Command(tomli_w.dumps(given)),
    )
