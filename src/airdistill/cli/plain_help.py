"""Help as plain text and in full, with typer 0.20 and click 8.5 together.

Typer escapes brackets for rich even where rich prints nothing. It sets an argument's help before it calls click's
constructor, which since 8.5 has one of its own and takes typer's away; and then both would list the arguments.
"""

from __future__ import annotations

from typing import Any

import click
from typer import core

_make_argument = core.TyperArgument.__init__


def _argument_with_help(self: core.TyperArgument, *, help: str | None = None, **given: Any) -> None:
    _make_argument(self, help=help, **given)
    self.help = help


def _list_no_arguments(_command: core.TyperCommand, _context: click.Context, _formatter: click.HelpFormatter) -> None:
    """Typer lists them among the options."""


def print_plain_help() -> None:
    """To be called before the first command is looked up, which is when typer makes its arguments."""
    changes: list[tuple[Any, str, Any]] = [
        (core, "HAS_RICH", False),
        (core.TyperArgument, "__init__", _argument_with_help),
        (core.TyperCommand, "format_arguments", _list_no_arguments),
    ]
    for owner, name, stand_in in changes:
        setattr(owner, name, stand_in)
