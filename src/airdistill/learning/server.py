"""The server's own learning: a model that finds out what noisy answers on a public set mean (theory section 8).

All of it is computed from what was released already and from public samples, so that it costs no privacy.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from airdistill.arrays import BoolArray, FloatArray, IntArray
from airdistill.learning.augmenting import bent
from airdistill.learning.fleet import Engine
from airdistill.learning.learner import predictions_of
from airdistill.learning.mixed import descend, passes_in_batches, rise_and_fall
from airdistill.learning.models import build_model
from airdistill.learning.patches import features_of
from airdistill.learning.samples import channels_last, input_shape, to_tensor
from airdistill.learning.smoothing import Modes, smoothed
from airdistill.scenario.model import Scenario
from airdistill.stages import tell
from airdistill.streams import stream

_EPOCHS, _BATCH, _LR, _MOMENTUM, _DECAY = 20, 50, 0.05, 0.9, 5e-4
_WARM_UP = 100  # steps
_HELD_OUT = 0.1  # of the received rows, to tell when to stop
_CLEARLY = 3.0  # deviations of the noise; the best of many passes is better by some luck


@dataclass(frozen=True)
class Server:
    """A model of the server's own, trained anew after every transmission on all that was received so far.

    1. Rows are pooled over samples that look alike, which needs no labels (`smoothing`).
    2. The model learns the label that stands out of each pooled row, from images that are bent a little each time.
    3. A tenth of the samples is left out of both. Their rows' noise is independent of the model, so that its agreement
       with them tells, up to a constant, how right it is: if that was clearly greater after an earlier pass, the model
       goes back to it.
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
        noise, left_out = float(noise_var[heard].mean()), self._left_out[heard]
        if np.count_nonzero(~left_out) < 2:
            left_out = np.zeros_like(left_out)
        taught, checked = heard[~left_out], heard[left_out]
        labels = smoothed(rows[taught], noise, self._modes_of(taught)).argmax(axis=1)
        model = self._trained(taught, labels, Check(checked, rows[checked], noise))
        return self._predictions(model, self._inputs)

    @cached_property
    def _left_out(self) -> BoolArray:
        """Which samples are there to tell when to stop, `[sample]`."""
        return stream(self.seed, "server-checks").random(len(self.samples)) < _HELD_OUT

    def _modes_of(self, places: IntArray) -> Modes:
        """Of the graph of these samples; once all have been received it is the same in every round."""
        if not np.array_equal(self._graphed.get("places", ()), places):
            self._graphed.update(places=places, modes=Modes.of(self._features[places]))
        found: Modes = self._graphed["modes"]
        return found

    @cached_property
    def _graphed(self) -> dict[str, Any]:
        """The samples of the latest graph, and its modes."""
        return {}

    def _trained(self, places: IntArray, labels: IntArray, check: Check) -> nn.Module:
        """After passes over these samples, or before one of them that made it worse."""
        rng = stream(self.seed, "server-model")
        model = self._new_model(rng)
        noise, in_a_pass = torch.Generator().manual_seed(int(rng.integers(2**63))), math.ceil(len(places) / _BATCH)
        steps = _Steps(model, _EPOCHS * in_a_pass)
        # All batches are full: some models cannot take a single sample.
        batches = passes_in_batches(len(places), _EPOCHS * in_a_pass, _BATCH, stream(self.seed, "server-order"))
        taught, answers = self._inputs[torch.from_numpy(places)], torch.from_numpy(labels).to(self.engine.device)
        asked, best, kept = self._inputs[torch.from_numpy(check.places)], -np.inf, model.state_dict()
        agreeing = found = np.zeros((0, self.num_classes))
        for number, some in enumerate(np.split(batches, _EPOCHS), start=1):
            for batch in torch.from_numpy(some).to(self.engine.device):
                steps.make(bent(taught[batch], noise), answers[batch])
            found = self._predictions(model, asked)
            tell("passes of the server", number, _EPOCHS)
            if (agreement := check.agreement(found)) > best:
                best, agreeing, kept = agreement, found, copy.deepcopy(model.state_dict())
        if check.prefers(agreeing, found):
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

    def agreement(self, predictions: FloatArray) -> float:
        """Of predictions `[row, class]` with the rows: up to a constant, unbiased for how many of them are right."""
        return float((predictions * (self.rows - self.rows.mean(axis=0))).sum()) if len(self.rows) else 0.0

    def prefers(self, one: FloatArray, other: FloatArray) -> bool:
        """Whether predictions `[row, class]` agree clearly better with the rows than others do: by more than three
        deviations of what the noise alone makes of their difference."""
        apart = float(np.linalg.norm(one - other))
        return self.agreement(one) - self.agreement(other) > _CLEARLY * math.sqrt(self.noise_var) * apart


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
