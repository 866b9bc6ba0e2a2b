"""An audit on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airdistill.audit.auditing import Audit
from airdistill.report import audit_words as words
from airdistill.report.plan_table import bullets


def print_audit(audit: Audit, console: Console) -> None:
    """What was attacked, what each attack measured, and whether a promise was broken."""
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    facts.add_column(style="cyan", no_wrap=True)
    for label, text in words.what_was_attacked(audit):
        facts.add_row(label, escape(text))
    console.print("[bold]Audit[/bold]", facts, "", sep="\n", highlight=False)
    if audit.exact is not None:
        console.print("[bold]Exact loss along transcripts[/bold]")
        console.print(_table(words.pair_columns(audit.exact), words.pair_rows(audit.exact)))
        console.print(bullets(words.exact_lines(audit.exact), "·"))
    if audit.empirical is not None:
        console.print(f"[bold]Attack on drawn noise[/bold], {audit.empirical.num_trials} trials in each world")
        columns = ("statistic", "measured", "if as counted")
        console.print(_table(columns, words.empirical_rows(audit.empirical)))
    if audit.membership is not None:
        console.print("[bold]Membership inference from the broadcasts[/bold]")
        console.print(_table(("statistic", "measured", "allowed"), words.membership_rows(audit.membership)))
        console.print(bullets([words.membership_line(audit.membership)], "·"))
    if audit.empirical is not None or audit.membership is not None:
        console.print(words.INTERVALS, highlight=False)
    console.print("[bold]This rests on[/bold]", bullets(words.all_notes(audit), "·"))
    _print_verdict(audit, console)


def _print_verdict(audit: Audit, console: Console) -> None:
    if not audit.violations:
        console.print("[bold green]Verdict: not violated[/bold green], as far as these attacks see")
        return
    console.print("[bold red]Verdict: violated[/bold red]", bullets(audit.violations, "[red]✗[/red]"))


def _table(columns: Sequence[str], rows: Sequence[words.Row]) -> Table:
    table = Table()
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*map(escape, row))
    return table
