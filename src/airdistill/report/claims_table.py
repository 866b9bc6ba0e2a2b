"""Claims on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airdistill.reproduce.claims import Checked

_SIGNS = {"holds": "[green]✓ holds[/green]", "does not hold": "[red]✗ does not hold[/red]", "undecided": "? undecided"}


def print_claims(title: str, claims: list[Checked], console: Console) -> None:
    table = Table(title=escape(title), title_justify="left", show_lines=True)
    table.add_column("claim", ratio=4)
    table.add_column("verdict", no_wrap=True)
    table.add_column("measured", ratio=4)
    for claim in claims:
        statement = f"{escape(claim.statement)}\n[dim]{escape(claim.source)}[/dim]"
        table.add_row(statement, _SIGNS[claim.verdict], escape(claim.numbers))
    console.print(table)
