"""How good the devices' own models are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from airdistill.arrays import FloatArray, IntArray
from airdistill.learning.fleet import Engine
from airdistill.learning.samples import channels_last
from airdistill.learning.stacked import StackedLearners


@dataclass(frozen=True)
class Accuracy:
    """Over devices on the common test set: mean, worst, best; and the mean on each device's own classes."""

    mean: float
    worst: float
    best: float
    own_classes: float


@dataclass(frozen=True)
class TestSet:
    """Test samples, in chunks that a model takes at once, and their labels `[sample]`."""

    chunks: tuple[Tensor, ...]
    labels: IntArray
    num_classes: int

    @classmethod
    def of(cls, samples: Tensor, labels: IntArray, num_classes: int, chunk: int) -> TestSet:
        return cls(torch.split(channels_last(samples), chunk), labels, num_classes)

    def evaluate(
        self, models: list[nn.Module], class_counts: IntArray, engine: Engine, stacked: StackedLearners | None = None
    ) -> Accuracy:
        """The models' accuracies; `class_counts` `[device, class]` say which classes are a device's own.

        A model that several devices share is tested once. With `stacked`, which holds the same models, all are
        evaluated at once.
        """
        different = list({id(model): model for model in models}.values())
        if stacked is not None and len(different) > 1:
            correct = stacked.correct_by_class(self.chunks, self.labels)
        else:
            counted = dict(zip(map(id, different), engine.for_each(self._correct_by_class, different), strict=True))
            correct = np.stack([counted[id(model)] for model in models])
        size = np.bincount(self.labels, minlength=self.num_classes)
        overall = correct.sum(axis=1) / size.sum()
        held = class_counts > 0
        own_size = (size * held).sum(axis=1)
        tested = own_size > 0
        own = (correct * held).sum(axis=1)[tested] / own_size[tested]
        own_mean = float(own.mean()) if tested.any() else float("nan")
        return Accuracy(float(overall.mean()), float(overall.min()), float(overall.max()), own_mean)

    @torch.no_grad()
    def _correct_by_class(self, model: nn.Module) -> FloatArray:
        model.eval()
        predicted = np.concatenate([model(chunk).argmax(dim=1).cpu().numpy() for chunk in self.chunks])
        model.train()
        return np.bincount(self.labels[predicted == self.labels], minlength=self.num_classes).astype(np.float64)
