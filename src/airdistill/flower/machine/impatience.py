"""Flower's waits, shortened for a federation that lives on one machine.

flwr 1.41 has no option for them: a SuperNode looks for a message every three seconds, and whoever asks for a part of a
message that has not arrived yet asks again after one. On a loopback interface they would be most of a round.
"""

from __future__ import annotations

import time
from importlib import import_module

POLL_S = 0.25


class _ImpatientTime:
    """Stands for the module `time` in the SuperNode's loop, which uses nothing but its sleep."""

    @staticmethod
    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, POLL_S))


def look_for_messages_often() -> None:
    """In this SuperNode."""
    vars(import_module("flwr.supernode.start_client_internal"))["time"] = _ImpatientTime


def ask_again_soon() -> None:
    """For the parts of a message, in this process."""
    parts = import_module("flwr.supercore.inflatable.inflatable_utils")
    for function in (parts.pull_objects, parts.pull_and_inflate_object_from_tree):
        function.__kwdefaults__["initial_backoff"] = POLL_S
