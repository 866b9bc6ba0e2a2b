"""Steps on own samples and on public ones side by side: to learn to abstain, or to learn from a broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax, nll_loss

from airdistill.arrays import FloatArray, IntArray
from airdistill.learning.gradients import Target
from airdistill.learning.samples import moved


@dataclass(frozen=True)
class MixedSteps:
    """A device's steps: indices of own samples `[step, own]` and of public ones `[step, public]`, and step sizes.

    `offsets` `[step, own + public, 2]`, from 0 to twice `most_moved`, move every image before it is learned from. A
    gradient longer than `clip_norm` is shortened to it.

    A step goes down the gradient of own_weight · (mean cross-entropy of the own samples) + public_weight · (mean
    cross-entropy of the public ones against their target's rows), with momentum from step to step; `lr` is `[step]`.
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

    @property
    def packed(self) -> IntArray:
        """All that changes from step to step but its size, `[step, number]`."""
        moves = [] if self.offsets is None else [self.offsets.reshape(len(self.offsets), 2 * self.offsets.shape[1])]
        return np.concatenate([self.own, self.public, *moves], axis=1)

    def unpacked(self, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Indices of own and of public samples and the offsets, from `[..., number]`."""
        num_own, num_samples = self.own.shape[1], self.own.shape[1] + self.public.shape[1]
        offsets = packed[..., num_samples:].reshape(*packed.shape[:-1], -1, 2)
        return packed[..., :num_own], packed[..., num_own:num_samples], offsets

    def move(self, samples: Tensor, offsets: Tensor) -> Tensor:
        """The samples of a step, own ones first, as it sees them: `[..., sample, ...]`."""
        return samples if self.offsets is None else moved(samples, offsets, self.most_moved)

    @property
    def _factors(self) -> tuple[float, float, float, int, float | None]:
        return self.own_weight, self.public_weight, self.momentum, self.most_moved, self.clip_norm

    def shorten(self, slopes: Sequence[Tensor], device_axis: bool) -> Sequence[Tensor]:
        """The gradient, or each device's where the first axis is of devices, no longer than it may be."""
        if self.clip_norm is None:
            return slopes
        apart = [slope.reshape(len(slope) if device_axis else 1, -1) for slope in slopes]
        squares = [slope.square().sum(dim=1) for slope in apart]
        share = (self.clip_norm / torch.stack(squares).sum(dim=0).sqrt()).clamp(max=1.0)
        return [(slope * share[:, None]).view_as(given) for slope, given in zip(apart, slopes, strict=True)]

    def alike(self, other: MixedSteps) -> bool:
        """Whether both can be made at once: the same sizes, weights and step sizes."""
        return (
            self.own.shape == other.own.shape
            and self.public.shape == other.public.shape
            and self._factors == other._factors
            and np.array_equal(self.lr, other.lr)
        )


def passes_in_batches(num_samples: int, num_steps: int, batch_size: int, rng: np.random.Generator) -> IntArray:
    """Passes over shuffled samples, cut into that many batches `[step, sample]`, all full; none larger than all."""
    size = min(batch_size, num_samples)
    if size == 0 or num_steps == 0:
        return np.zeros((num_steps, size), dtype=np.int64)
    num_passes = -(-num_steps * size // num_samples)
    order = np.concatenate([rng.permutation(num_samples) for _ in range(num_passes)])
    return np.asarray(order[: num_steps * size].reshape(num_steps, size))


def rise_and_fall(num_steps: int, warm_up: int) -> FloatArray:
    """Shares of a step size, `[step]`: rising to it at first, and falling to nothing along a cosine."""
    step = np.arange(num_steps)
    return np.asarray(np.minimum(1.0, (step + 1) / warm_up) * 0.5 * (1 + np.cos(np.pi * step / max(num_steps, 1))))


@torch.no_grad()
def descend(
    weights: Sequence[Tensor], slopes: Sequence[Tensor], velocities: Sequence[Tensor], lr: Tensor, momentum: float
) -> None:
    """u ← βu + g, θ ← θ − ηu, for all weights with their velocities."""
    for weight, slope, velocity in zip(weights, slopes, velocities, strict=True):
        velocity.mul_(momentum).add_(slope)
        weight.sub_(lr * velocity)


def mixed_losses(logits: Tensor, labels: Tensor, target: Target, public: Tensor) -> Tensor:
    """The two means, `[loss, ...]`, from logits `[..., own + public, class]` of own samples with labels `[..., own]`
    and of the public samples with these indices, `[..., public]`.

    A public sample of which nothing is known counts as one that is already right.
    """
    log_predictions = log_softmax(logits, dim=-1)
    num_own = labels.shape[-1]
    of_own, of_public = log_predictions[..., :num_own, :], log_predictions[..., num_own:, :]
    none = log_predictions.new_zeros(log_predictions.shape[:-2])
    own = none
    if num_own:
        each = nll_loss(of_own.flatten(0, -2), labels.flatten(), reduction="none")
        own = each.view_as(labels).mean(dim=-1)
    shared = none
    if public.shape[-1]:
        each = -(target.rows[public] * of_public).sum(dim=-1) * target.known[public]
        shared = each.mean(dim=-1)
    return torch.stack([own, shared])
