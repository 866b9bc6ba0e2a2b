"""A program of the federation: a process group with a log file, started and killed by its process id."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from airdistill.errors import AirDistillError

LOG_TAIL_LINES = 8
# Below the ports that operating systems give to outgoing connections (32768 and up on Linux, 49152 on macOS): no
# connection can take the port before the server binds it.
_SERVER_PORTS = range(20000, 32768)


class ClusterError(AirDistillError):
    """A process of the federation has failed; the end of its log says why."""


class Program:
    """One of Flower's programs with its arguments. It can be started, killed and started again.

    It runs under the watchdog, which also gives it the default handler of SIGINT.
    """

    def __init__(self, name: str, folder: Path, command: Sequence[str], preload: str) -> None:
        self.name = name
        self.log = folder / "logs" / f"{name}.log"
        self._home = folder / "homes" / name
        self._command = [sys.executable, "-m", "airdistill.flower.machine.watchdog", preload, *command]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process_id(self) -> int:
        if self._process is None:
            raise ClusterError(f"{self.name} has not been started")
        return self._process.pid

    def start(self) -> None:
        """Start the program in its own process group, which `kill` ends together with all child processes."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._home.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(self._home),
                start_new_session=True,
            )

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def check(self) -> None:
        """Raise if the program was started and has ended."""
        if self._process is not None and not self.is_running():
            raise ClusterError(f"{self.name} ended with exit code {self._process.returncode}{self.log_tail()}")

    def kill(self) -> None:
        """Kill the process group with SIGKILL.

        The process id is not reused before `wait` returns, and so the signal cannot reach another process.
        """
        if self._process is None:
            return
        with suppress(ProcessLookupError):  # the program and its children may have ended already
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        _close(self._process.stdin)
        self._process = None

    def log_tail(self) -> str:
        """The last lines of the log, as the second half of an error message."""
        lines = self.log.read_text(errors="replace").split("\n") if self.log.exists() else []
        tail = [line.strip() for line in lines if line.strip()][-LOG_TAIL_LINES:]
        return f"; {self.log} ends: {' | '.join(tail)}" if tail else f"; {self.log} is empty"


def environment(home: Path) -> dict[str, str]:
    """The environment of every program: no telemetry, update check or installation, and not the user's ~/.flwr."""
    return {
        **os.environ,
        # SuperExec finds `flwr-serverapp` and `flwr-clientapp` by name.
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
        "PYTHONUNBUFFERED": "1",
    }


def free_port() -> int:
    """A port of the loopback interface that is free now, drawn at random because two callers may look at once."""
    while True:
        port = secrets.choice(_SERVER_PORTS)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        pipe.close()
