"""A run on the terminal: a bar while it trains, a few lines when it ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from airdistill.report.plan_table import bullets
from airdistill.report.words import number
from airdistill.runs.comparison import OnProgress, Task
from airdistill.runs.folder import CERTIFICATE
from airdistill.runs.record import RunRecord
from airdistill.stages import told_to
from airdistill.units import with_prefix

_MOST_BARS = 12  # more than this, and those that are full make room


def _bars(console: Console) -> Progress:
    """Silent where there is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("round {task.completed}/{task.total}"),
        TextColumn("{task.fields[news]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


@contextmanager
def round_bar(console: Console, label: str) -> Iterator[Callable[[dict[str, Any], int], None]]:
    """A bar with round, accuracy, privacy spent and time left."""
    with _bars(console) as progress:
        task = progress.add_task(escape(label), total=None, news="")
        accuracy = ""

        def follow(record: dict[str, Any], num_rounds: int) -> None:
            nonlocal accuracy
            if "accuracy" in record:
                accuracy = f"accuracy {record['accuracy']['mean']:.1%} · "
            news = f"{accuracy}ε {number(record['epsilon_spent'])}"
            progress.update(task, completed=record["round"], total=num_rounds, news=news)

        def note(stage: str, done: int, total: int) -> None:
            progress.update(task, news=f"{stage} {done}/{total}")

        with told_to(note):
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
        ("  random iterate", _iterate(iterate)),
        ("Rounds", _rounds(summary)),
        ("Uplink", f"{with_prefix(summary['uplink_seconds'], 's')}, {with_prefix(summary['measured_joules'], 'J')}"),
        ("Privacy spent", f"ε {number(summary['epsilon_spent'])} at most, sensitivity {summary['sensitivity']}"),
        ("Certificate", escape(json.loads((record.folder / CERTIFICATE).read_text())["verdict_in_words"])),
        ("Record", escape(str(record.folder))),
    ]:
        table.add_row(label, text)
    console.print(f"[bold]{escape(summary['name'])}, {escape(summary['scheme'])}[/bold]", table, sep="\n")
    if summary["epsilon_spent"] not in (0, None):
        console.print("[bold]This rests on[/bold]", bullets(summary["assumptions"], "·"))


def _iterate(iterate: dict[str, Any]) -> str:
    start = f"the start of round {iterate['round']}"
    return f"{iterate['accuracy']['mean']:.2%}, {start}" if iterate["accuracy"] else f"{start}, which did not happen"


def _rounds(summary: dict[str, Any]) -> str:
    early = "" if summary["ended_because"] is None else f"; then the budget was spent: {summary['ended_because']}"
    return f"{summary['rounds']}{escape(early)}"


@contextmanager
def stage_bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for every stage of long work."""
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    with Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        bars: dict[str, TaskID] = {}

        def follow(stage: str, done: int, total: int) -> None:
            if stage not in bars:
                bars[stage] = progress.add_task(escape(stage), total=total)
            progress.update(bars[stage], completed=done)

        yield follow


@contextmanager
def comparison_bar(console: Console) -> Iterator[OnProgress]:
    """A bar for every run in progress."""
    with _bars(console) as progress:
        bars: dict[Task, TaskID] = {}

        def follow(task: Task, news: dict[str, Any]) -> None:
            if task not in bars:
                bars[task] = progress.add_task(escape(f"{task.label}, seed {task.seed}"), total=None, news="")
            if "failed" in news:
                progress.update(bars[task], news=f"failed: {escape(news['failed'])}")
                return
            progress.update(bars[task], completed=news["round"], total=news["rounds"])
            if "accuracy" in news:
                progress.update(bars[task], news=f"accuracy {news['accuracy']:.1%}")
            if news["round"] == news["rounds"] and len(bars) > _MOST_BARS:
                progress.update(bars[task], visible=False)

        yield follow
