"""Starting the server of the page."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from airdistill.errors import AirDistillError, InputError
from airdistill.web.site import Site

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
