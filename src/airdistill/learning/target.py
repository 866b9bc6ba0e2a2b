"""What a device learns from besides its own labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from airdistill.arrays import FloatArray


@dataclass(frozen=True)
class Target:
    """What a device distils from: rows of knowledge `[row, class]`, and which rows have any `[row]`.

    A row is a class, or a sample of the public set.
    """

    rows: Tensor
    known: Tensor

    @classmethod
    def of(cls, received: FloatArray, dtype: torch.dtype, device: torch.device) -> Target:
        """From received knowledge `[row, class]`; a row that is no finite vector counts as not received."""
        known = np.asarray(np.isfinite(received).all(axis=1))
        rows = np.where(known[:, None], received, 0.0)
        return cls(torch.from_numpy(rows).to(device, dtype), torch.from_numpy(known).to(device, dtype))
