"""Print the benchmark of receivers: gains over the linear one and distances to the lower bound, in dB."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from airdistill.report.terminal import bullets, starred_table

_KINDS = ("gaussian", "simplex", "recorded")
_COLUMNS = ("receiver", *(f"{kind}\n{what}" for kind in _KINDS for what in ("gain", "to bound")))
_NOTES = (
    "gain: dB below the squared error of the linear receiver; to bound: dB above the posterior Cramér-Rao bound.",
    "gaussian, simplex: class means simulated from processes fitted to other seeds; the bound is proven for them.",
    "recorded: class means of error-free runs, of which the law is unknown; the bound of simplex is only indicative.",
    "single_round, kalman and logistic_normal have constants fitted to the other seeds; those of tracking are fixed.",
)


def print_receivers(measured: dict[str, Any], console: Console) -> None:
    """Print a table for every ε."""
    work = measured["work"]
    console.print(
        f"{measured['scenario']}, {measured['devices']} devices, {work['rounds']} rounds; {work['seeds']} recorded "
        f"runs with {work['repeats']} noise draws, {work['paths']} simulated runs, {work['tuning_seeds']} tuning runs"
    )
    for level in measured["levels"]:
        kinds = level["class_means"]
        console.print(f"ε = {level['epsilon']:g}: mean noise variance per entry {level['noise_var']:.3g}")
        rows = [(name, *_cells(kinds, name)) for name in kinds["recorded"]["receivers"]]
        console.print(starred_table(_COLUMNS, [*rows, ("bound", *_bound_cells(kinds))], narrow=True))
    console.print(bullets(_NOTES, "·"))


def _cells(kinds: dict[str, Any], name: str) -> list[str]:
    """Gain and distance for each kind of class means; nothing for a receiver that needs the simplex."""
    cells = []
    for kind in _KINDS:
        found = kinds[kind]["receivers"].get(name)
        cells += [""] * 2 if found is None else [f"{found['gain_db']:.1f}", f"{found['above_bound_db']:.1f}"]
    return cells


def _bound_cells(kinds: dict[str, Any]) -> list[str]:
    """The gain of a receiver that would reach the bound."""
    linear = [kinds[kind]["receivers"]["linear"] for kind in _KINDS]
    return [cell for found in linear for cell in (f"{found['above_bound_db']:.1f}", "0.0")]
