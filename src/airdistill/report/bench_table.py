"""Benchmarks on the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def print_bench(measured: dict[str, Any], console: Console) -> None:
    """Engines side by side, with the naive loop and the floor of the machine's matrix product."""
    console.print(
        f"One full-batch round of {measured['devices']} devices, {measured['samples']} samples in all, "
        f"on {measured['threads']} threads"
    )
    table = Table()
    for column in ("engine", "seconds a round", "times the naive loop", "times the floor", "peak memory"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    naive, floor = measured["engines"]["naive"]["seconds_per_round"], measured["sgemm_floor_seconds"]
    for name, numbers in measured["engines"].items():
        seconds = numbers["seconds_per_round"]
        memory = f"{numbers['peak_rss_bytes'] / 1e9:.2f} GB"
        table.add_row(name, f"{seconds:.3g}", f"{naive / seconds:.2f}", f"{seconds / floor:.2f}", memory)
    table.add_row("sgemm floor", f"{floor:.3g}", f"{naive / floor:.2f}", "1.00", "")
    console.print(table)
