"""A Flower federation on this machine: a SuperLink and its SuperNodes, with TLS and node authentication.

    with Cluster(folder, [{"partition-id": 0}, {"partition-id": 1}]) as cluster:
        result = cluster.run(app_folder, {"rounds": 5}, timeout_s=300)

Every program has its own process group and a log file under `logs`. All programs end with the block, whatever happens
in it. SuperLink and SuperNodes run with process isolation: this module also starts the SuperExec that starts the apps,
and can therefore kill it by its process id (a SuperExec started by a SuperLink leaves the process group). A SuperExec
authenticates with a secret before it receives work.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import tomli_w

from airdistill.flower.machine.certificates import LOOPBACK, Authority, make_node_key, write_secret
from airdistill.flower.machine.control import Control, RunState, Setting, deactivate_node, write_connection
from airdistill.flower.machine.processes import ClusterError, Program, free_port
from airdistill.flower.machine.watchdog import UNMODIFIED


@dataclass(frozen=True)
class RunResult:
    """The final state of a run and the output of its ServerApp."""

    state: RunState
    log: str


@dataclass
class Node:
    """A SuperNode, the SuperExec that starts its ClientApps, and its node id at the server."""

    programs: list[Program]
    key: Path
    node_id: int


class Cluster:
    """A federation that starts and ends with its `with` block.

    `preload` names the app's modules that take long to import: apps are preforked with these modules, and Flower polls
    at short intervals. With None Flower is unmodified: a SuperNode polls for messages every three seconds and starts a
    new interpreter for each message.
    """

    def __init__(
        self,
        folder: Path,
        node_settings: Sequence[Mapping[str, Setting]],
        *,
        preload: Sequence[str] | None = (),
        start_timeout_s: float = 300.0,
    ) -> None:
        self._folder = folder
        self._node_settings = node_settings
        self._preload = preload
        self._start_timeout_s = start_timeout_s
        self._programs: list[Program] = []
        self.nodes: list[Node] = []

    def __enter__(self) -> Cluster:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._secrets = self._folder / "secrets"
        self._secrets.mkdir(mode=0o700)
        self._authority = Authority(self._secrets)
        self.address = f"{LOOPBACK}:{free_port()}"
        self._server = self._make_server()
        write_connection(self.home, self.address, self._authority.certificate)
        self._control = Control(self.address, self._authority.certificate)
        try:
            self.start_server()
            for index, settings in enumerate(self._node_settings):
                self.nodes.append(self._make_node(index, settings))
            self.start_nodes(range(len(self.nodes)))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    @property
    def home(self) -> Path:
        """The value of FLWR_HOME with which `flwr run APP cluster` and similar commands use this federation."""
        return self._folder / "homes" / "user"

    @property
    def authority_certificate(self) -> Path:
        return self._authority.certificate

    @property
    def process_ids(self) -> list[int]:
        """The process ids of the running programs; each is also the id of its process group."""
        return [program.process_id for program in self._programs if program.is_running()]

    def run(self, app: Path, settings: Mapping[str, Setting] | None = None, *, timeout_s: float) -> RunResult:
        return self.wait(self.submit(app, settings), timeout_s=timeout_s)

    def submit(self, app: Path, settings: Mapping[str, Setting] | None = None) -> int:
        return self._control.start_run(app, settings or {})

    def wait(self, run_id: int, *, timeout_s: float) -> RunResult:
        """Wait until the run has ended, successfully or not."""
        self._wait_until(
            lambda: self._control.state_of(run_id).ended, timeout_s, f"the end of run {run_id}", self._server
        )
        return RunResult(self._control.state_of(run_id), self._control.log_of(run_id))

    def state_of(self, run_id: int) -> RunState:
        return self._control.state_of(run_id)

    def start_server(self) -> None:
        """Start the SuperLink and the SuperExec that starts its ServerApps, if they are not running."""
        for program in self._server:
            if not program.is_running():
                program.start()
        self._wait_until(self._control.is_reachable, self._start_timeout_s, "the SuperLink", self._server)

    def kill_server(self) -> None:
        """Kill the SuperLink, its SuperExec and the ServerApp with SIGKILL.

        The SuperLink's database is a file and survives. The run fails, which Flower reports after a minute.
        """
        self._kill(self._server)

    def kill_superlink(self) -> None:
        """Kill only the SuperLink with SIGKILL; a running ServerApp and the SuperNodes wait until it is back."""
        self._server[0].kill()

    def kill_server_app(self) -> None:
        """Kill the ServerApp with SIGKILL; the SuperLink continues with a new SuperExec."""
        superexec = self._server[1]
        superexec.kill()
        superexec.start()

    def kill_node(self, index: int) -> None:
        """Kill the SuperNode, its SuperExec and its ClientApp with SIGKILL."""
        self._kill(self.nodes[index].programs)

    def report_killed_nodes(self, indices: Sequence[int]) -> None:
        """Tell the server that these SuperNodes have left; without this it notices a killed one after a minute."""
        online = self._control.online()
        for node in (self.nodes[index] for index in indices):
            if node.node_id in online:
                deactivate_node(self.address, self._authority.certificate, node.key, node.node_id)

    def start_nodes(self, indices: Sequence[int]) -> None:
        """Start these SuperNodes and wait until the server has accepted all of them."""
        self.report_killed_nodes(indices)
        started = [self.nodes[index] for index in indices]
        for node in started:
            for program in node.programs:
                program.start()
        ids = {node.node_id for node in started}
        watched = [program for node in started for program in node.programs]
        self._wait_until(
            lambda: ids <= self._control.online(), self._start_timeout_s, "the SuperNodes", [*self._server, *watched]
        )

    def program(self, name: str, command: Sequence[str]) -> Program:
        """Add a program that ends with the cluster, without starting it."""
        own = "flwr.superlink.cli" if name.startswith("superlink") else "flwr.supernode.cli"
        preload = UNMODIFIED if self._preload is None else ",".join([own, *self._preload])
        program = Program(name, self._folder, command, preload)
        self._programs.append(program)
        return program

    def _make_server(self) -> list[Program]:
        files = self._authority.server("superlink")
        host, port = self.address.split(":")
        secret = self._make_secret("superlink")
        authority = str(self._authority.certificate)
        superlink = ["flower-superlink", "--host", host, "--port", port, "--enable-supernode-auth"]
        superlink += ["--ssl-certfile", str(files.certificate), "--ssl-keyfile", str(files.key)]
        superlink += ["--ssl-ca-certfile", authority, "--database", str(self._folder / "superlink.db")]
        superlink += ["--isolation", "process", "--superexec-auth-secret-file", secret]
        return [
            self.program("superlink", superlink),
            self.program("superlink-exec", self._superexec(self.address, secret)),
        ]

    def _make_node(self, index: int, settings: Mapping[str, Setting]) -> Node:
        name = f"supernode-{index}"
        key = self._secrets / f"{name}.ssh"
        node_id = self._control.register(make_node_key(key), name)
        files = self._authority.server(name)
        secret = self._make_secret(name)
        port = free_port()
        supernode = [*self.node_command(port, settings), "--auth-supernode-private-key", str(key)]
        supernode += ["--root-certificates", str(self._authority.certificate)]
        supernode += ["--ssl-certfile", str(files.certificate), "--ssl-keyfile", str(files.key)]
        supernode += ["--ssl-ca-certfile", str(self._authority.certificate), "--superexec-auth-secret-file", secret]
        superexec = self._superexec(f"{LOOPBACK}:{port}", secret)
        return Node([self.program(name, supernode), self.program(f"{name}-exec", superexec)], key, node_id)

    def node_command(self, port: int, settings: Mapping[str, Setting]) -> list[str]:
        """The command of a SuperNode without its credentials."""
        command = ["flower-supernode", "--superlink", self.address, "--host", LOOPBACK, "--port", str(port)]
        return [*command, "--isolation", "process", "--node-config", _as_config(settings)]

    def _superexec(self, address: str, secret: str) -> list[str]:
        command = ["flower-superexec", "--runtime-api-address", address, "--superexec-auth-secret-file", secret]
        return [*command, "--root-certificates", str(self._authority.certificate)]

    def _make_secret(self, name: str) -> str:
        file = self._secrets / f"{name}.secret"
        write_secret(file, secrets.token_bytes(32))
        return str(file)

    def _wait_until(self, done: Callable[[], bool], timeout_s: float, what: str, watched: Sequence[Program]) -> None:
        """Wait for a condition; raise after the timeout, or if one of the watched programs has ended."""
        deadline = time.monotonic() + timeout_s
        while not done():
            for program in watched:
                program.check()
            if time.monotonic() > deadline:
                logs = "".join(program.log_tail() for program in watched)
                raise ClusterError(f"timed out after {timeout_s:g} s while waiting for {what}{logs}")
            time.sleep(0.3)

    def _kill(self, programs: Sequence[Program]) -> None:
        for program in programs:
            program.kill()

    def _end(self) -> None:
        self._kill(self._programs)
        self._control.__exit__(None, None, None)


def _as_config(settings: Mapping[str, Setting]) -> str:
    """The settings as an argument of `--node-config`: TOML values, separated by spaces."""
    return " ".join(tomli_w.dumps({key: value}).strip().replace(" = ", "=", 1) for key, value in settings.items())
