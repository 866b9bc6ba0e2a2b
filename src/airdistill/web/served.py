"""The page served by a process of its own for as long as it is needed: for tests, pictures and measurements."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from airdistill.errors import AirDistillError

_PATIENCE_S, _LOOK_S = 60.0, 0.2


@dataclass(frozen=True)
class Served:
    """`address` is where a browser finds it."""

    address: str
    process: subprocess.Popen[bytes]


@contextmanager
def served(runs: Path, log: Path) -> Iterator[Served]:
    """`airdistill serve` on a free port of this machine, once it answers; what it says goes into the log."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "airdistill", "serve", str(runs), "--port", port]
    with log.open("wb") as said, subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT) as process:
        try:
            page = Served(f"http://localhost:{port}", process)
            _wait_for(page, log)
            yield page
        finally:
            process.terminate()


def _wait_for(page: Served, log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        if page.process.poll() is not None:
            raise AirDistillError(f"the page ended before it began: {log.read_text(errors='replace').strip()}")
        try:
            urllib.request.urlopen(f"{page.address}/_stcore/health").close()
            return
        except OSError:
            time.sleep(_LOOK_S)
    raise AirDistillError(f"the page did not answer within {_PATIENCE_S:.0f} s")
