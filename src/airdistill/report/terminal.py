"""The terminal, or whatever else the output goes to."""

from __future__ import annotations

from rich.console import Console


class Terminal(Console):
    """A console that says so when its reader is gone: rich's own would exit with 1, which is an audit's word."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
