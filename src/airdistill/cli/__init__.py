"""The command line: each command reads one value and writes another, and contains no logic of its own.

Commands import what they need when they are called, which keeps `--help` fast.
"""

from airdistill.cli import (  # noqa: F401 - registers the commands
    benchmarking,
    comparing,
    federating,
    planning,
    radio,
    running,
    trusting,
)
from airdistill.cli.app import app, main

# `--help` lists them in the order in which a newcomer needs them, not in that of the imports.
_ORDER = (
    "plan", "pilot", "run", "resume", "compare", "sweep", "leaderboard", "reproduce", "certify", "verify", "audit",
    "report", "serve", "schemes",
)  # fmt: skip
app.registered_commands.sort(key=lambda command: _ORDER.index(str(command.name)))

__all__ = ["app", "main"]
