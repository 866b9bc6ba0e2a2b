"""Models and samples stacked along a device axis: their memory layout, and which devices can be stacked.

Devices that cannot be stacked are trained one after another.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import log_softmax, nll_loss

from airdistill.arrays import IntArray
from airdistill.errors import AirDistillError, InputError
from airdistill.learning.fused.cuda import FusedLogits, fused_logits
from airdistill.learning.fused.form import form_of
from airdistill.learning.gradients import Target
from airdistill.learning.learner import Learner, Losses
from airdistill.learning.models import draws_at_random

logger = logging.getLogger(__name__)


def stacked_logits(
    template: nn.Module, parameters: dict[str, Tensor], samples: Tensor, device_axis: int | None
) -> Tensor:
    """Every device's logits on its own samples, or without a device axis on the same: `[device, sample, class]`."""

    def one_device(own_parameters: dict[str, Tensor], own_samples: Tensor) -> Any:
        return functional_call(template, own_parameters, (own_samples,))

    logits: Tensor = vmap(one_device, in_dims=(0, device_axis), randomness="error")(parameters, samples)
    return logits


def choose_logits(
    kernels: str, template: nn.Module, parameters: dict[str, Tensor], samples: StackedSamples
) -> TorchLogits | FusedLogits:
    """The kernels for a choice of `Engine`: "fused" is an error if they cannot be used, "auto" takes PyTorch's then."""
    few = samples.part(slice(0, 1), slice(0, 3))
    if kernels == "torch" or few.device.type != "cuda":
        return TorchLogits(template)
    form = form_of(template, tuple(few.shape[2:]))
    if form is None:
        fused: FusedLogits | str = "the model is not of the form that they compute"
    else:
        fused = fused_logits(form, parameters, few)
    if not isinstance(fused, str):
        return fused
    if kernels == "fused":
        raise InputError("--engine", "fused", f"is not possible: {fused}")
    logger.info("the fused kernels are not used: %s", fused)
    return TorchLogits(template)


class TorchLogits:
    """The logits of all devices' models by PyTorch's kernels, for any model."""

    # Samples of all devices in one pass: about 13 GB of activations of the paper's network.
    most_samples = 1 << 17

    def __init__(self, template: nn.Module) -> None:
        self._template = template

    @staticmethod
    def fitting_chunk(chunk: int, num_devices: int) -> int:  # noqa: ARG004
        """The number of samples of each device in one forward pass."""
        return chunk

    @staticmethod
    def to_layout(samples: Tensor) -> Tensor:
        """Samples `[device, sample, ...]` in the memory layout of `__call__`."""
        return samples

    def __call__(self, parameters: dict[str, Tensor], samples: Tensor) -> Tensor:
        """Logits `[device, sample, class]` of samples from `to_layout`; all devices share a device axis of length 1."""
        if len(samples) == 1:
            return stacked_logits(self._template, parameters, samples[0], None)
        return stacked_logits(self._template, parameters, samples, 0)


def stacked_parameters(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """The models' parameters `[device, ...]` by name; trainable ones require gradients."""
    return {
        name: contiguous_stack([model.get_parameter(name).detach() for model in models]).requires_grad_(
            parameter.requires_grad
        )
        for name, parameter in models[0].named_parameters()
    }


def part_of(parameters: dict[str, Tensor], devices: slice) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The parameters of these devices, which share memory with all, and those that are trained.

    They are leaves of their own: gradients are computed for these devices alone.
    """
    parts = {name: stack.detach()[devices].requires_grad_(stack.requires_grad) for name, stack in parameters.items()}
    return parts, [part for part in parts.values() if part.requires_grad]


def contiguous_stack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors stacked along a new device axis."""
    return torch.stack([contiguous(tensor) for tensor in tensors])


def contiguous(tensor: Tensor) -> Tensor:
    """A copy in row-major order: vmap merges device and channel axes for a convolution over stacked devices."""
    return tensor.clone(memory_format=torch.contiguous_format)


class StackedSamples:
    """Every device's samples `[device, sample, ...]`: a stack, or rows of samples that devices share."""

    def __init__(self, learners: Sequence[Learner]) -> None:
        pools, rows = zip(*(learner.pool_and_rows for learner in learners), strict=True)
        known = [each for each in rows if each is not None]
        self._rows = None
        if len(known) == len(rows) and all(pool is pools[0] for pool in pools):
            self._pool, self._rows = contiguous(pools[0]), torch.stack(known)
        else:
            self._pool = contiguous_stack([learner.samples_and_labels()[0] for learner in learners])

    def part(self, devices: slice, samples: slice) -> Tensor:
        """Some samples of some devices, `[device, sample, ...]`."""
        return self._pool[devices, samples] if self._rows is None else self._pool[self._rows[devices, samples]]

    def taken(self, devices: slice, places: Tensor) -> Tensor:
        """The samples at these places `[device, sample]` among each device's own."""
        if self._rows is not None:
            return self._pool[self._rows[devices].gather(1, places)]
        every = torch.arange(len(places), device=places.device)[:, None]
        return self._pool[devices][every, places]


def device_groups(labels: Tensor, most_samples: int) -> list[slice]:
    """Devices that pass through their models together: as many as have at most so many samples, and at least one.

    The memory for activations then does not grow with the fleet. `labels` are those of one pass, `[device, sample]`.
    """
    num_devices, samples_each = labels.shape
    size = max(1, most_samples // samples_each)
    return [slice(first, min(first + size, num_devices)) for first in range(0, num_devices, size)]


def joined(parts: Sequence[tuple[Sequence[Tensor], Tensor]]) -> tuple[Sequence[Tensor], Tensor]:
    """Gradients by parameter and losses `[loss, device]` of all groups of devices."""
    if len(parts) == 1:
        return parts[0]
    gradients, losses = zip(*parts, strict=True)
    return [torch.cat(of_groups) for of_groups in zip(*gradients, strict=True)], torch.cat(losses, dim=1)


def device_vectors(stacks: Sequence[Tensor]) -> Tensor:
    """Each device's part of all stacks as one vector, `[device, parameter]`."""
    return torch.cat([stack.flatten(1) for stack in stacks], dim=1)


def split_pairs(samples: Tensor, labels: Tensor, size: int, dim: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Split samples and labels alike."""
    return zip(torch.split(samples, size, dim), torch.split(labels, size, dim), strict=True)


def class_sums(logits: Tensor, indicators: Tensor) -> Tensor:
    """The sum of the predictions of every class, `[device, class, class]`; indicators are `[device, sample, class]`."""
    # A product with indicators instead of index_add, whose order of summation varies on a GPU.
    return indicators.mT @ logits.to(torch.float64).softmax(dim=2)


def mean_losses(logits: Tensor, labels: Tensor, target: Target | None) -> tuple[Tensor, Tensor]:
    """The two mean losses of eq. (1), `[device]`; logits are `[device, sample, class]`, labels `[device, sample]`."""
    log_predictions = log_softmax(logits, dim=2)
    each = nll_loss(log_predictions.flatten(0, 1), labels.flatten(), reduction="none")
    training = each.view_as(labels).mean(dim=1)
    if target is None:
        return training, torch.zeros_like(training)
    squared = ((log_predictions.exp() - target.rows[labels]) ** 2).sum(dim=2)
    return training, (squared * target.known[labels]).mean(dim=1)


def losses_of(numbers: Sequence[Sequence[float]]) -> list[Losses]:
    """Every device's losses, from `[loss][device]`."""
    return [Losses(training, distillation) for training, distillation in zip(*numbers, strict=True)]


def can_stack_orders(orders: list[list[IntArray]]) -> bool:
    """Whether all devices make the same number of epochs, at least one, over equally many samples."""
    epochs = {len(own) for own in orders}
    lengths = {len(order) for own in orders for order in own}
    return len(epochs) == len(lengths) == 1


def can_stack(learners: Sequence[Learner]) -> bool:
    """Whether the devices can be trained in the same operations.

    They need equally many samples, and separate instances of one model without buffers and random draws. Buffers are
    statistics that a forward pass would have to write back for every device.
    """
    models = [learner.model for learner in learners]
    parameters = [parameter for model in models for parameter in model.parameters()]
    return (
        len({learner.samples_and_labels()[0].shape for learner in learners}) == 1
        and all(same_code(models[0], model) for model in models)
        and len(set(parameters)) == len(parameters)
        and not any(draws_at_random(model) or list(model.buffers()) for model in models)
        and _supports_vmap(models[0], learners[0].samples_and_labels()[0])
    )


def same_code(model: nn.Module, other: nn.Module) -> bool:
    """Whether two models differ at most in the values of their parameters, judged by their attributes."""
    if _parameter_specs(model) != _parameter_specs(other):
        return False
    parts, others = dict(model.named_modules()), dict(other.named_modules())
    return parts.keys() == others.keys() and all(_same_layer(parts[name], others[name]) for name in parts)


def _parameter_specs(model: nn.Module) -> list[tuple[str, torch.Size, torch.dtype, bool]]:
    return [(name, value.shape, value.dtype, value.requires_grad) for name, value in model.named_parameters()]


def _same_layer(layer: nn.Module, other: nn.Module) -> bool:
    """Whether two layers have the same type and attributes, such as stride or activation function."""
    compared_elsewhere = {"_parameters", "_buffers", "_modules"}
    own, others = (
        {name: value for name, value in vars(module).items() if name not in compared_elsewhere}
        for module in (layer, other)
    )
    try:
        return type(layer) is type(other) and bool(own == others)
    except (
        RuntimeError,
        ValueError,
    ):  # attributes that are tensors or arrays cannot be compared; such models are not stacked
        return False


def _supports_vmap(model: nn.Module, samples: Tensor) -> bool:
    """Whether vmap supports the model: tried on two copies, forward, backward and in evaluation mode.

    It supports neither branches on a sample's value nor random draws outside of dropout layers.
    """
    few = samples[:2]
    try:
        trial = copy.deepcopy(model)
        parameters = stacked_parameters([trial, trial])
        torch.autograd.backward(stacked_logits(trial, parameters, contiguous_stack([few, few]), 0).sum())
        if not same_code(model, trial):  # a captured CUDA graph would not repeat such changes
            raise AirDistillError("its attributes change when it is called")
        stacked_logits(trial.eval(), parameters, contiguous(few), None)
    except Exception as error:  # a user's model may raise anything
        logger.info("devices are trained one by one, because their model cannot be stacked: %s", error)
        return False
    return True
