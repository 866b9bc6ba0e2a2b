"""File formats of datasets: IDX, the format of MNIST (plain, gzip or xz), NumPy's .npz and .npy files, and CSV.

Every error is one line that names the file.
"""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import math
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from airdistill.errors import AirDistillError, DataError

_MAX_AXES = 8
_LABEL = "label"  # the column of labels in a CSV file
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


def read_npz(path: Path, choose: Callable[[list[str]], list[str]], arrays: str = "x_train=…, …") -> Arrays:
    """Read the arrays whose names `choose` returns, given all names; objects are never unpickled.

    `arrays` are those that a sound file has, for the message about another one.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in choose(list(archive.files))}
    except AirDistillError:
        raise
    except Exception as error:
        raise DataError(f"{path}: {_damage(error, '.npz', f'numpy.savez(file, {arrays})')}") from None


def _damage(error: Exception, suffix: str, saved_by: str) -> str:
    """What is wrong with a file of NumPy, in words; damage can raise any exception of NumPy, zipfile and zlib."""
    text = str(error)
    if "Object arrays" in text:
        return "has an array of Python objects, which are never loaded; store numbers, or texts as dtype str"
    if "pickle" in text:
        return f"is not a {suffix} file; write it with {saved_by}"
    return f"truncated, damaged or not a {suffix} file ({type(error).__name__}); write it again with {saved_by}"


def read_npy(path: Path) -> NDArray[np.generic]:
    """Read a .npy file; objects are never unpickled."""
    raw = read_file(path)
    try:
        return np.asarray(np.lib.format.read_array(io.BytesIO(raw), allow_pickle=False))
    except Exception as error:
        raise DataError(f"{path}: {_damage(error, '.npy', 'numpy.save(file, samples)')}") from None


def read_csv(path: Path) -> tuple[NDArray[np.float64], list[str] | None]:
    """Read samples `[sample, feature]` and the texts in the column `label`, if there is one.

    The first line names the columns; all others but `label` hold numbers.
    """
    try:
        lines = list(csv.reader(io.StringIO(read_file(path).decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: is not a CSV file in UTF-8: {error}") from None
    rows = [(number, line) for number, line in enumerate(lines, start=1) if line]
    if len(rows) < 2:
        raise DataError(f"{path}: must have a first line with the columns' names, and samples below it")
    names = [name.strip() for name in rows[0][1]]
    if names.count(_LABEL) > 1 or names == [_LABEL] or all(map(_is_number, names)):
        rule = f"its first line must name the columns, with at most one {_LABEL} and with features"
        raise DataError(f"{path}: {rule}; it is {', '.join(names)[:80]}")
    for number, line in rows[1:]:
        if len(line) != len(names):
            raise DataError(f"{path}, line {number}: has {len(line)} entries; the first line names {len(names)}")
    features = [place for place, name in enumerate(names) if name != _LABEL]
    samples = np.array([_numbers(line, features, names, path, number) for number, line in rows[1:]], dtype=np.float64)
    if _LABEL not in names:
        return samples, None
    return samples, [line[names.index(_LABEL)].strip() for _, line in rows[1:]]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(line: list[str], places: list[int], names: list[str], path: Path, number: int) -> list[float]:
    try:
        return [float(line[place]) for place in places]
    except ValueError:
        place = next(place for place in places if not _is_number(line[place]))
        rule = f"must be a number, not {line[place]!r}; only the column {_LABEL} may hold texts"
        if len(names) == 1 and any(sign in names[0] for sign in ";\t"):
            rule = "has no comma; columns must be separated by commas"
        raise DataError(f"{path}, line {number}: column {names[place]} {rule}") from None
