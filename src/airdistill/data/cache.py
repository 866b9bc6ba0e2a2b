"""Decoded arrays, kept on disk under the digest of the file that they came from.

`AIRDISTILL_CACHE` names the folder; else it lies in the user's cache folder. A cache that cannot be written or
read is never an error: the source is decoded again.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from airdistill.files import write_whole

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    chosen = os.environ.get("AIRDISTILL_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "airdistill"


def decoded_once(source: bytes, decode: Callable[[], NDArray[np.generic]]) -> NDArray[np.generic]:
    """What `decode` makes of a file's content: from the cache if it was made before, else now and cached."""
    entry = cache_folder() / f"{hashlib.sha256(source).hexdigest()}.npy"
    cached = _read(entry)
    if cached is not None:
        return cached
    array = decode()
    _write(entry, array)
    return array


def _read(entry: Path) -> NDArray[np.generic] | None:
    """The cached array if its content still has the digest that was stored beside it."""
    try:
        content = entry.read_bytes()
        if hashlib.sha256(content).hexdigest() != entry.with_suffix(".sha256").read_text():
            logger.warning("%s: damaged, made anew", entry)
            return None
    except OSError:
        return None
    array: NDArray[np.generic] = np.load(io.BytesIO(content), allow_pickle=False)
    return array


def _write(entry: Path, array: NDArray[np.generic]) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest()
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        write_whole(entry.with_suffix(".sha256"), digest.encode())
        write_whole(entry, buffer.getbuffer())
    except OSError as error:
        logger.warning("%s: not cached: %s", entry, error)
