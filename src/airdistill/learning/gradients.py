"""What a device learns from besides its own labels.

Backward passes that start from slopes which are known already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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


class _Seed(torch.autograd.Function):
    """A number whose slope for the outputs is given.

    PyTorch takes slopes of outputs that are not single numbers too, but loads a library of symbolic mathematics to
    compare two shapes: seconds of every start.
    """

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, slopes: Tensor) -> Tensor:
        ctx.save_for_backward(slopes)
        return outputs.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        (slopes,) = ctx.saved_tensors
        return slopes, None


def slopes_from(outputs: Tensor, of_outputs: Tensor, parameters: Sequence[Tensor], keep: bool = False) -> list[Tensor]:
    """The parameters' slopes from those of outputs; `keep` allows another pass from the same outputs.

    A parameter that the outputs do not depend on has slopes of zero.
    """
    seed = _Seed.apply(outputs, of_outputs)  # type: ignore[no-untyped-call]
    return list(torch.autograd.grad(seed, parameters, retain_graph=keep, materialize_grads=True))
