"""CIFAR-10 and CIFAR-100 as they are published: binary or Python archives, unpacked in a folder or as one .tar file.

Python archives are pickles, which can run any code when they are loaded. Here they are read by an unpickler that knows
no other classes than stand-ins for NumPy's arrays, and their operations are checked before they are executed.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import pickletools
import re
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airdistill.data.formats import read_file
from airdistill.errors import DataError

_SIDE, _CHANNELS = 32, 3
_PIXELS = _CHANNELS * _SIDE * _SIDE
_LARGEST_MEMBER = 1 << 28  # bytes; the largest file of the official archives has 186 MB
_GZIP = b"\x1f\x8b"
TAR_SUFFIXES = (".tar.gz", ".tgz", ".tar")

Arrays = dict[str, NDArray[np.generic]]
Decoder = Callable[[bytes, str], tuple[NDArray[np.uint8], NDArray[np.generic]]]


@dataclass(frozen=True)
class _Layout:
    """The names of an archive's files, and how one of them is decoded into images and labels."""

    train: re.Pattern[str]
    test: str
    decode: Decoder

    def fits(self, names: Mapping[str, Any]) -> bool:
        return self.test in names and any(map(self.train.fullmatch, names))


def find_layout(names: Mapping[str, Any]) -> _Layout | None:
    """The layout of an archive with files of these names; None if CIFAR has no such archive."""
    return next((layout for layout in _LAYOUTS if layout.fits(names)), None)


def read_folder(folder: Path) -> Arrays | None:
    """The arrays `x_train`, `y_train`, `x_test`, `y_test` of a folder; None if it has no CIFAR files."""
    paths = {path.name: path for path in folder.iterdir() if path.is_file()}
    layout = find_layout(paths)
    return None if layout is None else _arrays(layout, paths, lambda name: read_file(paths[name]), str(folder))


def read_tar(raw: bytes, path: Path) -> Arrays:
    """The same of a .tar file with content `raw`; nothing is written to disk."""
    try:
        # Decompressed first, which checks the whole file: tarfile takes a damaged entry for the archive's end.
        content = gzip.decompress(raw) if raw.startswith(_GZIP) else raw
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            members = {PurePosixPath(member.name).name: member for member in archive if member.isfile()}
            layout = find_layout(members)
            if layout is None:
                raise DataError(f"{path}: has none of CIFAR's files, such as data_batch_1.bin and test_batch.bin")
            return _arrays(layout, members, lambda name: _content(archive, members[name], path), str(path))
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: truncated, damaged or not a .tar file: {error}") from None


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bytes:
    if member.size > _LARGEST_MEMBER:
        raise DataError(f"{path}: {member.name} has {member.size} bytes, more than any file of CIFAR")
    file = archive.extractfile(member)
    assert file is not None  # a regular file
    return file.read()


def _arrays(layout: _Layout, names: Mapping[str, Any], read: Callable[[str], bytes], source: str) -> Arrays:
    parts = {"train": sorted(filter(layout.train.fullmatch, names)), "test": [layout.test]}
    numbers = sorted(int(number) for name in parts["train"] for number in re.findall(r"_(\d+)", name))
    if numbers != list(range(1, len(numbers) + 1)):
        raise DataError(f"{source}: has the training batches {', '.join(map(str, numbers))}; one is missing")
    arrays: Arrays = {}
    for part, files in parts.items():
        decoded = [layout.decode(read(name), f"{source}: {name}") for name in files]
        arrays[f"x_{part}"] = np.concatenate([images for images, _ in decoded])
        arrays[f"y_{part}"] = np.concatenate([labels for _, labels in decoded])
    return arrays


def _images(rows: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Rows of pixels, channel by channel, as `[image, row, column, channel]`."""
    return np.ascontiguousarray(rows.reshape(-1, _CHANNELS, _SIDE, _SIDE).transpose(0, 2, 3, 1))


def _decode_binary(label_bytes: int) -> Decoder:
    """The decoder of records of `label_bytes` labels, of which the last is the class, and 3072 pixels."""

    def decode(raw: bytes, name: str) -> tuple[NDArray[np.uint8], NDArray[np.generic]]:
        size = label_bytes + _PIXELS
        if len(raw) == 0 or len(raw) % size:
            raise DataError(f"{name}: truncated: {len(raw)} bytes are no multiple of a record's {size}")
        records = np.frombuffer(raw, np.uint8).reshape(-1, size)
        return _images(records[:, label_bytes:]), records[:, label_bytes - 1]

    return decode


def _decode_pickle(label_key: str) -> Decoder:
    """The decoder of a pickled dictionary of `data` `[image, pixel]` and labels under `label_key`."""

    def decode(raw: bytes, name: str) -> tuple[NDArray[np.uint8], NDArray[np.generic]]:
        content = _unpickled(raw, name)
        if not isinstance(content, dict):
            raise DataError(f"{name}: must hold a dictionary, not a {type(content).__name__}")
        named = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in content.items()}
        data, labels = named.get("data"), named.get(label_key)
        images = data.array() if isinstance(data, _Array) else None
        if images is None or images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != _PIXELS:
            raise DataError(f"{name}: must have an array data of bytes, [image, {_PIXELS}]")
        if not isinstance(labels, list) or len(labels) != len(images) or {type(label) for label in labels} - {int}:
            rule = f"must have a list {label_key} of one whole number for each of {len(images)} images"
            raise DataError(f"{name}: {rule}")
        return _images(images.astype(np.uint8, copy=False)), np.array(labels)

    return decode


_LAYOUTS = (
    _Layout(re.compile(r"data_batch_\d+\.bin"), "test_batch.bin", _decode_binary(1)),
    _Layout(re.compile(r"train\.bin"), "test.bin", _decode_binary(2)),
    _Layout(re.compile(r"data_batch_\d+"), "test_batch", _decode_pickle("labels")),
    _Layout(re.compile(r"train"), "test", _decode_pickle("fine_labels")),
)

# What a pickle of dictionaries, lists, texts, numbers and arrays consists of, in all protocols. Persistent objects,
# extension codes and classes with arguments of their own (INST, OBJ, NEWOBJ) are not among it.
_OPERATIONS = frozenset(
    re.findall(
        r"\w+",
        """
        PROTO FRAME STOP MARK POP POP_MARK DUP
        NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT
        STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8
        UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8
        EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS
        PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD
        """,
    )
)
_TYPES = {"u1", "i1", "i2", "i4", "i8"}
_MOST_AXES = 2


def _unpickled(raw: bytes, name: str) -> Any:
    """The content of a pickle of arrays and plain values; anything else is refused before it is executed."""
    try:
        for operation, argument, _ in pickletools.genops(raw):
            if operation.name not in _OPERATIONS:
                raise DataError(f"is refused: a dataset's pickle has no operation {operation.name}")
            if operation.name.endswith("PUT") and int(argument or 0) > len(raw):
                raise DataError(f"is refused: it asks for memory for {argument} objects")
        return _ArrayUnpickler(io.BytesIO(raw), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except Exception as error:  # a damaged pickle can raise any exception
        raise DataError(f"{name}: truncated, damaged or not a pickle: {type(error).__name__}: {error}") from None


class _StandIn:
    """What a pickle gets in place of one of NumPy's functions or classes: it can only be called and given a state."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise DataError(f"is refused: {type(self).__name__} with a state of type {type(state).__name__}")


class _ArrayClass(_StandIn):
    """In place of `numpy.ndarray`, which is only named."""

    __slots__ = ()


class _Type(_StandIn):
    """In place of `numpy.dtype`: whole numbers of a given size, and their byte order."""

    __slots__ = ("code",)

    def __init__(self, code: bytes | str, *_: object) -> None:
        text = code.decode("latin1") if isinstance(code, bytes) else code
        if text not in _TYPES:
            raise DataError(f"is refused: arrays of {str(text)[:20]!r}; a dataset has whole numbers")
        self.code = text

    def __setstate__(self, state: object) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else b"|"
        self.code = ("<" if order in (b"<", "<") else ">" if order in (b">", ">") else "|") + self.code[-2:]


class _Array(_StandIn):
    """In place of the function that NumPy's arrays are pickled with: keeps type, shape and bytes."""

    __slots__ = ("_content", "_shape", "_type")

    def __init__(self, *_: object) -> None:
        self._type, self._shape, self._content = "u1", (0,), b""

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise DataError("is refused: an array with an unknown state")
        _, shape, kind, is_fortran, content = state
        whole = isinstance(shape, tuple) and len(shape) <= _MOST_AXES and all(type(n) is int and n >= 0 for n in shape)
        if not whole or not isinstance(kind, _Type) or is_fortran or not isinstance(content, bytes):
            raise DataError("is refused: an array that is not one or two axes of whole numbers in row-major order")
        if len(content) != np.dtype(kind.code).itemsize * math.prod(shape):
            raise DataError(f"truncated: {len(content)} bytes for an array of shape {shape}")
        self._type, self._shape, self._content = kind.code, shape, content

    def array(self) -> NDArray[np.generic]:
        """The array."""
        return np.frombuffer(self._content, self._type).reshape(self._shape)


class _Bytes(_StandIn):
    """In place of `_codecs.encode`, by which newer versions of Python write bytes in old protocols."""

    __slots__ = ()

    def __new__(cls, text: str, encoding: str = "latin1") -> bytes:  # type: ignore[misc]
        if encoding not in ("latin1", b"latin1"):
            raise DataError("is refused: bytes in an encoding other than latin1")
        return text.encode("latin1")


_KNOWN: dict[tuple[str, str], type[_StandIn]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _ArrayClass,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _Bytes,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[_StandIn]:
        known = _KNOWN.get((module, name))
        if known is None:
            raise DataError(f"is refused: it names {module}.{name}, and only NumPy's arrays may be in it")
        return known
