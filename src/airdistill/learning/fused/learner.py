"""A device whose model has the paper's form, computed by the fused CPU kernels."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airdistill.arrays import FloatArray, IntArray
from airdistill.learning.clipping import trainable
from airdistill.learning.fused import kernels
from airdistill.learning.fused.compiling import are_compiled
from airdistill.learning.fused.form import NetworkForm
from airdistill.learning.fused.lanes import LANES
from airdistill.learning.fused.layout import TILE_ROWS, Network, Tilings, layout_of, padding_of, tilings_of
from airdistill.learning.fused.winograd import kernel_values
from airdistill.learning.gradients import Target
from airdistill.learning.learner import Learner, Losses
from airdistill.learning.mixed import Descent, MixedSteps
from airdistill.learning.optimisers import PLAIN

logger = logging.getLogger(__name__)
_Floats = NDArray[np.float32]
if not are_compiled():
    logger.warning(
        "compiling the fused kernels for this machine, once: the first round and evaluation take 25 s longer"
    )


class FusedLearner(Learner):
    """`Learner` in float32 on a CPU.

    The model's parameters share memory with one flat vector, and so always have its current values. Loading weights
    into the model, or training it otherwise, changes that vector.
    """

    def __init__(
        self,
        model: nn.Module,
        form: NetworkForm,
        samples: Tensor,
        labels: IntArray,
        num_classes: int,
        chunk: int,
        rows: Tensor | None = None,
    ) -> None:
        super().__init__(model, samples, labels, num_classes, chunk, rows)
        self._weights, starts = _flatten_parameters(model, padding_of(form))
        self._form, self._net = form, layout_of(form, starts)
        self._label_array = _within(np.asarray(labels, dtype=np.int64), num_classes)
        self._image = tuple(samples.shape[1:]) if samples.ndim == 4 else (1, 1, samples[0].numel())
        self._groups_in_chunk = max(1, chunk // LANES)
        self._buffers: tuple[_Floats, NDArray[np.uint8]] | None = None
        self._is_saved = False

    @staticmethod
    def _in_layout(samples: Tensor) -> Tensor:
        return torch.from_numpy(_row_major(samples)).view(samples.shape)

    @property
    def _kernel_arguments(self) -> tuple[Network, _Floats, _Floats, IntArray]:
        """The first arguments of most kernels."""
        return self._net, self._weights, _row_major(self._samples), self._label_array

    def knowledge(self, keep: bool = False) -> FloatArray:
        sums = np.zeros((self.num_classes, self.num_classes))
        saved, argmax = self._saved_buffers() if keep else self._one_group()
        kernels.class_sums(*self._kernel_arguments, saved, argmax, keep, sums)
        self._is_saved = keep
        with np.errstate(invalid="ignore"):  # a class without samples has a mean of NaN
            return np.asarray(sums / self._class_counts.numpy()[:, None])

    def drop_cache(self) -> None:
        self._is_saved = False

    def kept_bytes_per_sample(self) -> float:
        return (4 * self._net.saved + self._net.argmax) / LANES

    def _saved_buffers(self) -> tuple[_Floats, NDArray[np.uint8]]:
        """Buffers for all groups of samples; they are reused, because new memory is slow."""
        if self._buffers is None:
            groups = -(-self.num_samples // LANES)
            self._buffers = (
                np.empty((groups, self._net.saved), np.float32),
                np.empty((groups, self._net.argmax), np.uint8),
            )
        return self._buffers

    def _one_group(self) -> tuple[_Floats, NDArray[np.uint8]]:
        """Buffers for a single group."""
        return np.empty((1, self._net.saved), np.float32), np.empty((1, self._net.argmax), np.uint8)

    def full_batch_step(
        self, target: Target | None, lr: float, distill_weight: float, optimiser: str = PLAIN
    ) -> Losses:
        is_saved, self._is_saved = self._is_saved, False
        gradient, losses = self._gradient(target, distill_weight, is_saved)
        if optimiser != PLAIN:
            weights = trainable(self.model)
            parts = torch.split(torch.from_numpy(gradient), [weight.numel() for weight in weights])
            gradients = [part.view(weight.shape) for part, weight in zip(parts, weights, strict=True)]
            self.optimiser_named(optimiser).step(weights, gradients, lr)
            return losses
        torch.from_numpy(self._weights[: self._net.num_parameters]).sub_(torch.from_numpy(gradient), alpha=lr)
        return losses

    def gradient(self, target: Target | None, distill_weight: float) -> tuple[Tensor, Losses]:
        # Not from a saved pass: the weights may have changed since.
        gradient, losses = self._gradient(target, distill_weight, is_saved=False)
        return torch.from_numpy(gradient), losses

    def _gradient(self, target: Target | None, distill_weight: float, is_saved: bool) -> tuple[_Floats, Losses]:
        """The gradient of eq. (1); with `is_saved`, from the forward pass that `knowledge` saved."""
        saved, argmax = self._saved_buffers() if is_saved else self._one_group()
        gradient, losses = np.zeros_like(self._weights), np.zeros(2)
        rows, known = self._target_arrays(target)
        kernels.full_batch_gradient(
            *self._kernel_arguments,
            rows,
            known,
            float(distill_weight),
            saved,
            argmax,
            is_saved,
            self._groups_in_chunk,
            gradient,
            losses,
        )
        return gradient[: self._net.num_parameters], Losses(*losses.tolist())

    def local_epochs(
        self,
        target: Target | None,
        lr: float,
        distill_weight: float,
        orders: list[IntArray],
        batch_size: int,
        optimiser: str = PLAIN,
    ) -> Losses:
        if optimiser != PLAIN:  # the kernels' minibatch steps are plain SGD
            self._is_saved = False
            return super().local_epochs(target, lr, distill_weight, orders, batch_size, optimiser)
        losses, (rows, known) = np.zeros(2), self._target_arrays(target)
        epochs = np.array(orders, dtype=np.int64).reshape(len(orders), -1)
        kernels.local_epochs(
            *self._kernel_arguments,
            rows,
            known,
            float(distill_weight),
            _within(epochs, self.num_samples),
            batch_size,
            float(lr),
            losses,
        )
        self._is_saved = False
        return Losses(*losses.tolist())

    def mixed_steps(self, steps: MixedSteps, public: Tensor, target: Target) -> Losses:
        if steps.optimiser != PLAIN:
            self._is_saved = False
            return super().mixed_steps(steps, public, target)
        losses, (rows, known) = np.zeros(2), self._target_arrays(target)
        offsets = np.zeros((0, 0, 2), dtype=np.int64) if steps.offsets is None else steps.offsets
        clip_norm = np.inf if steps.clip_norm is None else steps.clip_norm
        kernels.mixed_steps(
            *self._kernel_arguments,
            _row_major(public),
            rows,
            known,
            _within(np.ascontiguousarray(steps.own, dtype=np.int64), self.num_samples),
            _within(np.ascontiguousarray(steps.public, dtype=np.int64), len(public)),
            (np.ascontiguousarray(offsets, dtype=np.int64), steps.most_moved, self._image),
            np.array([steps.own_weight, steps.public_weight, steps.momentum, clip_norm, 0.0, 0.0]),
            np.asarray(steps.lr, dtype=np.float64),
            np.zeros(self._net.num_parameters, np.float32),
            losses,
        )
        self._is_saved = False
        return Losses(*losses.tolist())

    def taught_steps(self, samples: Tensor, targets: Tensor, lr: FloatArray, descent: Descent) -> None:
        """Steps on given samples and their probabilities `[step · sample, ...]`, in order.

        There are as many steps as learning rates `lr`; their velocity continues from call to call.
        """
        rows, places = _row_major(samples), np.arange(len(samples)).reshape(len(lr), -1)
        nothing = np.zeros((len(lr), 0), dtype=np.int64)
        nesterov = descent.momentum if descent.nesterov else 0.0
        clip_norm = np.inf if descent.clip_norm is None else descent.clip_norm
        kernels.mixed_steps(
            *self._kernel_arguments,
            rows,
            _row_major(targets),
            np.ones(len(rows), np.float32),
            nothing,
            places,
            (np.zeros((0, 0, 2), dtype=np.int64), 0, self._image),
            np.array([0.0, 1.0, descent.momentum, clip_norm, descent.decay, nesterov]),
            np.asarray(lr, dtype=np.float64),
            self._velocity,
            np.zeros(2),
        )
        self._is_saved = False

    @cached_property
    def _velocity(self) -> _Floats:
        """The velocity of `taught_steps`, `[parameter]`."""
        return np.zeros(self._net.num_parameters, np.float32)

    def clipped_gradient(self, clip_norm: float) -> tuple[Tensor, Losses]:
        gradient = np.zeros_like(self._weights)
        loss = kernels.clipped_gradient(*self._kernel_arguments, float(clip_norm), gradient)
        mean = gradient[: self._net.num_parameters] / np.float32(self.num_samples)
        return torch.from_numpy(mean), Losses(loss / self.num_samples, 0.0)

    def logits(self, chunks: Sequence[Tensor]) -> Tensor:
        return self._logits_by(chunks, tilings_of(self._form, use_winograd=False), np.zeros(0, np.float32))

    def approximate_logits(self, chunks: Sequence[Tensor]) -> Tensor:
        tilings = tilings_of(self._form, use_winograd=True)
        convolution_kernels = [
            self.model.get_parameter(block.weight).detach().numpy()
            for block, tiling in zip(self._form.blocks, tilings.table, strict=True)
            if tiling[TILE_ROWS] > 0
        ]
        values = [kernel_values(kernel).ravel() for kernel in convolution_kernels]
        return self._logits_by(chunks, tilings, np.concatenate([*values, np.zeros(0, np.float32)]))

    def _logits_by(self, chunks: Sequence[Tensor], tilings: Tilings, values: _Floats) -> Tensor:
        sizes, results = (self._net.work, self._net.saved, tilings.tiles), list[Tensor]()
        work, saved, tiles = (_aligned(size) for size in sizes)  # allocated once, because new memory is slow
        for chunk in chunks:
            logits = np.empty((len(chunk), self._net.num_classes), dtype=np.float32)
            kernels.predict(self._net, tilings, self._weights, values, _row_major(chunk), work, saved, tiles, logits)
            results.append(torch.from_numpy(logits))
        return torch.cat(results)

    def _target_arrays(self, target: Target | None) -> tuple[_Floats, _Floats]:
        """The target's rows and flags; all flags are zero without a target."""
        if target is None:
            return np.zeros((self.num_classes, self.num_classes), np.float32), np.zeros(self.num_classes, np.float32)
        return target.rows.numpy(), target.known.numpy()


def _flatten_parameters(model: nn.Module, padding: int) -> tuple[_Floats, tuple[tuple[str, int], ...]]:
    """Move the model's parameters into one vector with zeros at its end; return it and the start of each parameter."""
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
    """New memory aligned to cache lines: access to a vector across two lines takes twice as long."""
    memory = np.empty(size + LANES, np.float32)
    start = -memory.ctypes.data // memory.itemsize % LANES
    return memory[start : start + size]


def _within(numbers: IntArray, size: int) -> IntArray:
    """The numbers, checked to be valid indices: the kernels do not check bounds."""
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < size:
        raise IndexError(f"indices from {numbers.min()} to {numbers.max()}: must be from 0 to {size - 1}")
    return numbers


def _row_major(samples: Tensor) -> _Floats:
    """Samples as contiguous rows, `[sample, feature]`."""
    return np.ascontiguousarray(samples.reshape(len(samples), -1).numpy())
