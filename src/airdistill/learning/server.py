"""The server's own learning: a model that finds out what noisy answers on a public set mean (theory section 8).

All of it is computed from what was released already and from public samples, so that it costs no privacy.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from airdistill.arrays import FloatArray, IntArray
from airdistill.learning.augmenting import bent
from airdistill.learning.fleet import Engine
from airdistill.learning.learner import predictions_of
from airdistill.learning.mixed import descend, rise_and_fall
from airdistill.learning.models import build_model
from airdistill.learning.patches import features_of
from airdistill.learning.samples import channels_last, input_shape, to_tensor
from airdistill.learning.smoothing import Modes, smoothed
from airdistill.scenario.model import Scenario
from airdistill.streams import stream

_EPOCHS, _BATCH, _LR, _MOMENTUM, _DECAY = 20, 50, 0.05, 0.9, 5e-4
_WARM_UP = 100  # steps
_HELD_OUT = 0.1  # of the received rows, to tell when to stop
_CLEARLY = 2.0  # deviations of the noise


@dataclass(frozen=True)
class Server:
    """A model of the server's own, trained anew after every transmission on all that was received so far.

    1. Rows are pooled over samples that look alike, which needs no labels (`smoothing`).
    2. The model learns the label that stands out of each pooled row, from images that are bent a little each time.
    3. It is kept as it was before a pass if after it it agrees clearly less with raw rows that it was not taught: their
       noise is independent of it, so that the agreement tells, up to a constant, how right it is.
    4. Its predictions are the broadcast.
    """

    model: str
    samples: NDArray[np.generic]
    num_classes: int
    engine: Engine
    seed: int

    @classmethod
    def of(cls, scenario: Scenario, samples: NDArray[np.generic], num_classes: int, engine: Engine) -> Server:
        assert scenario.public is not None  # who has public samples has declared them
        model = scenario.public.server_model or scenario.model_names[0]
        made = cls(model, samples, num_classes, engine, scenario.seed)
        made._new_model(np.random.default_rng(0))  # what cannot be built is said before anything is sent
        return made

    @cached_property
    def _inputs(self) -> Tensor:
        return to_tensor(self.samples, self.engine.dtype, self.engine.device)

    @cached_property
    def _features(self) -> FloatArray:
        return features_of(self.samples.reshape(len(self.samples), *input_shape(self.samples)))

    def read(self, rows: FloatArray, noise_var: FloatArray) -> FloatArray:
        """Predictions `[sample, class]` from rows `[sample, class]` with noise of so much variance `[sample]`.

        Rows that are no numbers were not received; where none was, nothing is known.
        """
        heard = np.flatnonzero(np.isfinite(rows).all(axis=1))
        if len(heard) < 2:
            return np.full(rows.shape, np.nan)
        noise = float(noise_var[heard].mean())
        labels = smoothed(rows[heard], noise, self._modes_of(heard)).argmax(axis=1)
        checks = stream(self.seed, "server-checks").random(len(heard)) < _HELD_OUT
        check = Check(heard[checks], rows[heard[checks]], noise)
        model = self._trained(heard[~checks], labels[~checks], check)
        return self._predictions(model, self._inputs)

    def _modes_of(self, places: IntArray) -> Modes:
        return self._all_modes if len(places) == len(self.samples) else Modes.of(self._features[places])

    @cached_property
    def _all_modes(self) -> Modes:
        return Modes.of(self._features)

    def _trained(self, places: IntArray, labels: IntArray, check: Check) -> nn.Module:
        """After passes over these samples, or before one of them that made it worse."""
        rng = stream(self.seed, "server-model")
        model = self._new_model(rng)
        orders, noise = stream(self.seed, "server-order"), torch.Generator().manual_seed(int(rng.integers(2**63)))
        steps = _Steps(model, _EPOCHS * math.ceil(len(places) / _BATCH))
        taught, answers = self._inputs[torch.from_numpy(places)], torch.from_numpy(labels).to(self.engine.device)
        kept, known = model.state_dict(), None
        for _ in range(_EPOCHS):
            order = torch.from_numpy(orders.permutation(len(places))).to(self.engine.device)
            for batch in torch.split(order, _BATCH):
                steps.make(bent(taught[batch], noise), answers[batch])
            found = self._predictions(model, self._inputs[torch.from_numpy(check.places)])
            if known is None or not check.prefers(known, found):
                kept, known = copy.deepcopy(model.state_dict()), found
        model.load_state_dict(kept)
        return model

    def _new_model(self, rng: np.random.Generator) -> nn.Module:
        shape, dtype = input_shape(self.samples), self.engine.dtype
        model = build_model(self.model, shape, self.num_classes, rng, dtype, "public.server_model")
        return model.to(self.engine.device)

    def _predictions(self, model: nn.Module, inputs: Tensor) -> FloatArray:
        return predictions_of(model, torch.split(channels_last(inputs), self.engine.chunk_samples))


@dataclass(frozen=True)
class Check:
    """Raw rows `[row, class]`, with noise of so much variance per entry, of samples that a model is not taught."""

    places: IntArray
    rows: FloatArray
    noise_var: float

    def prefers(self, one: FloatArray, other: FloatArray) -> bool:
        """Whether predictions `[row, class]` agree clearly better with the rows than others do: by more than two
        deviations of what the noise alone makes of their difference."""
        apart = one - other
        gain = float((apart * (self.rows - self.rows.mean(axis=0))).sum()) if len(self.rows) else 0.0
        return gain > _CLEARLY * math.sqrt(self.noise_var) * float(np.linalg.norm(apart))


class _Steps:
    """Stochastic gradient descent with momentum and decay, a warm-up, and a step that falls to nothing."""

    def __init__(self, model: nn.Module, num_steps: int) -> None:
        self._model, self._sizes = model, iter(_LR * rise_and_fall(num_steps, _WARM_UP))
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._velocities = [torch.zeros_like(weight) for weight in self._weights]

    def make(self, images: Tensor, labels: Tensor) -> None:
        log_predictions = log_softmax(self._model(channels_last(images)), dim=1)
        loss = -log_predictions.gather(1, labels[:, None]).mean()
        slopes = torch.autograd.grad(loss, self._weights, materialize_grads=True)
        decayed = [slope + _DECAY * weight.detach() for slope, weight in zip(slopes, self._weights, strict=True)]
        descend(self._weights, decayed, self._velocities, images.new_tensor(next(self._sizes)), _MOMENTUM)
