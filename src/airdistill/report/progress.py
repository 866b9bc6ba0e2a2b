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

# Rounds, news, time and a short bar, with a space between each: "round 1000/2000 accuracy 100.0% · ε 0.00138 0:00:00".
_OTHER_COLUMNS, _SHORTEST_LABEL = 60, 12
_MOST_BARS = 12  # beyond this number, bars of finished runs are removed


def _bars(console: Console) -> Progress:
    """Return bars that print nothing if the output is not a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rounds]}"),
        TextColumn("{task.fields[news]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        disable=not console.is_terminal,
    )


def _label(text: str, console: Console, seed: str = "") -> str:
    """The label of a bar; of a narrow terminal's line nothing but its name is ever cut."""
    most = max(_SHORTEST_LABEL, console.width - _OTHER_COLUMNS) - len(seed)
    return escape((text if len(text) <= most else f"{text[: most - 1]}…") + seed)


@contextmanager
def round_bar(console: Console, label: str) -> Iterator[Callable[[dict[str, Any], int], None]]:
    """Show a bar with round, accuracy, privacy spent and time left; yield the function that updates it."""
    with _bars(console) as progress:
        task = progress.add_task(_label(label, console), total=None, rounds="", news="")
        accuracy = ""

        def update(record: dict[str, Any], num_rounds: int) -> None:
            nonlocal accuracy
            if "accuracy" in record:
                accuracy = f"accuracy {record['accuracy']['mean']:.1%} · "
            news = f"{accuracy}ε {rounded_up(record['epsilon_spent'])}"
            rounds = f"round {record['round']}/{num_rounds}"
            progress.update(task, completed=record["round"], total=num_rounds, rounds=rounds, news=news)

        def note(stage: str, done: int, total: int) -> None:
            if done == total or done % max(1, total // 100) == 0:  # a fleet may have more devices than a bar has cells
                progress.update(task, news=f"{stage} {done}/{total}")

        with listening(note):
            yield update


@contextmanager
def stage_bar(console: Console, transient: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar for every stage of long work; yield the function that updates it. Transient ones disappear."""
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    with Progress(
        *columns,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=transient,
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
                label = _label(task.label, console, f", seed {task.seed}")
                bars[task] = progress.add_task(label, total=None, rounds="", news="")
            if "failed" in news:
                progress.update(bars[task], news="failed: see below")  # the table says why, in a line of its own
                return
            rounds = f"round {news['round']}/{news['rounds']}"
            progress.update(bars[task], completed=news["round"], total=news["rounds"], rounds=rounds)
            if "accuracy" in news:
                progress.update(bars[task], news=f"accuracy {news['accuracy']:.1%}")
            if news["round"] == news["rounds"] and len(bars) > _MOST_BARS:
                progress.update(bars[task], visible=False)

        yield update
