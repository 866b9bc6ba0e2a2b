"""Per-sample gradients, clipped and summed, without a matrix of samples × parameters.

For a dense layer with input a and output gradient δ, a sample's weight gradient is δaᵀ: its norm is ‖δ‖‖a‖, and the
clipped sum is (cδ)ᵀa, so that it never needs to exist. For a convolution it is the product of the unfolded input and δ,
small because kernels are. One forward and one backward pass give all (a, δ). Models with other layers that hold
parameters take a general way: torch.func's vmap over a few samples at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy, pad
from torch.nn.modules.batchnorm import _BatchNorm

from airdistill.errors import AirDistillError

_HELD_NUMBERS = 1 << 24  # of per-sample gradients at once on the general way
LossesOf = Callable[[Tensor, Tensor], Tensor]  # from logits [sample, class] and labels [sample], each sample's own


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
    traced = _traced(model, samples.flatten(0, 1), labels.flatten(), _cross_entropies)
    if traced is None:
        return _in_general(model, samples, labels, clip_norm)
    with torch.no_grad():
        factor = _clip_factor(traced.norms(), clip_norm).view_as(labels)
        sums = {id(parameter): total for part in traced.parts for parameter, total in part.weighted_sums(factor)}
        gradient = torch.cat([sums[id(parameter)].flatten(1) for parameter in trainable(model)], dim=1)
        return ClippedSum(gradient, traced.losses.view_as(labels).sum(dim=1))


def gradient_norms(model: nn.Module, samples: Tensor, labels: Tensor, losses_of: LossesOf) -> Tensor:
    """The norm of every sample's own gradient, `[sample]`."""
    traced = _traced(model, samples, labels, losses_of)
    if traced is not None:
        return traced.norms()
    return torch.cat([flat.norm(dim=1) for flat, _ in _one_by_one(model, samples, labels, losses_of)])


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


def _cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits, labels, reduction="none")


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


@dataclass(frozen=True)
class _Traced:
    """One forward and one backward pass: every layer's per-sample gradients, and the losses `[sample]`."""

    parts: list[_Part]
    losses: Tensor

    def norms(self) -> Tensor:
        return torch.stack([part.squared_norm for part in self.parts]).sum(dim=0).sqrt()


def _traced(model: nn.Module, samples: Tensor, labels: Tensor, losses_of: LossesOf) -> _Traced | None:
    """None for a model that the rules do not cover."""
    taps = _taps(model)
    if taps is None:
        return None
    called: list[_Call] = []
    hooks = [layer.register_forward_hook(_note(called, rule)) for layer, rule in taps]
    try:
        losses = losses_of(model(samples), labels)
    finally:
        for hook in hooks:
            hook.remove()
    # A layer used twice or not at all, or overwritten in place, has a gradient that is no longer one product.
    if len(called) != len(taps) or not all(call.stands() for call in called):
        return None
    slopes = torch.autograd.grad(losses.sum(), [call.output for call in called])
    with torch.no_grad():
        parts = [call.rule(call.layer, call.input, slope) for call, slope in zip(called, slopes, strict=True)]
    return _Traced(parts, losses.detach())


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
    """Any layers, group by group."""
    size = sum(parameter.numel() for parameter in trainable(model))
    gradient, loss = samples.new_zeros(len(samples), size), samples.new_zeros(len(samples))
    for group in range(len(samples)):
        for flat, losses in _one_by_one(model, samples[group], labels[group], _cross_entropies):
            gradient[group] += _clip_factor(flat.norm(dim=1), clip_norm) @ flat
            loss[group] += losses.sum()
    return ClippedSum(gradient, loss)


def _one_by_one(
    model: nn.Module, samples: Tensor, labels: Tensor, losses_of: LossesOf
) -> Iterator[tuple[Tensor, Tensor]]:
    """Per-sample gradients `[sample, parameter]` and losses `[sample]` by vmap, as many as memory should hold."""
    moving = {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}

    def loss_of_one(parameters: dict[str, Tensor], sample: Tensor, label: Tensor) -> Tensor:
        return losses_of(functional_call(model, parameters, (sample[None],)), label[None]).squeeze(0)

    at_once = vmap(grad_and_value(loss_of_one), in_dims=(None, 0, 0), randomness="different")
    step = max(1, _HELD_NUMBERS // sum(tensor.numel() for tensor in moving.values()))
    for some, some_labels in zip(torch.split(samples, step), torch.split(labels, step), strict=True):
        gradients, losses = at_once(moving, some, some_labels)
        yield torch.cat([gradients[name].flatten(1) for name in moving], dim=1), losses
