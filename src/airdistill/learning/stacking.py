"""Models and samples along a device axis: how they are laid out, and which ones can be.

What cannot be stacked is trained one device after another.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from airdistill.arrays import IntArray
from airdistill.errors import AirDistillError
from airdistill.learning.learner import Learner
from airdistill.learning.models import draws_at_random

logger = logging.getLogger(__name__)


def logits_of_all(
    template: nn.Module, parameters: dict[str, Tensor], samples: Tensor, device_axis: int | None
) -> Tensor:
    """Every device's model on its samples, or with no device axis on the same ones: `[device, sample, class]`."""

    def one_device(own_parameters: dict[str, Tensor], own_samples: Tensor) -> Any:
        return functional_call(template, own_parameters, (own_samples,))

    logits: Tensor = vmap(one_device, in_dims=(0, device_axis), randomness="error")(parameters, samples)
    return logits


class AnyLogits:
    """The logits of all devices' models, whatever their code, by PyTorch's own kernels."""

    def __init__(self, template: nn.Module) -> None:
        self._template = template

    @staticmethod
    def laid_out(samples: Tensor) -> Tensor:
        """Samples `[device, sample, ...]` as `__call__` takes them."""
        return samples

    def __call__(self, parameters: dict[str, Tensor], samples: Tensor) -> Tensor:
        """`[device, sample, class]` from samples as `laid_out`; with a device axis of one all see the same."""
        if len(samples) == 1:
            return logits_of_all(self._template, parameters, samples[0], None)
        return logits_of_all(self._template, parameters, samples, 0)


def stacked_parameters(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """`[device, ...]` by name; those that the models train are leaves of the gradient."""
    return {
        name: plain_stack([model.get_parameter(name).detach() for model in models]).requires_grad_(
            parameter.requires_grad
        )
        for name, parameter in models[0].named_parameters()
    }


def plain_stack(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([plain(tensor) for tensor in tensors])


def plain(tensor: Tensor) -> Tensor:
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
        and all(same_code(models[0], model) for model in models)
        and len(set(parameters)) == len(parameters)
        and not any(draws_at_random(model) or list(model.buffers()) for model in models)
        and _survives_a_trial(models[0], learners[0].samples_and_labels()[0])
    )


def same_code(model: nn.Module, other: nn.Module) -> bool:
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
        parameters = stacked_parameters([twin, twin])
        torch.autograd.backward(logits_of_all(twin, parameters, plain_stack([few, few]), 0).sum())
        if not same_code(model, twin):  # it counts its calls, say: a recorded step would do that but once
            raise AirDistillError("it changes itself when called")
        logits_of_all(twin.eval(), parameters, plain(few), None)
    except Exception as error:  # the user's own code can fail in any way
        logger.info("devices are trained one by one, for their model cannot be stacked: %s", error)
        return False
    return True
