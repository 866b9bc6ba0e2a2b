"""One run on a node of a cluster: a worker process in a folder of its own, whose files are handed to the driver.

An actor of Ray holds a `NodeRun`. The worker process is the one that computes runs on a single machine, and so its
bytes are the same; it ends when the actor ends. No file system is shared: a node keeps copies of the files that a
scenario names by their digest, and of a run only what it computes at the moment.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airdistill.files import COPIES, write_whole
from airdistill.runs.comparison import COMPARISON, Task
from airdistill.runs.executors import KEPT_LINES, PROGRESS_MARK, WORKER
from airdistill.runs.folder import (
    CERTIFICATE,
    DIGESTS,
    LEDGER,
    LEDGER_HEAD,
    LOCK,
    PLAN,
    ROUNDS,
    RUN,
    SCENARIO,
    SUMMARY,
    TIMINGS,
    digest_of,
)

POLL_S = 0.5  # the driver hears from a run at least this often
_SHIPPED_EVERY_S = 2.0  # files travel after the first checkpoint, at the end, and in between not more often than this
_GROWING = {ROUNDS, TIMINGS, LEDGER}  # of these only what is new travels
# Ray sets the first to a task's share of the cores; the arithmetic of a run must not depend on where it is computed.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Piece:
    """The content of a file from a position on: 0 for the whole file."""

    start: int
    content: bytes


@dataclass(frozen=True)
class Order:
    """What is to be computed: a task of a comparison, the files that the run has so far, and code of the user's own."""

    task: Task
    threads: int
    environment: dict[str, str]
    files: dict[str, bytes] = field(default_factory=dict)
    code: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class News:
    """What happened since the last news. `names` are all files of the run if `pieces` were read; `code` ends a run."""

    host: str
    progress: list[dict[str, Any]]
    pieces: dict[str, Piece]
    names: list[str]
    code: int | None = None
    output: list[str] = field(default_factory=list)


class NodeRun:
    """A run in progress on this node."""

    def start(self, order: Order, comparison: bytes, *copies: tuple[str, str, Mapping[str, bytes]]) -> None:
        """Start the worker process on the run's files; `copies` have a name, a digest and the files of each source."""
        self._scratch = Path(tempfile.mkdtemp(prefix="airdistill-run-"))
        self._folder = order.task.folder_in(self._scratch)
        (self._scratch / COMPARISON).write_bytes(comparison)
        _write_all(self._folder, order.files)
        _write_all(self._scratch / "code", order.code)
        self._sent: dict[str, tuple[int, int]] = {}  # time and size of every file when it was read
        self._grown: dict[str, int] = {}
        self._shipped_at, self._had_checkpoint = 0.0, False
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._output: list[str] = []
        environment = _environment(
            order, self._scratch / "code", {name: _kept(digest, files) for name, digest, files in copies}
        )
        words = [str(self._scratch), order.task.label, str(order.task.seed), str(order.threads)]
        self._process = subprocess.Popen(
            [*WORKER, *words],
            stdin=subprocess.PIPE,  # closed when this process ends, which ends the worker
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            cwd=self._scratch,
            env=environment,
            start_new_session=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def news(self) -> News:
        """Wait for a moment and return what is new; the last news have an exit code and the remaining files."""
        progress: list[dict[str, Any]] = []
        ended, deadline = False, time.monotonic() + POLL_S
        while not ended and (left := deadline - time.monotonic()) > 0:
            try:
                line = self._lines.get(timeout=left)
            except queue.Empty:
                break
            if line is None:
                ended = True
            elif line.startswith(PROGRESS_MARK):
                progress.append(json.loads(line.removeprefix(PROGRESS_MARK)))
            elif line.strip():
                self._output = [*self._output[1 - KEPT_LINES :], line.strip()]
        code = self._process.wait() if ended else None
        pieces, names = self._read() if ended or self._is_due() else ({}, [])
        if ended:
            self._close()
        return News(socket.gethostname(), progress, pieces, names, code, self._output if ended else [])

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def stop(self) -> None:
        """Ask the worker to save its round in progress and to end."""
        self._process.send_signal(signal.SIGTERM)

    def _is_due(self) -> bool:
        """Whether there is a checkpoint that the driver does not have, and it was not sent one just now."""
        checkpoints = list(self._folder.glob("checkpoint-*.json"))
        is_first = bool(checkpoints) and not self._had_checkpoint
        late = time.monotonic() - self._shipped_at >= _SHIPPED_EVERY_S
        return bool(checkpoints) and (is_first or (late and any(path.name not in self._sent for path in checkpoints)))

    def _read(self) -> tuple[dict[str, Piece], list[str]]:
        """Read what has changed while the worker is halted: the files are then those of a run killed at this moment."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            if self._process.returncode is None:
                # The signal takes effect a moment later. The status must stay for `wait`.
                os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            present = sorted(path for path in self._folder.iterdir() if _travels(path)) if self._folder.is_dir() else []
            pieces = {path.name: self._piece(path) for path in present if self._sent.get(path.name) != _stamp(path)}
            self._sent = {path.name: _stamp(path) for path in present}
        finally:
            self._process.send_signal(signal.SIGCONT)
        self._shipped_at = time.monotonic()
        self._had_checkpoint = self._had_checkpoint or any(name.startswith("checkpoint-") for name in self._sent)
        return pieces, [path.name for path in present]

    def _piece(self, path: Path) -> Piece:
        # What was there at the start is sent once more: a resumed run shortens its files before it lets them grow.
        start = self._grown.get(path.name, 0) if path.name in _GROWING else 0
        with path.open("rb") as file:
            file.seek(start)
            content = file.read()
        self._grown[path.name] = start + len(content)
        return Piece(start, content)


def _travels(path: Path) -> bool:
    return path.is_file() and path.name != LOCK and not path.name.startswith(".")


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def _write_all(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _environment(order: Order, code: Path, places: Mapping[str, Path]) -> dict[str, str]:
    """The worker's environment: threads as on the driver, the user's code, and where copies of the files are."""
    kept = {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}
    paths = [str(code), *filter(None, [os.environ.get("PYTHONPATH")])]
    copies = json.dumps({name: str(place) for name, place in places.items()})
    return {**kept, **order.environment, "PYTHONPATH": os.pathsep.join(paths), COPIES: copies}


def _kept(digest: str, files: Mapping[str, bytes]) -> Path:
    """The node's copy of a file or folder, made by the first run that needs it, and compared with its digest."""
    cache = Path(tempfile.gettempdir()) / f"airdistill-copies-{os.getuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    if cache.stat().st_uid != os.getuid():
        raise PermissionError(f"{cache} belongs to another user")
    place = cache / digest
    if not place.exists() or digest_of_files({name: (place / name).read_bytes() for name in files}) != digest:
        fresh = Path(tempfile.mkdtemp(dir=cache))
        _write_all(fresh, files)
        shutil.rmtree(place, ignore_errors=True)
        try:
            fresh.replace(place)
        except OSError:  # another run of this node has just made it
            shutil.rmtree(fresh)
    (name, *others) = files
    return place / name if not others and "/" not in name else place / Path(name).parts[0]


def digest_of_files(files: Mapping[str, bytes]) -> str:
    """The digest of a file, or of the files of a folder with their names."""
    return digest_of(json.dumps({name: digest_of(files[name]) for name in sorted(files)}).encode())


def apply_pieces(folder: Path, news: News) -> None:
    """Bring the driver's folder of a run up to date, in the order in which a run writes: never more than it can resume.

    A folder that is not yet a run's appears at once with all its files.
    """
    target = folder
    is_new = not folder.exists() or not any(folder.iterdir())
    if is_new:
        folder.parent.mkdir(parents=True, exist_ok=True)
        target = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    for name in sorted(news.pieces, key=_rank):
        _write_piece(target / name, news.pieces[name])
    for path in target.glob("checkpoint-*"):
        if path.name not in news.names:
            path.unlink()
    if is_new:
        target.chmod(0o755)
        target.replace(folder)


_ORDER = (SCENARIO, PLAN, LEDGER, LEDGER_HEAD, ROUNDS, TIMINGS, ".safetensors", "checkpoint-", RUN)
_LAST = (CERTIFICATE, DIGESTS, SUMMARY)


def _rank(name: str) -> int:
    """The place of a file in the order of writing: the ledger before records, tensors before the header of both."""
    if name in _LAST:
        return len(_ORDER) + 1 + _LAST.index(name)
    found = (index for index, part in enumerate(_ORDER) if name == part or name.endswith(part) or name.startswith(part))
    return next(found, len(_ORDER))


def _write_piece(path: Path, piece: Piece) -> None:
    if piece.start == 0:
        write_whole(path, piece.content)
        return
    with path.open("r+b") as file:
        file.truncate(piece.start)
        file.seek(piece.start)
        file.write(piece.content)
        file.flush()
        os.fsync(file.fileno())
