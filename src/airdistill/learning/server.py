"""The server's model: denoises the received predictions on the public set (theory section 8).

It is trained on public samples and on what was already released, which is post-processing and costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airdistill.arrays import BoolArray, FloatArray, IntArray
from airdistill.learning.epochs import EpochTraining, Schedule, epoch_training
from airdistill.learning.fleet import Engine
from airdistill.learning.learner import logits_of, predictions_of
from airdistill.learning.mixed import Descent, passes_in_batches, rise_and_fall
from airdistill.learning.models import build_model
from airdistill.learning.patches import GraphSpectrum, patch_features, smoothed
from airdistill.learning.samples import affine_maps, as_model_input, channels_last, input_shape, mapped, to_tensor
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
        return patch_features(as_model_input(self.samples), self.engine.device)

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
        if len(training) < 2 or not len(validation):
            indices, checks = [received], None
        else:
            indices, checks = [received, training], HeldOutRows(validation, rows[validation], noise)
        _ = self._features  # here and not by both threads
        labels = self.engine.for_each(lambda chosen: self._pseudo_labels(rows, noise, chosen, known), indices)
        trainings = [self._training(*pair) for pair in zip(indices, labels, strict=True)]
        model = self._trained(trainings[0], None if checks is None else (trainings[1], checks))
        return self._predictions(model, self._inputs)

    def _trained(self, whole: EpochTraining, checked: tuple[EpochTraining, HeldOutRows] | None) -> nn.Module:
        """The model of the whole training after the number of epochs that the checked one chooses, if there is one.

        With a second thread both are trained at the same time, and the whole one is set back afterwards.
        """
        with ThreadPoolExecutor(1) as pool:
            ahead = None
            if checked and self.engine.workers > 1 and whole.can_run_beside_others:
                ahead = pool.submit(whole.run_kept, _MAX_EPOCHS)
            epochs = self._choose_epochs(*checked) if checked else _MAX_EPOCHS
            if ahead is not None:
                ahead.result()
                whole.set_back(epochs)
                report_stage("server epochs", epochs, epochs)
                return whole.model
        for epoch in range(epochs):
            whole.run_epoch()
            report_stage("server epochs", epoch + 1, epochs)
        return whole.model

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
        found = self._graphs.get(key)
        if found is None:
            found = GraphSpectrum.of(self._features[indices], self.engine.device)
            if len(self._graphs) >= _CACHED_GRAPHS:
                self._graphs.clear()
            self._graphs[key] = found
        return found

    @cached_property
    def _graphs(self) -> dict[bytes, GraphSpectrum]:
        """The cached spectra, by the bytes of their sample indices."""
        return {}

    def _choose_epochs(self, training: EpochTraining, held_out: HeldOutRows) -> int:
        """The number of epochs: the best on the held-out rows if it is significantly better than the last, else all."""
        inputs, predictions = self._inputs[torch.from_numpy(held_out.indices)], []
        for epoch in range(_MAX_EPOCHS):
            training.run_epoch()
            predictions.append(self._predictions(training.model, inputs))
            report_stage("server epochs, early stopping", epoch + 1, _MAX_EPOCHS)
        best = max(range(_MAX_EPOCHS), key=lambda epoch: held_out.agreement(predictions[epoch]))
        return best + 1 if held_out.prefers(predictions[best], predictions[-1]) else _MAX_EPOCHS

    def _training(self, indices: IntArray, labels: IntArray) -> EpochTraining:
        """A new model and all steps that it may be trained with on these samples and labels.

        The learning-rate schedule always spans the maximum number of epochs.
        """
        num_steps = _MAX_EPOCHS * math.ceil(len(indices) / _BATCH)
        # All batches have the same size: some models cannot take a single sample.
        batches = passes_in_batches(len(indices), num_steps, _BATCH, stream(self.seed, "server-order"))
        rates, inputs = _LR * rise_and_fall(num_steps, _WARM_UP), self._inputs[torch.from_numpy(indices)]
        targets = torch.eye(self.num_classes, dtype=inputs.dtype)[torch.from_numpy(labels)].to(inputs.device)
        schedule = Schedule(
            batches.reshape(_MAX_EPOCHS, -1, batches.shape[1]), rates.reshape(_MAX_EPOCHS, -1), *self._moves(batches)
        )
        model = self._new_model(stream(self.seed, "server-model"))
        return epoch_training(model, inputs, targets, schedule, Descent(_MOMENTUM, _DECAY), self.engine)

    def _moves(self, batches: IntArray) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
        """Random affine maps for every image of every step `[step, sample]`; other samples stay."""
        draws = torch.Generator().manual_seed(int(stream(self.seed, "server-noise").integers(2**63)))
        if self._inputs.ndim != 4:
            return torch.zeros(_MAX_EPOCHS, len(batches) // _MAX_EPOCHS, batches.shape[1]), lambda samples, _: samples
        maps = affine_maps([batches.shape[1]] * len(batches), draws, self._inputs.dtype)
        return maps.view(_MAX_EPOCHS, -1, batches.shape[1], 2, 3), mapped

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
