"""What was recorded, and how it is compared: bit by bit on the same type of processor, within 1e-6 elsewhere."""

import json
import lzma
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from golden.recording import digest_of

HERE = Path(__file__).parent
DIGESTS, NUMBERS = HERE / "digests.json", HERE / "numbers.json.xz"
# Relative to the largest number of the list in which a number stands.
TOLERANCE = {"float64": 1e-6, "float32": 1e-3}
_LIBRARIES = ("numpy", "scipy", "torch", "opendp", "dp-accounting")
_ABSENT = "(absent)"
_ROUNDING = 2.0**-52  # what is 0 on one processor can be this on another
_HUGE = 1e12  # a tolerance does not tell numbers beyond from infinity, which is null in JSON


def this_machine():
    """All that decides the last digits of a number: the processor, what is made of it, and the libraries."""
    simd = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    return {
        "processor": _processor(),
        "torch": torch.backends.cpu.get_cpu_capability(),
        "numpy": " ".join(simd),
        "libraries": {name: _version(name) for name in _LIBRARIES},
    }


def _processor():
    """Name, family, model and stepping; hypervisors give many processors one name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    about = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    wanted = ("model name", "cpu family", "model", "stepping")
    return ", ".join(about[name] for name in wanted if name in about) or platform.machine()


def _version(library):
    try:
        return version(library)
    except PackageNotFoundError:
        return None


@cache
def recorded_digests():
    return json.loads(DIGESTS.read_text())


@cache
def recorded_numbers():
    return json.loads(lzma.decompress(NUMBERS.read_bytes()))


def differences(case, observed):
    """One line for each file that differs from the record: the case, the file, the first place and both values."""
    if case.name not in recorded_digests()["cases"]:
        return [f"{case.name}: was never recorded; run tests/golden/regenerate.py {case.name}"]
    if recorded_digests()["machine"] == this_machine():
        return _different_bits(case.name, observed)
    return _different_numbers(case.name, observed, TOLERANCE[case.dtype])


def _different_bits(name, observed):
    digests = recorded_digests()["cases"][name]
    lines = []
    for file in sorted({*digests, *observed}):
        if file in observed and file in digests and digest_of(observed[file]) == digests[file]:
            continue
        found = _first_difference(name, file, observed, tolerance=None)
        lines.append(found or f"{name}: {file}: the digest differs, and no number that {NUMBERS.name} keeps")
    return lines


def _different_numbers(name, observed, tolerance):
    files = sorted({*recorded_numbers()[name], *observed})
    found = (_first_difference(name, file, observed, tolerance) for file in files)
    return [line for line in found if line is not None]


def _first_difference(name, file, observed, tolerance):
    expected = recorded_numbers()[name].get(file, _ABSENT)
    found = first_difference(expected, observed.get(file, _ABSENT), tolerance)
    if found is None:
        return None
    path, was, now = found
    return f"{name}: {file}: {path} was {_shown(was)} and is {_shown(now)}"


def _shown(value):
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def first_difference(expected, found, tolerance, path="$", scale=0.0):
    """The JSON path at which two values part first, with both; None if they agree.

    Without a tolerance they agree bit by bit. Digests of arrays are told apart only then.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = sorted({*expected, *found})
        parts = ((f".{key}", expected.get(key, _ABSENT), found.get(key, _ABSENT)) for key in keys)
        if tolerance is not None:
            parts = (part for part in parts if part[0] != ".digest")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        parts = ((f"[{index}]", *both) for index, both in enumerate(zip(expected, found, strict=True)))
        scale = _largest(expected)
    else:
        return None if _same(expected, found, tolerance, scale) else (path, expected, found)
    for step, was, now in parts:
        difference = first_difference(was, now, tolerance, path + step, scale if step[0] == "[" else 0.0)
        if difference is not None:
            return difference
    return None


def _largest(numbers):
    return max((abs(number) for number in numbers if isinstance(number, float)), default=0.0)


def _same(expected, found, tolerance, scale):
    """Whole numbers, booleans, nulls and identifiers must be the same; floats nearly, if there is a tolerance."""
    if tolerance is not None and _infinite(expected) and _infinite(found):
        return True
    if tolerance is None or not (isinstance(expected, float) and isinstance(found, float)):
        return json.dumps(expected) == json.dumps(found)  # tells 1 from 1.0 and from true
    return abs(expected - found) <= max(tolerance * max(abs(expected), abs(found), scale), _ROUNDING)


def _infinite(value):
    return value is None or (isinstance(value, float) and abs(value) > _HUGE)
