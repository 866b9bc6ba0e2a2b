"""What goes over the wire: flat records of numbers, words and bytes, as one ConfigRecord of Flower holds them.

Arrays go as the bytes of their numbers, whose type and shape both ends know from the plan: nothing is unpickled, and
nothing that a message says of itself is believed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airdistill.errors import AirDistillError

Value = int | float | str | bytes | bool | list[int] | list[float] | list[str] | list[bytes] | list[bool]
Record = dict[str, Value]


class RecordError(AirDistillError):
    """A message that does not say what it should."""


def packed(array: NDArray[Any]) -> bytes:
    """The numbers alone, little-endian, in order."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


def unpacked(record: Mapping[str, Value], name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The array of that name, if its bytes are so many numbers of that type."""
    content, wanted = octets(record, name), np.dtype(dtype).newbyteorder("<")
    size = int(np.prod(shape)) * wanted.itemsize
    if len(content) != size:
        raise RecordError(f"{name} has {len(content)} bytes where {size} were asked: {dtype} of shape {shape}")
    return np.frombuffer(content, wanted).reshape(shape).astype(dtype)


def integer(record: Mapping[str, Value], name: str) -> int:
    value = record.get(name)
    if not isinstance(value, int):
        raise RecordError(f"a message lacks its number {name}")
    return value


def octets(record: Mapping[str, Value], name: str) -> bytes:
    value = record.get(name)
    if not isinstance(value, bytes):
        raise RecordError(f"a message lacks its bytes {name}")
    return value


def by_device(record: Mapping[str, Value], devices_name: str, values_name: str) -> dict[int, bytes]:
    """Two lists of the same length: devices in order, and bytes for each."""
    devices, values = record.get(devices_name), record.get(values_name)
    if not isinstance(values, list) or not all(isinstance(value, bytes) for value in values):
        raise RecordError(f"a message lacks its list {values_name}")
    named = ordered(devices, devices_name)
    if len(named) != len(values):
        raise RecordError(f"a message names {len(named)} {devices_name} for {len(values)} values")
    return {device: value for device, value in zip(named, values, strict=True) if isinstance(value, bytes)}


def ordered(devices: object, name: str) -> list[int]:
    """Device numbers, each once and in order: one set can be written in one way only."""
    if not isinstance(devices, list) or not all(isinstance(device, int) for device in devices):
        raise RecordError(f"a message lacks its list {name}")
    if devices != sorted(set(devices)):
        raise RecordError(f"a message names its {name} twice or out of order")
    return devices


def as_text(record: Mapping[str, Value]) -> str:
    """As JSON, which has no bytes: they are written as {"hex": …}."""
    return json.dumps({name: _written(value) for name, value in record.items()}, sort_keys=True)


def from_text(text: str) -> Record:
    return {name: _read(value) for name, value in json.loads(text).items()}


def digest(record: Mapping[str, Value]) -> str:
    return hashlib.sha256(as_text(record).encode()).hexdigest()


def _written(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return [_written(entry) for entry in value] if isinstance(value, list) else value


def _read(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    return [_read(entry) for entry in value] if isinstance(value, list) else value
