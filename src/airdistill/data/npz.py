"""Archives of arrays, from a user's disk: whatever is wrong with one, it is said in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from airdistill.errors import AirDistillError, DataError

Arrays = dict[str, NDArray[np.generic]]


def read_npz(path: Path, choose: Callable[[list[str]], list[str]]) -> Arrays:
    """The arrays that `choose` picks from the archive's names; objects are never unpickled."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in choose(list(archive.files))}
    except AirDistillError:
        raise
    except Exception as error:
        # A damaged archive fails in any of the ways that NumPy, zipfile and zlib can.
        raise DataError(f"{path}: truncated, damaged or no .npz file: {type(error).__name__}: {error}") from None
