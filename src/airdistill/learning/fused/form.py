"""Whether a model is of the form that the fused kernels compute, and of which sizes.

The form: blocks of convolution, 2×2 max-pooling and ReLU (the last two in either order), then dense layers with or
without ReLU between them. No block at all is fine; a dense layer gives the logits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from airdistill.learning.models import draws_at_random

logger = logging.getLogger(__name__)
_AGREEMENT = 1e-4  # relative to the largest logit; a form misread would be off by far more


@dataclass(frozen=True)
class ConvBlock:
    """ReLU of the 2×2 maximum of a convolution; `weight` and `bias` are names of the model's parameters."""

    weight: str
    bias: str | None
    channels_in: int
    height: int
    width: int
    channels_out: int
    kernel_height: int
    kernel_width: int

    @property
    def pooled_height(self) -> int:
        return (self.height - self.kernel_height + 1) // 2

    @property
    def pooled_width(self) -> int:
        return (self.width - self.kernel_width + 1) // 2

    @property
    def num_outputs(self) -> int:
        return self.channels_out * self.pooled_height * self.pooled_width


@dataclass(frozen=True)
class DenseLayer:
    """A matrix product, and ReLU if said so."""

    weight: str
    bias: str | None
    num_inputs: int
    num_outputs: int
    relu: bool


@dataclass(frozen=True)
class NetworkForm:
    """Blocks, then layers; the features of a block go to a layer in the order channel, row, column."""

    blocks: tuple[ConvBlock, ...]
    layers: tuple[DenseLayer, ...]


def form_of(model: nn.Module, input_shape: tuple[int, ...]) -> NetworkForm | None:
    """The form of a model on samples of that shape, or None if it has another."""
    if draws_at_random(model) or list(model.buffers()):
        return None
    if not all(parameter.requires_grad for parameter in model.parameters()):
        return None
    was_training = model.training
    try:
        form = _read(model.train(), input_shape)
        if form is None or form != _read(model.eval(), input_shape) or not _agrees(form, model, input_shape):
            return None
    except Exception as error:  # the user's own code can fail in any way, and most of it cannot be traced
        logger.info("the fused kernels are not used, for the model cannot be traced: %s", error)
        return None
    finally:
        model.train(was_training)
    return form


def logits_by_form(form: NetworkForm, parameters: dict[str, Tensor], samples: Tensor) -> Tensor:
    """What the form says that the model computes, in plain operations."""
    features = samples
    for block in form.blocks:
        bias = None if block.bias is None else parameters[block.bias]
        features = functional.relu(
            functional.max_pool2d(functional.conv2d(features, parameters[block.weight], bias), 2)
        )
    features = features.flatten(1)
    for layer in form.layers:
        bias = None if layer.bias is None else parameters[layer.bias]
        features = functional.linear(features, parameters[layer.weight], bias)
        features = functional.relu(features) if layer.relu else features
    return features


@torch.no_grad()
def _agrees(form: NetworkForm, model: nn.Module, input_shape: tuple[int, ...]) -> bool:
    first = next(model.parameters())
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(4, *input_shape, generator=generator, dtype=torch.float32).to(first.device, first.dtype)
    expected, read = model(samples), logits_by_form(form, dict(model.named_parameters()), samples)
    return bool((expected - read).abs().max() <= _AGREEMENT * (1 + expected.abs().max()))


def _read(model: nn.Module, input_shape: tuple[int, ...]) -> NetworkForm | None:
    steps = _steps(model)
    return None if steps is None else _Reader(input_shape).read(steps)


@dataclass(frozen=True)
class _Step:
    kind: str  # "conv", "pool", "relu", "flatten" or "dense"
    layer: Any = None
    name: str = ""


def _steps(model: nn.Module) -> list[_Step] | None:
    """The model's operations one after another; None where they are no chain, or another kind is among them."""
    graph = fx.Tracer().trace(model)
    layers, nodes = dict(model.named_modules()), list(graph.nodes)
    steps: list[_Step] = []
    if [node.op for node in nodes].count("placeholder") != 1 or nodes[0].op != "placeholder":
        return None
    for before, node in pairwise(nodes):
        if node.all_input_nodes != [before]:
            return None
        if node.op == "output":
            return steps if node is nodes[-1] and node.args == (before,) else None
        step = _step_of(node, layers)
        if step is None:
            return None
        if step.kind:
            steps.append(step)
    return None


_RELU: set[Any] = {functional.relu, torch.relu, functional.relu_, "relu", "relu_"}
_FLATTEN: set[Any] = {torch.flatten, "flatten"}
_POOL: set[Any] = {functional.max_pool2d, torch.max_pool2d}
_NOTHING = _Step("")


def _step_of(node: fx.Node, layers: dict[str, nn.Module]) -> _Step | None:
    if node.op == "call_module":
        return _layer_step(str(node.target), layers[str(node.target)])
    if node.op not in ("call_function", "call_method"):
        return None
    rest: tuple[Any, ...] = node.args[1:]
    named: dict[str, Any] = dict(node.kwargs)
    if node.target in _RELU:
        named.pop("inplace", None)
        return _Step("relu") if not rest and not named else None
    if node.target in _FLATTEN:
        return _Step("flatten") if (*rest, *named.items()) in ((1,), (("start_dim", 1),), (1, -1)) else None
    if node.target in _POOL:
        return _Step("pool") if _pools_by_two(*rest, **named) else None
    return None


def _layer_step(name: str, layer: nn.Module) -> _Step | None:
    kind = _LAYERS.get(type(layer))
    if kind is None or not kind[1](layer):
        return None
    return _Step(kind[0], layer, name) if kind[0] else _NOTHING


def _pools_by_two(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> bool:
    two, none, one = (2, (2, 2), [2, 2]), (0, (0, 0), [0, 0]), (1, (1, 1), [1, 1])
    apart = stride is None or stride == [] or stride in two
    plain = padding in none and dilation in one and not ceil_mode and not return_indices
    return kernel_size in two and apart and plain


def _convolves_plainly(layer: nn.Conv2d) -> bool:
    return (
        layer.groups == 1
        and layer.stride == layer.dilation == (1, 1)
        and (layer.padding == "valid" or layer.padding == (0, 0))
    )


_LAYERS: dict[type, tuple[str, Callable[[Any], bool]]] = {
    nn.Conv2d: ("conv", _convolves_plainly),
    nn.MaxPool2d: (
        "pool",
        lambda pool: _pools_by_two(
            pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode, pool.return_indices
        ),
    ),
    nn.ReLU: ("relu", lambda _: True),
    nn.Flatten: ("flatten", lambda flatten: (flatten.start_dim, flatten.end_dim) == (1, -1)),
    nn.Linear: ("dense", lambda _: True),
    nn.Identity: ("", lambda _: True),
}


@dataclass
class _Reader:
    """Goes along the steps with the shape of the features."""

    shape: tuple[int, ...]
    blocks: list[ConvBlock] = field(default_factory=list)
    layers: list[DenseLayer] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    def read(self, steps: list[_Step]) -> NetworkForm | None:
        kinds = [step.kind for step in steps]
        at = 0
        while at < len(steps):
            if kinds[at] == "conv" and sorted(kinds[at + 1 : at + 3]) == ["pool", "relu"]:
                taken = 3 if self._block(steps[at]) else 0
            elif kinds[at] == "flatten":
                self.shape, taken = (_product(self.shape),), 1
            elif kinds[at] == "dense":
                relu = kinds[at + 1 : at + 2] == ["relu"]
                taken = 1 + relu if self._layer(steps[at], relu) else 0
            else:
                taken = 0
            if taken == 0:
                return None
            at += taken
        if not self.layers or self.layers[-1].relu:
            return None
        return NetworkForm(tuple(self.blocks), tuple(self.layers))

    def _block(self, step: _Step) -> bool:
        layer: nn.Conv2d = step.layer
        if len(self.shape) != 3 or step.name in self.seen or layer.in_channels != self.shape[0]:
            return False
        block = ConvBlock(
            f"{step.name}.weight",
            None if layer.bias is None else f"{step.name}.bias",
            *self.shape,
            layer.out_channels,
            *layer.kernel_size,
        )
        self.shape = (block.channels_out, block.pooled_height, block.pooled_width)
        self.seen.add(step.name)
        self.blocks.append(block)
        return min(self.shape) > 0

    def _layer(self, step: _Step, relu: bool) -> bool:
        layer: nn.Linear = step.layer
        if self.shape != (layer.in_features,) or step.name in self.seen:
            return False
        bias = None if layer.bias is None else f"{step.name}.bias"
        self.layers.append(DenseLayer(f"{step.name}.weight", bias, layer.in_features, layer.out_features, relu))
        self.shape = (layer.out_features,)
        self.seen.add(step.name)
        return True


def _product(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
