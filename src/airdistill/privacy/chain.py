"""An append-only file of JSON lines, chained by digests: the digest of each line covers all lines before it.

A second, small file, the head, holds the number of lines and the digest of the last one, and so lines missing at the
end are detected too. A line counts once it is on disk; the head is updated after it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airdistill.errors import AirDistillError
from airdistill.files import json_value, write_whole

_OPENING = b'{"kind":"opening",'
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_LONG, _PLACE = 1000, "\0"  # letters of a long text, and what stands in its place
_START = hashlib.sha256(b"airdistill ledger").hexdigest()
Body = dict[str, Any]


class LedgerError(AirDistillError):
    """A ledger that cannot be trusted, or to which nothing can be appended."""


class Chain:
    """One file. Only the digests are kept in memory, not the lines: a ledger may be larger than the memory."""

    def __init__(self, path: Path, digests: list[str], last: Body) -> None:
        self.path, self.last, self._digests = path, last, digests
        self._may_end_torn = True

    @classmethod
    def begin(cls, path: Path, body: Mapping[str, Any], after: Chain | None = None, num_lines: int = 0) -> Chain:
        """Create a file with this line, after the first `num_lines` lines of another file if given.

        The file is created atomically and replaces any previous one.
        """
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
    def read(cls, path: Path, see: Callable[[Body], None] | None = None, check_head: bool = True) -> Chain:
        """Read the file and pass every body to `see`; `LedgerError` if lines were edited, moved or removed.

        A caller that knows the digest of the whole file from elsewhere need not have the head.
        """
        # The head is read first: a run in progress appends lines before it updates the head.
        count, head_digest = _read_head(path) if check_head else (0, "")
        digests: list[str] = []
        last: Body = {}
        previous = _START
        for number, line in enumerate(_whole_lines(path), start=1):
            last, digest, text = _parsed(path, number, line)
            if digest != _digest(previous, text):
                raise LedgerError(f"{path}: line {number} was edited or moved; the ledger is rejected")
            digests.append(digest)
            previous = digest
            if see is not None:
                with readable(path, number):
                    see(last)
        if len(digests) < count:
            raise LedgerError(f"{path}: has {len(digests)} of {count} lines; the others were removed; it is rejected")
        if check_head and digests[count - 1] != head_digest:
            raise LedgerError(f"{path}: does not match its head; the ledger is rejected")
        return cls(path, digests, last)

    def bodies(self) -> Iterator[Body]:
        """The bodies of the lines known to this object, in order; lines appended by others since are left out."""
        for number, line in enumerate(_whole_lines(self.path), start=1):
            if number > len(self._digests):
                return
            yield _parsed(self.path, number, line)[0]

    @property
    def num_lines(self) -> int:
        return len(self._digests)

    @property
    def digest(self) -> str:
        """Digest of all lines so far."""
        return self.digest_at(self.num_lines)

    def digest_at(self, num_lines: int) -> str:
        """Digest of the first lines."""
        return self._digests[num_lines - 1] if num_lines else _START

    def __contains__(self, digest: str) -> bool:
        """Whether this is the digest of any of its lines, and so of all lines before it."""
        return digest in self._digests

    def append(self, body: Mapping[str, Any]) -> None:
        """Append a line; return once it is on disk."""
        self._write(body)
        self._write_head()

    def _write(self, body: Mapping[str, Any]) -> None:
        self._drop_torn_line()
        text = _text(body)
        digest = _digest(self.digest, text)
        with self.path.open("ab") as file:
            file.write(_with_digest(text, digest) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._digests.append(digest)
        self.last = dict(body)

    def _write_head(self) -> None:
        write_whole(_head_of(self.path), _text({"lines": self.num_lines, "digest": self.digest}))

    def _drop_torn_line(self) -> None:
        """Remove a partial last line, left by a crash: the round that it was to announce did not happen."""
        if not self._may_end_torn or not self.path.exists():
            return
        self._may_end_torn = False
        whole = sum(len(line) + 1 for line in _whole_lines(self.path))
        os.truncate(self.path, whole)


def headers_in(path: Path, check_head: bool = True) -> list[tuple[int, Body]]:
    """The headers of all runs in a ledger with the numbers of their lines; other lines are skipped, none is verified.

    If there are none, `LedgerError` says what is wrong with the file.
    """
    if check_head:
        _read_head(path)
    lines = enumerate(_whole_lines(path), start=1)
    found = [(number, _parsed(path, number, line)[0]) for number, line in lines if line.startswith(_OPENING)]
    if not found:
        Chain.read(path, None, check_head)
        raise LedgerError(f"{path}: is not a ledger: it has no header")
    return found


@contextmanager
def readable(path: Path, number: int) -> Iterator[None]:
    """Raise `LedgerError` for what in a line cannot be understood."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, OverflowError, MemoryError) as error:
        problem = f"it has no {error}" if isinstance(error, KeyError) else error
        raise LedgerError(f"{path}: is not a ledger: line {number}: {problem}") from None


def ends_with(path: Path, kind: str) -> bool:
    """Whether the last line of a file is of this kind; False if it cannot be read."""
    try:
        return bool(json_value(path.read_bytes().splitlines()[-1])["kind"] == kind)
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return False


def digest_before_last(path: Path) -> str | None:
    """The digest that a file's last line follows, even if its head is missing; None if it has no other line."""
    lines = list(_whole_lines(path))
    return _parsed(path, len(lines) - 1, lines[-2])[1] if len(lines) > 1 else None


def counted_lines(path: Path) -> int:
    """The number of lines that the head of a file counts, whether the file is there or not; 0 without a valid head."""
    try:
        return _read_head(path)[0]
    except LedgerError:
        return 0


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Lines that end in a newline; a partial last line, left by a crash, does not count."""
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line[:-1]
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror}") from None


def _parsed(path: Path, number: int, line: bytes) -> tuple[Body, str, bytes]:
    """The body of a line, its digest, and the body's text."""
    try:
        body = json_value(line)
        digest = str(body.pop("digest"))
        text = _text(body)
        if _with_digest(text, digest) != line:
            raise ValueError("not in canonical form")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise LedgerError(f"{path}: line {number} is damaged; the ledger is rejected") from None
    return body, digest, text


def _read_head(path: Path) -> tuple[int, str]:
    head = _head_of(path)
    if not head.exists():
        raise LedgerError(f"{path}: its head, {head.name}, is missing; the ledger is rejected")
    try:
        stored = json_value(head.read_bytes())
        count, digest = stored["lines"], stored["digest"]
        if not (isinstance(count, int) and count >= 1 and isinstance(digest, str)):
            raise ValueError("invalid number of lines or digest")
    except (OSError, ValueError, KeyError, TypeError):
        raise LedgerError(f"{head}: is damaged; the ledger is rejected") from None
    return count, digest


def _head_of(path: Path) -> Path:
    return path.with_suffix(".head")


def _digest(previous: str, text: bytes) -> str:
    made = hashlib.sha256(f"{previous}\n".encode())
    made.update(text)
    return made.hexdigest()


def _with_digest(text: bytes, digest: str) -> bytes:
    """The line of a body's text: a body has at least its kind."""
    return text[:-1] + b"," + _text({"digest": digest})[1:]


def digest_of_body(body: Mapping[str, Any]) -> str:
    """Digest of one body alone, independent of its position in a chain."""
    return hashlib.sha256(_text(body)).hexdigest()


def _text(body: Mapping[str, Any]) -> bytes:
    """The canonical JSON text of a body: Python's shortest digits restore every number bit for bit.

    The encoder looks at every letter of a text. Long columns in base64 need no escapes: they are put in after it.
    """
    columns: list[bytes] = []
    pieces = _encoded(_without_columns(body, columns)).split(_encoded(_PLACE))
    if len(pieces) != len(columns) + 1:  # some other text is like the one that keeps their places
        return _encoded(body)
    put_in = [b"", *(b'"' + column + b'"' for column in columns)]
    return b"".join(part for pair in zip(put_in, pieces, strict=True) for part in pair)


def _encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _without_columns(value: Any, found: list[bytes]) -> Any:
    """The value with long texts of base64 moved to `found`, in order."""
    if isinstance(value, Mapping):
        return {name: _without_columns(each, found) for name, each in value.items()}
    if not (isinstance(value, str) and len(value) >= _LONG and value.isascii()):
        return value
    content = value.encode()
    if content.translate(None, _BASE64):
        return value
    found.append(content)
    return _PLACE
