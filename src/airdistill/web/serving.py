"""What a server of the page was started with.

Starting the server of the page.

The page served by a process of its own for as long as it is needed: for tests, pictures and measurements.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from airdistill.errors import AirDistillError, InputError

LOOK_ONLY = "--look-only"


@dataclass(frozen=True)
class Site:
    """`runs` is the folder whose runs are shown. Who may only look starts nothing and names no file here."""

    runs: Path
    look_only: bool = False

    def as_arguments(self) -> list[str]:
        return [str(self.runs.resolve()), *([LOOK_ONLY] if self.look_only else [])]


def this_site() -> Site:
    """From the arguments that the server hands to the page."""
    return Site(Path(sys.argv[1]), LOOK_ONLY in sys.argv[2:])


# No word to anybody, no developer's menu, no watching of source files, no links to other sites beside an error.
_QUIET = {
    "browser.gatherUsageStats": "false",
    "server.showEmailPrompt": "false",
    "server.fileWatcherType": "none",
    "server.runOnSave": "false",
    "server.enableAgentApi": "false",
    "server.maxUploadSize": "5",
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "none",
    "client.showErrorLinks": "false",
    "theme.primaryColor": "#0072B2",
    "theme.metricValueFontSize": "1.6rem",
    "theme.headingFontSizes": "2rem,1.6rem,1.25rem",
}


def serve(runs: Path, address: str, port: int, open_browser: bool) -> NoReturn:
    """Becomes the server; returns only where it cannot start."""
    told = server_arguments(runs, address, port, open_browser)
    os.execv(sys.executable, [sys.executable, "-m", "airdistill.web.quiet_server", "run", *told])


def server_arguments(runs: Path, address: str, port: int, open_browser: bool) -> list[str]:
    """What `streamlit run` is told, once it is known that it can be done."""
    _check_installed()
    if runs.exists() and not runs.is_dir():
        raise InputError("FOLDER", str(runs), "is not a folder")
    local = is_local(address)
    _check_free(address, port)
    settings = {**_QUIET, "server.address": address, "server.port": str(port)}
    settings["server.headless"] = "false" if open_browser else "true"
    # Against web pages elsewhere that point a name of theirs to this machine.
    hosts = dict.fromkeys(["localhost", "127.0.0.1", "::1", address]) if local else []
    flags = [f"--{name}={value}" for name, value in settings.items()]
    flags += [f"--server.allowedHosts={host}" for host in hosts]
    script = Path(__file__).with_name("app.py")
    return [str(script), *flags, "--", *Site(runs, look_only=not local).as_arguments()]


def is_local(address: str) -> bool:
    """Whether only this machine can reach it."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        raise InputError("--address", address, "must be localhost or an IP address of this machine") from None


def _check_installed() -> None:
    missing = [name for name in ("streamlit", "plotly") if find_spec(name) is None]
    if missing:
        raise AirDistillError(f"the page needs {' and '.join(missing)}: pip install 'airdistill[web]'")


def _check_free(address: str, port: int) -> None:
    host = "127.0.0.1" if address == "localhost" else address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            rule = f"cannot be listened on at {address}: {error.strerror}; choose another port"
            raise InputError("--port", port, rule) from None


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
