"""Whether a model has the form that the fused kernels support, and with which sizes.

The form: any number of blocks of convolution, 2×2 max-pooling and ReLU (the last two in either order), then dense
layers with or without ReLU between them. The last dense layer returns the logits.
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
_TOLERANCE = 1e-4  # relative to the largest logit; a misread form would deviate by far more


@dataclass(frozen=True)
class ConvBlock:
    """Convolution, 2×2 max-pooling and ReLU; `weight` and `bias` are names of the model's parameters."""

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
    """A dense layer, with or without ReLU."""

    weight: str
    bias: str | None
    num_inputs: int
    num_outputs: int
    relu: bool


@dataclass(frozen=True)
class NetworkForm:
    """Blocks, then dense layers; the output of the last block is flattened in the order channel, row, column."""

    blocks: tuple[ConvBlock, ...]
    layers: tuple[DenseLayer, ...]


def form_of(model: nn.Module, input_shape: tuple[int, ...]) -> NetworkForm | None:
    """The form of a model for samples of this shape, or None if the kernels do not support it."""
    if draws_at_random(model) or list(model.buffers()):
        return None
    if not all(parameter.requires_grad for parameter in model.parameters()):
        return None
    was_training = model.training
    try:
        form = _read(model.train(), input_shape)
        if form is None or form != _read(model.eval(), input_shape) or not _agrees(form, model, input_shape):
            return None
    except Exception as error:  # a user's model may raise anything, and not every model can be traced
        logger.info("the fused kernels are not used, because the model cannot be traced: %s", error)
        return None
    finally:
        model.train(was_training)
    return form


def logits_by_form(form: NetworkForm, parameters: dict[str, Tensor], samples: Tensor) -> Tensor:
    """The logits of a network of this form by PyTorch's operations, as a reference."""
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
    """Whether the form reproduces the model's logits on random samples."""
    first = next(model.parameters())
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(4, *input_shape, generator=generator, dtype=torch.float32).to(first.device, first.dtype)
    expected, found = model(samples), logits_by_form(form, dict(model.named_parameters()), samples)
    return bool((expected - found).abs().max() <= _TOLERANCE * (1 + expected.abs().max()))


def _read(model: nn.Module, input_shape: tuple[int, ...]) -> NetworkForm | None:
    operations = _operations(model)
    return None if operations is None else _Reader(input_shape).read(operations)


@dataclass(frozen=True)
class _Operation:
    """One operation of the traced model."""

    kind: str  # "conv", "pool", "relu", "flatten" or "dense"
    layer: Any = None
    name: str = ""


def _operations(model: nn.Module) -> list[_Operation] | None:
    """The model's operations in order, or None if they are not a chain or one of them is not supported."""
    graph = fx.Tracer().trace(model)
    layers, nodes = dict(model.named_modules()), list(graph.nodes)
    operations: list[_Operation] = []
    if [node.op for node in nodes].count("placeholder") != 1 or nodes[0].op != "placeholder":
        return None
    for before, node in pairwise(nodes):
        if node.all_input_nodes != [before]:
            return None
        if node.op == "output":
            return operations if node is nodes[-1] and node.args == (before,) else None
        operation = _operation_of(node, layers)
        if operation is None:
            return None
        if operation.kind:
            operations.append(operation)
    return None


_RELU: set[Any] = {functional.relu, torch.relu, functional.relu_, "relu", "relu_"}
_FLATTEN: set[Any] = {torch.flatten, "flatten"}
_POOL: set[Any] = {functional.max_pool2d, torch.max_pool2d}
_IDENTITY = _Operation("")


def _operation_of(node: fx.Node, layers: dict[str, nn.Module]) -> _Operation | None:
    if node.op == "call_module":
        return _layer_operation(str(node.target), layers[str(node.target)])
    if node.op not in ("call_function", "call_method"):
        return None
    rest: tuple[Any, ...] = node.args[1:]
    named: dict[str, Any] = dict(node.kwargs)
    if node.target in _RELU:
        named.pop("inplace", None)
        return _Operation("relu") if not rest and not named else None
    if node.target in _FLATTEN:
        return _Operation("flatten") if (*rest, *named.items()) in ((1,), (("start_dim", 1),), (1, -1)) else None
    if node.target in _POOL:
        return _Operation("pool") if _is_two_by_two_pooling(*rest, **named) else None
    return None


def _layer_operation(name: str, layer: nn.Module) -> _Operation | None:
    kind = _LAYERS.get(type(layer))
    if kind is None or not kind[1](layer):
        return None
    return _Operation(kind[0], layer, name) if kind[0] else _IDENTITY


def _is_two_by_two_pooling(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> bool:
    two, none, one = (2, (2, 2), [2, 2]), (0, (0, 0), [0, 0]), (1, (1, 1), [1, 1])
    strided = stride is None or stride == [] or stride in two
    plain = padding in none and dilation in one and not ceil_mode and not return_indices
    return kernel_size in two and strided and plain


def _is_plain_convolution(layer: nn.Conv2d) -> bool:
    return (
        layer.groups == 1
        and layer.stride == layer.dilation == (1, 1)
        and (layer.padding == "valid" or layer.padding == (0, 0))
    )


_LAYERS: dict[type, tuple[str, Callable[[Any], bool]]] = {
    nn.Conv2d: ("conv", _is_plain_convolution),
    nn.MaxPool2d: (
        "pool",
        lambda pool: _is_two_by_two_pooling(
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
    """Matches a chain of operations with the form, tracking the shape of the features."""

    shape: tuple[int, ...]
    blocks: list[ConvBlock] = field(default_factory=list)
    layers: list[DenseLayer] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    def read(self, operations: list[_Operation]) -> NetworkForm | None:
        kinds = [operation.kind for operation in operations]
        at = 0
        while at < len(operations):
            if kinds[at] == "conv" and sorted(kinds[at + 1 : at + 3]) == ["pool", "relu"]:
                taken = 3 if self._block(operations[at]) else 0
            elif kinds[at] == "flatten":
                self.shape, taken = (_product(self.shape),), 1
            elif kinds[at] == "dense":
                relu = kinds[at + 1 : at + 2] == ["relu"]
                taken = 1 + relu if self._layer(operations[at], relu) else 0
            else:
                taken = 0
            if taken == 0:
                return None
            at += taken
        if not self.layers or self.layers[-1].relu:
            return None
        return NetworkForm(tuple(self.blocks), tuple(self.layers))

    def _block(self, operation: _Operation) -> bool:
        layer: nn.Conv2d = operation.layer
        if len(self.shape) != 3 or operation.name in self.seen or layer.in_channels != self.shape[0]:
            return False
        block = ConvBlock(
            f"{operation.name}.weight",
            None if layer.bias is None else f"{operation.name}.bias",
            *self.shape,
            layer.out_channels,
            *layer.kernel_size,
        )
        self.shape = (block.channels_out, block.pooled_height, block.pooled_width)
        self.seen.add(operation.name)
        self.blocks.append(block)
        return min(self.shape) > 0

    def _layer(self, operation: _Operation, relu: bool) -> bool:
        layer: nn.Linear = operation.layer
        if self.shape != (layer.in_features,) or operation.name in self.seen:
            return False
        bias = None if layer.bias is None else f"{operation.name}.bias"
        self.layers.append(DenseLayer(f"{operation.name}.weight", bias, layer.in_features, layer.out_features, relu))
        self.shape = (layer.out_features,)
        self.seen.add(operation.name)
        return True


def _product(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
