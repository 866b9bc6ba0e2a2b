"""Run one of Flower's programs under a parent-death watchdog.

    python -m airdistill.flower.machine.watchdog PRELOAD PROGRAM ARGUMENTS…

The program and all processes that it started are killed when its parent ends, even if the parent was killed with
SIGKILL. Standard input is a pipe to which the parent writes nothing, and so its end is the end of the parent. Without
the watchdog, Flower's programs would run forever.

PRELOAD is a dash for unmodified Flower. Otherwise it is a comma-separated list of modules: Flower polls at shorter
intervals, and its apps are forks of a process that has already imported these modules (`preforked_apps`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib import import_module

PROGRAMS = {
    "flower-superlink": ("flwr.superlink.cli", "flower_superlink"),
    "flower-supernode": ("flwr.supernode.cli", "flower_supernode"),
    "flower-superexec": ("flwr.supercore.cli", "flower_superexec"),
}
UNMODIFIED = "-"


def main() -> None:
    preload, program, *arguments = sys.argv[1:]
    # A shell ignores SIGINT in background jobs, and every child inherits that: programs need the default handler.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv = [program, *arguments]
    if preload != UNMODIFIED:
        _shorten_waits(program, preload.split(","))
    module, function = PROGRAMS[program]
    getattr(import_module(module), function)()


def _end_with_parent() -> None:
    """Kill the process group, which contains this program and its children only, once the parent has ended."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def _shorten_waits(program: str, preload: list[str]) -> None:
    """Shorten Flower's waits in this process.

    The import is local: importing Flower takes a second, and unmodified Flower must not be touched.
    """
    apps = import_module("airdistill.flower.machine.preforked_apps")
    apps.shorten_object_backoff()
    if program == "flower-supernode":
        apps.shorten_message_polling()
    if program == "flower-superexec":
        apps.prefork_apps(preload)


if __name__ == "__main__":
    main()
