"""A user's own frozen network as an embedding: loaded from a file or from code, and checked before it is used."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from airdistill.errors import InputError, described
from airdistill.files import place_of
from airdistill.learning.models import accepted_arguments
from airdistill.plugins import load_object

FIELD = "public.embedding"
CHECKED = 32  # samples of the checks
_CLOSE = 1e-4  # relative to the largest output: how far a sample's features may depend on the batch it is in


def load_network(name: str, shape: torch.Size, seed: int) -> nn.Module:
    """The network that a name refers to: a TorchScript file, `module:function`, or `module:function@weights`.

    A function is called with `input_shape`, if it has such a parameter; weights are a safetensors file of its state.
    The network is put into evaluation mode. Loading it runs its code: it must be trusted, as a model of one's own.
    """
    reference, _, weights = name.partition("@")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network = _built(name, reference, tuple(shape[1:])) if ":" in reference else _scripted(name)
    if weights:
        _load_weights(name, network, place_of(weights))
    for parameter in network.parameters():  # a scripted network has no requires_grad_ of its own
        parameter.requires_grad_(False)
    return network.eval()


def _scripted(name: str) -> nn.Module:
    try:
        with warnings.catch_warnings():  # PyTorch advises the authors of such files, not their readers
            warnings.simplefilter("ignore", DeprecationWarning)
            network: nn.Module = torch.jit.load(place_of(name), map_location="cpu")  # type: ignore[no-untyped-call]
    except (OSError, RuntimeError, ValueError) as error:
        way_out = "give a TorchScript file (torch.jit.save), or package.module:function for a network in code"
        raise InputError(FIELD, name, f"cannot be loaded: {str(error).splitlines()[0]}; {way_out}") from error
    return network


def _built(name: str, reference: str, shape: tuple[int, ...]) -> nn.Module:
    function = load_object(reference, FIELD)
    try:
        network = function(**accepted_arguments(function, {"input_shape": shape}))
    except Exception as error:  # a user's function may raise anything
        raise InputError(FIELD, name, f"failed: {described(error)}; it may take input_shape only") from error
    if not isinstance(network, nn.Module):
        raise InputError(FIELD, name, f"must return an nn.Module, not a {type(network).__name__}")
    return network


def _load_weights(name: str, network: nn.Module, path: Path) -> None:
    try:
        network.load_state_dict(load_file(path))
    except (OSError, RuntimeError, SafetensorError) as error:
        problem = " ".join(str(error).split())
        rule = f"its weights do not fit: {problem}; after the @ comes a safetensors file of the network's state_dict"
        raise InputError(FIELD, name, rule) from error


@torch.no_grad()
def check_network(name: str, network: nn.Module, samples: Tensor) -> None:
    """Raise unless the network gives a sample the same finite features in every call and in every batch.

    A neighbouring data set would otherwise change the features of other samples, and the privacy proof would not hold.
    """
    before = {key: value.clone() for key, value in network.state_dict().items()}
    first, again = _output(name, network, samples), _output(name, network, samples, seed=1)
    _require(name, torch.isfinite(first).all(), "must give finite numbers on the public samples", "scale its inputs")
    _require(name, torch.equal(first, again), "gives one sample different features in two calls", "remove what draws")
    changed = next((key for key, value in network.state_dict().items() if not torch.equal(value, before[key])), None)
    _require(name, changed is None, f"changes its own {changed} when it is called", "store no statistics of inputs")
    training = any(module.training for module in network.modules())
    _require(name, not training, "has a part in training mode", "let eval() reach all parts, and call no train()")
    _check_rows(name, network, samples, first)


def _check_rows(name: str, network: nn.Module, samples: Tensor, expected: Tensor) -> None:
    """Raise unless a sample has the same features alone, among fewer samples, and in another order."""
    reverse = torch.arange(len(samples) - 1, -1, -1, device=samples.device)
    allowed = _CLOSE * expected.abs().max()
    for chosen in (reverse, reverse[::2], reverse[:1], reverse[-1:]):
        distance = (_output(name, network, samples[chosen]) - expected[chosen]).abs().max()
        rule = "gives a sample features that depend on the other samples of its batch"
        _require(name, distance <= allowed, rule, "use eval() statistics, or group or layer normalisation")


def _require(name: str, holds: Tensor | bool, rule: str, way_out: str) -> None:
    if not bool(holds):
        raise InputError(FIELD, name, f"{rule}; {way_out}")


def _output(name: str, network: nn.Module, samples: Tensor, seed: int = 0) -> Tensor:
    """The features `[sample, feature]` of samples; what a network draws at random depends on the seed."""
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            output = network(samples)
    except Exception as error:  # a user's network may raise anything
        shape = tuple(samples.shape[1:])
        rule = f"cannot take samples of shape {shape}: {described(error)}; adapt its first layer, or wrap it"
        raise InputError(FIELD, name, rule) from error
    if not isinstance(output, Tensor) or output.ndim < 2 or len(output) != len(samples):
        given = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise InputError(FIELD, name, f"must give a row of features for each of {len(samples)} samples, not {given}")
    return output.flatten(1).float()
