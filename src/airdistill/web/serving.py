"""Start the server of the page: its settings and checks, and a context manager that serves it for tests."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from airdistill.errors import AirDistillError, InputError

LOOK_ONLY = "--look-only"
# No usage statistics, no developer menu, no watching of source files, no links to other sites next to an error.
_SETTINGS = {
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
_RUN_SERVER = "from airdistill.web.serving import run_streamlit; run_streamlit()"
_TIMEOUT_S, _POLL_S = 300.0, 0.2
# Of `served`. The system gives higher ports to outgoing connections, which could take one before the server does.
_PORTS = range(10_000, 20_000)


@dataclass(frozen=True)
class Site:
    """What the server was started with: the folder of runs, and whether visitors may only look.

    Visitors who may only look cannot start or stop runs, and their scenarios cannot name files.
    """

    runs: Path
    look_only: bool = False

    def as_arguments(self) -> list[str]:
        """Command-line arguments from which `this_site` reads the site."""
        return [str(self.runs.resolve()), *([LOOK_ONLY] if self.look_only else [])]


def this_site() -> Site:
    """The site of this server, from the arguments that the server passes to the page."""
    return Site(Path(sys.argv[1]), LOOK_ONLY in sys.argv[2:])


def serve(runs: Path, address: str, port: int, open_browser: bool) -> NoReturn:
    """Replace this process by the server. Raise if it cannot start."""
    arguments = server_arguments(runs, address, port, open_browser)
    os.execv(sys.executable, [sys.executable, "-c", _RUN_SERVER, "run", *arguments])


def server_arguments(runs: Path, address: str, port: int, open_browser: bool) -> list[str]:
    """The arguments of `streamlit run`, after checks of folder, address, port and installed packages."""
    _check_installed()
    if runs.exists() and not runs.is_dir():
        raise InputError("FOLDER", str(runs), "is not a folder")
    local = is_local(address)
    _check_free(address, port)
    settings = {**_SETTINGS, "server.address": address, "server.port": str(port)}
    settings["server.headless"] = "false" if open_browser else "true"
    # Against DNS rebinding: a foreign web page may resolve its own name to this machine.
    hosts = dict.fromkeys(["localhost", "127.0.0.1", "::1", address]) if local else []
    flags = [f"--{name}={value}" for name, value in settings.items()]
    flags += [f"--server.allowedHosts={host}" for host in hosts]
    script = Path(__file__).with_name("app.py")
    return [str(script), *flags, "--", *Site(runs, look_only=not local).as_arguments()]


def run_streamlit() -> None:
    """Run Streamlit's command line without its requests for the external IP address of this machine.

    Streamlit sends one to a foreign server when the page is open to a network, and whenever a foreign origin connects.
    """
    from streamlit import net_util
    from streamlit.web.cli import main

    net_util.get_external_ip = lambda: None
    main(prog_name="streamlit")


def is_local(address: str) -> bool:
    """Whether the address can be reached from this machine only."""
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
            rule = f"cannot be opened at {address}: {error.strerror}; choose another port"
            raise InputError("--port", port, rule) from None


@dataclass(frozen=True)
class Served:
    """A running server. `address` is the one for a browser."""

    address: str
    process: subprocess.Popen[bytes]


@contextmanager
def served(runs: Path, log: Path) -> Iterator[Served]:
    """Run `airdistill serve` on a free port until the block ends, for tests, pictures and measurements.

    The block begins when the server answers. The server's output goes to `log`.
    """
    port = _free_port()
    command = [sys.executable, "-m", "airdistill", "serve", str(runs), "--port", str(port)]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            page = Served(f"http://localhost:{port}", process)
            _wait_for(page, log)
            yield page
        finally:
            process.terminate()


def _free_port() -> int:
    """A port that is free now, drawn at random because two callers may look at once."""
    while True:
        with suppress(InputError):
            port = secrets.choice(_PORTS)
            _check_free("localhost", port)
            return port


def _wait_for(page: Served, log: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        if page.process.poll() is not None:
            raise AirDistillError(f"the server of the page did not start: {log.read_text(errors='replace').strip()}")
        try:
            urllib.request.urlopen(f"{page.address}/_stcore/health").close()
            return
        except OSError:
            time.sleep(_POLL_S)
    raise AirDistillError(f"the server of the page did not answer within {_TIMEOUT_S:.0f} s")
