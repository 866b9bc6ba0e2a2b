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
from torch.nn.functional import one_hot

from airdistill.arrays import BoolArray, FloatArray, IntArray
from airdistill.learning.clipping import clipped_sum
from airdistill.learning.cuda_graphs import CudaGraphPass, MinibatchStep
from airdistill.learning.deferred import DeferredLosses
from airdistill.learning.fused.cuda import PASS_BYTES, FusedLogits, loss_gradients
from airdistill.learning.gradients import Target, parameter_gradients
from airdistill.learning.learner import Learner, Losses, batches_of
from airdistill.learning.mixed import MixedSteps, descend, mixed_losses
from airdistill.learning.optimisers import PLAIN, Optimiser
from airdistill.learning.stacking import (
    StackedSamples,
    TorchLogits,
    choose_logits,
    class_sums,
    contiguous,
    contiguous_stack,
    device_groups,
    device_vectors,
    joined,
    losses_of,
    mean_losses,
    part_of,
    split_pairs,
    stacked_parameters,
)

logger = logging.getLogger(__name__)

# Samples per chunk for clipping: enough to keep a GPU busy, within a few GiB for small kernels.
_CLIPPING_CHUNK = 1 << 14


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
        # Only its code is used, and so hooks or modes of a device's model have no effect. It has device 0's weights.
        self._template = copy.deepcopy(models[0])
        self._parameters = stacked_parameters(models)
        self._trained = [stack for stack in self._parameters.values() if stack.requires_grad]
        for name, stack in self._parameters.items():
            for model, own in zip(models, stack.detach().unbind(), strict=True):
                model.get_parameter(name).data = own
            self._template.get_parameter(name).data = stack.detach()[0]
        self._samples = StackedSamples(learners)
        self._labels = contiguous_stack([learner.labels for learner in learners])
        self._num_classes = learners[0].num_classes
        self._class_counts = self._indicators(self._labels).sum(dim=1)  # [device, class]
        self._logits = choose_logits(kernels, self._template, self._parameters, self._samples)
        self._chunk = self._logits.fitting_chunk(chunk, len(learners))
        self._groups = device_groups(self._labels[:, : self._chunk], self._logits.most_samples)
        # A larger fleet's samples are arranged anew for every pass: they are not held twice.
        self._arranged = [*self._arrange(self._groups[0])] if len(self._groups) == 1 else None
        self._passes = self._captured_passes(PASS_BYTES if kept_bytes is None else kept_bytes)
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
            for devices in self._groups:
                parameters, _ = self._part(devices)
                for samples, labels in self._chunks(devices):
                    sums[devices] += class_sums(self._logits(parameters, samples), self._indicators(labels))
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
        split = (batches_of(order, batch_size, self._template, dim=1) for order in epochs.unbind(dim=1))
        batches = [batch for each in split for batch in each]
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
        velocities = [torch.zeros_like(stack) for stack in self._trained]

        def step(batch: Tensor, target: Target | None, lr: Tensor) -> Tensor:
            assert target is not None  # given below
            parts = []
            for devices in self._groups:
                own, shared, offsets = first.unpacked(batch[devices])
                together = torch.cat([self._samples.taken(devices, own), public[shared]], dim=1)
                parameters, trained = self._part(devices)
                logits = self._forward(parameters, first.augment(together, offsets))
                losses = mixed_losses(logits, self._labels[devices].gather(1, own), target, shared)
                loss = first.own_weight * losses[0] + first.public_weight * losses[1]
                # A device's loss depends on its own weights only: the gradient of the sum over devices is that of each.
                parts.append((torch.autograd.grad(loss.sum(), trained, materialize_grads=True), losses.detach()))
            gradients, losses = joined(parts)
            clipped = first.clip(gradients, device_axis=True)
            if first.optimiser == PLAIN:
                descend(self._trained, clipped, velocities, lr, first.momentum)
            else:
                self._update(clipped, lr, first.optimiser)
            return losses

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
        return device_vectors(gradients), losses_of(losses.tolist())

    def clipped_gradients(self, clip_norm: float) -> tuple[Tensor, list[Losses]]:
        """`gradients` with per-sample clipping, if all devices have the weights of device 0."""
        by_group = []
        devices_in_chunk = max(1, _CLIPPING_CHUNK // self._labels.shape[1])
        for devices in device_groups(self._labels[:, :1], devices_in_chunk):
            samples = self._samples.part(devices, slice(None))
            chunks = split_pairs(samples, self._labels[devices], _CLIPPING_CHUNK, dim=1)
            sums = [clipped_sum(self._template, chunk, chunk_labels, clip_norm) for chunk, chunk_labels in chunks]
            gradient = torch.stack([part.gradient for part in sums]).sum(dim=0)
            by_group.append((gradient, torch.stack([part.loss for part in sums]).sum(dim=0)))
        gradients, training = (torch.cat(parts) / self._labels.shape[1] for parts in zip(*by_group, strict=True))
        return gradients, losses_of(torch.stack([training, torch.zeros_like(training)]).tolist())

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

    def correct(self, chunks: Iterable[Tensor], labels: IntArray, devices: IntArray) -> BoolArray:
        """Whether these devices classify each sample correctly, `[device, sample]`."""
        predicted = torch.cat([logits.argmax(dim=2) for logits in self._evaluate(chunks, devices)], dim=1)
        return np.asarray(predicted.cpu().numpy() == labels)

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

    def _arrange(self, devices: slice) -> Iterator[tuple[Tensor, Tensor]]:
        """Samples, in the layout of the kernels, and labels of these devices, chunk by chunk."""
        for first in range(0, self._labels.shape[1], self._chunk):
            part = slice(first, first + self._chunk)
            yield self._logits.to_layout(self._samples.part(devices, part)), self._labels[devices, part]

    def _chunks(self, devices: slice) -> Iterable[tuple[Tensor, Tensor]]:
        return self._arrange(devices) if self._arranged is None else self._arranged

    def _part(self, devices: slice) -> tuple[dict[str, Tensor], list[Tensor]]:
        """The parameters of these devices, and those that are trained; gradients are computed for them alone."""
        if len(self._groups) == 1:
            return self._parameters, self._trained
        return part_of(self._parameters, devices)

    def _captured_passes(self, kept_bytes: int) -> dict[bool, CudaGraphPass]:
        """Forward passes by whether they are kept, if the kernels are fused and all samples fit into one pass."""
        if isinstance(self._logits, TorchLogits) or self._arranged is None or len(self._arranged) > 1:
            return {}
        logits, (samples, labels) = self._logits, self._arranged[0]
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

    def _forward(self, parameters: dict[str, Tensor], samples: Tensor) -> Tensor:
        """Logits of samples `[device, sample, ...]`; a device axis of length 1 serves all devices."""
        return self._logits(parameters, self._logits.to_layout(samples))

    @torch.no_grad()
    def _evaluate(self, chunks: Iterable[Tensor], devices: IntArray | None = None) -> Iterator[Tensor]:
        """Yield the logits of all devices, or of these, on the same samples in evaluation mode, chunk by chunk."""
        self._template.eval()
        groups = [self._part(group)[0] for group in self._groups]
        size = self._groups[0].stop
        if devices is not None:
            chosen = torch.from_numpy(devices).to(self._labels.device)
            groups = [{n: stack[some] for n, stack in self._parameters.items()} for some in torch.split(chosen, size)]
        together = self._chunk if len(self._groups) == 1 else max(1, self._logits.most_samples // size)
        for chunk in torch.split(torch.cat([contiguous(chunk) for chunk in chunks]), together):
            yield torch.cat([self._forward(parameters, chunk[None]) for parameters in groups])
        self._template.train()

    def _full_batch(self, target: Target | None, distill_weight: float) -> tuple[list[Tensor], Tensor]:
        """Gradients of eq. (1) for `_trained`, and losses `[loss, device]`."""
        gradients = [torch.zeros_like(stack) for stack in self._trained]
        means = self._class_counts.new_zeros(2, len(self._labels))
        for devices in self._groups:
            parameters, trained = self._part(devices)
            for samples, labels in self._chunks(devices):
                share = labels.shape[1] / self._labels.shape[1]
                logits = self._logits(parameters, samples)
                chunk_gradients, losses = self._gradients(logits, labels, target, distill_weight, trained)
                for gradient, part in zip(gradients, chunk_gradients, strict=True):
                    gradient[devices].add_(part, alpha=share)
                means[:, devices].add_(losses, alpha=share)
        return gradients, means

    def _gradients(
        self,
        logits: Tensor,
        labels: Tensor,
        target: Target | None,
        distill_weight: float,
        trained: Sequence[Tensor],
    ) -> tuple[Sequence[Tensor], Tensor]:
        """Gradients of eq. (1) on one batch for these parameters, and its losses `[loss, device]`."""
        target = target if distill_weight else None
        if isinstance(self._logits, FusedLogits):
            logit_gradients, means = loss_gradients(logits, labels, target, distill_weight)
            return parameter_gradients(logits, logit_gradients, trained), means
        training, distillation = mean_losses(logits, labels, target)
        # A device's loss depends on its own weights only: the gradient of the sum over devices is that of each.
        loss = torch.add(training, distillation, alpha=distill_weight).sum()
        # A parameter that the output does not depend on has a gradient of zero.
        gradients = torch.autograd.grad(loss, trained, materialize_grads=True)
        return gradients, torch.stack([training.detach(), distillation.detach()])

    def _step_on(self, size: int, target: Target | None, distill_weight: float, optimiser: str) -> MinibatchStep:
        """The step on minibatches of that size, cached: capturing it takes longer than running it."""
        kind = size, None if target is None else distill_weight, optimiser
        if kind not in self._steps:

            def step(batch: Tensor, target: Target | None, lr: Tensor) -> Tensor:
                parts = []
                for devices in self._groups:
                    parameters, trained = self._part(devices)
                    logits = self._forward(parameters, self._samples.taken(devices, batch[devices]))
                    labels = self._labels[devices].gather(1, batch[devices])
                    parts.append(self._gradients(logits, labels, target, distill_weight, trained))
                gradients, losses = joined(parts)
                self._update(gradients, lr, optimiser)
                return losses

            self._steps[kind] = MinibatchStep(step, (len(self._labels), size), target, self._changed_by(optimiser))
        return self._steps[kind]

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
