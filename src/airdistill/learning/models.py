"""The models that devices train, built in or a user's own; a model returns one logit per class."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from airdistill.arrays import FloatArray
from airdistill.errors import InputError, described
from airdistill.learning.resnet import ResNet
from airdistill.plugins import load_object
from airdistill.scenario.networks import RESNETS, check_network, check_takes, widths_of

_FIELD = "learning.model"


class PaperCnn(nn.Module):
    """The paper's network: two convolutions with max-pooling, two dense layers; 21,680 parameters on MNIST."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        rows, columns = (((side - 2) // 2 - 4) // 2 for side in (height, width))
        self.first = nn.Conv2d(channels, 10, 3)
        self.second = nn.Conv2d(10, 20, 5)
        self.hidden = nn.Linear(20 * rows * columns, 50)
        self.out = nn.Linear(50, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        features = nn.functional.relu(nn.functional.max_pool2d(self.first(images), 2))
        features = nn.functional.relu(nn.functional.max_pool2d(self.second(features), 2))
        logits: Tensor = self.out(nn.functional.relu(self.hidden(features.flatten(1))))
        return logits


def paper_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The paper's network."""
    check_takes("paper_cnn", input_shape, _FIELD)
    return PaperCnn(input_shape, num_classes)


def mlp(input_shape: tuple[int, ...], num_classes: int, hidden: tuple[int, ...] = (64,)) -> nn.Module:
    """A multilayer perceptron with hidden layers of these widths, by default one of 64 units."""
    widths = [math.prod(input_shape), *hidden]
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(widths[-1], num_classes))


def resnet(input_shape: tuple[int, ...], num_classes: int, layers: int, width: int = 16) -> nn.Module:
    """A residual network of 8, 14 or 20 layers, whose first stage has `width` channels."""
    check_takes(f"resnet{layers}", input_shape, _FIELD)
    return ResNet((layers - 2) // 6, width, input_shape[0], num_classes)


def softmax_regression(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A single linear layer: its loss is convex, and its constants can be computed."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), num_classes))


Factory = Callable[[tuple[int, ...], int], nn.Module]
MODELS: dict[str, Factory] = {
    "paper_cnn": paper_cnn,
    "mlp": mlp,
    "softmax_regression": softmax_regression,
    **{name: partial(resnet, layers=layers) for name, layers in RESNETS.items()},
}


def _built_in(name: str, field: str) -> Factory | None:
    """The built-in model of this name, which may end in widths: `mlp-128-64`, `resnet8-32`; None for a user's own."""
    check_network(name, field)
    if name in MODELS:
        return MODELS[name]
    if ":" in name:
        return None
    family, widths = widths_of(name)
    return partial(mlp, hidden=widths) if family == "mlp" else partial(resnet, layers=RESNETS[family], width=widths[0])


def build_model(
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    rng: np.random.Generator,
    dtype: torch.dtype,
    field: str = _FIELD,
) -> nn.Module:
    """Build a model by name, or by a user's `package.module:factory`, with weights drawn from `rng`.

    A factory is called with `input_shape` and `num_classes`, each only if it has such a parameter. `field` is the
    scenario field that names the model, for error messages.
    """
    with torch.random.fork_rng(devices=[]):
        seed = int(rng.integers(2**63))
        if ":" in name:
            torch.manual_seed(seed)
        else:  # seeding GPUs that are not used takes as long as drawing the weights
            torch.default_generator.manual_seed(seed)
        model = _create(name, input_shape, num_classes, field).to(dtype)
        if ":" in name:
            # Within the seeded context: lazy layers draw their weights in their first forward pass.
            _check_output(model, name, input_shape, num_classes, dtype, field)
        else:
            _check_built_in(name, input_shape, num_classes, dtype, field)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(field, name, "has no parameters to train")
    return model


def _create(name: str, input_shape: tuple[int, ...], num_classes: int, field: str) -> nn.Module:
    built_in = _built_in(name, field)
    if built_in is not None:
        return built_in(input_shape, num_classes)
    factory = load_object(name, field)
    try:
        model = factory(**accepted_arguments(factory, {"input_shape": input_shape, "num_classes": num_classes}))
    except Exception as error:  # a user's factory may raise anything
        raise InputError(field, name, f"failed: {described(error)}") from error
    if not isinstance(model, nn.Module):
        raise InputError(field, name, f"must return an nn.Module, not a {type(model).__name__}")
    return model


def accepted_arguments(factory: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Those of the offered arguments that a user's function takes, by their names."""
    parameters = inspect.signature(factory).parameters
    # A class that inherits its constructor shows the **kwargs of nn.Module, which accepts no arguments.
    takes_all = inspect.isfunction(factory) and any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {name: value for name, value in offered.items() if takes_all or name in parameters}


def _check_output(
    model: nn.Module, name: str, input_shape: tuple[int, ...], num_classes: int, dtype: torch.dtype, field: str
) -> None:
    """Check the output shape by one pass in evaluation mode, without random draws and statistics."""
    model.eval()
    try:
        with torch.no_grad():
            output = model(torch.zeros(2, *input_shape, dtype=dtype))
    except Exception as error:  # a user's factory may raise anything
        raise InputError(field, name, f"cannot take samples of shape {input_shape}: {described(error)}") from error
    model.train()
    if not isinstance(output, Tensor) or output.shape != (2, num_classes):
        given = tuple(output.shape[1:]) if isinstance(output, Tensor) else type(output).__name__
        raise InputError(field, name, f"must give {num_classes} outputs a sample, not {given}")


@lru_cache
def _check_built_in(name: str, input_shape: tuple[int, ...], num_classes: int, dtype: torch.dtype, field: str) -> None:
    """The same for a built-in model, once: a fleet of thousands has thousands of them."""
    _check_output(
        _create(name, input_shape, num_classes, field).to(dtype), name, input_shape, num_classes, dtype, field
    )


def count_parameters(name: str, input_shape: tuple[int, ...], num_classes: int) -> int:
    """The number of trainable parameters of the model with this name."""
    model = build_model(name, input_shape, num_classes, np.random.default_rng(0), torch.float32)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def flat_weights(model: nn.Module) -> FloatArray:
    """All numbers of a model's state in the order of its names: what a broadcast of the model sends."""
    state = model.state_dict().values()
    return np.concatenate([tensor.detach().to("cpu", torch.float64).numpy().ravel() for tensor in state])


@torch.no_grad()
def set_flat_weights(model: nn.Module, weights: FloatArray) -> None:
    """Load what `flat_weights` returned into a model of the same architecture."""
    state = model.state_dict()
    ends = np.cumsum([tensor.numel() for tensor in state.values()])
    for tensor, part in zip(state.values(), np.split(weights, ends[:-1]), strict=True):
        tensor.copy_(torch.from_numpy(part.reshape(tensor.shape)))


def num_parameters(model: nn.Module) -> int:
    """The number of parameters, trainable or not."""
    return sum(parameter.numel() for parameter in model.parameters())


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a layer normalises by statistics of its batch while it is trained."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def draws_at_random(model: nn.Module) -> bool:
    """Whether a forward pass draws random numbers, judged by the types of its layers."""
    return any(isinstance(module, (_DropoutNd, nn.RReLU)) for module in model.modules())


def under(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def by_device(state: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors under `device.name`, by device: one pass, because a search for each device takes N² steps."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        device, _, rest = name.partition(".")
        found.setdefault(device, {})[rest] = tensor
    return found
