"""The targets of distillation, and backward passes that start from given output gradients."""

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
    """A distillation target: rows `[row, class]`, and 1 for each row that was received, else 0 `[row]`.

    A row belongs to a class, or to a sample of the public set.
    """

    rows: Tensor
    known: Tensor

    @classmethod
    def of(cls, received: FloatArray, dtype: torch.dtype, device: torch.device) -> Target:
        """The target of a broadcast `[row, class]`; a row with entries that are not finite counts as not received."""
        known = np.asarray(np.isfinite(received).all(axis=1))
        rows = np.where(known[:, None], received, 0.0)
        return cls(torch.from_numpy(rows).to(device, dtype), torch.from_numpy(known).to(device, dtype))


class _GradientSeed(torch.autograd.Function):
    """A scalar whose gradient with respect to the outputs is given.

    `torch.autograd.grad` accepts `grad_outputs` too, but imports SymPy to compare two shapes, which adds seconds to
    every start.
    """

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, gradients: Tensor) -> Tensor:
        ctx.save_for_backward(gradients)
        return outputs.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        (gradients,) = ctx.saved_tensors
        return gradients, None


def parameter_gradients(
    outputs: Tensor, output_gradients: Tensor, parameters: Sequence[Tensor], keep: bool = False
) -> list[Tensor]:
    """Backpropagate given output gradients to the parameters; `keep` retains the graph for another pass.

    A parameter that the outputs do not depend on has a zero gradient.
    """
    seed = _GradientSeed.apply(outputs, output_gradients)  # type: ignore[no-untyped-call]
    return list(torch.autograd.grad(seed, parameters, retain_graph=keep, materialize_grads=True))
