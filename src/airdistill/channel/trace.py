"""Recorded channels: complex gains, rounds × devices, from `.npz` or CSV."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from airdistill.arrays import ComplexArray
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
    try:
        gains = _read_npz(path) if path.suffix == ".npz" else _read_csv(path)
    except (zipfile.BadZipFile, ValueError, OSError, EOFError) as error:
        raise InputError(_FIELD, source, f"cannot be read: {error}") from None
    shape = Described(f"{source} of shape {gains.shape}")
    if gains.ndim != 2 or len(gains) == 0 or gains.shape[1] != num_devices:
        raise InputError(_FIELD, shape, f"must be rounds × {num_devices} devices")
    if not np.isfinite(gains).all():
        raise InputError(_FIELD, source, "has gains that are no finite numbers")
    return gains


def _read_npz(path: Path) -> ComplexArray:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        names = archive.files
        if "channel" not in names and len(names) != 1:
            raise ValueError(f"has no array named channel, but {', '.join(names) or 'none at all'}")
        return np.asarray(archive["channel" if "channel" in names else names[0]], dtype=np.complex128)


def _read_csv(path: Path) -> ComplexArray:
    return np.loadtxt(path, dtype=np.complex128, delimiter=",", ndmin=2)
