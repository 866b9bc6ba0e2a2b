"""Compilation by Numba with a cache on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from numba import config, njit

from airdistill.data.datasets import cache_folder


def _digest() -> str:
    """A digest of all kernels and of the processor.

    Numba's own cache key covers only the file of a function, and not the files of the functions that it calls. Machines
    of different types may share a cache folder, and the number of SIMD lanes depends on the processor.
    """
    features = sorted(name for name, has in llvm.get_host_cpu_features().items() if has)
    chosen = [getattr(config, name, None) for name in ("CPU_NAME", "CPU_FEATURES")]
    digest = hashlib.sha256(repr((llvm.get_host_cpu_name(), features, chosen)).encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


_FOLDER = cache_folder() / f"kernels-{_digest()}"


def are_compiled() -> bool:
    """Whether an earlier run has cached the kernels, or some of them."""
    return _FOLDER.is_dir()


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call, without the global interpreter lock, and cache it on disk."""
    settings: Any = config
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(_FOLDER)
    try:
        return njit(nogil=True, cache=True, error_model="numpy")(function)
    finally:
        settings.CACHE_DIR = before
