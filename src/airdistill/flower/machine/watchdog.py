"""One of Flower's own programs on a leash: `python -m airdistill.flower.machine.watchdog HASTE PROGRAM ARGUMENTS…`.

It ends, with everything it started, when whoever started it does, even by kill -9: standard input is a pipe that
never says anything, and its end is the parent's. Flower's programs would go on for ever.

HASTE is a dash for Flower as it is. Otherwise its waits are short (`impatience`), and apps start as forks of a process
that has imported the modules which HASTE names, separated by commas (`warm_apps`).
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
NO_HASTE = "-"


def main() -> None:
    haste, program, *arguments = sys.argv[1:]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv = [program, *arguments]
    if haste != NO_HASTE:
        _hurry(program, haste.split(","))
    module, function = PROGRAMS[program]
    getattr(import_module(module), function)()


def _end_with_parent() -> None:
    """The whole process group, which the cluster made for this program alone."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def _hurry(program: str, modules: list[str]) -> None:
    """Imports late, since Flower as it is should not be touched at all, and its modules take a second."""
    impatience = import_module("airdistill.flower.machine.preforked_apps")
    impatience.ask_again_soon()
    if program == "flower-supernode":
        impatience.look_for_messages_often()
    if program == "flower-superexec":
        import_module("airdistill.flower.machine.preforked_apps").start_apps_warm(modules)


if __name__ == "__main__":
    main()
