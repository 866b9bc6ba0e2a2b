"""A file of JSON lines that can only grow: each line's digest covers all lines before it.

A second, small file, the head, holds a number of lines and the digest of the last of them, so that lines missing at
the end are noticed too. A line counts once it is on the disk; the head follows it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from airdistill.errors import AirDistillError
from airdistill.files import write_whole

_START = hashlib.sha256(b"airdistill ledger").hexdigest()
Body = dict[str, Any]


class LedgerError(AirDistillError):
    """A ledger that cannot be trusted, or cannot be gone on with."""


class Chain:
    """One file. What its lines say is read when asked for, and not kept: a ledger may be larger than the memory."""

    def __init__(self, path: Path, digests: list[str], last: Body) -> None:
        self.path, self.last, self._digests = path, last, digests
        self._may_end_torn = True

    @classmethod
    def begin(cls, path: Path, body: Mapping[str, Any], after: Chain | None = None, num_lines: int = 0) -> Chain:
        """A new file with this line, after the first lines of another if given. It is there whole or not at all, and
        takes the place of what was there."""
        aside = path.with_suffix(".new")
        aside.unlink(missing_ok=True)
        digests: list[str] = []
        if after is not None:
            shutil.copyfile(after.path, aside)
            lines = itertools.islice(_whole_lines(aside), num_lines)
            os.truncate(aside, sum(len(line) + 1 for line in lines))
            digests = after._digests[:num_lines]
        chain = cls(aside, digests, {})
        chain._write(body)
        aside.replace(path)
        chain.path = path
        chain._write_head()
        return chain

    @classmethod
    def read(cls, path: Path, see: Callable[[Body], None] | None = None) -> Chain:
        """The file as it is, if nobody has edited, cut or reordered it; `see` is shown what every line says."""
        # The head first: a run that goes on meanwhile adds lines, and then a newer head.
        count, head_digest = _read_head(path)
        digests: list[str] = []
        last: Body = {}
        previous = _START
        for number, line in enumerate(_whole_lines(path), start=1):
            last, digest = _parsed(path, number, line)
            if digest != _digest(previous, last):
                raise LedgerError(f"{path}: line {number} was edited, or is not in its place; the ledger is refused")
            digests.append(digest)
            previous = digest
            if see is not None:
                see(last)
        if len(digests) < count:
            raise LedgerError(f"{path}: has {len(digests)} lines where its head counts {count}: it was cut; refused")
        if digests[count - 1] != head_digest:
            raise LedgerError(f"{path}: does not belong to its head; the ledger is refused")
        return cls(path, digests, last)

    def bodies(self) -> Iterator[Body]:
        """What the lines say that were there when the file was read, one after the other."""
        for number, line in enumerate(_whole_lines(self.path), start=1):
            if number > len(self._digests):
                return
            yield _parsed(self.path, number, line)[0]

    @property
    def num_lines(self) -> int:
        return len(self._digests)

    @property
    def digest(self) -> str:
        """Of everything so far."""
        return self.digest_at(self.num_lines)

    def digest_at(self, num_lines: int) -> str:
        return self._digests[num_lines - 1] if num_lines else _START

    def append(self, body: Mapping[str, Any]) -> None:
        """Adds a line and returns when it is on the disk."""
        self._write(body)
        self._write_head()

    def _write(self, body: Mapping[str, Any]) -> None:
        self._drop_torn_line()
        digest = _digest(self.digest, body)
        with self.path.open("ab") as file:
            file.write((_text({**body, "digest": digest}) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        self._digests.append(digest)
        self.last = dict(body)

    def _write_head(self) -> None:
        write_whole(_head_of(self.path), _text({"lines": self.num_lines, "digest": self.digest}).encode())

    def _drop_torn_line(self) -> None:
        """What a crash left of a line that was being written: the round that it was to announce did not happen."""
        if not self._may_end_torn or not self.path.exists():
            return
        self._may_end_torn = False
        whole = sum(len(line) + 1 for line in _whole_lines(self.path))
        os.truncate(self.path, whole)


def ends_with(path: Path, kind: str) -> bool:
    """Whether the last line of a file is of that kind; not if there is none that could be read."""
    try:
        return bool(json.loads(path.read_bytes().splitlines()[-1])["kind"] == kind)
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return False


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Lines with an end; what a crash left of a last one was never sent, and does not count."""
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line[:-1]
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror}") from None


def _parsed(path: Path, number: int, line: bytes) -> tuple[Body, str]:
    try:
        body = json.loads(line)
        digest = str(body.pop("digest"))
        if _text({**body, "digest": digest}).encode() != line:
            raise ValueError("not as it is written")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise LedgerError(f"{path}: line {number} is damaged; the ledger is refused") from None
    return body, digest


def _read_head(path: Path) -> tuple[int, str]:
    head = _head_of(path)
    if not head.exists():
        raise LedgerError(f"{path}: its head, {head.name}, is missing; the ledger is refused")
    try:
        stored = json.loads(head.read_bytes())
        count, digest = stored["lines"], stored["digest"]
        if not (isinstance(count, int) and count >= 1 and isinstance(digest, str)):
            raise ValueError("no number of lines")
    except (OSError, ValueError, KeyError, TypeError):
        raise LedgerError(f"{head}: is damaged; the ledger is refused") from None
    return count, digest


def _head_of(path: Path) -> Path:
    return path.with_suffix(".head")


def _digest(previous: str, body: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{previous}\n{_text(body)}".encode()).hexdigest()


def digest_of_body(body: Mapping[str, Any]) -> str:
    """Of what one line says, wherever it stands."""
    return hashlib.sha256(_text(body).encode()).hexdigest()


def _text(body: Mapping[str, Any]) -> str:
    """The one way to write a body: Python's shortest digits bring every number back to the same bits."""
    return json.dumps(dict(body), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
