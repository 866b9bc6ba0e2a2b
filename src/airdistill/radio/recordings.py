"""Recordings of baseband samples in the SigMF format: a `.sigmf-data` file of samples, a `.sigmf-meta` file about it.

The extension `airdistill` of the metadata holds what decoding needs, all of it public: the grid, how many numbers there
are, the server's scale. It holds no seed from which noise could be drawn, and nothing of a single device. A file is the
same whenever it is written: it has a date only if one is given.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from airdistill import __version__
from airdistill.arrays import ComplexArray, FloatArray
from airdistill.channel.waveform import Grid
from airdistill.errors import AirDistillError, Described, InputError
from airdistill.files import json_text, json_value, jsonable, write_whole
from airdistill.radio.preamble import AFTER, BEFORE

META, DATA = ".sigmf-meta", ".sigmf-data"
EXTENSION = "airdistill"
_EXTENSION_VERSION = "1.0.0"
_SPECIFICATION = "1.2.0"
_INTEGERS = {"ci16_le": np.dtype("<i2")}
DATATYPES = ("cf32_le", *_INTEGERS)
_FULL_SCALE = 2**15  # of 16-bit integers
_ROUNDING = 1e-9  # relative, of sample rates
_LARGEST_META = 16 * 2**20  # bytes


class RecordingError(InputError):
    """A recording that cannot be decoded; the message names file and field, value, and rule."""


@dataclass(frozen=True)
class Contents:
    """What a recording is of: a round's reception, or what one device transmitted in it.

    Numbers are `rows` × `entries`, in this order. `rx_scale` λ `[row]` is 0 for a row that was not sent. `noise_power`
    is that of the receiver in an element, W; `noise_var` `[row]` is the planned variance of the estimate.
    `pilot_amplitude` is that of the pilots' elements in a reception, √W. `ledger` is the digest of the last line of
    the run's ledger.
    """

    grid: Grid
    spreading: Literal["none", "dft"]
    scrambling_seed: int
    round_index: int
    rows: int
    entries: int
    rx_scale: FloatArray
    pilot_amplitude: float
    noise_power: float
    noise_var: FloatArray
    scheme: str = ""
    payload: str = ""
    ledger: str = ""
    device: int | None = None

    @property
    def num_numbers(self) -> int:
        return self.rows * self.entries

    @property
    def num_symbols(self) -> int:
        """Symbols that carry data."""
        return self.grid.num_symbols(self.num_numbers)

    @property
    def frame_samples(self) -> int:
        return (BEFORE + self.num_symbols + AFTER) * self.grid.symbol_samples


@dataclass(frozen=True)
class Recording:
    """Samples in √W `[sample]`, and what they are of."""

    samples: ComplexArray
    contents: Contents
    carrier_hz: float
    metadata: dict[str, Any]


def write_recording(
    stem: Path,
    samples: ComplexArray,
    contents: Contents,
    carrier_hz: float,
    datatype: str = "cf32_le",
    date: str | None = None,
) -> Path:
    """Write samples that begin with the preamble, in √W, and their metadata; return the path of the latter.

    Samples are stored divided by a power of two, which loses nothing, with the largest part between 1/2 and 1.
    """
    if datatype not in DATATYPES:
        raise InputError("--datatype", datatype, f"must be {' or '.join(DATATYPES)}")
    parts = np.stack([samples.real, samples.imag], axis=-1)
    largest = float(np.abs(parts).max(initial=0.0))
    unit = 2.0 ** math.ceil(math.log2(largest)) if largest > 0 else 1.0
    if datatype in _INTEGERS:
        content = np.clip(np.round(parts / unit * _FULL_SCALE), -_FULL_SCALE, _FULL_SCALE - 1).astype("<i2").tobytes()
    else:
        content = (parts / unit).astype("<f4").tobytes()
    described = _metadata(contents, carrier_hz, datatype, date, unit, hashlib.sha512(content).hexdigest())
    _validated(described, str(stem))
    stem.parent.mkdir(parents=True, exist_ok=True)
    write_whole(stem.with_name(stem.name + DATA), content)
    path = stem.with_name(stem.name + META)
    write_whole(path, json_text(described).encode())
    return path


def _metadata(
    contents: Contents, carrier_hz: float, datatype: str, date: str | None, unit: float, digest: str
) -> dict[str, Any]:
    capture: dict[str, Any] = {"core:sample_start": 0, "core:frequency": carrier_hz}
    if date is not None:
        capture["core:datetime"] = date
    what = "reception" if contents.device is None else f"transmission of device {contents.device}"
    return {
        "global": {
            "core:datatype": datatype,
            "core:sample_rate": contents.grid.sample_rate_hz,
            "core:version": _SPECIFICATION,
            "core:sha512": digest,
            "core:author": "AirDistill",
            "core:recorder": f"airdistill {__version__}",
            "core:description": f"Round {contents.round_index} of {contents.scheme or 'a run'}: {what}",
            "core:num_channels": 1,
            "core:extensions": [{"name": EXTENSION, "version": _EXTENSION_VERSION, "optional": False}],
            **{f"{EXTENSION}:{name}": value for name, value in _fields(contents, unit).items()},
        },
        "captures": [capture],
        "annotations": _annotations(contents),
    }


def _fields(contents: Contents, unit: float) -> dict[str, Any]:
    """The fields of the extension."""
    grid = contents.grid
    plain = {name: getattr(contents, name) for name in _PLAIN}
    lists = {name: jsonable(getattr(contents, name), nan_is_null=True) for name in ("rx_scale", "noise_var")}
    numerology = {
        "tones": grid.tones, "spacing_hz": grid.spacing_hz, "cyclic_prefix_s": grid.prefix_s, "axes": grid.axes,
        "spreading": contents.spreading,
    }  # fmt: skip
    kind = {"kind": "reception"} if contents.device is None else {"kind": "transmission", "device": contents.device}
    return {**kind, "grid": numerology, "round": contents.round_index, **plain, **lists, "unit": unit}


def _annotations(contents: Contents) -> list[dict[str, Any]]:
    """Preamble, pilots and every data symbol, in order."""
    data = [f"data symbol {number}" for number in range(contents.num_symbols)]
    length = contents.grid.symbol_samples
    return [
        {"core:sample_start": place * length, "core:sample_count": length, "core:label": label}
        for place, label in enumerate(["preamble", "pilot", *data, "pilot"])
    ]


def _validated(described: dict[str, Any], name: str) -> None:
    """Raise unless the SigMF package accepts the metadata."""
    try:
        from sigmf import SigMFFile
        from sigmf.error import SigMFError
    except ImportError:
        raise AirDistillError("recordings need SigMF: pip install 'airdistill[radio]'") from None
    from jsonschema import ValidationError

    try:
        SigMFFile(metadata=described).validate()
    except ValidationError as error:
        field = ".".join(str(part) for part in error.absolute_path) or "metadata"
        raise RecordingError(f"{name}: {field}", Described(_short(error.instance)), error.message) from None
    except (SigMFError, KeyError, TypeError, AttributeError) as error:
        raise RecordingError(f"{name}: metadata", Described("(as stored)"), f"is not SigMF: {error}") from None


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 40 else f"({type(value).__name__})"


def read_recording(path: Path) -> Recording:
    """Read a recording. Raise `RecordingError` unless its metadata are complete and its samples match them."""
    if path.suffix != META:
        raise InputError("FILE", str(path), f"must end in {META}")
    described = _read_metadata(path)
    fields = described["global"]
    if not isinstance(fields, dict):
        raise _wrong(path, "global", fields, "must be an object")
    datatype = _field(path, fields, "core:datatype", str)
    if datatype not in DATATYPES:
        raise _wrong(path, "core:datatype", datatype, f"must be {' or '.join(DATATYPES)}; convert the recording")
    contents, unit = _contents(path, fields)
    rate, expected = _field(path, fields, "core:sample_rate", float), contents.grid.sample_rate_hz
    if abs(rate - expected) > _ROUNDING * expected:
        rule = f"airdistill:grid has {expected:.10g} samples a second; resample the recording to this rate"
        raise _wrong(path, "core:sample_rate", rate, rule)
    channels = fields.get("core:num_channels", 1)
    if channels != 1:
        raise _wrong(path, "core:num_channels", channels, "must be 1: a recording has one antenna")
    _validated(described, path.name)
    samples = _read_samples(path, fields, datatype, contents) * unit
    return Recording(samples, contents, _carrier(path, described["captures"]), described)


def _read_metadata(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST_META:
            raise _wrong(path, "size", path.stat().st_size, f"metadata have at most {_LARGEST_META} bytes")
        described = json_value(path.read_bytes())
    except OSError as error:
        raise RecordingError("FILE", str(path), f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise _wrong(path, "metadata", Described("(as stored)"), f"is not JSON: {error}") from None
    for name in ("global", "captures", "annotations"):
        if not isinstance(described, dict) or name not in described:
            raise _wrong(path, name, Described("(missing)"), "SigMF metadata have global, captures and annotations")
    whole: dict[str, Any] = described
    return whole


def _wrong(path: Path, field: str, value: Any, rule: str) -> RecordingError:
    return RecordingError(f"{path.name}: {field}", value, rule)


def _field(path: Path, fields: Mapping[str, Any], name: str, kind: type) -> Any:
    """A field of a type; of numbers, a finite one."""
    if name not in fields:
        raise _wrong(path, name, Described("(missing)"), "decoding needs it; is it a recording of airdistill?")
    value = fields[name]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if not isinstance(value, kind) or isinstance(value, bool) or not is_finite:
        words = {float: "a number", int: "an integer", str: "a text", dict: "an object", list: "a list"}
        raise _wrong(path, name, value, f"must be {words[kind]}")
    return value


_PLAIN: dict[str, type] = {
    "scrambling_seed": int, "rows": int, "entries": int, "pilot_amplitude": float, "noise_power": float,
    "scheme": str, "payload": str, "ledger": str,
}  # fmt: skip
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "tones": (lambda x: 2 <= x <= 16384, "must be from 2 to 16384"),
    "spacing_hz": (lambda x: x > 0, "must be above 0"),
    "cyclic_prefix_s": (lambda x: x >= 0, "must not be negative"),
    "axes": (lambda x: x in (1, 2), "must be 1 or 2"),
    "spreading": (lambda x: x in ("none", "dft"), "must be none or dft"),
    "kind": (lambda x: x in ("reception", "transmission"), "must be reception or transmission"),
    "device": (lambda x: x >= 0, "must not be negative"),
    "round": (lambda x: x >= 1, "must be at least 1"),
    "scrambling_seed": (lambda x: x >= 0, "must not be negative"),
    "rows": (lambda x: 1 <= x <= 2**31, "must be at least 1"),
    "entries": (lambda x: 1 <= x <= 2**31, "must be at least 1"),
    "pilot_amplitude": (lambda x: x > 0, "must be above 0"),
    "noise_power": (lambda x: x >= 0, "must not be negative"),
    "unit": (lambda x: x > 0, "must be above 0"),
}


def _contents(path: Path, fields: Mapping[str, Any]) -> tuple[Contents, float]:
    """What a recording says that it is of, and the value of its unit in √W."""

    def take(name: str, kind: type, within: Mapping[str, Any] | None = None) -> Any:
        full = f"{EXTENSION}:{name}" if within is None else name
        value = _field(path, fields if within is None else within, full, kind)
        holds, rule = _RULES.get(name, (lambda _: True, ""))
        if not holds(value):
            raise _wrong(path, full if within is None else f"{EXTENSION}:grid.{name}", value, rule)
        return value

    grid_of = _field(path, fields, f"{EXTENSION}:grid", dict)
    kinds = {"tones": int, "spacing_hz": float, "cyclic_prefix_s": float, "axes": int}
    grid = Grid(*(take(name, kind, grid_of) for name, kind in kinds.items()))
    if grid.prefix_samples >= grid.fft_size:
        rule = f"must be shorter than a symbol, {1 / grid.spacing_hz:.6g} s"
        raise _wrong(path, f"{EXTENSION}:grid.cyclic_prefix_s", grid.prefix_s, rule)
    plain = {name: take(name, kind) for name, kind in _PLAIN.items()}
    rows: int = plain["rows"]
    lists: dict[str, Any] = {
        name: _numbers(path, fields, f"{EXTENSION}:{name}", rows) for name in ("rx_scale", "noise_var")
    }
    if (lists["rx_scale"] < 0).any():
        raise _wrong(path, f"{EXTENSION}:rx_scale", float(lists["rx_scale"].min()), "must not be negative")
    device = take("device", int) if take("kind", str) == "transmission" else None
    about: dict[str, Any] = {
        "spreading": take("spreading", str, grid_of),
        "round_index": take("round", int),
        "device": device,
    }
    return Contents(grid=grid, **about, **plain, **lists), take("unit", float)


def _numbers(path: Path, fields: Mapping[str, Any], name: str, length: int) -> FloatArray:
    """A list with a number for each row; null is infinite."""
    values = _field(path, fields, name, list)
    if len(values) != length:
        raise _wrong(path, name, Described(f"{len(values)} entries"), f"must have one for each of the {length} rows")
    if not all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values):
        raise _wrong(path, name, Described("(a list)"), "must have numbers and null only")
    return np.array([np.inf if value is None else value for value in values], dtype=np.float64)


def _read_samples(path: Path, fields: Mapping[str, Any], datatype: str, contents: Contents) -> ComplexArray:
    """The samples in the file's own unit, checked against the digest in its metadata."""
    data = path.with_name(path.name.removesuffix(META) + DATA)
    digest = _field(path, fields, "core:sha512", str)
    if not re.fullmatch("[0-9a-fA-F]{128}", digest):
        raise _wrong(path, "core:sha512", digest, "must have 128 hexadecimal digits")
    of_part = _INTEGERS.get(datatype, np.dtype("<f4"))
    try:
        size = data.stat().st_size
        needed = contents.frame_samples * 2 * of_part.itemsize
        if size < needed:
            rule = f"a frame of {contents.num_symbols} data symbols takes {needed}: the recording was cut"
            raise _wrong(data, "bytes", size, rule)
        content = data.read_bytes()
    except OSError as error:
        raise RecordingError("data file", str(data), f"cannot be read: {error.strerror}") from None
    if hashlib.sha512(content).hexdigest() != digest.lower():
        raise _wrong(data, "SHA-512", Described(f"{hashlib.sha512(content).hexdigest()[:16]}…"), _damaged(digest))
    if size % (2 * of_part.itemsize):
        raise _wrong(data, "bytes", size, f"must be a multiple of {2 * of_part.itemsize}, the size of a sample")
    parts = np.frombuffer(content, of_part).astype(np.float64).reshape(-1, 2)
    if not np.isfinite(parts).all():
        raise _wrong(data, "sample", int(np.argmin(np.isfinite(parts).all(axis=1))), "is not finite")
    parts = parts / _FULL_SCALE if datatype in _INTEGERS else parts
    return np.asarray(parts[:, 0] + 1j * parts[:, 1])


def _damaged(digest: str) -> str:
    return f"core:sha512 in the metadata is {digest[:16].lower()}…: the samples were damaged or replaced"


def _carrier(path: Path, captures: Any) -> float:
    if not captures:
        raise _wrong(path, "captures", Described("(empty)"), "must have one capture")
    return float(captures[0].get("core:frequency", 0.0))
