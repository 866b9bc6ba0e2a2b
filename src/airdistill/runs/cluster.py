"""The executor for Ray: every run is an actor on some node; this process, the driver, writes the folder.

An actor whose process or node ends is replaced by another one, which resumes the run from the files that the driver
has. Nothing but Ray's own connections is needed between the machines.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from airdistill.errors import AirDistillError, InputError
from airdistill.files import write_whole
from airdistill.runs.comparison import COMPARISON, Arm, Comparison, OnProgress, Task
from airdistill.runs.executors import fresh_failure, in_parallel, reason_of
from airdistill.runs.folder import LOCK, RUN
from airdistill.runs.node import THREAD_VARIABLES, News, NodeRun, Order, apply_pieces, digest_of_files
from airdistill.scenario.loading import files_named

logger = logging.getLogger(__name__)
_PATIENCE_S = 5.0  # for a first connection
_PROBE_S = 120.0  # a node imports nothing but Python's own modules to answer, but it may have to start a process
_MOST_LOSSES = 3  # of processes or nodes in a row that did not save another round
_REFERENCE = re.compile(r"^([A-Za-z_]\w*)[\w.]*:[A-Za-z_]\w*")


class RayExecutor:
    """Runs on a Ray cluster: one that is started here, or that is at an address."""

    elsewhere = True

    def __init__(self, address: str | None = None, cpus: float = 1.0, gpus: float = 0.0) -> None:
        if cpus <= 0:
            raise InputError("--cpus", cpus, "must be greater than 0")
        if gpus < 0:
            raise InputError("--gpus", gpus, "must not be negative")
        self._address, self._cpus, self._gpus = address, cpus, gpus
        self._ray: Any = None
        self._is_ours = True  # whether the connection was made here, and so is closed here
        self._fitting = 0  # runs that the nodes have room for

    def check(self) -> None:
        """Connect, and raise unless every node has this version of AirDistill and some node has room for a run."""
        if self._ray is None:
            self._ray, self._is_ours = _connected(self._address)
        try:
            nodes = [node for node in self._ray.nodes() if node["Alive"]]
            self._fitting = sum(self._room_in(node["Resources"]) for node in nodes)
            if not self._fitting:
                share = f"{self._cpus:g} CPUs" + (f" and {self._gpus:g} GPUs" if self._gpus else "")
                raise InputError("--on", self._address or "ray", f"no node of the cluster has {share} for a run")
            _check_versions(self._ray, [node for node in nodes if self._room_in(node["Resources"])])
        except BaseException:
            self._close()
            raise

    def _room_in(self, resources: dict[str, float]) -> int:
        room = resources.get("CPU", 0.0) // self._cpus
        return int(min(room, resources.get("GPU", 0.0) // self._gpus) if self._gpus else room)

    def _close(self) -> None:
        ray, self._ray = self._ray, None
        if self._is_ours:
            ray.shutdown()

    def compute(
        self, folder: Path, comparison: Comparison, waiting: list[Task], jobs: int, on_progress: OnProgress | None
    ) -> None:
        """Start or resume the runs: see `Executor`."""
        if self._ray is None:
            self.check()
        try:
            runs = _Runs(self._ray, folder, comparison, (self._cpus, self._gpus), on_progress)
            in_parallel(waiting, min(jobs or self._fitting, len(waiting)), runs.run, runs.stop)
        finally:
            self._close()


def _connected(address: str | None) -> tuple[Any, bool]:
    """Ray, connected to a cluster, and whether it was not connected before.

    Without an address it is the cluster of this machine, which is started if there is none.
    """
    # Ray reads these when it is imported; it would report its use, and warn of a change to come.
    for name, value in (("RAY_USAGE_STATS_ENABLED", "0"), ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")):
        os.environ.setdefault(name, value)
    try:
        ray = import_module("ray")
    except ModuleNotFoundError:
        raise AirDistillError("--on ray needs Ray, which is not installed: pip install 'airdistill[cluster]'") from None
    if ray.is_initialized():
        return ray, False
    if address is not None:
        _check_reachable(address)
    quiet = {"logging_level": logging.CRITICAL, "log_to_driver": False}
    logging.getLogger("ray.util.client").setLevel(logging.CRITICAL)  # the client has a level of its own
    logging.getLogger("ray.client_builder").setLevel(logging.CRITICAL)
    is_client = address is not None and address.startswith("ray://")
    started = {} if address is not None else {"include_dashboard": False}
    try:
        ray.init(address, **(quiet if not is_client else {}), **started)
    except Exception as error:  # ray raises errors of many kinds, and some of its libraries' own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError("--on", address or "ray", f"cannot be used: {reason[:200]}") from None
    return ray, True


def _check_reachable(address: str) -> None:
    """Raise unless something listens at the address: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise InputError("--on", address, "must be local, ray, host:port or ray://host:port")
    try:
        socket.create_connection((host, int(port)), _PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        rule = f"cannot be reached: {reason}; is the head running (ray start --head), and is this its address?"
        raise InputError("--on", address, rule) from None


def _check_versions(ray: Any, nodes: list[dict[str, Any]]) -> None:
    """Raise unless every node has the same AirDistill, by the bytes of its sources, and the same Python."""
    strategy = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    probe = _probe()
    mine = probe()
    asked = ray.remote(probe)
    places = [strategy(node["NodeID"], soft=False) for node in nodes]
    answers = [asked.options(num_cpus=0, scheduling_strategy=place).remote() for place in places]
    for name, answer in zip((node["NodeManagerAddress"] for node in nodes), answers, strict=True):
        try:
            theirs = ray.get(answer, timeout=_PROBE_S)
        except Exception as error:  # a node that ends meanwhile, or cannot start a process
            raise AirDistillError(f"node {name} does not answer: {str(error).splitlines()[0]}") from None
        if theirs != mine:
            raise AirDistillError(f"node {name} has {_in_words(theirs)}; this machine has {_in_words(mine)}")


def _probe() -> Callable[[], tuple[str | None, str, str]]:
    def probe() -> tuple[str | None, str, str]:
        """Return version and digest of the sources of AirDistill, and Python's version.

        A function inside a function travels as code: the node may have no AirDistill, or another one.
        """
        import hashlib
        import importlib.util
        import platform
        from pathlib import Path

        python = ".".join(platform.python_version_tuple()[:2])
        spec = importlib.util.find_spec("airdistill")
        if spec is None or spec.origin is None:
            return None, "", python
        from airdistill import __version__ as version

        folder, digest = Path(spec.origin).parent, hashlib.sha256()
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
        return version, digest.hexdigest()[:12], python

    return probe


def _in_words(found: tuple[str | None, str, str]) -> str:
    version, digest, python = found
    return f"{f'airdistill {version}, sources {digest}' if version else 'no airdistill'}, Python {python}"


class _Runs:
    """The runs in progress: a thread for each waits for its actor and writes what that sends."""

    def __init__(
        self,
        ray: Any,
        folder: Path,
        comparison: Comparison,
        share: tuple[float, float],
        on_progress: OnProgress | None,
    ) -> None:
        self._ray, self._folder, self._comparison, self._on_progress = ray, folder, comparison, on_progress
        cpus, gpus = share
        self._actors = ray.remote(NodeRun).options(num_cpus=cpus, num_gpus=gpus, max_concurrency=2, max_restarts=0)
        self._threads = comparison.options.threads or max(1, int(cpus))
        self._environment = {name: os.environ.get(name, "1") for name in THREAD_VARIABLES}
        self._described = ray.put((folder / COMPARISON).read_bytes())
        self._code = own_code(comparison.arms)
        self._copies: dict[str, Any] = {}  # every file that a scenario names travels to a node once
        self._running: dict[Task, Any] = {}
        self._stopped = False
        self._lock = threading.Lock()

    def run(self, task: Task) -> None:
        """Compute one run, on another node if its own ends; a failure is written next to the run's folder."""
        failure = fresh_failure(task, self._folder)
        losses, reached = 0, self._state_of(task)
        while not self._stopped:
            lost, ended = "", None
            try:
                ended = self._attempt(task)
            except self._ray.exceptions.RayError as error:
                lost = _first_line(error)
            if ended is not None and ended.code == -signal.SIGKILL:  # also by the system, for want of memory
                lost = f"{reason_of(ended.code, ended.output)} (on {ended.host})"
            if not lost:
                if ended is not None and ended.code and not self._stopped:
                    self._fail(task, failure, f"{reason_of(ended.code, ended.output)} (on {ended.host})")
                return
            before, reached = reached, self._state_of(task)
            losses = 1 if reached != before else losses + 1
            if losses >= _MOST_LOSSES:
                self._fail(task, failure, f"its process or node ended {losses} times without a new checkpoint: {lost}")
                return
            logger.info("%s, seed %d: resumed elsewhere: %s", task.label, task.seed, lost)

    def _fail(self, task: Task, failure: Path, reason: str) -> None:
        write_whole(failure, f"{reason}\n".encode())
        self._report(task, {"failed": reason})

    def _report(self, task: Task, news: dict[str, Any]) -> None:
        if self._on_progress is not None:
            self._on_progress(task, news)

    def _state_of(self, task: Task) -> list[str]:
        return sorted(path.name for path in task.folder_in(self._folder).glob("checkpoint-*.json"))

    def _attempt(self, task: Task) -> News | None:
        """Compute a run in an actor until it ends; None if a stop is requested before it starts."""
        out = task.folder_in(self._folder)
        begun = (out / RUN).exists()
        files = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} if begun else {}
        files.pop(LOCK, None)
        order = Order(task, self._threads, self._environment, files, self._code)
        with self._lock:
            if self._stopped:
                return None
            copies = [self._copy(name) for name in files_named(self._comparison.arm(task.label).scenario)]
            actor = self._running[task] = self._actors.remote()
        try:
            self._ray.get(actor.start.remote(order, self._described, *copies))
            if self._stopped:  # it may have been requested before the process was there
                actor.stop.remote()
            while True:
                news: News = self._ray.get(actor.news.remote())
                if news.pieces:
                    apply_pieces(out, news)
                for each in news.progress:
                    self._report(task, each)
                if news.code is not None:
                    return news
        finally:
            with self._lock:
                self._running.pop(task, None)
            with suppress(Exception):  # it has ended already, or the cluster has
                self._ray.kill(actor)

    def _copy(self, name: str) -> Any:
        if name not in self._copies:
            files = dict(_files_of(Path(name)))
            self._copies[name] = self._ray.put((name, digest_of_files(files), files))
        return self._copies[name]

    def stop(self) -> None:
        """Ask all workers to save their round in progress and to end."""
        with self._lock:
            self._stopped = True
            for actor in self._running.values():
                actor.stop.remote()


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("The actor is dead", "The actor died"))]
    return (told or lines or [type(error).__name__])[-1][:200]


def _files_of(path: Path) -> Iterator[tuple[str, bytes]]:
    """A file, or all files of a folder, by their names from the folder above."""
    for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if each.is_file():
            yield each.relative_to(path.parent).as_posix(), each.read_bytes()


def own_code(arms: Iterable[Arm]) -> dict[str, bytes]:
    """The sources of the user's own modules that schemes and scenarios name: a file, or all of a package.

    Installed packages do not travel; neither does what a module imports from beside it.
    """
    names = {text for arm in arms for text in (arm.scheme, *_texts(arm.scenario.model_dump(mode="json")))}
    modules = {match[1] for name in names if (match := _REFERENCE.match(name))} - {"airdistill"}
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    found: dict[str, bytes] = {}
    for module in sorted(modules):
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None or "site-packages" in Path(spec.origin).parts:
            continue
        path = Path(spec.origin)
        sources = path.parent.rglob("*.py") if spec.submodule_search_locations else [path]
        above = path.parent.parent if spec.submodule_search_locations else path.parent
        found |= {source.relative_to(above).as_posix(): source.read_bytes() for source in sources}
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
