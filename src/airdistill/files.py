"""Write files atomically, and convert values to what JSON can represent."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

COPIES = "AIRDISTILL_COPIES"  # an environment variable: JSON, from the names of files to where their copies are


def place_of(source: str | Path) -> Path:
    """Return where a file that a scenario names is on this machine; a node of a cluster has a copy of the driver's."""
    copies: dict[str, str] = json.loads(os.environ.get(COPIES, "{}"))
    return Path(copies.get(str(source), source))


def write_whole(target: Path, content: bytes | memoryview, secret: bool = False) -> None:
    """Write a file atomically: a crash or a second writer never leaves a partial file.

    Only the owner can read a `secret` file.
    """
    write_parts(target, [content], secret)


def write_parts(target: Path, parts: Iterable[bytes | memoryview], secret: bool = False) -> None:
    """Write a file atomically, part by part: content that is as large as a fleet is never held as a whole.

    It is written to a temporary file, flushed to the disk and renamed.
    """
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o600 if secret else 0o666 & ~_umask())
        temporary.replace(target)
        _sync_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Flush a folder to the disk; a rename is durable only after that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    """Return the file mode mask of the process, which can be read only by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def jsonable(value: Any, nan_is_null: bool = False) -> Any:
    """Return a value as plain lists and numbers, with None for infinity, and for NaN if that is allowed."""
    if isinstance(value, dict):
        return {key: jsonable(entry, nan_is_null) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return jsonable(value.tolist(), nan_is_null)
    if isinstance(value, (list, tuple)):
        return [jsonable(entry, nan_is_null) for entry in value]
    if isinstance(value, np.generic):
        return jsonable(value.item(), nan_is_null)
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value) and not nan_is_null:
            raise ValueError("a value is not a number")
        return None
    return value


def json_value(content: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Return what JSON text says; `ValueError` if it is not JSON, or has more levels than the interpreter can read.

    `pairs` makes an object from its keys and values, instead of a dictionary.
    """
    try:
        return json.loads(content, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_text(value: Any) -> str:
    """Return indented JSON, for files that people may read."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
