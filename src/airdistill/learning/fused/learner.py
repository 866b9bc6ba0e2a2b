"""A device whose model is of the paper's form, on kernels that were written for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airdistill.arrays import FloatArray, IntArray
from airdistill.learning.fused import kernels
from airdistill.learning.fused.compiling import are_compiled
from airdistill.learning.fused.form import NetworkForm
from airdistill.learning.fused.lanes import LANES
from airdistill.learning.fused.layout import TILE_ROWS, Network, Tilings, layout_of, padding_of, tilings_of
from airdistill.learning.fused.winograd import kernel_values
from airdistill.learning.gradients import Target
from airdistill.learning.learner import Learner, Losses
from airdistill.learning.mixed import MixedSteps

logger = logging.getLogger(__name__)
_Floats = NDArray[np.float32]
if not are_compiled():
    logger.warning("compiling the fused kernels for this machine, once: first round and evaluation take 25 s longer")


class FusedLearner(Learner):
    """What `Learner` does, in float32 on a CPU.

    The model's parameters share memory with one flat vector: its weights are the present ones, and to load weights into
    it, or to train it otherwise, is to change that vector.
    """

    def __init__(
        self, model: nn.Module, form: NetworkForm, samples: Tensor, labels: IntArray, num_classes: int, chunk: int
    ) -> None:
        super().__init__(model, samples, labels, num_classes, chunk)
        self._weights, starts = _one_vector(model, padding_of(form))
        self._form, self._net = form, layout_of(form, starts)
        self._rows, self._label_array = _rows(samples), _within(np.asarray(labels, dtype=np.int64), num_classes)
        self._image = tuple(samples.shape[1:]) if samples.ndim == 4 else (1, 1, samples[0].numel())
        self._samples, self._chunks = torch.from_numpy(self._rows).view(samples.shape), ()
        self._groups_in_chunk = max(1, chunk // LANES)
        self._buffers: tuple[_Floats, NDArray[np.uint8]] | None = None
        self._is_kept = False

    @property
    def _given(self) -> tuple[Network, _Floats, _Floats, IntArray]:
        """What every kernel takes first."""
        return self._net, self._weights, self._rows, self._label_array

    def knowledge(self, keep: bool = False) -> FloatArray:
        sums = np.zeros((self.num_classes, self.num_classes))
        kept, picks = self._kept_buffers() if keep else self._one_group()
        kernels.class_sums(*self._given, kept, picks, keep, sums)
        self._is_kept = keep
        with np.errstate(invalid="ignore"):  # a class without samples has no mean
            return np.asarray(sums / self._class_counts.numpy()[:, None])

    def forget(self) -> None:
        self._is_kept = False

    def bytes_kept_for_a_sample(self) -> float:
        return (4 * self._net.kept + self._net.picks) / LANES

    def _kept_buffers(self) -> tuple[_Floats, NDArray[np.uint8]]:
        """For all groups of samples; once fetched they stay, for fresh memory is slow."""
        if self._buffers is None:
            groups = -(-self.num_samples // LANES)
            self._buffers = (
                np.empty((groups, self._net.kept), np.float32),
                np.empty((groups, self._net.picks), np.uint8),
            )
        return self._buffers

    def _one_group(self) -> tuple[_Floats, NDArray[np.uint8]]:
        return np.empty((1, self._net.kept), np.float32), np.empty((1, self._net.picks), np.uint8)

    def full_batch_step(self, target: Target | None, lr: float, distill_weight: float) -> Losses:
        is_kept, self._is_kept = self._is_kept, False
        gradient, losses = self._gradient(target, distill_weight, is_kept)
        torch.from_numpy(self._weights[: self._net.num_parameters]).sub_(torch.from_numpy(gradient), alpha=lr)
        return losses

    def gradient(self, target: Target | None, distill_weight: float) -> tuple[Tensor, Losses]:
        # Not on a kept pass: the weights may be others by now.
        gradient, losses = self._gradient(target, distill_weight, is_kept=False)
        return torch.from_numpy(gradient), losses

    def _gradient(self, target: Target | None, distill_weight: float, is_kept: bool) -> tuple[_Floats, Losses]:
        """Of eq. (1); on the forward pass that `knowledge` kept, if it is to be that."""
        kept, picks = self._kept_buffers() if is_kept else self._one_group()
        gradient, losses = np.zeros_like(self._weights), np.zeros(2)
        rows, known = self._target_arrays(target)
        kernels.full_batch_gradient(
            *self._given,
            rows,
            known,
            float(distill_weight),
            kept,
            picks,
            is_kept,
            self._groups_in_chunk,
            gradient,
            losses,
        )
        return gradient[: self._net.num_parameters], Losses(*losses.tolist())

    def local_epochs(
        self, target: Target | None, lr: float, distill_weight: float, orders: list[IntArray], batch_size: int
    ) -> Losses:
        losses, (rows, known) = np.zeros(2), self._target_arrays(target)
        passes = np.array(orders, dtype=np.int64).reshape(len(orders), -1)
        kernels.local_epochs(
            *self._given,
            rows,
            known,
            float(distill_weight),
            _within(passes, self.num_samples),
            batch_size,
            float(lr),
            losses,
        )
        self._is_kept = False
        return Losses(*losses.tolist())

    def mixed_steps(self, steps: MixedSteps, public: Tensor, target: Target) -> Losses:
        losses, (rows, known) = np.zeros(2), self._target_arrays(target)
        offsets = np.zeros((0, 0, 2), dtype=np.int64) if steps.offsets is None else steps.offsets
        clip_norm = np.inf if steps.clip_norm is None else steps.clip_norm
        kernels.mixed_steps(
            *self._given,
            _rows(public),
            rows,
            known,
            _within(np.ascontiguousarray(steps.own, dtype=np.int64), self.num_samples),
            _within(np.ascontiguousarray(steps.public, dtype=np.int64), len(public)),
            np.ascontiguousarray(offsets, dtype=np.int64),
            steps.most_moved,
            self._image,
            np.array([steps.own_weight, steps.public_weight, steps.momentum, clip_norm]),
            np.asarray(steps.lr, dtype=np.float64),
            losses,
        )
        self._is_kept = False
        return Losses(*losses.tolist())

    def clipped_gradient(self, clip_norm: float) -> tuple[Tensor, Losses]:
        gradient = np.zeros_like(self._weights)
        loss = kernels.clipped_gradient(*self._given, float(clip_norm), gradient)
        mean = gradient[: self._net.num_parameters] / np.float32(self.num_samples)
        return torch.from_numpy(mean), Losses(loss / self.num_samples, 0.0)

    def logits(self, chunks: Sequence[Tensor]) -> Tensor:
        return self._predicted(chunks, tilings_of(self._form, by_tiles=False), np.zeros(0, np.float32))

    def quick_logits(self, chunks: Sequence[Tensor]) -> Tensor:
        tilings = tilings_of(self._form, by_tiles=True)
        kernels_by_tiles = [
            self.model.get_parameter(block.weight).detach().numpy()
            for block, tiling in zip(self._form.blocks, tilings.table, strict=True)
            if tiling[TILE_ROWS] > 0
        ]
        values = [kernel_values(kernel).ravel() for kernel in kernels_by_tiles]
        return self._predicted(chunks, tilings, np.concatenate([*values, np.zeros(0, np.float32)]))

    def _predicted(self, chunks: Sequence[Tensor], tilings: Tilings, values: _Floats) -> Tensor:
        sizes, found = (self._net.work, self._net.kept, tilings.tiles), list[Tensor]()
        work, kept, tiles = (_aligned(size) for size in sizes)  # once, for fresh memory is slow
        for chunk in chunks:
            logits = np.empty((len(chunk), self._net.num_classes), dtype=np.float32)
            kernels.predict(self._net, tilings, self._weights, values, _rows(chunk), work, kept, tiles, logits)
            found.append(torch.from_numpy(logits))
        return torch.cat(found)

    def _target_arrays(self, target: Target | None) -> tuple[_Floats, _Floats]:
        """Nothing is known where there is no target."""
        if target is None:
            return np.zeros((self.num_classes, self.num_classes), np.float32), np.zeros(self.num_classes, np.float32)
        return target.rows.numpy(), target.known.numpy()


def _one_vector(model: nn.Module, padding: int) -> tuple[_Floats, tuple[tuple[str, int], ...]]:
    """A vector with zeros at its end that the model's parameters are parts of from now on, and where each begins."""
    named = dict(model.named_parameters())
    size = sum(parameter.numel() for parameter in named.values())
    weights, starts, start = np.zeros(size + padding, dtype=np.float32), [], 0
    for name, parameter in named.items():
        part = weights[start : start + parameter.numel()].reshape(parameter.shape)
        part[...] = parameter.detach().numpy()
        parameter.data = torch.from_numpy(part)
        starts.append((name, start))
        start += parameter.numel()
    return weights, tuple(starts)


def _aligned(size: int) -> _Floats:
    """Fresh memory whose vectors are whole lines of the cache: those that lie across two take twice as long."""
    memory = np.empty(size + LANES, np.float32)
    start = -memory.ctypes.data // memory.itemsize % LANES
    return memory[start : start + size]


def _within(numbers: IntArray, size: int) -> IntArray:
    """The same, once it is sure that each is one of so many: the kernels do not look."""
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < size:
        raise IndexError(f"numbers from {numbers.min()} to {numbers.max()}, where 0 to {size - 1} are")
    return numbers


def _rows(samples: Tensor) -> _Floats:
    """`[sample, feature]`, one after another in memory."""
    return np.ascontiguousarray(samples.reshape(len(samples), -1).numpy())
