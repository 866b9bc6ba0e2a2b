"""A run on the terminal: a bar while it trains, a few lines when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from airdistill.report.plan_table import bullets
from airdistill.runs.record import RunRecord
from airdistill.units import with_prefix


@contextmanager
def round_bar(console: Console, label: str) -> Iterator[Callable[[dict[str, Any], int], None]]:
    """A bar with round, accuracy, privacy spent and time left; silent where there is no terminal."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("round {task.completed}/{task.total}"),
        TextColumn("{task.fields[news]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(escape(label), total=None, news="")
        accuracy = ""

        def follow(record: dict[str, Any], num_rounds: int) -> None:
            nonlocal accuracy
            if "accuracy" in record:
                accuracy = f"accuracy {record['accuracy']['mean']:.1%} · "
            news = f"{accuracy}ε {_epsilon(record['epsilon_spent'])}"
            progress.update(task, completed=record["round"], total=num_rounds, news=news)

        yield follow


def print_run(record: RunRecord, console: Console) -> None:
    """What came out, and where it lies."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="cyan", no_wrap=True)
    summary = record.summary
    accuracy, iterate = summary["accuracy"], summary["random_iterate"]
    for label, text in [
        ("Accuracy", f"{accuracy['mean']:.2%} mean over devices, {accuracy['worst']:.2%} to {accuracy['best']:.2%}"),
        ("  on own classes", f"{accuracy['own_classes']:.2%}"),
        ("  random iterate", f"{iterate['accuracy']['mean']:.2%}, the start of round {iterate['round']}"),
        ("Rounds", str(summary["rounds"])),
        ("Uplink", f"{with_prefix(summary['uplink_seconds'], 's')}, {with_prefix(summary['measured_joules'], 'J')}"),
        ("Privacy spent", f"ε {_epsilon(summary['epsilon_spent'])} at most, sensitivity {summary['sensitivity']}"),
        ("Record", escape(str(record.folder))),
    ]:
        table.add_row(label, text)
    console.print(f"[bold]{escape(summary['name'])}, {escape(summary['scheme'])}[/bold]", table, sep="\n")
    if summary["epsilon_spent"] not in (0, None):
        console.print("[bold]This rests on[/bold]", bullets(summary["assumptions"], "·"))


def print_comparison(records: list[RunRecord], console: Console) -> None:
    """Runs of several schemes side by side."""
    table = Table()
    for column in ("scheme", "accuracy", "worst device", "gain over local", "uplink", "ε spent"):
        table.add_column(column, justify="left" if column == "scheme" else "right")
    local = next((r.summary["accuracy"]["mean"] for r in records if r.summary["scheme"] == "local_only"), None)
    for record in records:
        summary = record.summary
        mean = summary["accuracy"]["mean"]
        table.add_row(
            escape(summary["scheme"]),
            f"{mean:.2%}",
            f"{summary['accuracy']['worst']:.2%}",
            "" if local is None else f"{100 * (mean - local):+.2f} points",
            with_prefix(summary["uplink_seconds"], "s"),
            _epsilon(summary["epsilon_spent"]),
        )
    console.print(table)
    console.print(
        "ε is the worst device's, under the sensitivity and the trust that the scenario declares; ∞ hides nothing.",
        highlight=False,
    )


def _epsilon(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3g}"
