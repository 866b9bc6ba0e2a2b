"""Per-sample gradients, clipped and summed, without a matrix of samples × parameters.

For a dense layer with input a and output gradient δ, a sample's weight gradient is δaᵀ: its norm is ‖δ‖‖a‖, and the
clipped sum is (cδ)ᵀa, and so the per-sample gradient is never materialised. For a convolution the per-sample gradient
is the product of the unfolded input and δ, which is as small as the kernel. One forward and one backward pass give all
pairs (a, δ). Models with trainable layers of other types fall back to torch.func's vmap over a few samples at a time.
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

_MAX_ELEMENTS = 1 << 24  # of per-sample gradients in memory at once when vmap computes them
PerSampleLoss = Callable[[Tensor, Tensor], Tensor]  # (logits [sample, class], labels [sample]) -> losses [sample]


@dataclass(frozen=True)
class ClippedSum:
    """Σ_b clip_C(∇f_b) `[group, parameter]` in the order of the trainable parameters, and Σ_b f_b `[group]`."""

    gradient: Tensor
    loss: Tensor


def clipped_sum(model: nn.Module, samples: Tensor, labels: Tensor, clip_norm: float) -> ClippedSum:
    """Clip every sample's cross-entropy gradient to norm `clip_norm` and sum over each group.

    Samples are `[group, sample, ...]` and labels `[group, sample]`. Nothing is copied from a GPU to the host.
    """
    backward = _backward_pass(model, samples.flatten(0, 1), labels.flatten(), _cross_entropies)
    if backward is None:
        return _clipped_sum_by_vmap(model, samples, labels, clip_norm)
    with torch.no_grad():
        factor = _clip_factor(backward.norms(), clip_norm).view_as(labels)
        sums = {id(parameter): total for layer in backward.layers for parameter, total in layer.weighted_sums(factor)}
        gradient = torch.cat([sums[id(parameter)].flatten(1) for parameter in trainable(model)], dim=1)
        return ClippedSum(gradient, backward.losses.view_as(labels).sum(dim=1))


def gradient_norms(model: nn.Module, samples: Tensor, labels: Tensor, losses_of: PerSampleLoss) -> Tensor:
    """The norm of every sample's gradient, `[sample]`."""
    backward = _backward_pass(model, samples, labels, losses_of)
    if backward is not None:
        return backward.norms()
    return torch.cat([flat.norm(dim=1) for flat, _ in _gradients_by_vmap(model, samples, labels, losses_of)])


@torch.no_grad()
def check_independent_samples(model: nn.Module, samples: Tensor) -> None:
    """Reject a model whose output for a sample depends on its batch: clipping could not bound its effect."""
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise AirDistillError(
            "learning.model: batch normalisation mixes samples, and so per-sample gradients do not exist; "
            "use another normalisation"
        )
    few = samples[:3]
    model.eval()  # layers such as dropout are deterministic in evaluation mode
    together = model(few)
    alone = torch.cat([model(sample[None]) for sample in few])
    model.train()
    if not torch.allclose(together, alone, rtol=1e-2, atol=1e-3):
        raise AirDistillError(
            "learning.model: its output for a sample depends on the batch, and so clipping cannot bound the gradients"
        )


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The model's trainable parameters, in order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits, labels, reduction="none")


def _clip_factor(norm: Tensor, clip_norm: float) -> Tensor:
    return (clip_norm / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp_max(1.0)


@dataclass(frozen=True)
class _LayerGradients:
    """A layer's per-sample gradients.

    `squared_norm` is `[sample]`, all groups concatenated. `weighted_sums` takes weights `[group, sample]` and returns
    the weighted sum `[group, ...]` of each parameter's gradients.
    """

    squared_norm: Tensor
    weighted_sums: Callable[[Tensor], list[tuple[Tensor, Tensor]]]


_Rule = Callable[[Any, Tensor, Tensor], _LayerGradients]  # (layer, input, gradient of its output)


@dataclass(frozen=True)
class _LayerCall:
    """One call of a layer during the forward pass."""

    layer: nn.Module
    input: Tensor
    output: Tensor
    rule: _Rule
    versions: tuple[int, int]

    def is_supported(self) -> bool:
        """Whether input and output were not overwritten since, and have a shape that the rule supports."""
        has_rule = type(self.layer) is not nn.Linear or self.input.ndim == 2
        return has_rule and self.versions == (self.input._version, self.output._version)


@dataclass(frozen=True)
class _BackwardPass:
    """The result of one forward and one backward pass: per-sample gradients by layer, and losses `[sample]`."""

    layers: list[_LayerGradients]
    losses: Tensor

    def norms(self) -> Tensor:
        return torch.stack([layer.squared_norm for layer in self.layers]).sum(dim=0).sqrt()


def _backward_pass(model: nn.Module, samples: Tensor, labels: Tensor, losses_of: PerSampleLoss) -> _BackwardPass | None:
    """Per-sample gradients by the layers' rules, or None if the rules do not apply to the model."""
    layers = _layers_and_rules(model)
    if layers is None:
        return None
    calls: list[_LayerCall] = []
    hooks = [layer.register_forward_hook(_recorder(calls, rule)) for layer, rule in layers]
    try:
        losses = losses_of(model(samples), labels)
    finally:
        for hook in hooks:
            hook.remove()
    # The gradient of a layer that is used twice or never, or overwritten in place, is not a single product.
    if len(calls) != len(layers) or not all(call.is_supported() for call in calls):
        return None
    gradients = torch.autograd.grad(losses.sum(), [call.output for call in calls])
    with torch.no_grad():
        parts = [call.rule(call.layer, call.input, gradient) for call, gradient in zip(calls, gradients, strict=True)]
    return _BackwardPass(parts, losses.detach())


def _recorder(calls: list[_LayerCall], rule: _Rule) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        first = inputs[0].detach()
        calls.append(_LayerCall(layer, first, output, rule, (first._version, output._version)))

    return hook


def _layers_and_rules(model: nn.Module) -> list[tuple[nn.Module, _Rule]] | None:
    """The layers with parameters and their rules, or None if a layer has no rule."""
    layers: list[tuple[nn.Module, _Rule]] = []
    seen: set[int] = set()
    for layer in model.modules():
        own = list(layer.parameters(recurse=False))
        if not own:
            continue
        rule = _rule_for(layer)
        if rule is None or not all(parameter.requires_grad for parameter in own) or seen & {id(p) for p in own}:
            return None
        seen |= {id(parameter) for parameter in own}
        layers.append((layer, rule))
    return layers


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


def _dense(layer: nn.Linear, inputs: Tensor, output_gradient: Tensor) -> _LayerGradients:
    # The bias is the weight of an input that is always 1.
    squared_input = inputs.square().sum(dim=1) + (0.0 if layer.bias is None else 1.0)

    def weighted_sums(weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        weighted = output_gradient.reshape(*weights.shape, -1) * weights[:, :, None]
        of_weight: list[tuple[Tensor, Tensor]] = [(layer.weight, weighted.mT @ inputs.reshape(*weights.shape, -1))]
        return of_weight if layer.bias is None else [*of_weight, (layer.bias, weighted.sum(dim=1))]

    return _LayerGradients(output_gradient.square().sum(dim=1) * squared_input, weighted_sums)


def _convolution(layer: nn.Conv2d, inputs: Tensor, output_gradient: Tensor) -> _LayerGradients:
    flat = output_gradient.contiguous().flatten(2)
    # [sample, channel out, channel in × kernel]
    per_sample = torch.bmm(flat, _unfolded(layer, inputs).mT).flatten(1)
    squared_norm = per_sample.square().sum(dim=1)
    per_sample_bias = flat.sum(dim=2)
    if layer.bias is not None:
        squared_norm = squared_norm + per_sample_bias.square().sum(dim=1)

    def weighted_sums(weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        def total(each: Tensor) -> Tensor:
            return (weights[:, None] @ each.reshape(*weights.shape, -1)).squeeze(1)

        of_weight: list[tuple[Tensor, Tensor]] = [(layer.weight, total(per_sample))]
        return of_weight if layer.bias is None else [*of_weight, (layer.bias, total(per_sample_bias))]

    return _LayerGradients(squared_norm, weighted_sums)


def _unfolded(layer: nn.Conv2d, inputs: Tensor) -> Tensor:
    """The input patch at every position of the kernel, `[sample, channel in × kernel, position]`.

    A single copy of a view: `nn.functional.unfold` launches one GPU kernel per sample, and is slower on a CPU too.
    """
    assert not isinstance(layer.padding, str)  # such layers have no rule
    (height, width), (down, right), (rows, columns) = layer.kernel_size, layer.stride, layer.padding
    padded = pad(inputs, (columns, columns, rows, rows)).contiguous()
    windows = padded.unfold(2, height, down).unfold(3, width, right)
    return windows.permute(0, 1, 4, 5, 2, 3).flatten(1, 3).flatten(2)


def _clipped_sum_by_vmap(model: nn.Module, samples: Tensor, labels: Tensor, clip_norm: float) -> ClippedSum:
    """`clipped_sum` for any layers, group by group."""
    size = sum(parameter.numel() for parameter in trainable(model))
    gradient, loss = samples.new_zeros(len(samples), size), samples.new_zeros(len(samples))
    for group in range(len(samples)):
        for flat, losses in _gradients_by_vmap(model, samples[group], labels[group], _cross_entropies):
            gradient[group] += _clip_factor(flat.norm(dim=1), clip_norm) @ flat
            loss[group] += losses.sum()
    return ClippedSum(gradient, loss)


def _gradients_by_vmap(
    model: nn.Module, samples: Tensor, labels: Tensor, losses_of: PerSampleLoss
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield per-sample gradients `[sample, parameter]` and losses `[sample]`, in portions that fit into memory."""
    trained = {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}

    def loss_of_one(parameters: dict[str, Tensor], sample: Tensor, label: Tensor) -> Tensor:
        return losses_of(functional_call(model, parameters, (sample[None],)), label[None]).squeeze(0)

    batched = vmap(grad_and_value(loss_of_one), in_dims=(None, 0, 0), randomness="different")
    step = max(1, _MAX_ELEMENTS // sum(tensor.numel() for tensor in trained.values()))
    for chunk, chunk_labels in zip(torch.split(samples, step), torch.split(labels, step), strict=True):
        gradients, losses = batched(trained, chunk, chunk_labels)
        yield torch.cat([gradients[name].flatten(1) for name in trained], dim=1), losses
