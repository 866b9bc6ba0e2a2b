"""The server's model, taught the class probabilities that it read from the received feature means.

It is trained on public samples and on what was already released: post-processing, which costs no privacy. Unlike
`learning.server`, it has no noisy row of its own for every sample: the probabilities are smooth already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airdistill.arrays import FloatArray
from airdistill.learning.epochs import Schedule, epoch_training
from airdistill.learning.fleet import Engine
from airdistill.learning.learner import logits_of, predictions_of
from airdistill.learning.mixed import Descent
from airdistill.learning.models import build_model
from airdistill.learning.own_features import OwnFeatures
from airdistill.learning.samples import channels_last, input_shape, shifted, to_tensor
from airdistill.stages import report_stage
from airdistill.streams import stream

# Chosen on seeds from 100 on, docs/feature-reading.md.
_EPOCHS, _BATCH, _MOMENTUM, _DECAY = 30, 100, 0.9, 5e-4
_LR, _LR_SMALL = 0.2, 0.05  # peak; of networks with and without normalisation layers
_RISE = 0.3  # fraction of the steps in which the learning rate rises
_MOST_MOVED = 3  # pixels
_CLIP_NORM = 2.0


@dataclass(frozen=True)
class Student:
    """A model that is trained from scratch on the public samples and their probabilities `[sample, class]`."""

    model: str
    samples: NDArray[np.generic]
    num_classes: int
    engine: Engine
    seed: int

    def __post_init__(self) -> None:
        self._new_model(np.random.default_rng(0))  # one that cannot be built is rejected before any transmission

    @cached_property
    def _inputs(self) -> Tensor:
        return to_tensor(self.samples, self.engine.dtype, self.engine.device)

    def taught(self, probabilities: FloatArray) -> nn.Module:
        """A new model trained on these probabilities, by SGD with a one-cycle schedule and random augmentation."""
        model = self.untrained()
        targets = torch.from_numpy(probabilities).to(self.engine.device, self.engine.dtype)
        schedule = self._schedule(_LR if _has_normalisation(model) else _LR_SMALL)
        descent = Descent(_MOMENTUM, _DECAY, _CLIP_NORM, nesterov=True)
        training = epoch_training(model, self._inputs, targets, schedule, descent, self.engine, bfloat16=True)
        for epoch in range(_EPOCHS):
            training.run_epoch()
            report_stage("server's model taught", epoch + 1, _EPOCHS)
        return training.model

    def _schedule(self, peak: float) -> Schedule:
        """All batches, moves and learning rates."""
        draws = torch.Generator().manual_seed(int(stream(self.seed, "student-order").integers(2**63)))
        batch = min(_BATCH, len(self._inputs))
        per_epoch = math.ceil(len(self._inputs) / batch)
        batches, moves = [], []
        for _ in range(_EPOCHS):
            order = torch.randperm(len(self._inputs), generator=draws)
            # The last batch is filled up from the start: some models cannot take a single sample.
            batches.append(torch.cat([order, order[: per_epoch * batch - len(order)]]).view(per_epoch, batch))
            moves.append(torch.stack([_drawn_moves(self._inputs, batch, draws) for _ in range(per_epoch)]))
        rates = (_one_cycle(_EPOCHS * per_epoch) * peak).reshape(_EPOCHS, per_epoch)
        return Schedule(torch.stack(batches).numpy(), rates, torch.stack(moves), _moved)

    def predictions(self, model: nn.Module) -> FloatArray:
        """The model's predictions on the public samples, `[sample, class]`."""
        chunks = torch.split(channels_last(self._inputs), self.engine.chunk_samples)
        return predictions_of(logits_of(model, chunks))

    def own_features(self, model: nn.Module, width: int) -> FloatArray | None:
        """The leading features of the public samples in the model's last hidden layer, `[sample, feature]`; None of a
        model without a linear layer."""
        if not any(isinstance(module, nn.Linear) for module in model.modules()):
            return None
        own = OwnFeatures.fit(model, self._inputs, width, self.engine.chunk_samples)
        return own.features(self._inputs)[:, : own.rank]

    def untrained(self) -> nn.Module:
        """The model with the weights from which `taught` starts."""
        return self._new_model(stream(self.seed, "student-model"))

    def _new_model(self, rng: np.random.Generator) -> nn.Module:
        shape, dtype = input_shape(self.samples), self.engine.dtype
        model = build_model(self.model, shape, self.num_classes, rng, dtype, "public.server_model")
        return model.to(self.engine.device)


def _one_cycle(num_steps: int) -> NDArray[np.float64]:
    """A factor per step: a linear rise to 1, then a cosine fall to 0."""
    place = (np.arange(num_steps) + 0.5) / num_steps
    falling = 0.5 * (1 + np.cos(np.pi * (place - _RISE) / (1 - _RISE)))
    return np.where(place < _RISE, place / _RISE, falling)


def _has_normalisation(model: nn.Module) -> bool:
    kinds: Sequence[type[nn.Module]] = (nn.GroupNorm, nn.LayerNorm, nn.modules.batchnorm._BatchNorm)
    return any(isinstance(module, tuple(kinds)) for module in model.modules())


def _drawn_moves(inputs: Tensor, count: int, draws: torch.Generator) -> Tensor:
    """Draws of `_moved` for a batch, `[image, 3]`: the pixels along rows and columns, and whether it is mirrored.

    Mirrored digits or letters are others, and grey images may be such.
    """
    if inputs.ndim != 4:
        return torch.zeros(count, 0, dtype=torch.int64)
    steps = torch.randint(2 * _MOST_MOVED + 1, (2, count), generator=draws)
    in_colour = inputs.shape[1] > 1
    mirrored = torch.rand(count, generator=draws) < 0.5 if in_colour else torch.zeros(count, dtype=torch.bool)
    return torch.stack([*steps, mirrored.to(torch.int64)], dim=1)


def _moved(images: Tensor, draws: Tensor) -> Tensor:
    """Images moved by up to three pixels, each in its own direction, and mirrored if drawn; other samples stay."""
    if images.ndim != 4:
        return images
    moved = shifted(images, draws[:, :2], _MOST_MOVED)
    return moved if images.shape[1] == 1 else torch.where(draws[:, 2, None, None, None] > 0, moved.flip(3), moved)
