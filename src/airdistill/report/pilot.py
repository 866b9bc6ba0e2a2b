"""Print a pilot: the estimated learning constants and the number of rounds that follows from them."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airdistill.report.terminal import bullets
from airdistill.report.wording import number
from airdistill.runs.piloting import SYMBOLS, Extent, PilotRecord

_MEANINGS = {
    "grad_lipschitz": "gradient Lipschitz",
    "model_lipschitz": "output Lipschitz",
    "grad_norm_bound": "gradient norm of a sample",
    "loss_bound": "local loss",
}
_CHOICES = {
    "declared": "as declared",
    "smallest": "smallest of each",
    "median": "median of each",
    "estimate": "[bold]estimate[/bold]",
}


def print_pilot(record: PilotRecord, console: Console) -> None:
    """Print the four constants, the optimal number of rounds for each choice of them, and warnings."""
    count, samples = len(record.seen), record.fewest_samples
    console.print(
        f"[bold]Pilot of {escape(record.scenario.name)}[/bold] on {_data_in_words(record)}: {count} repeats of "
        f"{record.devices} devices with at least {samples} samples, {record.rounds} rounds",
        highlight=False,
    )
    console.print(_constants_table(record), "")
    console.print("[bold]Optimal rounds[/bold] T* for these constants; T̂ is the number that privacy alone would allow")
    console.print(_optima_table(record))
    console.print("[bold yellow]Warnings[/bold yellow]", bullets(_warnings(record), "[yellow]![/yellow]"))


def _data_in_words(record: PilotRecord) -> str:
    named = record.data if record.data != record.source else record.scenario.data.dataset
    return "synthetic data" if record.source == "synthetic" else f"{record.source} data ({escape(named)})"


def _constants_table(record: PilotRecord) -> Table:
    table = Table()
    for column in ("constant", "", "estimate", "smallest", "median", "declared"):
        table.add_column(column, justify="left" if column in ("constant", "") else "right")
    for name, extent in record.extents.items():
        declared = number(getattr(record.scenario.constants, name))
        table.add_row(SYMBOLS[name], _MEANINGS[name], *_numbers(extent), declared)
        if name == "grad_lipschitz":
            table.add_row("", "  along the training path", *_numbers(record.path_lipschitz), "")
    return table


def _numbers(extent: Extent) -> tuple[str, str, str]:
    return f"[bold]{number(extent.estimate)}[/bold]", number(extent.smallest), number(extent.median)


def _optima_table(record: PilotRecord) -> Table:
    table = Table()
    table.add_column("constants")
    for column in (*SYMBOLS.values(), "T*", "T̂"):
        table.add_column(column, justify="right")
    most = record.scenario.learning.max_rounds
    for optimum in record.optima:
        values = [number(optimum.constants[name]) for name in SYMBOLS]
        limited = f"{optimum.rounds} (limit)" if optimum.rounds == most else str(optimum.rounds)
        choice = _CHOICES.get(optimum.choice, optimum.choice)
        table.add_row(choice, *values, f"[bold]{limited}[/bold]", number(optimum.privacy_limited))
    return table


def _warnings(record: PilotRecord) -> list[str]:
    lines = [
        "An estimate is the largest value observed. It is at most the true constant. The chance that another repeat "
        f"exceeds it is {record.chance_of_more:.0%}. Most constants grow during training: more rounds give more.",
        "The pilot's knowledge is free of noise; noisy knowledge increases f_max and S.",
    ]
    if record.source == "private":
        lines.append(
            "This pilot was not private: no guarantee covers what its constants reveal about the devices' data."
        )
    if record.too_few_samples:
        lines.append(
            "The data has fewer samples of a class than a device of the fleet: the pilot's devices hold fewer."
        )
    return lines
