"""One of Flower's own programs on a leash: `python -m airdistill.flower.leash PROGRAM POLL_SECONDS ARGUMENTS…`.

It ends, with everything it started, when whoever started it does, even by kill -9: standard input is a pipe that
never says anything, and its end is the parent's. Flower's programs would go on for ever.

A SuperNode of flwr 1.41 looks for messages every three seconds, which no option changes; on one machine that is most
of a round. POLL_SECONDS replaces it there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from importlib import import_module

PROGRAMS = {
    "flower-superlink": ("flwr.superlink.cli", "flower_superlink"),
    "flower-supernode": ("flwr.supernode.cli", "flower_supernode"),
    "flower-superexec": ("flwr.supercore.cli", "flower_superexec"),
}


def main() -> None:
    program, poll_seconds, arguments = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv = [program, *arguments]
    if program == "flower-supernode":
        _look_for_messages_every(poll_seconds)
    module, function = PROGRAMS[program]
    getattr(import_module(module), function)()


def _end_with_parent() -> None:
    """The whole process group, which the cluster made for this program alone."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


class _ImpatientTime:
    """Stands for the module `time` in the SuperNode's loop, which uses nothing but its sleep."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, self._longest_s))


def _look_for_messages_every(seconds: float) -> None:
    loop = import_module("flwr.supernode.start_client_internal")
    vars(loop)["time"] = _ImpatientTime(seconds)


if __name__ == "__main__":
    main()
