"""Learners made with the kernels that fit their models."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from airdistill.arrays import IntArray
from airdistill.errors import InputError
from airdistill.learning.fused.form import NetworkForm, form_of
from airdistill.learning.learner import Learner
from airdistill.learning.stacking import same_code

if TYPE_CHECKING:
    from airdistill.learning.fleet import Engine


class LearnerMaker:
    """Makes learners with the engine's kernels. Models with the same code are inspected only once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inspected: list[tuple[nn.Module, NetworkForm | None]] = []
        self._forms: dict[str, NetworkForm | None] = {}  # of built-in models
        self._shared: tuple[Tensor, Tensor] | None = None  # as given, and in row-major order

    def learner(
        self,
        model: nn.Module,
        samples: Tensor,
        labels: IntArray,
        num_classes: int,
        rows: Tensor | None = None,
        name: str = "",
    ) -> Learner:
        """A learner for one device, which holds these rows of `samples`; None: all.

        Models of one built-in `name` have the same code, and only the first is inspected.
        """
        shape, chunk = tuple(samples.shape[1:]), self._engine.chunk_samples
        is_built_in = bool(name) and ":" not in name
        form = self._forms[name] if name in self._forms else self.form(model, shape)
        if is_built_in:
            self._forms[name] = form
        if form is None:
            return Learner(model, samples, labels, num_classes, chunk, rows)
        from airdistill.learning.fused.learner import FusedLearner  # importing Numba is slow

        if rows is not None:
            samples = self._row_major(samples)
        return FusedLearner(model, form, samples, labels, num_classes, chunk, rows)

    def _row_major(self, samples: Tensor) -> Tensor:
        """Samples that devices share, in row-major order: rearranged for the first device only."""
        if self._shared is None or self._shared[0] is not samples:
            self._shared = samples, samples.contiguous()
        return self._shared[1]

    def form(self, model: nn.Module, input_shape: tuple[int, ...]) -> NetworkForm | None:
        """The model's form if the fused kernels will be used, else None."""
        engine = self._engine
        if engine.kernels == "torch" or engine.device.type != "cpu" or engine.stacked:
            return None
        form = None
        if engine.dtype == torch.float32:
            for other, found in self._inspected:
                if same_code(model, other):
                    return found
            form = form_of(model, input_shape)
            if form is not None and engine.kernels == "auto" and not form.blocks:
                form = None  # PyTorch's matrix products leave little to gain, and importing Numba is slow
            self._inspected.append((copy.deepcopy(model), form))
        if form is None and engine.kernels == "fused":
            rule = "is for float32 and networks of convolutions with 2×2 max-pooling and ReLU, then dense layers"
            raise InputError("--engine", "fused", rule)
        return form
