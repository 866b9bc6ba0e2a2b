"""The server's model: denoises the received predictions on the public set (theory section 8).

It is trained on public samples and on what was already released, which is post-processing and costs no privacy.
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
from airdistill.learning.patches import GraphSpectrum, patch_features, smoothed
from airdistill.learning.samples import as_model_input, channels_last, input_shape, random_affine, to_tensor
from airdistill.scenario.model import Scenario
from airdistill.stages import report_stage
from airdistill.streams import stream

_MAX_EPOCHS, _BATCH, _LR, _MOMENTUM, _DECAY = 20, 50, 0.05, 0.9, 5e-4
_WARM_UP = 100  # steps
_HELD_OUT = 0.1  # fraction of the samples, for early stopping
_CACHED_GRAPHS = 2  # of a round: of all received samples, and without the held-out ones
_SIGNIFICANCE = 3.0  # standard deviations of the noise, because the best of many epochs is partly luck


@dataclass(frozen=True)
class Server:
    """The server's model, trained from scratch after every transmission on all rows received so far.

    1. Rows are smoothed over similar samples, which needs no labels (`patches`).
    2. The model is trained on the pseudo-label of each smoothed row, the argmax, with random affine augmentation.
    3. The number of epochs is chosen first by early stopping, with a tenth of the samples held out of steps 1 and 2.
       The noise of their rows is independent of the model, and so its agreement with them is, up to a constant, an
       unbiased estimate of its accuracy. Training stops after an earlier epoch if that agreed significantly better.
    4. The model's predictions are the broadcast.
    """

    model: str
    samples: NDArray[np.generic]
    num_classes: int
    engine: Engine
    seed: int

    @classmethod
    def of(cls, scenario: Scenario, samples: NDArray[np.generic], num_classes: int, engine: Engine) -> Server:
        """The server of a scenario; a model that cannot be built is rejected here, before anything is transmitted."""
        assert scenario.public is not None  # the samples come from it
        model = scenario.public.server_model or scenario.model_names[0]
        server = cls(model, samples, num_classes, engine, scenario.seed)
        server._new_model(np.random.default_rng(0))
        return server

    @cached_property
    def _inputs(self) -> Tensor:
        return to_tensor(self.samples, self.engine.dtype, self.engine.device)

    @cached_property
    def _features(self) -> FloatArray:
        return patch_features(as_model_input(self.samples))

    def read(self, rows: FloatArray, noise_var: FloatArray, known: FloatArray | None = None) -> FloatArray:
        """Denoised predictions `[sample, class]` from rows `[sample, class]` with noise variance `[sample]`.

        `known` `[sample, class]` is what an earlier model of the server predicts: the rows then correct it. Rows that
        are not finite were not received. The result is NaN if fewer than two rows were received.
        """
        received = np.flatnonzero(np.isfinite(rows).all(axis=1))
        if len(received) < 2:
            return np.full(rows.shape, np.nan)
        noise, held_out = float(noise_var[received].mean()), self._held_out[received]
        training, validation = received[~held_out], received[held_out]
        epochs = _MAX_EPOCHS
        if len(training) >= 2 and len(validation):
            held_out_rows = HeldOutRows(validation, rows[validation], noise)
            epochs = self._choose_epochs(training, self._pseudo_labels(rows, noise, training, known), held_out_rows)
        model = self._new_model(stream(self.seed, "server-model"))
        for _ in self._train(model, received, self._pseudo_labels(rows, noise, received, known), epochs):
            pass
        return self._predictions(model, self._inputs)

    def _pseudo_labels(
        self, rows: FloatArray, noise_var: float, indices: IntArray, known: FloatArray | None
    ) -> IntArray:
        """The argmax of these samples' rows, smoothed over similar samples; of rows that are expected, the deviation
        alone is smoothed."""
        expected = 0.0 if known is None else expected_rows(rows[indices], known[indices])
        deviation = smoothed(rows[indices] - expected, noise_var, self._spectrum(indices))
        return np.asarray((expected + deviation).argmax(axis=1))

    @cached_property
    def _held_out(self) -> BoolArray:
        """Which samples are held out for early stopping, `[sample]`."""
        return stream(self.seed, "server-checks").random(len(self.samples)) < _HELD_OUT

    def _spectrum(self, indices: IntArray) -> GraphSpectrum:
        """The spectrum of these samples' graph, cached: once all samples were received it is the same every round."""
        key = indices.tobytes()
        if key not in self._graphs:
            if len(self._graphs) >= _CACHED_GRAPHS:
                self._graphs.clear()
            self._graphs[key] = GraphSpectrum.of(self._features[indices])
        return self._graphs[key]

    @cached_property
    def _graphs(self) -> dict[bytes, GraphSpectrum]:
        """The cached spectra, by the bytes of their sample indices."""
        return {}

    def _choose_epochs(self, indices: IntArray, labels: IntArray, held_out: HeldOutRows) -> int:
        """The number of epochs: the best on the held-out rows if it is significantly better than the last, else all."""
        model = self._new_model(stream(self.seed, "server-model"))
        inputs = self._inputs[torch.from_numpy(held_out.indices)]
        predictions = [
            self._predictions(model, inputs)
            for _ in self._train(model, indices, labels, _MAX_EPOCHS, "server epochs, early stopping")
        ]
        best = max(range(_MAX_EPOCHS), key=lambda epoch: held_out.agreement(predictions[epoch]))
        return best + 1 if held_out.prefers(predictions[best], predictions[-1]) else _MAX_EPOCHS

    def _train(
        self, model: nn.Module, indices: IntArray, labels: IntArray, epochs: int, stage: str = "server epochs"
    ) -> Iterator[None]:
        """Train a model on these samples and labels, yielding after each of `epochs` epochs.

        The learning-rate schedule always spans the maximum number of epochs.
        """
        augmentation = torch.Generator().manual_seed(int(stream(self.seed, "server-noise").integers(2**63)))
        batches_per_epoch = math.ceil(len(indices) / _BATCH)
        optimiser = _Optimiser(model, _MAX_EPOCHS * batches_per_epoch)
        # All batches have the same size: some models cannot take a single sample.
        order = stream(self.seed, "server-order")
        batches = passes_in_batches(len(indices), _MAX_EPOCHS * batches_per_epoch, _BATCH, order)
        samples, targets = self._inputs[torch.from_numpy(indices)], torch.from_numpy(labels).to(self.engine.device)
        for epoch, epoch_batches in enumerate(np.split(batches, _MAX_EPOCHS)[:epochs], start=1):
            for batch in torch.from_numpy(epoch_batches).to(self.engine.device):
                optimiser.step(random_affine(samples[batch], augmentation), targets[batch])
            report_stage(stage, epoch, epochs)
            yield

    def _new_model(self, rng: np.random.Generator) -> nn.Module:
        shape, dtype = input_shape(self.samples), self.engine.dtype
        model = build_model(self.model, shape, self.num_classes, rng, dtype, "public.server_model")
        return model.to(self.engine.device)

    def _predictions(self, model: nn.Module, inputs: Tensor) -> FloatArray:
        return predictions_of(logits_of(model, torch.split(channels_last(inputs), self.engine.chunk_samples)))


def expected_rows(rows: FloatArray, known: FloatArray) -> FloatArray:
    """The rows `[sample, class]` that follow from predictions `known`: c·known, with c by least squares."""
    share = float((rows * known).sum()) / max(float((known**2).sum()), 1e-12)
    return max(share, 0.0) * known


@dataclass(frozen=True)
class HeldOutRows:
    """Received rows `[row, class]` with noise variance `noise_var` per entry, of samples held out of training."""

    indices: IntArray
    rows: FloatArray
    noise_var: float

    def agreement(self, predictions: FloatArray) -> float:
        """The inner product of predictions `[row, class]` with the rows: unbiased for accuracy, up to a constant."""
        return float((predictions * (self.rows - self.rows.mean(axis=0))).sum()) if len(self.rows) else 0.0

    def prefers(self, one: FloatArray, other: FloatArray) -> bool:
        """Whether predictions `one` agree with the rows significantly better than `other`, both `[row, class]`.

        Their difference must exceed three standard deviations of its noise.
        """
        distance = float(np.linalg.norm(one - other))
        return self.agreement(one) - self.agreement(other) > _SIGNIFICANCE * math.sqrt(self.noise_var) * distance


class _Optimiser:
    """SGD with momentum and weight decay; the learning rate has a warm-up and a cosine decay to zero."""

    def __init__(self, model: nn.Module, num_steps: int) -> None:
        self._model, self._rates = model, iter(_LR * rise_and_fall(num_steps, _WARM_UP))
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._velocities = [torch.zeros_like(weight) for weight in self._weights]

    def step(self, images: Tensor, labels: Tensor) -> None:
        """One step on a batch of images with labels `[sample]`."""
        log_predictions = log_softmax(self._model(channels_last(images)), dim=1)
        loss = -log_predictions.gather(1, labels[:, None]).mean()
        gradients = torch.autograd.grad(loss, self._weights, materialize_grads=True)
        decayed = [grad + _DECAY * weight.detach() for grad, weight in zip(gradients, self._weights, strict=True)]
        descend(self._weights, decayed, self._velocities, images.new_tensor(next(self._rates)), _MOMENTUM)
