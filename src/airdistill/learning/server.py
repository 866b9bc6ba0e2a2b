"""The server's own learning: a model that finds out what noisy answers on a public set mean (theory section 8).

All of it is computed from what was released already and from public samples, so that it costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from airdistill.arrays import BoolArray, FloatArray, IntArray
from airdistill.learning.fleet import Engine
from airdistill.learning.learner import logits_of, predictions_of
from airdistill.learning.mixed import descend, passes_in_batches, rise_and_fall
from airdistill.learning.models import build_model
from airdistill.learning.patches import Modes, features_of, smoothed
from airdistill.learning.samples import bent, channels_last, input_shape, to_tensor
from airdistill.scenario.model import Scenario
from airdistill.stages import tell
from airdistill.streams import stream

_MOST_PASSES, _BATCH, _LR, _MOMENTUM, _DECAY = 20, 50, 0.05, 0.9, 5e-4
_WARM_UP = 100  # steps
_HELD_OUT = 0.1  # of the samples, to tell when to stop
_GRAPHS_KEPT = 2  # of a round: with all samples, and without those
_CLEARLY = 3.0  # deviations of the noise; the best of many passes is better by some luck


@dataclass(frozen=True)
class Server:
    """A model of the server's own, trained anew after every transmission on all that was received so far.

    1. Rows are pooled over samples that look alike, which needs no labels (`smoothing`).
    2. The model learns the label that stands out of each pooled row, from images that are bent a little each time.
    3. How many passes that takes is found first, with a tenth of the samples left out of both. Their rows' noise is
       independent of the model then, so that its agreement with them tells, up to a constant, how right it is: if that
       was clearly greater after an earlier pass, no more passes are made.
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
        taught, checked = heard[~left_out], heard[left_out]
        passes = _MOST_PASSES
        if len(taught) >= 2 and len(checked):
            check = Check(checked, rows[checked], noise)
            passes = self._passes_until_worse(taught, self._labels(rows, noise, taught), check)
        model = self._new_model(stream(self.seed, "server-model"))
        for _ in self._passes(model, heard, self._labels(rows, noise, heard), passes):
            pass
        return self._predictions(model, self._inputs)

    def _labels(self, rows: FloatArray, noise_var: float, places: IntArray) -> IntArray:
        """What stands out of the rows of these samples, pooled over those that look alike."""
        return np.asarray(smoothed(rows[places], noise_var, self._modes_of(places)).argmax(axis=1))

    @cached_property
    def _left_out(self) -> BoolArray:
        """Which samples are there to tell when to stop, `[sample]`."""
        return stream(self.seed, "server-checks").random(len(self.samples)) < _HELD_OUT

    def _modes_of(self, places: IntArray) -> Modes:
        """Of the graph of these samples; once all have been received the graphs are the same in every round."""
        key = places.tobytes()
        if key not in self._graphs:
            if len(self._graphs) >= _GRAPHS_KEPT:
                self._graphs.clear()
            self._graphs[key] = Modes.of(self._features[places])
        return self._graphs[key]

    @cached_property
    def _graphs(self) -> dict[bytes, Modes]:
        """By the samples that they are of."""
        return {}

    def _passes_until_worse(self, places: IntArray, labels: IntArray, check: Check) -> int:
        """How many passes to make: all, unless after an earlier one the model was clearly righter than at the end."""
        model, asked = self._new_model(stream(self.seed, "server-model")), self._inputs[torch.from_numpy(check.places)]
        found = [
            self._predictions(model, asked) for _ in self._passes(model, places, labels, _MOST_PASSES, "passes tried")
        ]
        best = max(range(_MOST_PASSES), key=lambda number: check.agreement(found[number]))
        return best + 1 if check.prefers(found[best], found[-1]) else _MOST_PASSES

    def _passes(
        self, model: nn.Module, places: IntArray, labels: IntArray, count: int, stage: str = "passes of the server"
    ) -> Iterator[None]:
        """Trains a model on these samples and labels, stopping after each of so many passes."""
        noise = torch.Generator().manual_seed(int(stream(self.seed, "server-noise").integers(2**63)))
        in_a_pass = math.ceil(len(places) / _BATCH)
        steps = _Steps(model, _MOST_PASSES * in_a_pass)
        # All batches are full: some models cannot take a single sample.
        batches = passes_in_batches(len(places), _MOST_PASSES * in_a_pass, _BATCH, stream(self.seed, "server-order"))
        taught, answers = self._inputs[torch.from_numpy(places)], torch.from_numpy(labels).to(self.engine.device)
        for number, some in enumerate(np.split(batches, _MOST_PASSES)[:count], start=1):
            for batch in torch.from_numpy(some).to(self.engine.device):
                steps.make(bent(taught[batch], noise), answers[batch])
            tell(stage, number, count)
            yield

    def _new_model(self, rng: np.random.Generator) -> nn.Module:
        shape, dtype = input_shape(self.samples), self.engine.dtype
        model = build_model(self.model, shape, self.num_classes, rng, dtype, "public.server_model")
        return model.to(self.engine.device)

    def _predictions(self, model: nn.Module, inputs: Tensor) -> FloatArray:
        return predictions_of(logits_of(model, torch.split(channels_last(inputs), self.engine.chunk_samples)))


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
