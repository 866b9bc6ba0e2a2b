"""Groups of identical devices, and columns of numbers as text: what format 2 of ledgers and certificates is made of.

Devices are identical if all their numbers agree to the last bit. Whatever is computed of each device separately is then
computed once for each group, with the same result.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from airdistill.arrays import FloatArray, IntArray

_AT_ONCE = 4096  # devices that are compared at once: their numbers fit a processor's cache
_SAMPLE = 4096  # devices in which no two alike are taken for a fleet in which all differ
_MOST_DEVICES = 10**7  # that a file is believed to have


@dataclass(frozen=True, eq=False)
class Groups:
    """A partition of devices. Groups are numbered in the order of their first devices.

    `first` is the first device of each group, `[group]`, and `index` the group of each device, `[device]`; None if
    every device is a group of its own.
    """

    num_devices: int
    first: IntArray
    index: IntArray | None

    @classmethod
    def alone(cls, num_devices: int) -> Groups:
        return cls(num_devices, np.arange(num_devices), None)

    @classmethod
    def of(cls, arrays: Sequence[FloatArray], guess: Groups | None = None) -> Groups:
        """The groups of devices that are identical in all arrays `[device, ...]`.

        A `guess` that does not mix different devices is taken as it is. If groups would save little, all are alone.
        """
        num_devices = len(arrays[0])
        bits = [_bits(array) for array in arrays if array.strides[0] != 0]
        if guess is not None and guess.index is not None and all(guess._is_uniform(each) for each in bits):
            return guess
        sample = slice(None, None, max(1, num_devices // _SAMPLE))
        sampled = _hashed([each[sample] for each in bits], len(range(num_devices)[sample]))
        if num_devices > 1 and len(np.unique(sampled)) == len(sampled):
            return cls.alone(num_devices)
        made = cls._numbered(_hashed(bits, num_devices))
        # Different devices may have the same hash: very rarely, and they are never taken for one.
        return made if made.index is None or all(made._is_uniform(each) for each in bits) else cls.alone(num_devices)

    @classmethod
    def _numbered(cls, labels: IntArray) -> Groups:
        """The groups of equal labels `[device]`."""
        _, first, index = np.unique(labels, return_index=True, return_inverse=True)
        if 2 * len(first) > len(labels) > 1:
            return cls.alone(len(labels))
        order = np.argsort(first)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return cls(len(labels), first[order], place[index])

    @property
    def num_groups(self) -> int:
        return len(self.first)

    @property
    def sizes(self) -> IntArray:
        """The number of devices in each group, `[group]`."""
        return np.ones(self.num_groups, dtype=np.int64) if self.index is None else np.bincount(self.index)

    def of_device(self, device: int) -> int:
        """The group of a device."""
        return device if self.index is None else int(self.index[device])

    def expand(self, values: Any) -> Any:
        """Values of groups `[group, ...]` as those of devices, `[device, ...]`."""
        return values if self.index is None else values[self.index]

    def joined(self, other: Groups) -> tuple[Groups, IntArray | None, IntArray | None]:
        """The coarsest groups that mix no groups of either, and of each of them its group here and there, `[group]`;
        None for the same groups."""
        if self is other or (self.index is None and other.index is None):
            return self, None, None
        if self.index is None or other.index is None:
            return (self, None, other.index) if self.index is None else (other, self.index, None)
        if np.array_equal(self.index, other.index):
            return self, None, None
        made = Groups._numbered(self.index * other.num_groups + other.index)
        if made.num_groups == self.num_groups:
            return self, None, other.index[self.first]
        return made, self.index[made.first], other.index[made.first]

    def _is_uniform(self, bits: Any) -> bool:
        """Whether no group mixes devices that differ in these bits, `[device, number]`."""
        assert self.index is not None
        kinds = bits[self.first]
        starts = range(0, self.num_devices, _AT_ONCE)
        parts = (slice(start, start + _AT_ONCE) for start in starts)
        return all(np.array_equal(kinds[self.index[part]], bits[part]) for part in parts)

    def to_dict(self) -> dict[str, Any]:
        """JSON values: numbers of devices and of groups, and each device's group as packed unsigned integers."""
        index = None if self.index is None else _packed(self.index.astype(_index_type(self.num_groups)))
        return {"devices": self.num_devices, "groups": self.num_groups, "group_of_device": index}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], num_devices: int | None = None) -> Groups:
        """What `to_dict` wrote; `ValueError` unless every device is in exactly one group, and no group is empty."""
        only_keys(stored, {"devices", "groups", "group_of_device"}, "groups")
        devices, groups = (whole_number(stored[name], name) for name in ("devices", "groups"))
        if devices > _MOST_DEVICES or devices != (num_devices or devices):
            raise ValueError(f"devices is {devices}: must be {num_devices or f'at most {_MOST_DEVICES}'}")
        if stored["group_of_device"] is None:
            if groups != devices:
                raise ValueError(f"groups: {groups} of {devices} devices, and nothing says which device is in which")
            return cls.alone(devices)
        index = _unpacked(stored["group_of_device"], _index_type(groups), devices, "group_of_device").astype(np.int64)
        if index.max() >= groups:
            device = int(np.argmax(index >= groups))
            raise ValueError(f"group_of_device: device {device} is in group {index[device]} of {groups}")
        present, first = np.unique(index, return_index=True)
        if len(present) != groups:
            raise ValueError(f"group_of_device: {groups - len(present)} of {groups} groups have no device")
        if (np.diff(first) < 0).any():
            raise ValueError("group_of_device: groups must be numbered in the order of their first devices")
        return cls(devices, first, index)


def over_distinct(convert: Callable[..., FloatArray], *columns: FloatArray) -> FloatArray:
    """`convert` of columns `[device]`, computed once for devices that agree in all of them, not too many at once."""
    groups = Groups.of(columns)
    firsts = [groups.first[start : start + _AT_ONCE] for start in range(0, groups.num_groups, _AT_ONCE)]
    return np.asarray(groups.expand(np.concatenate([convert(*(each[part] for each in columns)) for part in firsts])))


def column(array: FloatArray) -> dict[str, Any]:
    """Numbers `[group, row]` as JSON values, to the last bit; what all groups or all rows share is written once."""
    for axis in range(array.ndim):
        once = array.take([0], axis)
        few = array.take(range(min(2, array.shape[axis])), axis)  # most columns that vary do so at once
        if (few == once).all() and (array == once).all():
            array = once
    return {"shape": list(array.shape), "float64": _packed(np.ascontiguousarray(array, dtype="<f8"))}


def numbers_of(stored: Any, shape: tuple[int, ...], name: str) -> FloatArray:
    """What `column` wrote of an array of this shape; `ValueError` naming the column if it cannot be one."""
    if not isinstance(stored, Mapping):
        raise ValueError(f"{name}: must be a column with shape and float64")
    only_keys(stored, {"shape", "float64"}, name)
    written = stored["shape"]
    if not isinstance(written, list) or len(written) != len(shape):
        raise ValueError(f"{name}: shape must have {len(shape)} numbers")
    if any(type(have) is not int or have not in (1, want) for have, want in zip(written, shape, strict=True)):
        raise ValueError(f"{name}: shape is {written}, and must be {list(shape)}, or 1 for what is all the same")
    numbers = _unpacked(stored["float64"], "<f8", int(np.prod(written)), f"{name}: float64")
    return np.broadcast_to(numbers.astype(np.float64, copy=False).reshape(written), shape)


def whole_number(value: Any, name: str) -> int:
    """A positive integer; `ValueError` for anything else."""
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} is {value!r}: must be a whole number of at least 1")
    return value


def only_keys(stored: Mapping[str, Any], keys: set[str], name: str) -> None:
    if not isinstance(stored, Mapping) or set(stored) != keys:
        raise ValueError(f"{name}: must have {', '.join(sorted(keys))}, and nothing else")


def _index_type(num_groups: int) -> str:
    """The smallest unsigned integers that number so many groups."""
    return next((kind for kind, most in (("<u1", 2**8), ("<u2", 2**16)) if num_groups <= most), "<u4")


def _packed(array: Any) -> str:
    return base64.b64encode(array).decode("ascii")


def _unpacked(text: Any, kind: str, count: int, name: str) -> Any:
    """The numbers in a text of base64; `ValueError` unless there are exactly so many."""
    if not isinstance(text, str):
        raise ValueError(f"{name}: must be a text of base64")
    try:
        content = base64.b64decode(text.encode("ascii"), validate=True)
    except ValueError:
        raise ValueError(f"{name}: is not base64") from None
    wanted = count * np.dtype(kind).itemsize
    if len(content) != wanted:
        raise ValueError(f"{name}: has {len(content)} bytes, and must have {wanted}")
    return np.frombuffer(content, dtype=kind)


def _bits(array: FloatArray) -> Any:
    """The bits of numbers `[device, ...]` as unsigned integers `[device, number]`, those of a repeated row once."""
    flat = array[:, None] if array.ndim == 1 else array
    once = flat[:, :1] if flat.strides[1] == 0 else flat
    return np.ascontiguousarray(once, dtype=np.float64).view(np.uint64)


def _hashed(bits: Sequence[Any], num_devices: int) -> Any:
    """A number of every device from its bits, `[device]`: the same for devices that are identical."""
    made = np.zeros(num_devices, dtype=np.uint64)
    for number, each in enumerate(bits):
        made += each @ _factors(number, each.shape[1])
    return made


@lru_cache(maxsize=256)
def _factors(number: int, length: int) -> Any:
    """Random odd numbers."""
    return np.random.default_rng(number).integers(2**64, size=length, dtype=np.uint64) | np.uint64(1)
