"""The wire format: flat records of numbers, strings and bytes, each of which fits one ConfigRecord of Flower.

An array is sent as the bytes of its numbers. Both ends know its type and shape from the plan: nothing is unpickled, and
no description inside a message is trusted.
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
    """A message lacks a field, or a field has the wrong type or size."""


def packed(array: NDArray[Any]) -> bytes:
    """The numbers of an array as little-endian bytes, in C order."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


def unpacked(record: Mapping[str, Value], name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Read the array of that name; raise if its bytes do not have the size of the type and shape."""
    content, wanted = octets(record, name), np.dtype(dtype).newbyteorder("<")
    size = int(np.prod(shape)) * wanted.itemsize
    if len(content) != size:
        raise RecordError(f"{name} has {len(content)} bytes; {dtype} of shape {shape} needs {size}")
    return np.frombuffer(content, wanted).reshape(shape).astype(dtype)


def integer(record: Mapping[str, Value], name: str) -> int:
    value = record.get(name)
    if not isinstance(value, int):
        raise RecordError(f"a message lacks the integer {name}")
    return value


def octets(record: Mapping[str, Value], name: str) -> bytes:
    value = record.get(name)
    if not isinstance(value, bytes):
        raise RecordError(f"a message lacks the bytes {name}")
    return value


def by_device(record: Mapping[str, Value], devices_name: str, values_name: str) -> dict[int, bytes]:
    """Read two lists of the same length, devices in ascending order and bytes for each, as a mapping."""
    devices, values = record.get(devices_name), record.get(values_name)
    if not isinstance(values, list) or not all(isinstance(value, bytes) for value in values):
        raise RecordError(f"a message lacks the list of bytes {values_name}")
    named = ordered(devices, devices_name)
    if len(named) != len(values):
        raise RecordError(f"a message has {len(named)} {devices_name} for {len(values)} values")
    return {device: value for device, value in zip(named, values, strict=True) if isinstance(value, bytes)}


def ordered(devices: object, name: str) -> list[int]:
    """Read device numbers, each once and in ascending order, and so a set has only one encoding."""
    if not isinstance(devices, list) or not all(isinstance(device, int) for device in devices):
        raise RecordError(f"a message lacks the list of integers {name}")
    if devices != sorted(set(devices)):
        raise RecordError(f"a message lists {name} twice or out of order")
    return devices


def as_text(record: Mapping[str, Value]) -> str:
    """The record as JSON; bytes are written as {"hex": …}."""
    return json.dumps({name: _to_json(value) for name, value in record.items()}, sort_keys=True)


def from_text(text: str) -> Record:
    return {name: _from_json(value) for name, value in json.loads(text).items()}


def digest(record: Mapping[str, Value]) -> str:
    return hashlib.sha256(as_text(record).encode()).hexdigest()


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return [_to_json(entry) for entry in value] if isinstance(value, list) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    return [_from_json(entry) for entry in value] if isinstance(value, list) else value
