"""The learning of one device: its knowledge (eq. 2), its loss (eq. 1) and its update (eq. 4)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

from airdistill.arrays import FloatArray, IntArray
from airdistill.learning.clipping import clipped_sum, trainable
from airdistill.learning.gradients import Target
from airdistill.learning.mixed import MixedSteps, descend, mixed_losses
from airdistill.learning.models import has_batch_norm
from airdistill.learning.optimisers import PLAIN, Optimiser
from airdistill.learning.samples import channels_last

# Samples per chunk for clipping: the per-sample gradients of a convolution stay in the processor's cache; measured.
_CLIPPING_CHUNK = 120


def distillations(logits: Tensor, labels: Tensor, target: Target) -> Tensor:
    """‖G(u) − r̂‖² of eq. (1) for each sample, `[sample]`; zero if the row of its class was not received."""
    predictions = log_softmax(logits, dim=1).exp()
    squared = ((predictions - target.rows[labels]) ** 2).sum(dim=1)
    return squared * target.known[labels]


def batches_of(samples: Tensor, size: int, model: nn.Module, dim: int = 0) -> Sequence[Tensor]:
    """Consecutive batches of so many samples, and what is left over.

    Batch normalisation has no statistics of a single sample: one that is left over then joins the batch before it.
    """
    count = samples.shape[dim]
    if not 1 < size < count or count % size != 1 or not has_batch_norm(model):
        return torch.split(samples, size, dim)
    return torch.split(samples, [size] * (count // size - 1) + [size + 1], dim)


@dataclass(frozen=True)
class Losses:
    """The two mean losses of eq. (1) over a device's samples; the distillation loss is without its weight γ."""

    training: float
    distillation: float


@torch.no_grad()
def logits_of(model: nn.Module, chunks: Sequence[Tensor]) -> Tensor:
    """The model's logits in evaluation mode on samples in chunks, `[sample, class]`."""
    model.eval()
    logits = torch.cat([model(chunk) for chunk in chunks])
    model.train()
    return logits


def predictions_of(logits: Tensor) -> FloatArray:
    """The softmax of logits, `[sample, class]` in float64."""
    return np.asarray(logits.to(torch.float64).softmax(dim=1).cpu().numpy())


class Learner:
    """A device: its model, its samples in chunks, and possibly a forward pass that is kept for the update."""

    def __init__(
        self,
        model: nn.Module,
        samples: Tensor,
        labels: IntArray,
        num_classes: int,
        chunk: int,
        rows: Tensor | None = None,
    ) -> None:
        """A device that holds these rows of `samples`, by default all, with labels `[sample]` of those that it holds.

        Rows are read whenever they are needed: devices that share samples keep no copies.
        """
        if samples.ndim == 4:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model = model
        self.num_classes = num_classes
        self._pool, self._rows, self._chunk = self._in_layout(samples), rows, chunk
        self._labels = torch.from_numpy(labels).to(samples.device)
        self._class_counts = torch.bincount(self._labels, minlength=num_classes)
        self._kept: list[Tensor] | None = None
        self.optimiser: Optimiser | None = None  # None before the first step with one

    @property
    def num_samples(self) -> int:
        return len(self._labels)

    @staticmethod
    def _in_layout(samples: Tensor) -> Tensor:
        """Samples in the memory layout in which they are read."""
        return channels_last(samples)

    @property
    def labels(self) -> Tensor:
        """Labels `[sample]`."""
        return self._labels

    @property
    def pool_and_rows(self) -> tuple[Tensor, Tensor | None]:
        """The samples that the device may share with others, and the rows that it holds; None: all."""
        return self._pool, self._rows

    @property
    def _samples(self) -> Tensor:
        return self._pool if self._rows is None else self._in_layout(self._pool[self._rows])

    def _taken(self, places: Tensor) -> Tensor:
        """The samples at these places among the device's own."""
        return self._pool[places if self._rows is None else self._rows[places]]

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Samples and labels of one forward pass each."""
        parts = (batches_of(each, self._chunk, self.model) for each in (self._samples, self._labels))
        return zip(*parts, strict=True)

    def samples_and_labels(self) -> tuple[Tensor, Tensor]:
        """Samples `[sample, ...]` and labels `[sample]`."""
        return self._samples, self._labels

    def logits(self, chunks: Sequence[Tensor]) -> Tensor:
        """The model's logits on samples in chunks, `[sample, class]`."""
        return logits_of(self.model, chunks)

    def approximate_logits(self, chunks: Sequence[Tensor]) -> Tensor:
        """`logits` by a possibly faster algorithm with larger rounding errors: for accuracy, which needs the argmax."""
        return self.logits(chunks)

    def knowledge(self, keep: bool = False) -> FloatArray:
        """Eq. (2): the mean prediction of every class, `[class, class]`; NaN for a class without samples.

        `keep` keeps the forward pass in memory, and `full_batch_step` reuses it.
        """
        sums = torch.zeros(self.num_classes, self.num_classes, dtype=torch.float64, device=self._labels.device)
        kept = []
        for samples, labels in self._batches():
            with torch.set_grad_enabled(keep):
                logits = self.model(samples)
            kept.append(logits)
            sums.index_add_(0, labels, logits.detach().to(torch.float64).softmax(dim=1))
        self._kept = kept if keep else None
        return np.asarray((sums / self._class_counts[:, None]).cpu().numpy())

    def cross_entropy(self) -> float:
        """The mean cross-entropy of the present model on the device's samples."""
        samples, labels = self.samples_and_labels()
        return float(cross_entropy(self.logits(torch.split(samples, _CLIPPING_CHUNK)), labels))

    def drop_cache(self) -> None:
        """Drop a kept forward pass, because the weights have changed."""
        self._kept = None

    def kept_bytes_per_sample(self) -> float:
        """The memory that autograd keeps between forward and backward pass, measured on one chunk."""
        storages: dict[int, int] = {}

        def record(tensor: Tensor) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        # On a copy and with the generator restored: measuring must not change statistics or random draws of a run.
        model = copy.deepcopy(self.model)
        with torch.random.fork_rng(), torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
            logits = model(self._samples[: self._chunk])
        return sum(storages.values()) / len(logits)

    def optimiser_named(self, name: str) -> Optimiser:
        """The optimiser of this name with the state that the device's steps have left it."""
        if self.optimiser is None:
            self.optimiser = Optimiser.fresh(name, trainable(self.model))
        return self.optimiser

    def load_optimiser(self, stored: dict[str, Tensor]) -> None:
        """Load an optimiser's state by `name.tensor`; nothing is stored before the first step."""
        if stored:
            name = next(iter(stored)).partition(".")[0]
            own = {key.removeprefix(f"{name}."): tensor for key, tensor in stored.items()}
            self.optimiser_named(name).load(own)
        elif self.optimiser is not None:
            self.optimiser.load({})

    def full_batch_step(
        self, target: Target | None, lr: float, distill_weight: float, optimiser: str = PLAIN
    ) -> Losses:
        """Eq. (4): one gradient step on all samples, on the kept forward pass if there is one."""
        kept, self._kept = self._kept, None
        training = distillation = 0.0
        for position, (samples, labels) in enumerate(self._batches()):
            logits = kept[position] if kept is not None else self.model(samples)
            share = len(labels) / self.num_samples
            losses = self._backward(logits, labels, target, distill_weight, share)
            training += losses.training
            distillation += losses.distillation
            if kept is not None:
                kept[position] = torch.empty(0)  # free the chunk's activations
        self._descend(lr, optimiser)
        return Losses(training, distillation)

    def local_epochs(
        self,
        target: Target | None,
        lr: float,
        distill_weight: float,
        orders: list[IntArray],
        batch_size: int,
        optimiser: str = PLAIN,
    ) -> Losses:
        """Epochs of minibatch steps, one for each order `[sample]`; the losses are means over all samples."""
        training = distillation = 0.0
        for order in orders:
            for batch in batches_of(torch.from_numpy(order).to(self._labels.device), batch_size, self.model):
                share = len(batch) / (self.num_samples * len(orders))
                samples, labels = channels_last(self._taken(batch)), self._labels[batch]
                losses = self._backward(self.model(samples), labels, target, distill_weight, 1.0)
                training += share * losses.training
                distillation += share * losses.distillation
                self._descend(lr, optimiser)
        return Losses(training, distillation)

    def mixed_steps(self, steps: MixedSteps, public: Tensor, target: Target) -> Losses:
        """Steps on own samples and on `public` ones `[sample, ...]`; the losses are means over all steps."""
        device, weights = self._labels.device, trainable(self.model)
        sums = torch.zeros(2, dtype=torch.float64, device=device)
        velocities = [torch.zeros_like(weight) for weight in weights]
        rates = torch.from_numpy(steps.lr).to(device, self._pool.dtype)
        for packed, lr in zip(torch.from_numpy(steps.packed).to(device), rates, strict=True):
            own, shared, offsets = steps.unpacked(packed)
            samples = steps.augment(torch.cat([self._taken(own), public[shared]]), offsets)
            logits = self.model(channels_last(samples))
            losses = mixed_losses(logits, self._labels[own], target, shared)
            loss = steps.own_weight * losses[0] + steps.public_weight * losses[1]
            gradients = steps.clip(torch.autograd.grad(loss, weights, materialize_grads=True), device_axis=False)
            if steps.optimiser == PLAIN:
                descend(weights, gradients, velocities, lr, steps.momentum)
            else:
                self.optimiser_named(steps.optimiser).step(weights, gradients, lr)
            sums += losses.detach()
        training, distillation = (sums / max(len(steps.lr), 1)).tolist()
        return Losses(training, distillation)

    def _backward(
        self, logits: Tensor, labels: Tensor, target: Target | None, distill_weight: float, share: float
    ) -> Losses:
        """Add `share` times the batch's gradient of eq. (1) to the parameters; return `share` times its two losses."""
        training = share * cross_entropy(logits, labels)
        if target is None or distill_weight == 0:
            torch.autograd.backward(training)
            return Losses(float(training.detach()), 0.0)
        distillation = share * distillations(logits, labels, target).mean()
        torch.autograd.backward(training + distill_weight * distillation)
        return Losses(float(training.detach()), float(distillation.detach()))

    @torch.no_grad()
    def _descend(self, lr: float, optimiser: str) -> None:
        if optimiser != PLAIN:
            weights = trainable(self.model)
            gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in weights]
            self.optimiser_named(optimiser).step(weights, gradients, lr)
            self.model.zero_grad(set_to_none=True)
            return
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=lr)
                parameter.grad = None

    def gradient(self, target: Target | None, distill_weight: float) -> tuple[Tensor, Losses]:
        """∇F of eq. (1) at the current parameters as one vector, without a step."""
        training = distillation = 0.0
        for samples, labels in self._batches():
            share = len(labels) / self.num_samples
            losses = self._backward(self.model(samples), labels, target, distill_weight, share)
            training += losses.training
            distillation += losses.distillation
        # A parameter that the output does not depend on has no gradient.
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in trainable(self.model)]
        gradient = torch.cat([part.flatten() for part in parts])
        self.model.zero_grad(set_to_none=True)
        return gradient, Losses(training, distillation)

    def clipped_gradient(self, clip_norm: float) -> tuple[Tensor, Losses]:
        """(1/B_i)Σ_b clip_C(∇f_b) of the cross-entropy, as one vector."""
        chunk = _CLIPPING_CHUNK if self._labels.device.type == "cpu" else self.num_samples
        chunks = zip(torch.split(self._samples, chunk), torch.split(self._labels, chunk), strict=True)
        sums = [clipped_sum(self.model, samples[None], labels[None], clip_norm) for samples, labels in chunks]
        gradient = torch.cat([part.gradient for part in sums]).sum(dim=0) / self.num_samples
        loss = torch.cat([part.loss for part in sums]).sum() / self.num_samples
        return gradient, Losses(float(loss), 0.0)

    @torch.no_grad()
    def descend(self, gradient: Tensor, lr: float) -> None:
        """θ ← θ − η g for a vector in the order of the trainable parameters."""
        parameters = trainable(self.model)
        parts = torch.split(gradient, [parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.sub_(part.reshape(parameter.shape), alpha=lr)
