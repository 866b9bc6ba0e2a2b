"""Shorter polling intervals and preforked apps for a Flower federation on one machine.

flwr 1.41 has no option for its polling intervals. A SuperNode polls for messages every three seconds. A process that
requests an object of a message before it has arrived retries after one second. On a loopback interface these waits
would take most of a round.

Flower also starts a new interpreter for every message to a device. The imports take a second or more each time, longer
with PyTorch. Here each app is a fork of a process that has already imported its modules. Every message still has its
own process. The forking process has no threads and has drawn no random numbers. An app must draw its random numbers
from the operating system or from its own seed: a generator at module level would have the same state in every fork.
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

POLLING_INTERVAL_S = 0.25
APPS = {
    TaskType.CLIENT_APP: ("flwr.supernode.cli", "flwr_clientapp"),
    TaskType.SERVER_APP: ("flwr.superlink.cli", "flwr_serverapp"),
}


class _ShortSleep:
    """Replaces the module `time` in the SuperNode's loop, which uses only its `sleep`."""

    @staticmethod
    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, POLLING_INTERVAL_S))


def shorten_message_polling() -> None:
    """Poll for messages at the short interval in this SuperNode."""
    vars(import_module("flwr.supernode.start_client_internal"))["time"] = _ShortSleep


def shorten_object_backoff() -> None:
    """Retry requests for the objects of a message at the short interval in this process."""
    objects = import_module("flwr.supercore.inflatable.inflatable_utils")
    for function in (objects.pull_objects, objects.pull_and_inflate_object_from_tree):
        function.__kwdefaults__["initial_backoff"] = POLLING_INTERVAL_S


def prefork_apps(modules: Sequence[str]) -> None:
    """Make this SuperExec fork its apps from a process that has imported these modules."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))

    def launch(_executor: SubprocessExecutor, spec: ExecutionSpec) -> LaunchResult:
        context.Process(target=_run_app, args=(*APPS[spec.task_type], _arguments(spec))).start()
        return LaunchResult.accepted()

    setattr(SubprocessExecutor, "launch", launch)  # noqa: B010 - an assignment would be an error to mypy
    # The first fork waits for the imports. This one does nothing, and so no app has to wait.
    context.Process(target=_do_nothing).start()


def _arguments(spec: ExecutionSpec) -> list[str]:
    """The command line of `flwr-clientapp` or `flwr-serverapp`."""
    arguments = [spec.task_type.value, "--runtime-api-address", spec.runtime_api_address, "--token", spec.token]
    if spec.root_certificates_path is not None:
        arguments += ["--root-certificates", spec.root_certificates_path]
    return [*arguments, "--parent-pid", str(spec.parent_pid)]


def _run_app(module: str, function: str, arguments: list[str]) -> None:
    sys.argv = arguments
    shorten_object_backoff()
    getattr(import_module(module), function)()


def _do_nothing() -> None:
    pass
