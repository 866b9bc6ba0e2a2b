"""Per-sample gradients, clipped and summed, without a matrix of samples × parameters.

For a dense layer with input a and output gradient δ, a sample's weight gradient is δaᵀ: its norm is ‖δ‖‖a‖, and the
clipped sum is (cδ)ᵀa, so that it never needs to exist. For a convolution it is the product of the unfolded input and δ,
small because kernels are. One forward and one backward pass give all (a, δ). Models with other layers that hold
parameters take a general way: torch.func's vmap over a few samples at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy, pad
from torch.nn.modules.batchnorm import _BatchNorm

from airdistill.errors import AirDistillError

_HELD_NUMBERS = 1 << 24  # of per-sample gradients at once on the general way


@dataclass(frozen=True)
class ClippedSum:
    """Σ_b clip_C(∇f_b) of every group, `[group, parameter]` in the order of the model's trainable parameters, and
    Σ_b f_b, `[group]`."""

    gradient: Tensor
    loss: Tensor


def clipped_sum(model: nn.Module, samples: Tensor, labels: Tensor, clip_norm: float) -> ClippedSum:
    """Of the cross-entropy, for samples `[group, sample, ...]` and labels `[group, sample]` that are worked on at once.

    Each sample's gradient is shortened to `clip_norm` at most. Nothing is fetched from a GPU.
    """
    taps = _taps(model)
    if taps is None:
        return _in_general(model, samples, labels, clip_norm)
    called: list[_Call] = []
    hooks = [layer.register_forward_hook(_note(called, rule)) for layer, rule in taps]
    try:
        losses = cross_entropy(model(samples.flatten(0, 1)), labels.flatten(), reduction="none")
    finally:
        for hook in hooks:
            hook.remove()
    # A layer used twice or not at all, or overwritten in place, has a gradient that is no longer one product.
    if len(called) != len(taps) or not all(call.stands() for call in called):
        return _in_general(model, samples, labels, clip_norm)
    slopes = torch.autograd.grad(losses.sum(), [call.output for call in called])
    with torch.no_grad():
        parts = [call.rule(call.layer, call.input, slope) for call, slope in zip(called, slopes, strict=True)]
        norm = torch.stack([part.squared_norm for part in parts]).sum(dim=0).sqrt()
        factor = _clip_factor(norm, clip_norm).view_as(labels)
        sums = {id(parameter): total for part in parts for parameter, total in part.weighted_sums(factor)}
        gradient = torch.cat([sums[id(parameter)].flatten(1) for parameter in trainable(model)], dim=1)
        return ClippedSum(gradient, losses.detach().view_as(labels).sum(dim=1))


@torch.no_grad()
def check_samples_apart(model: nn.Module, samples: Tensor) -> None:
    """Refuses a model whose output for a sample depends on the others in its batch: clipping would bound nothing."""
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise AirDistillError("learning.model: batch normalisation mixes samples; no gradient of a single one exists")
    few = samples[:3]
    model.eval()  # in which no layer draws at random
    together = model(few)
    alone = torch.cat([model(sample[None]) for sample in few])
    model.train()
    if not torch.allclose(together, alone, rtol=1e-2, atol=1e-3):
        raise AirDistillError("learning.model: its output for a sample depends on the batch; gradients have no bound")


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _clip_factor(norm: Tensor, clip_norm: float) -> Tensor:
    return (clip_norm / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp_max(1.0)


@dataclass(frozen=True)
class _Part:
    """A layer's per-sample gradients: their squared norms, `[sample]` of all groups one after another, and the sums
    `[group, ...]` of each parameter's under weights `[group, sample]`."""

    squared_norm: Tensor
    weighted_sums: Callable[[Tensor], list[tuple[Tensor, Tensor]]]


_Rule = Callable[[Any, Tensor, Tensor], _Part]


@dataclass(frozen=True)
class _Call:
    layer: nn.Module
    input: Tensor
    output: Tensor
    rule: _Rule
    versions: tuple[int, int]

    def stands(self) -> bool:
        """Whether input and output are still what they were, and of a form that the rule knows."""
        plain = type(self.layer) is not nn.Linear or self.input.ndim == 2
        return plain and self.versions == (self.input._version, self.output._version)


def _note(called: list[_Call], rule: _Rule) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        given = inputs[0].detach()
        called.append(_Call(layer, given, output, rule, (given._version, output._version)))

    return hook


def _taps(model: nn.Module) -> list[tuple[nn.Module, _Rule]] | None:
    """The layers that hold the trainable parameters, or None if one of them is of another kind than the rules know."""
    taps: list[tuple[nn.Module, _Rule]] = []
    seen: set[int] = set()
    for layer in model.modules():
        own = list(layer.parameters(recurse=False))
        if not own:
            continue
        rule = _rule_for(layer)
        if rule is None or not all(parameter.requires_grad for parameter in own) or seen & {id(p) for p in own}:
            return None
        seen |= {id(parameter) for parameter in own}
        taps.append((layer, rule))
    return taps


def _rule_for(layer: nn.Module) -> _Rule | None:
    if type(layer) is nn.Linear:
        return _dense
    if (
        type(layer) is nn.Conv2d
        and layer.groups == 1
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
        and layer.padding not in ("same", "valid")
    ):
        return _convolution
    return None


def _dense(layer: nn.Linear, given: Tensor, slope: Tensor) -> _Part:
    # The bias is the weight of an input that is always 1.
    length = given.square().sum(dim=1) + (0.0 if layer.bias is None else 1.0)

    def weighted_sums(weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        weighted = slope.reshape(*weights.shape, -1) * weights[:, :, None]
        of_weight: list[tuple[Tensor, Tensor]] = [(layer.weight, weighted.mT @ given.reshape(*weights.shape, -1))]
        return of_weight if layer.bias is None else [*of_weight, (layer.bias, weighted.sum(dim=1))]

    return _Part(slope.square().sum(dim=1) * length, weighted_sums)


def _convolution(layer: nn.Conv2d, given: Tensor, slope: Tensor) -> _Part:
    flat = slope.contiguous().flatten(2)
    # [sample, channel out, channel in × kernel]
    per_sample = torch.bmm(flat, _patches(layer, given).mT).flatten(1)
    squared_norm = per_sample.square().sum(dim=1)
    per_sample_bias = flat.sum(dim=2)
    if layer.bias is not None:
        squared_norm = squared_norm + per_sample_bias.square().sum(dim=1)

    def weighted_sums(weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        def total(each: Tensor) -> Tensor:
            return (weights[:, None] @ each.reshape(*weights.shape, -1)).squeeze(1)

        of_weight: list[tuple[Tensor, Tensor]] = [(layer.weight, total(per_sample))]
        return of_weight if layer.bias is None else [*of_weight, (layer.bias, total(per_sample_bias))]

    return _Part(squared_norm, weighted_sums)


def _patches(layer: nn.Conv2d, given: Tensor) -> Tensor:
    """What every position of the kernel sees, `[sample, channel in × kernel, position]`.

    One copy of a view: `nn.functional.unfold` starts a kernel for every sample on a GPU, and is slower on a CPU too.
    """
    assert not isinstance(layer.padding, str)  # such layers take the general way
    (height, width), (down, right), (rows, columns) = layer.kernel_size, layer.stride, layer.padding
    padded = pad(given, (columns, columns, rows, rows)).contiguous()
    windows = padded.unfold(2, height, down).unfold(3, width, right)
    return windows.permute(0, 1, 4, 5, 2, 3).flatten(1, 3).flatten(2)


def _in_general(model: nn.Module, samples: Tensor, labels: Tensor, clip_norm: float) -> ClippedSum:
    """Any layers: per-sample gradients by vmap, group by group, as many at a time as memory should hold."""
    moving = {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}

    def loss_of_one(parameters: dict[str, Tensor], sample: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(model, parameters, (sample[None],))
        return cross_entropy(logits, label[None])

    one_by_one = vmap(grad_and_value(loss_of_one), in_dims=(None, 0, 0), randomness="different")
    size = sum(tensor.numel() for tensor in moving.values())
    step = max(1, _HELD_NUMBERS // size)
    gradient, loss = samples.new_zeros(len(samples), size), samples.new_zeros(len(samples))
    for group in range(len(samples)):
        for some, some_labels in zip(torch.split(samples[group], step), torch.split(labels[group], step), strict=True):
            gradients, losses = one_by_one(moving, some, some_labels)
            flat = torch.cat([gradients[name].flatten(1) for name in moving], dim=1)
            gradient[group] += _clip_factor(flat.norm(dim=1), clip_norm) @ flat
            loss[group] += losses.sum()
    return ClippedSum(gradient, loss)
