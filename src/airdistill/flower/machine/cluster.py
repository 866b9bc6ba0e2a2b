"""A Flower federation on this machine: a SuperLink and its SuperNodes, with TLS and node authentication.

    with Cluster(folder, [{"partition-id": 0}, {"partition-id": 1}]) as cluster:
        result = cluster.run(app_folder, {"rounds": 5}, timeout_s=300)

Every program has a process group of its own, its log is a file under `logs`, and all of them end with the block,
whatever happens in it. SuperLink and SuperNodes run with process isolation: the SuperExec that starts the apps is ours
too, so that it can be ended by its number (the one that a SuperLink starts by itself leaves its group), and it shows a
secret before it is handed work.
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
from airdistill.flower.machine.control import Control, RunState, Setting, sign_off, write_connection
from airdistill.flower.machine.processes import ClusterError, Program, free_port
from airdistill.flower.machine.watchdog import NO_HASTE


@dataclass(frozen=True)
class RunResult:
    """How a run ended, and what its ServerApp wrote."""

    state: RunState
    log: str


@dataclass
class Node:
    """A SuperNode, the SuperExec that starts its ClientApps, and the number by which the server knows it."""

    programs: list[Program]
    key: Path
    node_id: int


class Cluster:
    """Starts with the `with` block and ends with it.

    `preload` names the app's modules that take long to import: apps start with them already there, and the waits are
    short. None leaves Flower as it is: a SuperNode looks for messages every three seconds, and each finds a new
    interpreter.
    """

    def __init__(
        self,
        folder: Path,
        node_settings: Sequence[Mapping[str, Setting]],
        *,
        preload: Sequence[str] | None = (),
        start_timeout_s: float = 120.0,
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
        """With FLWR_HOME set to it, `flwr run APP cluster` and its sisters speak to this federation."""
        return self._folder / "homes" / "user"

    @property
    def authority_certificate(self) -> Path:
        return self._authority.certificate

    @property
    def process_ids(self) -> list[int]:
        """Of the programs that run now; each is also the number of its process group."""
        return [program.process_id for program in self._programs if program.runs()]

    def run(self, app: Path, settings: Mapping[str, Setting] | None = None, *, timeout_s: float) -> RunResult:
        return self.wait(self.submit(app, settings), timeout_s=timeout_s)

    def submit(self, app: Path, settings: Mapping[str, Setting] | None = None) -> int:
        return self._control.start_run(app, settings or {})

    def wait(self, run_id: int, *, timeout_s: float) -> RunResult:
        """Until the run ends, well or not."""
        self._until(lambda: self._control.state_of(run_id).ended, timeout_s, f"the end of run {run_id}", self._server)
        return RunResult(self._control.state_of(run_id), self._control.log_of(run_id))

    def state_of(self, run_id: int) -> RunState:
        return self._control.state_of(run_id)

    def start_server(self) -> None:
        """What of it does not run: the SuperLink, the SuperExec that starts its ServerApps, or both."""
        for program in self._server:
            if not program.runs():
                program.start()
        self._until(self._control.answers, self._start_timeout_s, "the SuperLink", self._server)

    def kill_server(self) -> None:
        """kill -9: the SuperLink, its SuperExec and the ServerApp. What the SuperLink knew is in a file and survives;
        the run does not, and Flower takes a minute to say that it failed."""
        self._kill(self._server)

    def kill_superlink(self) -> None:
        """kill -9 for the SuperLink alone; a ServerApp that runs waits for its return, and so do the SuperNodes."""
        self._server[0].kill()

    def kill_server_app(self) -> None:
        """kill -9 for the ServerApp; the SuperLink goes on, with a fresh SuperExec."""
        superexec = self._server[1]
        superexec.kill()
        superexec.start()

    def kill_node(self, index: int) -> None:
        """kill -9: the SuperNode, its SuperExec and its ClientApp."""
        self._kill(self.nodes[index].programs)

    def start_nodes(self, indices: Sequence[int]) -> None:
        """Starts these SuperNodes, together, and waits until the server has taken them in."""
        started = [self.nodes[index] for index in indices]
        online = self._control.online()
        for node in started:
            if node.node_id in online:
                sign_off(self.address, self._authority.certificate, node.key, node.node_id)
            for program in node.programs:
                program.start()
        ids = {node.node_id for node in started}
        watched = [program for node in started for program in node.programs]
        self._until(
            lambda: ids <= self._control.online(), self._start_timeout_s, "the SuperNodes", [*self._server, *watched]
        )

    def program(self, name: str, command: Sequence[str]) -> Program:
        """One more program that ends with the cluster; not started yet."""
        own = "flwr.superlink.cli" if name.startswith("superlink") else "flwr.supernode.cli"
        haste = NO_HASTE if self._preload is None else ",".join([own, *self._preload])
        program = Program(name, self._folder, command, haste)
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
        """What every SuperNode is started with, whether or not it will be let in."""
        command = ["flower-supernode", "--superlink", self.address, "--host", LOOPBACK, "--port", str(port)]
        return [*command, "--isolation", "process", "--node-config", _as_config(settings)]

    def _superexec(self, address: str, secret: str) -> list[str]:
        command = ["flower-superexec", "--runtime-api-address", address, "--superexec-auth-secret-file", secret]
        return [*command, "--root-certificates", str(self._authority.certificate)]

    def _make_secret(self, name: str) -> str:
        file = self._secrets / f"{name}.secret"
        write_secret(file, secrets.token_bytes(32))
        return str(file)

    def _until(self, done: Callable[[], bool], timeout_s: float, what: str, watched: Sequence[Program]) -> None:
        """Waits, and gives up when the time is over or a program that matters for it has ended."""
        deadline = time.monotonic() + timeout_s
        while not done():
            for program in watched:
                program.check()
            if time.monotonic() > deadline:
                words = "".join(program.last_words() for program in watched)
                raise ClusterError(f"waited {timeout_s:g} s for {what} in vain{words}")
            time.sleep(0.3)

    def _kill(self, programs: Sequence[Program]) -> None:
        for program in programs:
            program.kill()

    def _end(self) -> None:
        self._kill(self._programs)
        self._control.__exit__(None, None, None)


def _as_config(settings: Mapping[str, Setting]) -> str:
    """As `--node-config` reads it: TOML values, separated by spaces."""
    return " ".join(tomli_w.dumps({key: value}).strip().replace(" = ", "=", 1) for key, value in settings.items())
