"""Recorded channels: complex gains, rounds × devices, from `.npz` or CSV."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airdistill.arrays import ComplexArray
from airdistill.data.npz import read_npz
from airdistill.errors import Described, InputError

_FIELD = "radio.trace"


def load_trace(source: str, num_devices: int) -> ComplexArray:
    """The gains `[round, device]`.

    An .npz holds them as `channel` (or as its only array); a CSV has one round a line and entries like
    `1.2e-6-3e-7j`.
    """
    path = Path(source)
    if not path.is_file():
        raise InputError(_FIELD, source, "no such file")
    if path.suffix not in (".npz", ".csv"):
        raise InputError(_FIELD, source, "must be an .npz or a .csv file")
    gains = _read_npz(path) if path.suffix == ".npz" else _read_csv(path)
    if gains.ndim != 2 or len(gains) == 0 or gains.shape[1] != num_devices:
        shape = Described(f"{source} of shape {gains.shape}")
        raise InputError(_FIELD, shape, f"must be rounds × {num_devices} devices")
    if gains.dtype.kind not in "iufc" or not np.isfinite(gains).all():
        raise InputError(_FIELD, source, "has gains that are no finite numbers")
    return gains.astype(np.complex128)


def _read_npz(path: Path) -> NDArray[Any]:
    def choose(names: list[str]) -> list[str]:
        if "channel" in names or len(names) == 1:
            return ["channel" if "channel" in names else names[0]]
        raise InputError(_FIELD, str(path), f"has no array named channel, but {', '.join(names) or 'none at all'}")

    (gains,) = read_npz(path, choose).values()
    return gains


def _read_csv(path: Path) -> NDArray[Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an empty file is refused by its shape
            return np.loadtxt(path, dtype=np.complex128, delimiter=",", ndmin=2)
    except (ValueError, OSError, UnicodeDecodeError) as error:
        raise InputError(_FIELD, str(path), f"cannot be read: {error}") from None
