"""Features of the server's own model: the input of its last linear layer, whitened by the public samples.

The model was made from charged releases and public samples, and so its features cost no privacy (theory section 10).
Devices and server compute the same embedding, each from the model that was broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from airdistill.arrays import FloatArray
from airdistill.errors import InputError
from airdistill.learning.embeddings import principal_directions
from airdistill.learning.samples import channels_last

_LEAST_VARIANCE = 1e-6  # of a direction, relative to the largest: units that are never active have none
_CHECKED = 32  # samples
_CLOSE = 1e-2  # relative to the largest feature: TensorFloat-32 alone makes a thousandth


@dataclass(frozen=True, eq=False)
class OwnFeatures:
    """A fitted embedding by a model's last hidden layer; directions that the layer does not have are 0 for all."""

    model: nn.Module
    width: int
    chunk: int
    _mean: Tensor
    _projection: Tensor

    @classmethod
    def fit(cls, model: nn.Module, public: Tensor, width: int, chunk: int) -> OwnFeatures:
        """The leading `width` directions of the public samples, or all that vary if they are fewer."""
        check_separate(model, public)
        mean, directions, variances = principal_directions(hidden_features(model, public, chunk), width)
        varying = variances > _LEAST_VARIANCE * variances.max()
        if not varying.any():
            rule = "its last hidden layer is the same for all public samples: it has learned nothing"
            raise InputError("public.later", "features", f'{rule}; set it to "repeat"')
        return cls(model, width, chunk, mean, directions[varying].T / variances[varying].sqrt())

    @property
    def rank(self) -> int:
        """The number of features that vary; the leading ones."""
        return self._projection.shape[1]

    def features(self, samples: Tensor) -> FloatArray:
        """Features `[sample, feature]`."""
        rows = (hidden_features(self.model, samples, self.chunk).double() - self._mean) @ self._projection
        padded = nn.functional.pad(rows, (0, self.width - self.rank))
        return np.asarray(padded.cpu().numpy(), dtype=np.float64)


@torch.no_grad()
def hidden_features(model: nn.Module, samples: Tensor, chunk: int) -> Tensor:
    """The input of the last linear layer that a pass in evaluation mode calls, `[sample, unit]`."""
    inputs: list[tuple[nn.Module, Tensor]] = []

    def note(layer: nn.Module, given: tuple[Tensor, ...], _: Tensor) -> None:
        inputs.append((layer, given[0]))

    hooks = [module.register_forward_hook(note) for module in model.modules() if isinstance(module, nn.Linear)]
    was_training, rows = model.training, []
    model.eval()
    try:
        for part in torch.split(channels_last(samples), chunk):
            inputs.clear()
            model(part)
            check_has_linear_layer(model, bool(inputs))
            rows.append(inputs[-1][1].flatten(1))
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was_training)
    return torch.cat(rows)


def check_separate(model: nn.Module, public: Tensor) -> None:
    """Refuse a model that mixes samples: one changed record would change the features of others."""
    samples = public[:_CHECKED]
    together = hidden_features(model, samples, len(samples))
    apart = torch.cat([hidden_features(model, part, len(samples)) for part in (samples[:1], samples[1:])])
    if (together - apart).abs().max() > _CLOSE * together.abs().max():
        named = f"{type(model).__name__} gives a sample features that depend on the other samples of its batch"
        rule = 'use group or layer normalisation, or set it to "repeat"'
        raise InputError("public.later", "features", f"{named}; {rule}")


def check_has_linear_layer(model: nn.Module, found: bool | None = None) -> None:
    """Refuse a model without a linear layer, which has no features of this kind."""
    if found is None:
        found = any(isinstance(module, nn.Linear) for module in model.modules())
    if not found:
        rule = f'{type(model).__name__} calls no torch.nn.Linear, whose input the features are; set it to "repeat"'
        raise InputError("public.later", "features", rule)
