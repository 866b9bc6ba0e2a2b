"""Compiling with Numba, kept on disk between runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from numba import config, njit

from airdistill.data.datasets import cache_folder


def _digest() -> str:
    """Of all kernels, for Numba itself looks at the file of a function alone; and of the processor: machines of several
    kinds may share a folder, and the kernels' lanes are not the same on all."""
    features = sorted(name for name, has in llvm.get_host_cpu_features().items() if has)
    chosen = [getattr(config, name, None) for name in ("CPU_NAME", "CPU_FEATURES")]
    digest = hashlib.sha256(repr((llvm.get_host_cpu_name(), features, chosen)).encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


_FOLDER = cache_folder() / f"kernels-{_digest()}"


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
