"""Flower's waits, shortened for a federation that lives on one machine.

flwr 1.41 has no option for them: a SuperNode looks for a message every three seconds, and whoever asks for a part of a
message that has not arrived yet asks again after one. On a loopback interface they would be most of a round.

Apps that start in no time: forks of a process that has imported what they need, one for each message.

Flower starts a fresh interpreter for every message to a device, a second or more of imports each time (PyTorch is more
still); with several devices on one machine that is most of a round. Every message still has a process of its own.
The forking process has no threads and has drawn no random numbers of its own; what an app draws it must draw from the
operating system or from a seed of its own, since a generator at module level would be the same in every fork.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Sequence
from importlib import import_module

from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult

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


APPS = {
    TaskType.CLIENT_APP: ("flwr.supernode.cli", "flwr_clientapp"),
    TaskType.SERVER_APP: ("flwr.superlink.cli", "flwr_serverapp"),
}


def start_apps_warm(modules: Sequence[str]) -> None:
    """From now on, in this SuperExec, with these modules already imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))

    def launch(_executor: SubprocessExecutor, spec: ExecutionSpec) -> LaunchResult:
        context.Process(target=_play, args=(*APPS[spec.task_type], _arguments(spec))).start()
        return LaunchResult.accepted()

    setattr(SubprocessExecutor, "launch", launch)  # noqa: B010 - an assignment would be an error to mypy
    # The first fork pays for the imports: let it be one that nobody waits for.
    context.Process(target=_nothing).start()


def _arguments(spec: ExecutionSpec) -> list[str]:
    """As `flwr-clientapp` and `flwr-serverapp` take them."""
    arguments = [spec.task_type.value, "--runtime-api-address", spec.runtime_api_address, "--token", spec.token]
    if spec.root_certificates_path is not None:
        arguments += ["--root-certificates", spec.root_certificates_path]
    return [*arguments, "--parent-pid", str(spec.parent_pid)]


def _play(module: str, function: str, arguments: list[str]) -> None:
    sys.argv = arguments
    ask_again_soon()
    getattr(import_module(module), function)()


def _nothing() -> None:
    pass
