"""Backward passes that start from slopes which are known already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


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
