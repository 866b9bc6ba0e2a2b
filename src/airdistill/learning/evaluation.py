"""Test accuracy of the devices' models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from airdistill.arrays import FloatArray, IntArray
from airdistill.learning.fleet import LearningFleet
from airdistill.learning.learner import Learner
from airdistill.learning.samples import channels_last


@dataclass(frozen=True)
class Accuracy:
    """Accuracy on the common test set over devices: mean, worst, best; and the mean on each device's own classes."""

    mean: float
    worst: float
    best: float
    own_classes: float


@dataclass(frozen=True)
class TestSet:
    """Test samples, in chunks of one forward pass each, and their labels `[sample]`."""

    chunks: tuple[Tensor, ...]
    labels: IntArray
    num_classes: int

    @classmethod
    def of(cls, samples: Tensor, labels: IntArray, num_classes: int, chunk: int) -> TestSet:
        """The test set, split into chunks of `chunk` samples."""
        return cls(torch.split(channels_last(samples), chunk), labels, num_classes)

    def evaluate(self, fleet: LearningFleet, class_counts: IntArray) -> Accuracy:
        """Accuracy over devices; a device's own classes are those with samples in `class_counts` `[device, class]`."""
        are_equal = fleet.are_equal()
        if fleet.stacked is not None and not are_equal:
            correct = fleet.stacked.correct_by_class(self.chunks, self.labels)
        else:
            distinct = fleet.learners[:1] if are_equal else fleet.learners
            counted = np.stack(fleet.engine.for_each(self._correct_by_class, distinct))
            correct = np.broadcast_to(counted, (len(fleet.learners), self.num_classes))
        size = np.bincount(self.labels, minlength=self.num_classes)
        overall = correct.sum(axis=1) / size.sum()
        held = class_counts > 0
        own_size = (size * held).sum(axis=1)
        tested = own_size > 0
        own = (correct * held).sum(axis=1)[tested] / own_size[tested]
        own_mean = float(own.mean()) if tested.any() else float("nan")
        return Accuracy(float(overall.mean()), float(overall.min()), float(overall.max()), own_mean)

    def _correct_by_class(self, learner: Learner) -> FloatArray:
        predicted = learner.approximate_logits(self.chunks).argmax(dim=1).cpu().numpy()
        return np.bincount(self.labels[predicted == self.labels], minlength=self.num_classes).astype(np.float64)
