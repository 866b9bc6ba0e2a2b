"""Benchmarks on the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

_DEFAULT_INTERVAL = 20  # rounds between two evaluations


def print_bench(measured: dict[str, Any], console: Console) -> None:
    """Engines side by side, with the naive loop and the floor of the machine's matrix product."""
    console.print(
        f"A round of {measured['devices']} devices, {measured['samples']} samples in all, "
        f"on {measured['threads']} threads"
    )
    engines, floor = measured["engines"], measured["sgemm_floor_seconds"]
    full_batch, minibatch = "seconds_per_round", "seconds_per_minibatch_round"
    table = Table()
    columns = ("engine", "full batch, s", "times naive", "times floor", "minibatches, s", "times naive", "peak memory")
    for column in columns:
        table.add_column(column, justify="left" if column == "engine" else "right")
    for name, numbers in engines.items():
        faster = [f"{engines['naive'][kind] / numbers[kind]:.2f}" for kind in (full_batch, minibatch)]
        memory = f"{numbers['peak_rss_bytes'] / 1e9:.2f} GB"
        whole, in_parts = f"{numbers[full_batch]:.3g}", f"{numbers[minibatch]:.3g}"
        table.add_row(name, whole, faster[0], f"{numbers[full_batch] / floor:.2f}", in_parts, faster[1], memory)
    table.add_row("sgemm floor", f"{floor:.3g}", f"{engines['naive'][full_batch] / floor:.2f}", "1.00", "", "", "")
    console.print(table)
    fused = engines["fused"]
    shares = [fused["seconds_per_evaluation"] / (_DEFAULT_INTERVAL * fused[kind]) for kind in (full_batch, minibatch)]
    extra = fused["first_rounds_extra_seconds"]
    console.print(f"fused: the first rounds took {extra:.1f} s more, to compile the kernels or to load them")
    console.print(
        f"fused: an evaluation every {_DEFAULT_INTERVAL} rounds adds {shares[0]:.0%} to full-batch rounds, "
        f"{shares[1]:.0%} to rounds of minibatches"
    )
