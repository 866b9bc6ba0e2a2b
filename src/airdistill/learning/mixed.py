"""Gradient steps on batches of private and public samples: to learn to abstain, or to learn from a broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax, nll_loss

from airdistill.arrays import FloatArray, IntArray
from airdistill.learning.gradients import Target
from airdistill.learning.optimisers import PLAIN
from airdistill.learning.samples import shifted


@dataclass(frozen=True)
class MixedSteps:
    """A device's steps: indices of its own samples `[step, own]` and of public ones `[step, public]`.

    Each step is SGD with momentum on own_weight · (mean cross-entropy of the own samples) + public_weight · (mean
    cross-entropy of the public samples against their rows of the target), with learning rates `lr` `[step]`.

    `offsets` `[step, own + public, 2]`, from 0 to 2 · `most_moved`, shift every image before the forward pass. The
    gradient is clipped to norm `clip_norm`, if given.

    An `optimiser` other than plain SGD replaces momentum, and its state continues from the device's last steps.
    """

    own: IntArray
    public: IntArray
    own_weight: float
    public_weight: float
    lr: FloatArray
    momentum: float = 0.0
    offsets: IntArray | None = None
    most_moved: int = 0
    clip_norm: float | None = None
    optimiser: str = PLAIN

    @property
    def packed(self) -> IntArray:
        """Sample indices and offsets of every step in one array, `[step, entry]`."""
        moves = [] if self.offsets is None else [self.offsets.reshape(len(self.offsets), 2 * self.offsets.shape[1])]
        return np.concatenate([self.own, self.public, *moves], axis=1)

    def unpacked(self, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Indices of own samples, indices of public samples, and offsets, from `packed` `[..., entry]`."""
        num_own, num_samples = self.own.shape[1], self.own.shape[1] + self.public.shape[1]
        offsets = packed[..., num_samples:].reshape(*packed.shape[:-1], -1, 2)
        return packed[..., :num_own], packed[..., num_own:num_samples], offsets

    def augment(self, samples: Tensor, offsets: Tensor) -> Tensor:
        """The samples of a step `[..., sample, ...]`, own ones first, shifted if the steps have offsets."""
        return samples if self.offsets is None else shifted(samples, offsets, self.most_moved)

    @property
    def _hyperparameters(self) -> tuple[float, float, float, int, float | None, str]:
        return self.own_weight, self.public_weight, self.momentum, self.most_moved, self.clip_norm, self.optimiser

    def clip(self, gradients: Sequence[Tensor], device_axis: bool) -> Sequence[Tensor]:
        """Clip the gradient to `clip_norm`; with a leading device axis, each device's gradient on its own."""
        if self.clip_norm is None:
            return gradients
        flat = [gradient.reshape(len(gradient) if device_axis else 1, -1) for gradient in gradients]
        squares = [gradient.square().sum(dim=1) for gradient in flat]
        factor = (self.clip_norm / torch.stack(squares).sum(dim=0).sqrt()).clamp(max=1.0)
        return [(part * factor[:, None]).view_as(given) for part, given in zip(flat, gradients, strict=True)]

    def can_stack_with(self, other: MixedSteps) -> bool:
        """Whether both devices can step together: equal batch sizes, weights and learning rates."""
        return (
            self.own.shape == other.own.shape
            and self.public.shape == other.public.shape
            and self._hyperparameters == other._hyperparameters
            and np.array_equal(self.lr, other.lr)
        )


@dataclass(frozen=True)
class Descent:
    """SGD with momentum, weight decay after clipping to norm `clip_norm`, and Nesterov's step if chosen."""

    momentum: float
    decay: float
    clip_norm: float | None = None
    nesterov: bool = False


def passes_in_batches(num_samples: int, num_steps: int, batch_size: int, rng: np.random.Generator) -> IntArray:
    """Draw `num_steps` batches `[step, sample]` from consecutive shuffled epochs.

    All batches have the same size: `batch_size`, or all samples if there are fewer.
    """
    size = min(batch_size, num_samples)
    if size == 0 or num_steps == 0:
        return np.zeros((num_steps, size), dtype=np.int64)
    num_passes = -(-num_steps * size // num_samples)
    order = np.concatenate([rng.permutation(num_samples) for _ in range(num_passes)])
    return np.asarray(order[: num_steps * size].reshape(num_steps, size))


def rise_and_fall(num_steps: int, warm_up: int) -> FloatArray:
    """A learning-rate schedule `[step]` relative to its peak: linear warm-up, and cosine decay to zero."""
    step = np.arange(num_steps)
    return np.asarray(np.minimum(1.0, (step + 1) / warm_up) * 0.5 * (1 + np.cos(np.pi * step / max(num_steps, 1))))


@torch.no_grad()
def descend(
    weights: Sequence[Tensor], gradients: Sequence[Tensor], velocities: Sequence[Tensor], lr: Tensor, momentum: float
) -> None:
    """SGD with momentum, in place: u ← βu + g, θ ← θ − ηu."""
    for weight, gradient, velocity in zip(weights, gradients, velocities, strict=True):
        velocity.mul_(momentum).add_(gradient)
        weight.sub_(lr * velocity)


def mixed_losses(logits: Tensor, labels: Tensor, target: Target, public: Tensor) -> Tensor:
    """The mean losses of own and of public samples, `[loss, ...]`.

    Logits are `[..., own + public, class]`, labels `[..., own]`, and indices `public` of public samples
    `[..., public]`. A public sample without a received row has zero loss.
    """
    log_predictions = log_softmax(logits, dim=-1)
    num_own = labels.shape[-1]
    own_rows, public_rows = log_predictions[..., :num_own, :], log_predictions[..., num_own:, :]
    zero = log_predictions.new_zeros(log_predictions.shape[:-2])
    own = zero
    if num_own:
        each = nll_loss(own_rows.flatten(0, -2), labels.flatten(), reduction="none")
        own = each.view_as(labels).mean(dim=-1)
    shared = zero
    if public.shape[-1]:
        each = -(target.rows[public] * public_rows).sum(dim=-1) * target.known[public]
        shared = each.mean(dim=-1)
    return torch.stack([own, shared])
