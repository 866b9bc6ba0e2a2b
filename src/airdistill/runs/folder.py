"""A run's folder: what it holds, who may write to it, and how far its round file goes."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from airdistill.errors import AirDistillError, InputError
from airdistill.files import json_text, write_whole
from airdistill.privacy.chain import ends_with

SCENARIO, PLAN, RUN, ROUNDS = "scenario.toml", "plan.json", "run.json", "rounds.jsonl"
TIMINGS, SUMMARY, LOCK = "timings.jsonl", "summary.json", "lock"
LEDGER, LEDGER_HEAD = "ledger.jsonl", "ledger.head"
FEDERATION = "federation"  # in a RUN: an end of a federation keeps it, whose medium stands there
CERTIFICATE, AUDIT, AUDITS = "certificate.json", "audit.json", "audits.jsonl"


_LOOK_S = 0.05  # between two looks at a lock


class RunError(AirDistillError):
    """A run cannot be started, gone on with or written."""


class RoundFile:
    """`rounds.jsonl`: one line a round, appended, with a running digest."""

    def __init__(self, path: Path, keep_bytes: int, digest: str | None) -> None:
        """Opens the file cut back to `keep_bytes`, which must have that digest: what follows is played again."""
        content = path.read_bytes()[:keep_bytes] if path.exists() else b""
        self._hash = hashlib.sha256(content)
        if digest is not None and (len(content) != keep_bytes or self.digest != digest):
            raise RunError(f"{path}: does not begin as its checkpoint says; it was edited or cut")
        self._path, self.num_bytes = path, len(content)
        with path.open("ab") as file:
            file.truncate(keep_bytes)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def append(self, record: dict[str, Any]) -> None:
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        with self._path.open("ab") as file:
            file.write(line)
        self._hash.update(line)
        self.num_bytes += len(line)

    def last(self) -> dict[str, Any]:
        """The last record that is there."""
        record: dict[str, Any] = json.loads(self._path.read_bytes().splitlines()[-1])
        return record

    def sync(self) -> None:
        """Down to the disk, before a checkpoint says that it is there."""
        with self._path.open("ab") as file:
            os.fsync(file.fileno())


def new_folder(out: Path | None, name: str, parent: Path = Path("runs")) -> Path:
    """The folder for a new run: the one asked for, which must be empty, or the next free one under its parent."""
    if out is not None:
        if out.exists() and (not out.is_dir() or not all(map(_from_a_start, out.iterdir()))):
            raise InputError("--out", str(out), "is not empty; choose another folder, or resume the run in it")
        out.mkdir(parents=True, exist_ok=True)
        return out
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("itertools.count ends never")


def _from_a_start(path: Path) -> bool:
    """What a run may have left that ended before it began: nothing that could be resumed, so nothing to be lost."""
    name = path.name
    if name in (LEDGER, LEDGER_HEAD):
        ledger = path.with_name(LEDGER)
        return ends_with(ledger, "opening") if ledger.exists() else True  # releases are never thrown away
    return name in (LOCK, SCENARIO, PLAN, "ledger.new") or (name.startswith(".") and name.endswith(".tmp"))


def existing_folder(folder: Path) -> Path:
    if not (folder / RUN).is_file():
        raise InputError("RUN", str(folder), f"is no run's folder: it has no {RUN}")
    return folder


@contextmanager
def locked(folder: Path, patience_s: float = 0.2) -> Iterator[None]:
    """Keeps a second process out of the folder; the lock goes with the process, however that ends.

    With patience it waits for so long until the other one has ended; a little of it is for those who only look.
    """
    deadline = time.monotonic() + patience_s
    with (folder / LOCK).open("a") as file:
        while not _taken(file):
            if time.monotonic() >= deadline:
                raise RunError(f"{folder}: another process is running in it")
            time.sleep(_LOOK_S)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def process_in(folder: Path) -> int | None:
    """Who runs in the folder, if anybody does."""
    try:
        with (folder / LOCK).open() as file:
            if _taken(file, fcntl.LOCK_SH):
                return None
            return int(file.read() or 0) or None
    except (OSError, ValueError):
        return None


def _taken(file: IO[str], kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns what the disk refuses into one clear line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        kept = "what was there is kept: resume goes on" if (folder / RUN).exists() else "nothing had begun"
        raise RunError(f"{folder}: cannot be written: {reason}; {kept}") from None


def write_json(path: Path, value: Any) -> None:
    write_whole(path, json_text(value).encode())


def seal(folder: Path, run: dict[str, Any]) -> None:
    """Writes `run.json`, the last file of a start: with the digests of what lies beside it, and of itself."""
    beside = {name: digest_of((folder / name).read_bytes()) for name in (SCENARIO, PLAN)}
    body = {**run, "digests": beside}
    write_json(folder / RUN, {**body, "digest": digest_of(json_text(body).encode())})


def simulated(folder: Path) -> Path:
    """The folder of a simulation; that of a federation's end has another story to tell."""
    stored, _ = read_sealed(existing_folder(folder))
    if FEDERATION in stored:
        rule = "is one end of a federation: airdistill certify reads it, and its rounds are in rounds.jsonl"
        raise InputError("RUN", str(folder), rule)
    return folder


def read_sealed(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """`run.json` and `plan.json`, if nobody has touched them or the scenario since the run began."""
    try:
        run = json.loads((folder / RUN).read_bytes())
        body = {name: value for name, value in run.items() if name != "digest"}
        if run["digest"] != digest_of(json_text(body).encode()):
            raise ValueError(f"{RUN} was edited or damaged")
        for name, digest in run["digests"].items():
            if digest_of((folder / name).read_bytes()) != digest:
                raise ValueError(f"{name} was edited or damaged")
        return run, json.loads((folder / PLAN).read_bytes())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{folder}: cannot be trusted: {error}") from None


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
