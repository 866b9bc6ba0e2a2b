"""File formats of datasets: IDX, the format of MNIST (plain, gzip or xz), and NumPy's .npz archives.

Every error is one line that names the file.
"""

from __future__ import annotations

import gzip
import lzma
import math
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from airdistill.errors import AirDistillError, DataError

_MAX_AXES = 8
_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_file(path: Path) -> bytes:
    """The raw content of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def decompress(raw: bytes, path: Path) -> bytes:
    """Decompress a file's content by its suffix; a truncated file is an error."""
    try:
        if path.suffix == ".gz":
            return gzip.decompress(raw)
        if path.suffix == ".xz":
            return lzma.decompress(raw)
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path}: truncated or damaged: {error}") from None
    return raw


def parse_idx(content: bytes, name: str) -> NDArray[np.generic]:
    """Parse the content of an IDX file; `name` is for error messages."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _DTYPES:
        raise DataError(f"{name}: is not an IDX file")
    dtype, num_axes = np.dtype(_DTYPES[content[2]]), content[3]
    header = 4 + 4 * num_axes
    if num_axes > _MAX_AXES:
        raise DataError(f"{name}: is not an IDX file: it claims {num_axes} axes")
    if num_axes == 0 or len(content) < header:
        raise DataError(f"{name}: truncated: its header is incomplete")
    shape = tuple(int(length) for length in np.frombuffer(content, ">u4", num_axes, offset=4))
    expected = header + dtype.itemsize * math.prod(shape)
    if len(content) != expected:
        fault = "truncated" if len(content) < expected else "too long"
        raise DataError(f"{name}: {fault}: {len(content)} bytes, but its header requires {expected}")
    array = np.frombuffer(content, dtype, offset=header).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


Arrays = dict[str, NDArray[np.generic]]


def read_npz(path: Path, choose: Callable[[list[str]], list[str]]) -> Arrays:
    """Read the arrays whose names `choose` returns, given all names; objects are never unpickled."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in choose(list(archive.files))}
    except AirDistillError:
        raise
    except Exception as error:
        # A damaged archive can raise any exception of NumPy, zipfile and zlib.
        raise DataError(f"{path}: truncated, damaged or not an .npz file: {type(error).__name__}: {error}") from None
