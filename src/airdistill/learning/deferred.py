"""Losses that are copied from a GPU asynchronously: the caller waits only when it reads them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import overload

import torch
from torch import Tensor

from airdistill.learning.learner import Losses


class DeferredLosses(Sequence[Losses]):
    """Every device's losses of a step, and whether its weights are finite after it, in one transfer."""

    def __init__(self, losses: Tensor, are_finite: Tensor) -> None:
        """Start the transfer of losses `[loss, device]` and flags `[device]`."""
        self._numbers = torch.cat([losses, are_finite[None].to(losses.dtype)]).to("cpu", non_blocking=True)
        self._transferred: torch.cuda.Event | None = None
        if losses.is_cuda:
            self._transferred = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._transferred.record()

    @cached_property
    def _fetched(self) -> tuple[list[Losses], list[bool]]:
        if self._transferred is not None:
            self._transferred.synchronize()
        training, distillation, finite = self._numbers.tolist()
        return list(map(Losses, training, distillation)), [each == 1.0 for each in finite]

    @property
    def left_finite_weights(self) -> list[bool]:
        """For each device, whether all its weights are finite after the step."""
        return self._fetched[1]

    def __len__(self) -> int:
        return self._numbers.shape[1]

    @overload
    def __getitem__(self, at: int) -> Losses: ...
    @overload
    def __getitem__(self, at: slice) -> list[Losses]: ...
    def __getitem__(self, at: int | slice) -> Losses | list[Losses]:
        return self._fetched[0][at]
