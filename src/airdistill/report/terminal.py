"""Print on the terminal: the console, the tables that several commands share, scenario fields and benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import HEAVY_HEAD, SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from airdistill.scenario.reference import ScenarioField

_DEFAULT_INTERVAL = 20  # rounds between two evaluations


class Terminal(Console):
    """A console that raises an error if its reader has closed the pipe.

    Rich exits with code 1 instead, which `airdistill audit` uses for a violated certificate.
    """

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def bullets(lines: Sequence[str], bullet: str) -> Table:
    """Return a list whose wrapped lines are indented."""
    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=True)
    for line in lines:
        table.add_row(bullet, escape(line))
    return table


def facts_table(rows: Iterable[tuple[str, ...]]) -> Table:
    """Return a table of labels and values. Values may contain markup."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(*row)
    return table


def number_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table of numbers whose first column names the rows."""
    table = Table()
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def starred_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", narrow: bool = False
) -> Table:
    """Return a table of numbers in which starred columns are bold. A narrow table has no lines at its sides."""
    table = Table(caption_justify="left", box=SIMPLE_HEAD if narrow else HEAVY_HEAD, padding=(0, 1 - narrow, 0, 1))
    for position, column in enumerate(columns):
        name = f"[bold]{column}[/bold]" if column.endswith("*") else column
        table.add_column(name, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(*row)
    table.caption = caption or None
    return table


def print_fields(fields: Iterable[ScenarioField], console: Console) -> None:
    """Print a scenario's fields one below the other: the columns of a table are too narrow for their descriptions."""
    for field in fields:
        console.print(Text.assemble((field.name, "bold"), f"  {field.default}  ", (f"({field.kind})", "dim")))
        console.print(Padding(Text(field.description), (0, 0, 0, 4)))


def print_bench(measured: dict[str, Any], console: Console) -> None:
    """Print the engines with the naive loop and the lower bound set by the machine's matrix product."""
    console.print(
        f"A round of {measured['devices']} devices, {measured['samples']} samples in all, "
        f"on {measured['threads']} threads"
    )
    engines, floor = measured["engines"], measured["sgemm_floor_seconds"]
    full_batch, minibatch = "seconds_per_round", "seconds_per_minibatch_round"
    columns = ("engine", "full batch, s", "times naive", "times floor", "minibatches, s", "times naive", "peak memory")
    rows = []
    for name, numbers in engines.items():
        faster = [f"{engines['naive'][kind] / numbers[kind]:.2f}" for kind in (full_batch, minibatch)]
        memory = f"{numbers['peak_rss_bytes'] / 1e9:.2f} GB"
        whole, in_parts = f"{numbers[full_batch]:.3g}", f"{numbers[minibatch]:.3g}"
        rows.append((name, whole, faster[0], f"{numbers[full_batch] / floor:.2f}", in_parts, faster[1], memory))
    rows.append(("sgemm floor", f"{floor:.3g}", f"{engines['naive'][full_batch] / floor:.2f}", "1.00", "", "", ""))
    console.print(number_table(columns, rows))
    fused = engines["fused"]
    shares = [fused["seconds_per_evaluation"] / (_DEFAULT_INTERVAL * fused[kind]) for kind in (full_batch, minibatch)]
    extra = fused["first_rounds_extra_seconds"]
    console.print(f"fused: the first rounds took {extra:.1f} s more, to compile or load the kernels")
    console.print(
        f"fused: an evaluation every {_DEFAULT_INTERVAL} rounds adds {shares[0]:.0%} to full-batch rounds, "
        f"{shares[1]:.0%} to minibatch rounds"
    )
