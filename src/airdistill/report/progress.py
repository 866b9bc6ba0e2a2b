"""Progress bars on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from airdistill.runs.comparison import OnProgress, Task
from airdistill.stages import listening
from airdistill.units import rounded_up

_MOST_BARS = 12  # beyond this number, bars of finished runs are removed


def _bars(console: Console) -> Progress:
    """Return bars that print nothing if the output is not a terminal."""
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
    """Show a bar with round, accuracy, privacy spent and time left; yield the function that updates it."""
    with _bars(console) as progress:
        task = progress.add_task(escape(label), total=None, news="")
        accuracy = ""

        def update(record: dict[str, Any], num_rounds: int) -> None:
            nonlocal accuracy
            if "accuracy" in record:
                accuracy = f"accuracy {record['accuracy']['mean']:.1%} · "
            news = f"{accuracy}ε {rounded_up(record['epsilon_spent'])}"
            progress.update(task, completed=record["round"], total=num_rounds, news=news)

        def note(stage: str, done: int, total: int) -> None:
            if done == total or done % max(1, total // 100) == 0:  # a fleet may have more devices than a bar has cells
                progress.update(task, news=f"{stage} {done}/{total}")

        with listening(note):
            yield update


@contextmanager
def stage_bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar for every stage of long work; yield the function that updates it."""
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    with Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        bars: dict[str, TaskID] = {}

        def update(stage: str, done: int, total: int) -> None:
            if stage not in bars:
                bars[stage] = progress.add_task(escape(stage), total=total)
            progress.update(bars[stage], completed=done)

        yield update


@contextmanager
def comparison_bar(console: Console) -> Iterator[OnProgress]:
    """Show a bar for every run in progress; yield the function that updates it."""
    with _bars(console) as progress:
        bars: dict[Task, TaskID] = {}

        def update(task: Task, news: dict[str, Any]) -> None:
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

        yield update
