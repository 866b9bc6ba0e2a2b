"""All devices' learning at once: parameters and samples stacked along a device axis.

A GPU then gets few large kernels instead of many small ones, and nothing is fetched from it before a round's end.
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
from airdistill.learning.fused.cuda import FusedLogits, fused_logits, loss_slopes
from airdistill.learning.fused.form import form_of
from airdistill.learning.gradients import Target, slopes_from
from airdistill.learning.learner import Learner, Losses
from airdistill.learning.mixed import MixedSteps, descend, mixed_losses
from airdistill.learning.stacking import AnyLogits, plain, plain_stack, stacked_parameters

logger = logging.getLogger(__name__)

# Samples whose per-sample gradients are taken at once: enough to keep a GPU busy, within a few GiB for small kernels.
_CLIPPED_AT_ONCE = 1 << 14
# What a pass through the fused kernels may need at its height.
_FUSED_BYTES = 4 << 30


class StackedLearners:
    """What `Learner` does, for all devices at once; they must satisfy `can_stack`.

    The learners' models share memory with the stack: their weights are the present ones, and to load weights into a
    model, or to train it alone, is to change the stack.
    """

    def __init__(
        self, learners: Sequence[Learner], chunk: int, kernels: str = "auto", kept_bytes: int | None = None
    ) -> None:
        """`chunk` samples of each device go through the models at once, or with fused kernels as many as fit.

        `kernels` are as an engine has them; up to `kept_bytes` of a forward pass are kept for the update, by default
        as many as fit.
        """
        models = [learner.model for learner in learners]
        # Only the code of this copy is used: hooks or modes that others set on a device's model do not reach it. Its
        # weights are those of device 0.
        self._template = copy.deepcopy(models[0])
        self._parameters = stacked_parameters(models)
        self._trained = [stack for stack in self._parameters.values() if stack.requires_grad]
        for name, stack in self._parameters.items():
            for model, own in zip(models, stack.detach().unbind(), strict=True):
                model.get_parameter(name).data = own
            self._template.get_parameter(name).data = stack.detach()[0]
        samples, labels = zip(*(learner.samples_and_labels() for learner in learners), strict=True)
        self._samples, self._labels = plain_stack(samples), plain_stack(labels)
        self._num_classes = learners[0].num_classes
        self._class_counts = self._of_class(self._labels).sum(dim=1)  # [device, class]
        self._logits = self._logits_by(kernels)
        self._chunk = self._fitting(chunk)
        self._chunks = [
            (self._logits.laid_out(some), their_labels)
            for some, their_labels in _in_step(self._samples, self._labels, self._chunk, dim=1)
        ]
        self._passes = self._recorded_passes(_FUSED_BYTES if kept_bytes is None else kept_bytes)
        self._made: CudaGraphPass | None = None  # the one that was made with the present weights, if any was
        self._asked_to_keep: bool | None = None  # by whoever asked for knowledge last
        self._last: DeferredLosses | None = None  # of the step that left the present weights, until asked for
        self._steps: dict[tuple[int, float | None], MinibatchStep] = {}

    def knowledge(self, keep: bool = False) -> FloatArray:
        """Eq. (2) of every device, `[device, class, class]`; not a number where a device has no samples of a class.

        With `keep` the forward pass stays in memory for `full_batch_step`, where it can.
        """
        self._asked_to_keep = keep and True in self._passes
        made = self._present_pass(self._asked_to_keep)
        if made is not None:
            return np.asarray(made.knowledge.cpu().numpy())
        sums = self._class_counts.new_zeros(*self._class_counts.shape, self._num_classes)
        with torch.no_grad():
            for samples, labels in self._chunks:
                sums += _class_sums(self._logits(self._parameters, samples), self._of_class(labels))
        return np.asarray((sums / self._class_counts[:, :, None]).cpu().numpy())

    def full_batch_step(self, target: Target | None, lr: float, distill_weight: float) -> Sequence[Losses]:
        """Eq. (4) on every device: one gradient step on all samples, on the kept forward pass if there is one."""
        made = self._present_pass(keep=True)
        if made is not None:
            target = target if distill_weight else None
            step = self._step_from(made, target, distill_weight)
            step.begin(target, lr)
            step.make()
            return self._fetched(step.losses)
        slopes, losses = self._full_batch(target, distill_weight)
        self._descend(slopes, lr)
        return self._fetched(losses)

    def local_epochs(
        self, target: Target | None, lr: float, distill_weight: float, orders: list[list[IntArray]], batch_size: int
    ) -> Sequence[Losses]:
        """Passes of minibatch steps on every device; `orders[device]` has one order of its samples for each pass."""
        # All indices go over in one transfer: [device, pass, sample].
        passes = torch.from_numpy(np.array(orders, np.int64)).to(self._labels.device)
        batches = [batch for order in passes.unbind(dim=1) for batch in torch.split(order, batch_size, dim=1)]
        target = target if distill_weight else None
        steps = {size: self._step_on(size, target, distill_weight) for size in {batch.shape[1] for batch in batches}}
        for step in steps.values():
            step.begin(target, lr)
        for batch in batches:
            steps[batch.shape[1]].make(batch)
        sums = torch.stack([size * step.losses for size, step in steps.items()]).sum(dim=0)
        return self._fetched(sums / (passes.shape[1] * passes.shape[2]))

    def mixed_steps(self, steps: Sequence[MixedSteps], public: Tensor, target: Target) -> Sequence[Losses]:
        """Steps on own samples and on `public` ones `[sample, ...]`; every device's steps must be `alike`."""
        first, public = steps[0], plain(public)
        packed = torch.from_numpy(np.stack([each.packed for each in steps], axis=1)).to(self._labels.device)
        every_device = self._every_device()
        velocities = [torch.zeros_like(stack) for stack in self._trained]

        def step(batch: Tensor, target: Target | None, lr: Tensor) -> Tensor:
            assert target is not None  # it is given below
            own, shared, offsets = first.unpacked(batch)
            samples = first.move(torch.cat([self._samples[every_device, own], public[shared]], dim=1), offsets)
            losses = mixed_losses(self._forward(samples), self._labels[every_device, own], target, shared)
            loss = first.own_weight * losses[0] + first.public_weight * losses[1]
            # A device's weights enter its own losses alone: the gradient of the sum over devices is each one's own.
            slopes = torch.autograd.grad(loss.sum(), self._trained, materialize_grads=True)
            descend(self._trained, first.shorten(slopes, device_axis=True), velocities, lr, first.momentum)
            return losses.detach()

        made = MinibatchStep(step, (len(self._labels), packed.shape[2]), target, [*self._trained, *velocities])
        made.begin(target, 0.0)
        for batch, lr in zip(packed, first.lr.tolist(), strict=True):
            made.make(batch, lr)
        return self._fetched(made.losses / max(len(first.lr), 1))

    def predictions(self, chunks: Iterable[Tensor]) -> FloatArray:
        """On the same samples for all devices, in chunks: `[device, sample, class]`."""
        logits = torch.cat(list(self._tested(chunks)), dim=1)
        return np.asarray(logits.to(torch.float64).softmax(dim=2).cpu().numpy())

    def gradients(self) -> tuple[Tensor, list[Losses]]:
        """The mean gradient of every device's cross-entropy, `[device, parameter]`."""
        slopes, losses = self._full_batch(None, 0.0)
        return _vectors(slopes), _losses_of(losses.tolist())

    def clipped_gradients(self, clip_norm: float) -> tuple[Tensor, list[Losses]]:
        """As `gradients`, each sample's clipped, where all devices hold the weights of device 0."""
        of_devices = []
        devices_at_once = max(1, _CLIPPED_AT_ONCE // self._labels.shape[1])
        groups = _in_step(self._samples, self._labels, devices_at_once, dim=0)
        for chunks in (_in_step(*group, _CLIPPED_AT_ONCE, dim=1) for group in groups):
            sums = [clipped_sum(self._template, some, their_labels, clip_norm) for some, their_labels in chunks]
            gradient = torch.stack([part.gradient for part in sums]).sum(dim=0)
            of_devices.append((gradient, torch.stack([part.loss for part in sums]).sum(dim=0)))
        gradients, training = (torch.cat(parts) / self._labels.shape[1] for parts in zip(*of_devices, strict=True))
        return gradients, _losses_of(torch.stack([training, torch.zeros_like(training)]).tolist())

    def parameters(self) -> Tensor:
        """Every device's trainable parameters as one vector each, `[device, parameter]`."""
        return _vectors([stack.detach() for stack in self._trained])

    @torch.no_grad()
    def average(self, weights: FloatArray) -> None:
        """Every model becomes Σ_i w_i θ_i, summed in float64."""
        self.forget()
        shares = torch.from_numpy(weights).to(self._labels.device, torch.float64)
        for stack in self._parameters.values():
            stack.copy_(torch.tensordot(shares, stack.to(torch.float64), dims=1))

    @torch.no_grad()
    def descend(self, gradient: Tensor, lr: float) -> None:
        """θ ← θ − η g on every device, for one vector in the order of the trainable parameters."""
        self.forget()
        parts = torch.split(gradient, [stack[0].numel() for stack in self._trained])
        shaped = [part.reshape(stack.shape[1:]) for part, stack in zip(parts, self._trained, strict=True)]
        self._descend(shaped, lr)

    def correct_by_class(self, chunks: Iterable[Tensor], labels: IntArray) -> FloatArray:
        """Test samples that each device predicts right, `[device, class]`; all devices see the same `chunks`."""
        predicted = torch.cat([logits.argmax(dim=2) for logits in self._tested(chunks)], dim=1)
        true = torch.from_numpy(labels).to(predicted.device)
        right = (predicted == true).to(torch.float64)
        return np.asarray((right @ self._of_class(true)).cpu().numpy())

    def forget(self) -> None:
        """What is known of the weights: they were changed."""
        self._made = self._last = None

    def finite_weights(self) -> list[bool]:
        """For each device whether all its weights are finite numbers."""
        last, self._last = self._last, None
        return self._all_finite().tolist() if last is None else last.left_finite_weights

    def _all_finite(self) -> Tensor:
        return torch.isfinite(_vectors([stack.detach() for stack in self._parameters.values()])).all(dim=1)

    def _fetched(self, losses: Tensor) -> Sequence[Losses]:
        """A step's losses `[loss, device]`; meanwhile the GPU goes on to what will be asked for next."""
        self._last, self._made = DeferredLosses(losses, self._all_finite()), None
        if self._asked_to_keep is not None:
            self._present_pass(self._asked_to_keep)
        return self._last

    def _logits_by(self, kernels: str) -> AnyLogits | FusedLogits:
        """By which kernels the models are computed; a model that fused ones cannot is refused or told of."""
        if kernels == "torch" or self._samples.device.type != "cuda":
            return AnyLogits(self._template)
        form = form_of(self._template, tuple(self._samples.shape[2:]))
        if form is None:
            found: FusedLogits | str = "the model is not of the form that they compute"
        else:
            found = fused_logits(form, self._parameters, self._samples)
        if not isinstance(found, str):
            return found
        if kernels == "fused":
            raise InputError("--engine", "fused", f"is not possible: {found}")
        logger.info("the fused kernels are not used: %s", found)
        return AnyLogits(self._template)

    def _fitting(self, chunk: int) -> int:
        """Samples of each device that go through the models at once."""
        if isinstance(self._logits, AnyLogits):
            return chunk
        return max(chunk, _FUSED_BYTES // (self._logits.bytes_for_a_sample * len(self._labels)))

    def _recorded_passes(self, kept_bytes: int) -> dict[bool, CudaGraphPass]:
        """By whether they are kept: where the kernels are fused, all samples fit at once, and so much may be kept."""
        if isinstance(self._logits, AnyLogits) or len(self._chunks) > 1:
            return {}
        logits, (samples, labels) = self._logits, self._chunks[0]

        of_class = self._of_class(labels)

        def known_from(of_logits: Tensor) -> Tensor:
            return _class_sums(of_logits, of_class) / self._class_counts[:, :, None]

        can_keep = labels.numel() * logits.bytes_for_a_sample <= kept_bytes
        return {
            keeps: CudaGraphPass(lambda parameters: logits(parameters, samples), known_from, self._parameters, keeps)
            for keeps in ([False, True] if can_keep else [False])
        }

    def _present_pass(self, keep: bool) -> CudaGraphPass | None:
        """The recorded pass with the present weights, which may still be under way; None where there can be none."""
        chosen = self._passes.get(keep)
        if chosen is None:
            return None
        if self._made is not chosen:
            self._made = chosen if chosen.make() else None
        return self._made

    def _step_from(self, made: CudaGraphPass, target: Target | None, distill_weight: float) -> MinibatchStep:
        """The step on all samples that goes on from the pass."""
        kind = 0, None if target is None else distill_weight
        if kind not in self._steps:

            def step(_: Tensor, target: Target | None, lr: Tensor) -> Tensor:
                of_logits, losses = loss_slopes(made.logits, self._labels, target, distill_weight)
                self._descend(made.slopes(of_logits), lr)
                return losses

            self._steps[kind] = MinibatchStep(step, (len(self._labels), 0), target, self._trained)
        return self._steps[kind]

    def _of_class(self, labels: Tensor) -> Tensor:
        """One where a label is of the class, `[..., class]`; in float64, to sum with."""
        return one_hot(labels, self._num_classes).to(torch.float64)

    def _forward(self, samples: Tensor) -> Tensor:
        """Logits of samples `[device, sample, ...]`; with a device axis of one all devices see the same."""
        return self._logits(self._parameters, self._logits.laid_out(samples))

    @torch.no_grad()
    def _tested(self, chunks: Iterable[Tensor]) -> Iterator[Tensor]:
        """Logits of the same samples for all devices, as in evaluation: some at a time."""
        self._template.eval()
        for chunk in torch.split(torch.cat([plain(chunk) for chunk in chunks]), self._chunk):
            yield self._forward(chunk[None])
        self._template.train()

    def _full_batch(self, target: Target | None, distill_weight: float) -> tuple[list[Tensor], Tensor]:
        """Gradients of eq. (1) for `_trained`, and losses `[loss, device]`."""
        slopes = [torch.zeros_like(stack) for stack in self._trained]
        means = self._class_counts.new_zeros(2, len(self._labels))
        for samples, labels in self._chunks:
            share = labels.shape[1] / self._labels.shape[1]
            logits = self._logits(self._parameters, samples)
            some_slopes, losses = self._slopes(logits, labels, target, distill_weight)
            for slope, some in zip(slopes, some_slopes, strict=True):
                slope.add_(some, alpha=share)
            means.add_(losses, alpha=share)
        return slopes, means

    def _slopes(
        self, logits: Tensor, labels: Tensor, target: Target | None, distill_weight: float
    ) -> tuple[Sequence[Tensor], Tensor]:
        """Gradients of eq. (1) on one batch for `_trained`, and its losses `[loss, device]`."""
        target = target if distill_weight else None
        if isinstance(self._logits, FusedLogits):
            of_logits, means = loss_slopes(logits, labels, target, distill_weight)
            return slopes_from(logits, of_logits, self._trained), means
        training, distillation = _losses(logits, labels, target)
        # A device's weights enter its own losses alone: the gradient of the sum over devices is each one's own.
        loss = torch.add(training, distillation, alpha=distill_weight).sum()
        # A parameter that the output does not depend on has a gradient of zero.
        slopes = torch.autograd.grad(loss, self._trained, materialize_grads=True)
        return slopes, torch.stack([training.detach(), distillation.detach()])

    def _step_on(self, size: int, target: Target | None, distill_weight: float) -> MinibatchStep:
        """The step on minibatches of that size: on a GPU, to prepare it takes longer than to make it."""
        kind = size, None if target is None else distill_weight
        if kind not in self._steps:
            every_device = self._every_device()

            def step(batch: Tensor, target: Target | None, lr: Tensor) -> Tensor:
                samples, labels = self._samples[every_device, batch], self._labels[every_device, batch]
                slopes, losses = self._slopes(self._forward(samples), labels, target, distill_weight)
                self._descend(slopes, lr)
                return losses

            self._steps[kind] = MinibatchStep(step, (len(self._labels), size), target, self._trained)
        return self._steps[kind]

    def _every_device(self) -> Tensor:
        """To pick samples of each device with indices `[device, sample]`."""
        return torch.arange(len(self._labels), device=self._labels.device)[:, None]

    @torch.no_grad()
    def _descend(self, slopes: Sequence[Tensor], lr: float | Tensor) -> None:
        # All at once, for a GPU: one by one, these small operations took as long as a layer.
        torch._foreach_sub_(self._trained, torch._foreach_mul(list(slopes), lr))


def _losses(logits: Tensor, labels: Tensor, target: Target | None) -> tuple[Tensor, Tensor]:
    """The two means of eq. (1), `[device]`, from logits `[device, sample, class]` and labels `[device, sample]`."""
    log_predictions = log_softmax(logits, dim=2)
    each = nll_loss(log_predictions.flatten(0, 1), labels.flatten(), reduction="none")
    training = each.view_as(labels).mean(dim=1)
    if target is None:
        return training, torch.zeros_like(training)
    squared = ((log_predictions.exp() - target.rows[labels]) ** 2).sum(dim=2)
    return training, (squared * target.known[labels]).mean(dim=1)


def _class_sums(logits: Tensor, of_class: Tensor) -> Tensor:
    """The predictions of every class, summed: `[device, class, class]`; from indicators `[device, sample, class]`."""
    # A product with indicators, and not index_add, which on a GPU adds in another order each time.
    return of_class.mT @ logits.to(torch.float64).softmax(dim=2)


def _losses_of(numbers: Sequence[Sequence[float]]) -> list[Losses]:
    """Of every device, from `[loss][device]`."""
    return [Losses(training, distillation) for training, distillation in zip(*numbers, strict=True)]


def _vectors(stacks: Sequence[Tensor]) -> Tensor:
    """Each device's part of all stacks as one vector, `[device, number]`."""
    return torch.cat([stack.flatten(1) for stack in stacks], dim=1)


def _in_step(samples: Tensor, labels: Tensor, size: int, dim: int) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(torch.split(samples, size, dim), torch.split(labels, size, dim), strict=True)
