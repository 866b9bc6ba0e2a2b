"""A run's folder: the names of its files, its lock, its round file and its sealed description."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from airdistill.errors import AirDistillError, InputError
from airdistill.files import json_text, json_value, write_whole
from airdistill.privacy.chain import counted_lines, ends_with

SCENARIO, PLAN, RUN, ROUNDS = "scenario.toml", "plan.json", "run.json", "rounds.jsonl"
TIMINGS, SUMMARY, LOCK = "timings.jsonl", "summary.json", "lock"
DIGESTS = "digests.json"  # of an ended run's summary and records
LEDGER, LEDGER_HEAD = "ledger.jsonl", "ledger.head"
FEDERATION = "federation"  # a key of RUN: the folder belongs to one endpoint of a federation, with this medium
CERTIFICATE, AUDIT, AUDITS = "certificate.json", "audit.json", "audits.jsonl"

_COPY = "restore it from a copy, or run again"
_POLL_S = 0.05  # between two attempts to take a lock
_READERS_S = 30.0  # readers hold the lock for an instant; on a busy machine an instant can be long
_NAMING_S = 1.0  # so does a holder between taking the lock and writing its id


class RunError(AirDistillError):
    """A run that cannot be started, resumed, read or written."""


class RoundFile:
    """`rounds.jsonl`: one line per round, appended, with a running digest."""

    def __init__(self, path: Path, keep_bytes: int, digest: str | None) -> None:
        """Open the file and truncate it to `keep_bytes`, which must have the given digest.

        The rounds after that point are run again.
        """
        content = path.read_bytes()[:keep_bytes] if path.exists() else b""
        self._hash = hashlib.sha256(content)
        if digest is not None and (len(content) != keep_bytes or self.digest != digest):
            problem = f"{path}: does not match its checkpoint: it was edited or truncated"
            raise RunError(f"{problem}; {what_is_left(path.parent)}")
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
        """The last record of the file."""
        record: dict[str, Any] = json_value(self._path.read_bytes().splitlines()[-1])
        return record

    def sync(self) -> None:
        """Flush the file to disk. A checkpoint must not refer to records that a power failure could lose."""
        with self._path.open("ab") as file:
            os.fsync(file.fileno())


def what_is_left(folder: Path) -> str:
    """What can be done with a run that cannot be resumed."""
    return (
        f"its files are kept, and what it released stays counted: airdistill certify {folder} shows it, and a run "
        f"with --ledger {folder} has the budget that is left"
    )


def new_folder(out: Path | None, name: str, parent: Path = Path("runs")) -> Path:
    """Create the folder of a new run: `out`, which must be empty, or the next free name under `parent`."""
    if out is not None:
        check_free(out)
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            rule = f"cannot be created: {error.strerror}; choose another folder"
            raise InputError("--out", str(out), rule) from None
        return out
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("itertools.count does not end")


def check_free(out: Path) -> None:
    """Reject a file, and a folder in which something is that a run would mix with."""
    if out.exists() and not out.is_dir():
        raise InputError("--out", str(out), "is a file; choose a folder")
    if out.exists() and not all(map(_left_by_failed_start, out.iterdir())):
        raise InputError("--out", str(out), "is not empty; choose another folder, or resume the run in it")


def _left_by_failed_start(path: Path) -> bool:
    """Whether the file comes from a run that failed before its first round and so holds nothing to resume."""
    name = path.name
    if name in (LEDGER, LEDGER_HEAD):
        ledger = path.with_name(LEDGER)  # a ledger with releases is never overwritten, nor is the trace of a lost one
        return ends_with(ledger, "opening") if ledger.exists() else counted_lines(ledger) <= 1
    if name == ROUNDS:
        return path.stat().st_size == 0
    first = ("checkpoint-00000000.json", "checkpoint-00000000.safetensors")  # of a run that starts with given models
    return name in (LOCK, SCENARIO, PLAN, "ledger.new", *first) or (name.startswith(".") and name.endswith(".tmp"))


def existing_folder(folder: Path) -> Path:
    """The folder, which must be a run's, and have nothing in it that can be read without an end."""
    if not (folder / RUN).is_file():
        raise InputError("RUN", str(folder), _no_run(folder))
    for path in folder.iterdir():
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InputError("RUN", str(folder), f"has {path.name}, which is neither a file nor a folder; remove it")
    return folder


def _no_run(folder: Path) -> str:
    if not folder.exists():
        return "is not a run folder: it does not exist; runs lie below runs/, or where --out said"
    if not folder.is_dir():
        return f"is not a run folder: it is a file; give the folder in which {RUN} is"
    return f"is not a run folder: it has no {RUN}"


@contextmanager
def locked(folder: Path, patience_s: float = 0.2) -> Iterator[None]:
    """Lock the folder against other processes. The operating system releases the lock if the process dies.

    If another process holds the lock, wait for it for up to `patience_s` seconds.
    """
    with (folder / LOCK).open("a") as file:
        if not _acquire(file, patience_s):
            raise RunError(f"{folder}: another process is running in it")
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)  # before the lock is released: the next holder must not be taken for this process


def _acquire(file: IO[str], patience_s: float) -> bool:
    """Take the exclusive lock; return False if another process keeps it for too long.

    Readers of a run's state take the shared lock for an instant. They do not count as another process.
    """
    started = time.monotonic()
    while not _try_lock(file, fcntl.LOCK_EX):
        only_readers = _try_lock(file, fcntl.LOCK_SH)
        fcntl.flock(file, fcntl.LOCK_UN)
        if time.monotonic() - started >= (max(patience_s, _READERS_S) if only_readers else patience_s):
            return False
        time.sleep(_POLL_S)
    return True


def is_locked(folder: Path) -> bool:
    """Whether a process is running in the folder."""
    try:
        with (folder / LOCK).open() as file:
            return not _try_lock(file, fcntl.LOCK_SH)
    except OSError:
        return False


def process_in(folder: Path) -> int | None:
    """The id of the process that is running in the folder; None without one.

    A process that has just taken the lock is waited for until it has written its id.
    """
    started = time.monotonic()
    while is_locked(folder):
        with suppress(OSError, ValueError):
            return int((folder / LOCK).read_text())
        if time.monotonic() - started >= _NAMING_S:
            break
        time.sleep(_POLL_S)
    return None


def _try_lock(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Report a failed write in one line that says whether the run can be resumed."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        kept = "the rounds so far are kept: use airdistill resume" if (folder / RUN).exists() else "no round was run"
        raise RunError(f"{folder}: cannot be written: {reason}; {kept}") from None


def write_json(path: Path, value: Any) -> None:
    write_whole(path, json_text(value).encode())


def seal(folder: Path, run: dict[str, Any]) -> None:
    """Write `run.json`, the last file of a start, with the digests of the scenario, of the plan and of itself."""
    digests = {name: digest_of((folder / name).read_bytes()) for name in (SCENARIO, PLAN)}
    body = {**run, "digests": digests}
    write_json(folder / RUN, {**body, "digest": digest_of(json_text(body).encode())})


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Write `summary.json`, the last file of a run, and before it the digests of the summary and of the records."""
    content, path = json_text(summary).encode(), folder / ROUNDS
    records = path.read_bytes() if path.exists() else b""
    body = {"rounds": records.count(b"\n"), ROUNDS: digest_of(records), SUMMARY: digest_of(content)}
    write_json(folder / DIGESTS, {**body, "digest": digest_of(json_text(body).encode())})
    write_whole(folder / SUMMARY, content)


def read_digests(folder: Path) -> dict[str, Any]:
    """What `write_summary` knew of the records; empty for runs of older versions. `RunError` if it is damaged."""
    path = folder / DIGESTS
    if not path.exists():
        return {}
    try:
        stored: dict[str, Any] = json_value(path.read_bytes())
        digest = stored.pop("digest")
        if digest != digest_of(json_text(stored).encode()):
            raise ValueError("its digest does not match")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RunError(f"{path}: was edited or damaged; summary and records are not compared with it") from None
    return stored


def simulated(folder: Path) -> Path:
    """The folder, which must be that of a simulation and not of a federation's endpoint."""
    stored, _ = read_sealed(existing_folder(folder))
    if FEDERATION in stored:
        rule = "belongs to an endpoint of a federation: use airdistill certify; its rounds are in rounds.jsonl"
        raise InputError("RUN", str(folder), rule)
    return folder


def read_sealed(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of `run.json` and `plan.json`. Raise if they or the scenario changed since the run began."""
    try:
        run = json_value((folder / RUN).read_bytes())
        if not isinstance(run, dict) or not {"digest", "digests"} <= run.keys():
            raise ValueError(f"{RUN} is not what a run wrote")
        body = {name: value for name, value in run.items() if name != "digest"}
        if run["digest"] != digest_of(json_text(body).encode()):
            raise ValueError(f"{RUN} was edited or damaged")
        for name, digest in run["digests"].items():
            if digest_of((folder / name).read_bytes()) != digest:
                raise ValueError(f"{name} was edited or damaged")
        return run, json_value((folder / PLAN).read_bytes())
    except json.JSONDecodeError:
        raise RunError(f"{folder}: cannot be trusted: {RUN} or {PLAN} is damaged; {_COPY}") from None
    except OSError as error:
        problem = f"{Path(error.filename).name if error.filename else RUN}: {error.strerror}"
        raise RunError(f"{folder}: cannot be trusted: {problem}; {_COPY}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{folder}: cannot be trusted: {error}; {_COPY}") from None


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
