"""The learning of all devices at once: parameters and samples stacked along a device axis.

A GPU then runs few large kernels instead of many small ones, and nothing is copied to the host before a round ends.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax, nll_loss, one_hot

from airdistill.arrays import FloatArray, IntArray
from airdistill.errors import InputError
from airdistill.learning.clipping import clipped_sum
from airdistill.learning.cuda_graphs import CudaGraphPass, MinibatchStep
from airdistill.learning.deferred import DeferredLosses
from airdistill.learning.fused.cuda import FusedLogits, fused_logits, loss_gradients
from airdistill.learning.fused.form import form_of
from airdistill.learning.gradients import Target, parameter_gradients
from airdistill.learning.learner import Learner, Losses, batches_of
from airdistill.learning.mixed import MixedSteps, descend, mixed_losses
from airdistill.learning.optimisers import PLAIN, Optimiser
from airdistill.learning.stacking import (
    TorchLogits,
    class_sums,
    contiguous,
    contiguous_stack,
    device_vectors,
    split_pairs,
    stacked_parameters,
)

logger = logging.getLogger(__name__)

# Samples per chunk for clipping: enough to keep a GPU busy, within a few GiB for small kernels.
_CLIPPING_CHUNK = 1 << 14
# Peak memory that a pass through the fused kernels may take.
_FUSED_BYTES = 4 << 30


class StackedLearners:
    """`Learner` for all devices at once; they must satisfy `can_stack`.

    The learners' models share memory with the stack, and so always have its current weights. Loading weights into a
    model, or training it alone, changes the stack.
    """

    def __init__(
        self, learners: Sequence[Learner], chunk: int, kernels: str = "auto", kept_bytes: int | None = None
    ) -> None:
        """A forward pass takes `chunk` samples of each device, or with fused kernels as many as fit into memory.

        `kernels` is a choice of `Engine`. A forward pass of up to `kept_bytes` is kept for the update; the default is
        the memory budget of the fused kernels.
        """
        models = [learner.model for learner in learners]
        # Only the code of this copy is used, and so hooks or modes of a device's model have no effect. It shares the
        # weights of device 0.
        self._template = copy.deepcopy(models[0])
        self._parameters = stacked_parameters(models)
        self._trained = [stack for stack in self._parameters.values() if stack.requires_grad]
        for name, stack in self._parameters.items():
            for model, own in zip(models, stack.detach().unbind(), strict=True):
                model.get_parameter(name).data = own
            self._template.get_parameter(name).data = stack.detach()[0]
        samples, labels = zip(*(learner.samples_and_labels() for learner in learners), strict=True)
        self._samples, self._labels = contiguous_stack(samples), contiguous_stack(labels)
        self._num_classes = learners[0].num_classes
        self._class_counts = self._indicators(self._labels).sum(dim=1)  # [device, class]
        self._logits = self._choose_logits(kernels)
        self._chunk = self._fitting_chunk(chunk)
        self._chunks = [
            (self._logits.to_layout(samples_chunk), labels_chunk)
            for samples_chunk, labels_chunk in split_pairs(self._samples, self._labels, self._chunk, dim=1)
        ]
        self._passes = self._captured_passes(_FUSED_BYTES if kept_bytes is None else kept_bytes)
        self._current_pass: CudaGraphPass | None = None  # the pass that ran with the current weights, if any
        self._last_keep: bool | None = None  # of the last call of `knowledge`; None before the first
        self._last_losses: DeferredLosses | None = None  # of the step that led to the current weights
        self._steps: dict[tuple[int, float | None, str], MinibatchStep] = {}
        self._learners = learners
        self._optimiser: Optimiser | None = None  # None before the first step with one

    def knowledge(self, keep: bool = False) -> FloatArray:
        """Eq. (2) of every device, `[device, class, class]`; NaN if a device has no samples of a class.

        `keep` keeps the forward pass in memory, if it fits, and `full_batch_step` reuses it.
        """
        self._last_keep = keep and True in self._passes
        forward = self._run_pass(self._last_keep)
        if forward is not None:
            return np.asarray(forward.knowledge.cpu().numpy())
        sums = self._class_counts.new_zeros(*self._class_counts.shape, self._num_classes)
        with torch.no_grad():
            for samples, labels in self._chunks:
                sums += class_sums(self._logits(self._parameters, samples), self._indicators(labels))
        return np.asarray((sums / self._class_counts[:, :, None]).cpu().numpy())

    def full_batch_step(
        self, target: Target | None, lr: float, distill_weight: float, optimiser: str = PLAIN
    ) -> Sequence[Losses]:
        """Eq. (4) on every device: one gradient step on all samples, on the kept forward pass if there is one."""
        forward = self._run_pass(keep=True)
        if forward is not None:
            target = target if distill_weight else None
            step = self._step_after(forward, target, distill_weight, optimiser)
            step.begin(target, lr)
            step.run()
            return self._deferred(step.losses)
        gradients, losses = self._full_batch(target, distill_weight)
        self._update(gradients, lr, optimiser)
        return self._deferred(losses)

    def local_epochs(
        self,
        target: Target | None,
        lr: float,
        distill_weight: float,
        orders: list[list[IntArray]],
        batch_size: int,
        optimiser: str = PLAIN,
    ) -> Sequence[Losses]:
        """Epochs of minibatch steps on every device; `orders[device]` has one order of its samples for each epoch."""
        # One transfer for all indices: [device, epoch, sample].
        epochs = torch.from_numpy(np.array(orders, np.int64)).to(self._labels.device)
        orders_of_all = epochs.unbind(dim=1)
        batches = [batch for order in orders_of_all for batch in batches_of(order, batch_size, self._template, dim=1)]
        target = target if distill_weight else None
        sizes = {batch.shape[1] for batch in batches}
        steps = {size: self._step_on(size, target, distill_weight, optimiser) for size in sizes}
        for step in steps.values():
            step.begin(target, lr)
        for batch in batches:
            steps[batch.shape[1]].run(batch)
        sums = torch.stack([size * step.losses for size, step in steps.items()]).sum(dim=0)
        return self._deferred(sums / (epochs.shape[1] * epochs.shape[2]))

    def mixed_steps(self, steps: Sequence[MixedSteps], public: Tensor, target: Target) -> Sequence[Losses]:
        """Steps on own samples and on `public` ones `[sample, ...]`; all devices' steps must be stackable."""
        first, public = steps[0], contiguous(public)
        packed = torch.from_numpy(np.stack([each.packed for each in steps], axis=1)).to(self._labels.device)
        every_device = self._every_device()
        velocities = [torch.zeros_like(stack) for stack in self._trained]

        def step(batch: Tensor, target: Target | None, lr: Tensor) -> Tensor:
            assert target is not None  # given below
            own, shared, offsets = first.unpacked(batch)
            samples = first.augment(torch.cat([self._samples[every_device, own], public[shared]], dim=1), offsets)
            losses = mixed_losses(self._forward(samples), self._labels[every_device, own], target, shared)
            loss = first.own_weight * losses[0] + first.public_weight * losses[1]
            # A device's loss depends on its own weights only: the gradient of the sum over devices is that of each.
            gradients = torch.autograd.grad(loss.sum(), self._trained, materialize_grads=True)
            clipped = first.clip(gradients, device_axis=True)
            if first.optimiser == PLAIN:
                descend(self._trained, clipped, velocities, lr, first.momentum)
            else:
                self._update(clipped, lr, first.optimiser)
            return losses.detach()

        changed = [*self._changed_by(first.optimiser), *velocities]
        minibatch_step = MinibatchStep(step, (len(self._labels), packed.shape[2]), target, changed)
        minibatch_step.begin(target, 0.0)
        for batch, lr in zip(packed, first.lr.tolist(), strict=True):
            minibatch_step.run(batch, lr)
        return self._deferred(minibatch_step.losses / max(len(first.lr), 1))

    def predictions(self, chunks: Iterable[Tensor]) -> FloatArray:
        """Predictions `[device, sample, class]` in evaluation mode; `chunks` are the same samples for all devices."""
        logits = torch.cat(list(self._evaluate(chunks)), dim=1)
        return np.asarray(logits.to(torch.float64).softmax(dim=2).cpu().numpy())

    def gradients(self) -> tuple[Tensor, list[Losses]]:
        """The mean gradient of every device's cross-entropy, `[device, parameter]`."""
        gradients, losses = self._full_batch(None, 0.0)
        return device_vectors(gradients), _losses_of(losses.tolist())

    def clipped_gradients(self, clip_norm: float) -> tuple[Tensor, list[Losses]]:
        """`gradients` with per-sample clipping, if all devices have the weights of device 0."""
        by_group = []
        devices_in_chunk = max(1, _CLIPPING_CHUNK // self._labels.shape[1])
        groups = split_pairs(self._samples, self._labels, devices_in_chunk, dim=0)
        for chunks in (split_pairs(*group, _CLIPPING_CHUNK, dim=1) for group in groups):
            sums = [clipped_sum(self._template, chunk, chunk_labels, clip_norm) for chunk, chunk_labels in chunks]
            gradient = torch.stack([part.gradient for part in sums]).sum(dim=0)
            by_group.append((gradient, torch.stack([part.loss for part in sums]).sum(dim=0)))
        gradients, training = (torch.cat(parts) / self._labels.shape[1] for parts in zip(*by_group, strict=True))
        return gradients, _losses_of(torch.stack([training, torch.zeros_like(training)]).tolist())

    def parameters(self) -> Tensor:
        """Every device's trainable parameters as one vector each, `[device, parameter]`."""
        return device_vectors([stack.detach() for stack in self._trained])

    @torch.no_grad()
    def average(self, weights: FloatArray) -> None:
        """Set every model to Σ_i w_i θ_i, summed in float64."""
        self.drop_cache()
        shares = torch.from_numpy(weights).to(self._labels.device, torch.float64)
        for stack in self._parameters.values():
            stack.copy_(torch.tensordot(shares, stack.to(torch.float64), dims=1))

    @torch.no_grad()
    def descend(self, gradient: Tensor, lr: float) -> None:
        """θ ← θ − η g on every device, for one vector in the order of the trainable parameters."""
        self.drop_cache()
        parts = torch.split(gradient, [stack[0].numel() for stack in self._trained])
        shaped = [part.reshape(stack.shape[1:]) for part, stack in zip(parts, self._trained, strict=True)]
        self._descend(shaped, lr)

    def correct_by_class(self, chunks: Iterable[Tensor], labels: IntArray) -> FloatArray:
        """Correctly classified samples, `[device, class]`; `chunks` are the same samples for all devices."""
        predicted = torch.cat([logits.argmax(dim=2) for logits in self._evaluate(chunks)], dim=1)
        true = torch.from_numpy(labels).to(predicted.device)
        correct = (predicted == true).to(torch.float64)
        return np.asarray((correct @ self._indicators(true)).cpu().numpy())

    def drop_cache(self) -> None:
        """Drop what was computed from the old weights, because they have changed."""
        self._current_pass = self._last_losses = None

    def finite_weights(self) -> list[bool]:
        """For each device, whether all its weights are finite."""
        last, self._last_losses = self._last_losses, None
        return self._all_finite().tolist() if last is None else last.left_finite_weights

    def _all_finite(self) -> Tensor:
        return torch.isfinite(device_vectors([stack.detach() for stack in self._parameters.values()])).all(dim=1)

    def _deferred(self, losses: Tensor) -> Sequence[Losses]:
        """A step's losses `[loss, device]`; meanwhile the GPU starts the forward pass that the next round needs."""
        self._last_losses, self._current_pass = DeferredLosses(losses, self._all_finite()), None
        if self._last_keep is not None:
            self._run_pass(self._last_keep)
        return self._last_losses

    def _choose_logits(self, kernels: str) -> TorchLogits | FusedLogits:
        """The kernels for this choice; "fused" is an error if they cannot be used, "auto" falls back to PyTorch's."""
        if kernels == "torch" or self._samples.device.type != "cuda":
            return TorchLogits(self._template)
        form = form_of(self._template, tuple(self._samples.shape[2:]))
        if form is None:
            fused: FusedLogits | str = "the model is not of the form that they compute"
        else:
            fused = fused_logits(form, self._parameters, self._samples)
        if not isinstance(fused, str):
            return fused
        if kernels == "fused":
            raise InputError("--engine", "fused", f"is not possible: {fused}")
        logger.info("the fused kernels are not used: %s", fused)
        return TorchLogits(self._template)

    def _fitting_chunk(self, chunk: int) -> int:
        """The number of samples of each device in one forward pass."""
        if isinstance(self._logits, TorchLogits):
            return chunk
        return max(chunk, _FUSED_BYTES // (self._logits.bytes_per_sample * len(self._labels)))

    def _captured_passes(self, kept_bytes: int) -> dict[bool, CudaGraphPass]:
        """Forward passes by whether they are kept, if the kernels are fused and all samples fit into one pass."""
        if isinstance(self._logits, TorchLogits) or len(self._chunks) > 1:
            return {}
        logits, (samples, labels) = self._logits, self._chunks[0]
        indicators = self._indicators(labels)

        def knowledge_of(logits_of_all: Tensor) -> Tensor:
            return class_sums(logits_of_all, indicators) / self._class_counts[:, :, None]

        can_keep = labels.numel() * logits.bytes_per_sample <= kept_bytes
        return {
            keeps: CudaGraphPass(lambda parameters: logits(parameters, samples), knowledge_of, self._parameters, keeps)
            for keeps in ([False, True] if can_keep else [False])
        }

    def _run_pass(self, keep: bool) -> CudaGraphPass | None:
        """The forward pass with the current weights, which may still be running; None if it cannot be captured."""
        chosen = self._passes.get(keep)
        if chosen is None:
            return None
        if self._current_pass is not chosen:
            self._current_pass = chosen if chosen.run() else None
        return self._current_pass

    def _step_after(
        self, forward: CudaGraphPass, target: Target | None, distill_weight: float, optimiser: str
    ) -> MinibatchStep:
        """The step on all samples that backpropagates through this forward pass."""
        kind = 0, None if target is None else distill_weight, optimiser
        if kind not in self._steps:

            def step(_: Tensor, target: Target | None, lr: Tensor) -> Tensor:
                logit_gradients, losses = loss_gradients(forward.logits, self._labels, target, distill_weight)
                self._update(forward.gradients(logit_gradients), lr, optimiser)
                return losses

            self._steps[kind] = MinibatchStep(step, (len(self._labels), 0), target, self._changed_by(optimiser))
        return self._steps[kind]

    def _indicators(self, labels: Tensor) -> Tensor:
        """One-hot labels `[..., class]` in float64, for sums over classes."""
        return one_hot(labels, self._num_classes).to(torch.float64)

    def _forward(self, samples: Tensor) -> Tensor:
        """Logits of samples `[device, sample, ...]`; a device axis of length 1 serves all devices."""
        return self._logits(self._parameters, self._logits.to_layout(samples))

    @torch.no_grad()
    def _evaluate(self, chunks: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield all devices' logits on the same samples in evaluation mode, chunk by chunk."""
        self._template.eval()
        for chunk in torch.split(torch.cat([contiguous(chunk) for chunk in chunks]), self._chunk):
            yield self._forward(chunk[None])
        self._template.train()

    def _full_batch(self, target: Target | None, distill_weight: float) -> tuple[list[Tensor], Tensor]:
        """Gradients of eq. (1) for `_trained`, and losses `[loss, device]`."""
        gradients = [torch.zeros_like(stack) for stack in self._trained]
        means = self._class_counts.new_zeros(2, len(self._labels))
        for samples, labels in self._chunks:
            share = labels.shape[1] / self._labels.shape[1]
            logits = self._logits(self._parameters, samples)
            chunk_gradients, losses = self._gradients(logits, labels, target, distill_weight)
            for gradient, part in zip(gradients, chunk_gradients, strict=True):
                gradient.add_(part, alpha=share)
            means.add_(losses, alpha=share)
        return gradients, means

    def _gradients(
        self, logits: Tensor, labels: Tensor, target: Target | None, distill_weight: float
    ) -> tuple[Sequence[Tensor], Tensor]:
        """Gradients of eq. (1) on one batch for `_trained`, and its losses `[loss, device]`."""
        target = target if distill_weight else None
        if isinstance(self._logits, FusedLogits):
            logit_gradients, means = loss_gradients(logits, labels, target, distill_weight)
            return parameter_gradients(logits, logit_gradients, self._trained), means
        training, distillation = _losses(logits, labels, target)
        # A device's loss depends on its own weights only: the gradient of the sum over devices is that of each.
        loss = torch.add(training, distillation, alpha=distill_weight).sum()
        # A parameter that the output does not depend on has a gradient of zero.
        gradients = torch.autograd.grad(loss, self._trained, materialize_grads=True)
        return gradients, torch.stack([training.detach(), distillation.detach()])

    def _step_on(self, size: int, target: Target | None, distill_weight: float, optimiser: str) -> MinibatchStep:
        """The step on minibatches of that size, cached: capturing it takes longer than running it."""
        kind = size, None if target is None else distill_weight, optimiser
        if kind not in self._steps:
            every_device = self._every_device()

            def step(batch: Tensor, target: Target | None, lr: Tensor) -> Tensor:
                samples, labels = self._samples[every_device, batch], self._labels[every_device, batch]
                gradients, losses = self._gradients(self._forward(samples), labels, target, distill_weight)
                self._update(gradients, lr, optimiser)
                return losses

            self._steps[kind] = MinibatchStep(step, (len(self._labels), size), target, self._changed_by(optimiser))
        return self._steps[kind]

    def _every_device(self) -> Tensor:
        """The device indices `[device, 1]`, to select samples of each device with indices `[device, sample]`."""
        return torch.arange(len(self._labels), device=self._labels.device)[:, None]

    def _changed_by(self, optimiser: str) -> list[Tensor]:
        """All tensors that a step with this optimiser changes."""
        return [*self._trained, *(() if optimiser == PLAIN else self._optimiser_named(optimiser).state.values())]

    def _optimiser_named(self, name: str) -> Optimiser:
        """The optimiser of all devices, whose own ones share memory with it."""
        if self._optimiser is None:
            self._optimiser = Optimiser.stacked([learner.optimiser_named(name) for learner in self._learners])
        return self._optimiser

    def _update(self, gradients: Sequence[Tensor], lr: float | Tensor, optimiser: str) -> None:
        if optimiser == PLAIN:
            self._descend(gradients, lr)
        else:
            self._optimiser_named(optimiser).step(self._trained, gradients, lr)

    @torch.no_grad()
    def _descend(self, gradients: Sequence[Tensor], lr: float | Tensor) -> None:
        # One fused launch: on a GPU, an operation for each parameter took as long as a layer.
        torch._foreach_sub_(self._trained, torch._foreach_mul(list(gradients), lr))


def _losses(logits: Tensor, labels: Tensor, target: Target | None) -> tuple[Tensor, Tensor]:
    """The two mean losses of eq. (1), `[device]`; logits are `[device, sample, class]`, labels `[device, sample]`."""
    log_predictions = log_softmax(logits, dim=2)
    each = nll_loss(log_predictions.flatten(0, 1), labels.flatten(), reduction="none")
    training = each.view_as(labels).mean(dim=1)
    if target is None:
        return training, torch.zeros_like(training)
    squared = ((log_predictions.exp() - target.rows[labels]) ** 2).sum(dim=2)
    return training, (squared * target.known[labels]).mean(dim=1)


def _losses_of(numbers: Sequence[Sequence[float]]) -> list[Losses]:
    """Every device's losses, from `[loss][device]`."""
    return [Losses(training, distillation) for training, distillation in zip(*numbers, strict=True)]
