"""A comparison as a table, on the terminal and in a file."""

from __future__ import annotations

import csv
import io

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.report.words import (
    antennas_in_words,
    number,
    percent,
    points,
    quantity,
    span,
    taking_part_in_words,
)
from airdistill.runs.comparison import ComparisonRecord
from airdistill.runs.results import ArmResult, arm_results, received_noise

COLUMNS = ("scheme", "accuracy", "gain over local", "worst device", "rounds", "uplink", "energy")
LINK_COLUMNS = ("antennas", "taking part", "noise")
EPSILON_COLUMNS = tuple(f"ε {model}" for model in SENSITIVITY_MODELS)
_ALL_COLUMNS = (*COLUMNS, *LINK_COLUMNS, *EPSILON_COLUMNS)
NOTES = (
    "Accuracy: of the devices' own models on the common test set, mean over devices, then over seeds ± 95 % interval.",
    "Gain over local: in points, against every device alone at the same round and seed.",
    "Noise: variance per entry of what was received, measured; median over rows and rounds, mean over seeds. Taking "
    "part: all, or each device with a probability that the server sees, or that is hidden from it.",
    "ε: exact, of the worst device and seed, if one neighbour change could move what each sensitivity model says; * is "
    "the model that the scenario declares. Only `device` is sound for knowledge of trained models; for gradients all "
    "are. ∞ hides nothing, 0 sends nothing.",
)


def table_rows(record: ComparisonRecord) -> list[list[str]]:
    """One row for each arm; the reason where none of its runs ended."""
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
    """The table in parts that are not too wide, each with the schemes in front: columns and rows."""
    rows = [dict(zip(_ALL_COLUMNS, row, strict=True)) for row in table_rows(record)]
    wanted = [part if part[0] == COLUMNS[0] else (COLUMNS[0], *part) for part in parts]
    return [(columns, [[row[name] for name in columns] for row in rows]) for columns in wanted]


def _row(result: ArmResult, num_seeds: int) -> list[str]:
    complete = result.num_seeds == num_seeds
    epsilons = [
        number(result.epsilon_by_model[model]) + ("*" if model == result.sensitivity else "")
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
        taking_part_in_words(result.link),
        "" if result.noise_var is None else number(result.noise_var.mean),
        *epsilons,
    ]


def print_comparison(record: ComparisonRecord, console: Console) -> None:
    """The table in parts, so that it fits a terminal, and what failed."""
    results, link, privacy = parts_of_table(record, COLUMNS, LINK_COLUMNS, EPSILON_COLUMNS)
    console.print(f"[bold]{escape(record.comparison.name)}[/bold], seeds {_seeds(record)}")
    console.print(_terminal_table(*results))
    console.print("[bold]Over the air[/bold]")
    console.print(_terminal_table(*link))
    console.print("[bold]Privacy[/bold]: ε of the worst device under each sensitivity model")
    console.print(_terminal_table(*privacy))
    for note in NOTES:
        console.print(f"[dim]{escape(note)}[/dim]", highlight=False)
    for task, reason in record.failures.items():
        console.print(f"[bold]{escape(task.label)}, seed {task.seed}, failed[/bold]: {escape(reason)}")


def _terminal_table(columns: tuple[str, ...], rows: list[list[str]]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for column in columns:
        first = column == "scheme"
        widest_word = max(map(len, column.split()))
        table.add_column(column, justify="left" if first else "right", no_wrap=first, min_width=widest_word)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _seeds(record: ComparisonRecord) -> str:
    return ", ".join(map(str, record.comparison.seeds))


def runs_csv(record: ComparisonRecord) -> str:
    """Every run as a line, for whoever wants to count on."""
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
        link = summary.get("link") or {}
        writer.writerow(
            [task.label, summary["scheme"], task.seed, summary["rounds"]]
            + [accuracy["mean"], accuracy["worst"], accuracy["best"]]
            + [summary["uplink_seconds"], summary["measured_joules"], received_noise(run)]
            + [link.get(name) for name in ("antennas", "participation", "participation_hidden")]
            + ["inf" if value is None else value for value in epsilon]
        )
    return buffer.getvalue()


def curves_csv(record: ComparisonRecord) -> str:
    """Every evaluated round of every run."""
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
