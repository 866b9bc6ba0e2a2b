"""Compiling with Numba, kept on disk between runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import config, njit

from airdistill.data.cache import cache_folder


def _sources_digest() -> str:
    """Of all kernels: Numba itself looks at the file of a function alone, not at those whose functions it calls."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


_FOLDER = cache_folder() / f"kernels-{_sources_digest()}"


def are_compiled() -> bool:
    """Whether an earlier run left the kernels on disk, or part of them."""
    return _FOLDER.is_dir()


def compiled(function: Callable[..., Any]) -> Any:
    """The function as machine code: made when first called, without the interpreter's lock, cached for later runs."""
    settings: Any = config
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(_FOLDER)
    try:
        return njit(nogil=True, cache=True, error_model="numpy")(function)
    finally:
        settings.CACHE_DIR = before
