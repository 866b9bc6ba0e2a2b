"""Files that are either whole or not there.

Values as JSON can carry them: lists for arrays, null for infinite.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np


def write_whole(target: Path, content: bytes | memoryview, secret: bool = False) -> None:
    """Writes aside, flushes to the disk and renames, so that a crash or a second writer leaves nothing half made.

    What is secret only its owner can read.
    """
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    aside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.chmod(0o600 if secret else 0o666 & ~_umask())
        aside.replace(target)
        _sync_folder(target.parent)
    finally:
        aside.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """A rename is on the disk only when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    """The process's file mask, which can be read only by setting it; temporary files are private by default."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def jsonable(value: Any, nan_is_null: bool = False) -> Any:
    """The same with plain lists and numbers. NaN is an error unless it, too, has a meaning where it stands."""
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
            raise ValueError("a value is no number")
        return None
    return value


def json_text(value: Any) -> str:
    """Indented, for files that people may read."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
