"""A scenario's fields on the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from airdistill.scenario.reference import ScenarioField


def print_fields(fields: Iterable[ScenarioField], console: Console) -> None:
    """One below the other: descriptions are sentences, for which the columns of a table are too narrow."""
    for field in fields:
        console.print(Text.assemble((field.name, "bold"), f"  {field.default}  ", (f"({field.kind})", "dim")))
        console.print(Padding(Text(field.description), (0, 0, 0, 4)))
