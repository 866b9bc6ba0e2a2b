"""Numbers on their way from a GPU: whoever asks for one waits for them, and until then other work goes on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import overload

import torch
from torch import Tensor

from airdistill.learning.learner import Losses


class DeferredLosses(Sequence[Losses]):
    """A step's losses of every device, and whether it left finite weights: all fetched at once."""

    def __init__(self, losses: Tensor, are_finite: Tensor) -> None:
        """From losses `[loss, device]` and `[device]`."""
        self._numbers = torch.cat([losses, are_finite[None].to(losses.dtype)]).to("cpu", non_blocking=True)
        self._arrived: torch.cuda.Event | None = None
        if losses.is_cuda:
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    @cached_property
    def _found(self) -> tuple[list[Losses], list[bool]]:
        if self._arrived is not None:
            self._arrived.synchronize()
        training, distillation, finite = self._numbers.tolist()
        return list(map(Losses, training, distillation)), [each == 1.0 for each in finite]

    @property
    def left_finite_weights(self) -> list[bool]:
        return self._found[1]

    def __len__(self) -> int:
        return self._numbers.shape[1]

    @overload
    def __getitem__(self, at: int) -> Losses: ...
    @overload
    def __getitem__(self, at: slice) -> list[Losses]: ...
    def __getitem__(self, at: int | slice) -> Losses | list[Losses]:
        return self._found[0][at]
