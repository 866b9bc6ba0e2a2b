"""A file of JSON lines that can only grow: each line's digest covers all lines before it.

A second, small file, the head, holds the number of lines and the last digest, so that lines missing at the end are
noticed too. A line counts once it is on the disk; the head follows it, and may lag one line behind after a crash.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airdistill.errors import AirDistillError
from airdistill.files import write_whole

_START = hashlib.sha256(b"airdistill ledger").hexdigest()


class LedgerError(AirDistillError):
    """A ledger that cannot be trusted, or cannot be gone on with."""


class Chain:
    """The lines of one file; `bodies` are what they say."""

    def __init__(self, path: Path, bodies: list[dict[str, Any]], digests: list[str]) -> None:
        self.path, self.bodies, self._digests = path, bodies, digests
        self._may_end_torn = bool(bodies)

    @classmethod
    def new(cls, path: Path) -> Chain:
        """An empty one; a file that is in its place would be lost, so it must not be there."""
        if path.exists():
            raise LedgerError(f"{path}: is there already; a ledger is never begun anew")
        return cls(path, [], [])

    @classmethod
    def read(cls, path: Path) -> Chain:
        """The file as it is, if nobody has edited, cut or reordered it."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise LedgerError(f"{path}: cannot be read: {error.strerror}") from None
        lines = content.split(b"\n")[:-1]  # what a crash left of a last line was never sent, and does not count
        bodies, digests, previous = [], [], _START
        for number, line in enumerate(lines, start=1):
            body, digest = _parsed(path, number, line)
            as_written = _text({**body, "digest": digest}).encode()
            if digest != _digest(previous, body) or line != as_written:
                raise LedgerError(f"{path}: line {number} was edited, or is not in its place; the ledger is refused")
            bodies.append(body)
            digests.append(digest)
            previous = digest
        _check_head(path, digests)
        return cls(path, bodies, digests)

    @property
    def digest(self) -> str:
        """Of everything so far."""
        return self.digest_at(len(self.bodies))

    def digest_at(self, num_lines: int) -> str:
        return self._digests[num_lines - 1] if num_lines else _START

    def append(self, body: Mapping[str, Any]) -> None:
        """Adds a line and returns when it is on the disk."""
        self._drop_torn_line()
        digest = _digest(self.digest, body)
        line = _text({**body, "digest": digest}) + "\n"
        with self.path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        self.bodies.append(dict(body))
        self._digests.append(digest)
        write_whole(_head_of(self.path), _text({"lines": len(self.bodies), "digest": digest}).encode())

    def _drop_torn_line(self) -> None:
        """What a crash left of a line that was being written: the round that it was to announce did not happen."""
        if not self._may_end_torn:
            return
        self._may_end_torn = False
        with self.path.open("r+b") as file:
            content = file.read()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                file.truncate(whole)


def _parsed(path: Path, number: int, line: bytes) -> tuple[dict[str, Any], str]:
    try:
        body = json.loads(line)
        return body, str(body.pop("digest"))
    except (ValueError, KeyError, AttributeError, TypeError):
        raise LedgerError(f"{path}: line {number} is damaged; the ledger is refused") from None


def _check_head(path: Path, digests: list[str]) -> None:
    head = _head_of(path)
    if not head.exists():
        if len(digests) <= 1:  # the crash of a start
            return
        raise LedgerError(f"{path}: its head, {head.name}, is missing; the ledger is refused")
    try:
        stored = json.loads(head.read_bytes())
        count, digest = int(stored["lines"]), str(stored["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        raise LedgerError(f"{head}: is damaged; the ledger is refused") from None
    if len(digests) < count:
        raise LedgerError(f"{path}: has {len(digests)} lines where its head counts {count}: it was cut; refused")
    if len(digests) > count + 1 or (count and digests[count - 1] != digest):
        raise LedgerError(f"{path}: does not belong to its head, {head.name}; the ledger is refused")


def _head_of(path: Path) -> Path:
    return path.with_suffix(".head")


def _digest(previous: str, body: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{previous}\n{_text(body)}".encode()).hexdigest()


def _text(body: Mapping[str, Any]) -> str:
    """The one way to write a body: Python's shortest digits bring every number back to the same bits."""
    return json.dumps(dict(body), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
