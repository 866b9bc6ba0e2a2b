"""A program of the federation as a process group with a log file, started and ended by its number."""

from __future__ import annotations

import os
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

LAST_LINES = 8


class ClusterError(AirDistillError):
    """A process of the federation does not do what it should; the end of its log says why."""


class Program:
    """One of Flower's programs with its arguments; it can be started, killed and started again."""

    def __init__(self, name: str, folder: Path, command: Sequence[str], haste: str) -> None:
        self.name = name
        self.log = folder / "logs" / f"{name}.log"
        self._home = folder / "homes" / name
        self._command = [sys.executable, "-m", "airdistill.flower.machine.watchdog", haste, *command]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process_id(self) -> int:
        if self._process is None:
            raise ClusterError(f"{self.name} has not been started")
        return self._process.pid

    def start(self) -> None:
        """In a process group of its own, so that its end is the end of all that it starts."""
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

    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def check(self) -> None:
        if self._process is not None and not self.runs():
            raise ClusterError(f"{self.name} ended with exit code {self._process.returncode}{self.last_words()}")

    def kill(self) -> None:
        """kill -9 for the group. Its number stays ours until the wait, so nobody else's process can be hit."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):  # the program and all that it started may have ended by themselves
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        _close(self._process.stdin)
        self._process = None

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").split("\n") if self.log.exists() else []
        said = [line.strip() for line in lines if line.strip()][-LAST_LINES:]
        return f"; {self.log} ends: {' | '.join(said)}" if said else f"; {self.log} is empty"


def environment(home: Path) -> dict[str, str]:
    """For every program: no telemetry, no look for updates, nothing installed, the user's own ~/.flwr left alone."""
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
    """On the loopback interface, at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        pipe.close()
