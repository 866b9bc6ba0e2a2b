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
from torch.nn.functional import log_softmax, pad

from airdistill.arrays import FloatArray
from airdistill.learning.fleet import Engine
from airdistill.learning.learner import logits_of, predictions_of
from airdistill.learning.models import build_model
from airdistill.learning.samples import channels_last, input_shape, to_tensor
from airdistill.stages import report_stage
from airdistill.streams import stream

# Chosen on seeds from 100 on, docs/feature-means.md.
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
        inputs, device = self._inputs, self.engine.device
        targets = torch.from_numpy(probabilities).to(device, self.engine.dtype)
        draws = torch.Generator(device).manual_seed(int(stream(self.seed, "student-order").integers(2**63)))
        batch = min(_BATCH, len(inputs))
        per_epoch = math.ceil(len(inputs) / batch)
        optimiser = torch.optim.SGD(model.parameters(), lr=1.0, momentum=_MOMENTUM, nesterov=True, weight_decay=_DECAY)
        rates = _one_cycle(_EPOCHS * per_epoch) * (_LR if _has_normalisation(model) else _LR_SMALL)
        for epoch in range(_EPOCHS):
            order = torch.randperm(len(inputs), generator=draws, device=device)
            # The last batch is filled up from the start: some models cannot take a single sample.
            order = torch.cat([order, order[: per_epoch * batch - len(order)]])
            for step, chosen in enumerate(torch.split(order, batch), start=epoch * per_epoch):
                self._step(model, optimiser, float(rates[step]), _moved(inputs[chosen], draws), targets[chosen])
            report_stage("server's model taught", epoch + 1, _EPOCHS)
        return model

    def _step(self, model: nn.Module, optimiser: torch.optim.SGD, lr: float, samples: Tensor, targets: Tensor) -> None:
        for group in optimiser.param_groups:
            group["lr"] = lr
        is_gpu = self.engine.device.type == "cuda"
        with torch.autocast("cuda", torch.bfloat16, enabled=is_gpu):
            logits = model(channels_last(samples))
        loss = -(targets * log_softmax(logits.to(targets.dtype), dim=1)).sum(dim=1).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), _CLIP_NORM)
        optimiser.step()

    def predictions(self, model: nn.Module) -> FloatArray:
        """The model's predictions on the public samples, `[sample, class]`."""
        chunks = torch.split(channels_last(self._inputs), self.engine.chunk_samples)
        return predictions_of(logits_of(model, chunks))

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


def _moved(images: Tensor, draws: torch.Generator) -> Tensor:
    """Images moved by up to three pixels, each in its own direction; colour images are also mirrored at random.

    Mirrored digits or letters are others, and grey images may be such; other samples stay.
    """
    if images.ndim != 4:
        return images
    height, width = images.shape[2:]
    padded = pad(images, (_MOST_MOVED,) * 4, mode="replicate")
    steps = torch.randint(2 * _MOST_MOVED + 1, (2, len(images)), generator=draws, device=images.device)
    rows = steps[0, :, None] + torch.arange(height, device=images.device)
    columns = steps[1, :, None] + torch.arange(width, device=images.device)
    every = torch.arange(len(images), device=images.device)[:, None, None]
    moved = padded[every, :, rows[:, :, None], columns[:, None, :]].movedim(3, 1)
    if images.shape[1] == 1:
        return moved
    mirrored = torch.rand(len(images), generator=draws, device=images.device) < 0.5
    return torch.where(mirrored[:, None, None, None], moved.flip(3), moved)
