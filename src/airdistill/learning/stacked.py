"""All devices' learning at once: parameters and samples stacked along a device axis.

A GPU then gets few large kernels instead of many small ones, and nothing is fetched from it before a round's end.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import log_softmax, nll_loss, one_hot

from airdistill.arrays import FloatArray, IntArray
from airdistill.learning.learner import Learner, Losses, Target
from airdistill.learning.models import draws_at_random

logger = logging.getLogger(__name__)


class StackedLearners:
    """What `Learner` does, for all devices at once; they must satisfy `can_stack`.

    The learners' models share memory with the stack: their weights are the present ones, and to load weights into a
    model, or to train it alone, is to change the stack.
    """

    def __init__(self, learners: Sequence[Learner], chunk: int) -> None:
        models = [learner.model for learner in learners]
        # Only the code of this copy is used: hooks or modes that others set on a device's model do not reach it.
        self._template = copy.deepcopy(models[0])
        self._parameters = _stacked_parameters(models)
        for name, stack in self._parameters.items():
            for model, own in zip(models, stack.detach().unbind(), strict=True):
                model.get_parameter(name).data = own
        samples, labels = zip(*(learner.samples_and_labels() for learner in learners), strict=True)
        self._samples, self._labels = _stack(samples), _stack(labels)
        self._num_classes = learners[0].num_classes
        self._class_counts = self._of_class(self._labels).sum(dim=1)  # [device, class]
        self._chunk = chunk

    def knowledge(self) -> FloatArray:
        """Eq. (2) of every device, `[device, class, class]`; not a number where a device has no samples of a class."""
        sums = self._class_counts.new_zeros(*self._class_counts.shape, self._num_classes)
        for samples, labels in self._chunks():
            predictions = self._predict(samples).to(torch.float64).softmax(dim=2)
            # A product with indicators, and not index_add, which on a GPU adds in another order each time.
            sums += self._of_class(labels).mT @ predictions
        return np.asarray((sums / self._class_counts[:, :, None]).cpu().numpy())

    def full_batch_step(self, target: Target | None, lr: float, distill_weight: float) -> list[Losses]:
        """Eq. (4) on every device: one gradient step on all samples."""
        means = self._no_losses()
        for samples, labels in self._chunks():
            share = labels.shape[1] / self._labels.shape[1]
            means += self._backward(samples, labels, target, distill_weight, share)
        self._descend(lr)
        return _fetched(means)

    def local_epochs(
        self, target: Target | None, lr: float, distill_weight: float, orders: list[list[IntArray]], batch_size: int
    ) -> list[Losses]:
        """Passes of minibatch steps on every device; `orders[device]` has one order of its samples for each pass."""
        # All indices go over in one transfer: [device, pass, sample].
        passes = torch.from_numpy(np.array(orders, np.int64)).to(self._labels.device)
        every_device = torch.arange(len(passes), device=passes.device)[:, None]
        means = self._no_losses()
        for order in passes.unbind(dim=1):
            for batch in torch.split(order, batch_size, dim=1):
                samples, labels = self._samples[every_device, batch], self._labels[every_device, batch]
                losses = self._backward(samples, labels, target, distill_weight, 1.0)
                means.add_(losses, alpha=batch.shape[1] / (self._labels.shape[1] * passes.shape[1]))
                self._descend(lr)
        return _fetched(means)

    def correct_by_class(self, chunks: Iterable[Tensor], labels: IntArray) -> FloatArray:
        """Test samples that each device predicts right, `[device, class]`; all devices see the same `chunks`."""
        self._template.eval()
        predicted = torch.cat([self._predict(_plain(chunk), None).argmax(dim=2) for chunk in chunks], dim=1)
        self._template.train()
        true = torch.from_numpy(labels).to(predicted.device)
        right = (predicted == true).to(torch.float64)
        return np.asarray((right @ self._of_class(true)).cpu().numpy())

    def finite_weights(self) -> list[bool]:
        """For each device whether all its weights are finite numbers."""
        each = [torch.isfinite(stack).flatten(1).all(dim=1) for stack in self._parameters.values()]
        finite: list[bool] = torch.stack(each).all(dim=0).tolist()
        return finite

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Samples `[device, sample, ...]` and labels `[device, sample]`, as many as go through the models at once."""
        samples, labels = (torch.split(given, self._chunk, dim=1) for given in (self._samples, self._labels))
        return zip(samples, labels, strict=True)

    def _of_class(self, labels: Tensor) -> Tensor:
        """One where a label is of the class, `[..., class]`; in float64, to sum with."""
        return one_hot(labels, self._num_classes).to(torch.float64)

    @torch.no_grad()
    def _predict(self, samples: Tensor, device_axis: int | None = 0) -> Tensor:
        return _logits(self._template, self._parameters, samples, device_axis)

    def _backward(
        self, samples: Tensor, labels: Tensor, target: Target | None, distill_weight: float, share: float
    ) -> Tensor:
        """Adds this batch's share of the gradients of eq. (1); returns its share of the losses, `[loss, device]`."""
        logits = _logits(self._template, self._parameters, samples, 0)
        training, distillation = _losses(logits, labels, target if distill_weight else None)
        # A device's weights enter its own losses alone: the gradient of the sum over devices is each one's own.
        torch.autograd.backward(share * torch.add(training, distillation, alpha=distill_weight).sum())
        return share * torch.stack([training.detach(), distillation.detach()])

    @torch.no_grad()
    def _descend(self, lr: float) -> None:
        for stack in self._parameters.values():
            if stack.grad is not None:
                stack.sub_(stack.grad, alpha=lr)
                stack.grad = None

    def _no_losses(self) -> Tensor:
        return torch.zeros(2, len(self._labels), dtype=torch.float64, device=self._labels.device)


def _logits(template: nn.Module, parameters: dict[str, Tensor], samples: Tensor, device_axis: int | None) -> Tensor:
    """Every device's model on its samples, or with no device axis on the same ones: `[device, sample, class]`."""

    def one_device(own_parameters: dict[str, Tensor], own_samples: Tensor) -> Any:
        return functional_call(template, own_parameters, (own_samples,))

    logits: Tensor = vmap(one_device, in_dims=(0, device_axis), randomness="error")(parameters, samples)
    return logits


def _losses(logits: Tensor, labels: Tensor, target: Target | None) -> tuple[Tensor, Tensor]:
    """The two means of eq. (1), `[device]`, from logits `[device, sample, class]` and labels `[device, sample]`."""
    log_predictions = log_softmax(logits, dim=2)
    each = nll_loss(log_predictions.flatten(0, 1), labels.flatten(), reduction="none")
    training = each.view_as(labels).mean(dim=1)
    if target is None:
        return training, torch.zeros_like(training)
    squared = ((log_predictions.exp() - target.rows[labels]) ** 2).sum(dim=2)
    return training, (squared * target.known[labels]).mean(dim=1)


def _fetched(losses: Tensor) -> list[Losses]:
    return [Losses(training, distillation) for training, distillation in losses.T.tolist()]


def _stacked_parameters(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """`[device, ...]` by name; those that the models train are leaves of the gradient."""
    return {
        name: _stack([model.get_parameter(name).detach() for model in models]).requires_grad_(parameter.requires_grad)
        for name, parameter in models[0].named_parameters()
    }


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([_plain(tensor) for tensor in tensors])


def _plain(tensor: Tensor) -> Tensor:
    """In the ordinary layout: a convolution over stacked devices has device and channel on one axis."""
    return tensor.clone(memory_format=torch.contiguous_format)


def stackable(orders: list[list[IntArray]]) -> bool:
    """Whether all devices make the same number of passes, one at least, over equally many samples."""
    passes = {len(own) for own in orders}
    lengths = {len(order) for own in orders for order in own}
    return len(passes) == len(lengths) == 1


def can_stack(learners: Sequence[Learner]) -> bool:
    """Whether the devices have equally many samples and one model, each its own, with no buffers and no random draws.

    Buffers are statistics that a forward pass would have to write back for every device.
    """
    models = [learner.model for learner in learners]
    parameters = [parameter for model in models for parameter in model.parameters()]
    return (
        len({learner.samples_and_labels()[0].shape for learner in learners}) == 1
        and all(_same_code(models[0], model) for model in models)
        and len(set(parameters)) == len(parameters)
        and not any(draws_at_random(model) or list(model.buffers()) for model in models)
        and _survives_a_trial(models[0], learners[0].samples_and_labels()[0])
    )


def _same_code(model: nn.Module, other: nn.Module) -> bool:
    """Whether two models differ in the values of their parameters at most, as far as their attributes tell."""
    if _parameter_kinds(model) != _parameter_kinds(other):
        return False
    parts, others = dict(model.named_modules()), dict(other.named_modules())
    return parts.keys() == others.keys() and all(_same_layer(parts[name], others[name]) for name in parts)


def _parameter_kinds(model: nn.Module) -> list[tuple[str, torch.Size, torch.dtype, bool]]:
    return [(name, value.shape, value.dtype, value.requires_grad) for name, value in model.named_parameters()]


def _same_layer(layer: nn.Module, other: nn.Module) -> bool:
    """By type and attributes, such as a stride or an activation function."""
    compared_elsewhere = {"_parameters", "_buffers", "_modules"}
    own, others = (
        {name: value for name, value in vars(module).items() if name not in compared_elsewhere}
        for module in (layer, other)
    )
    try:
        return type(layer) is type(other) and bool(own == others)
    except (RuntimeError, ValueError):  # tensors and arrays have no single answer; such models go one by one
        return False


def _survives_a_trial(model: nn.Module, samples: Tensor) -> bool:
    """Whether the model's code can be stacked: two twins of it, forward, backward and as in evaluation.

    A branch on a sample's value cannot, for one, nor can a draw that no layer told of.
    """
    few = samples[:2]
    try:
        twin = copy.deepcopy(model)
        parameters = _stacked_parameters([twin, twin])
        torch.autograd.backward(_logits(twin, parameters, _stack([few, few]), 0).sum())
        _logits(twin.eval(), parameters, _plain(few), None)
    except Exception as error:  # the user's own code can fail in any way
        logger.info("devices are trained one by one, for their model cannot be stacked: %s", error)
        return False
    return True
