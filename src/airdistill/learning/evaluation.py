"""How good the devices' own models are.

Memory that is asked for again each round should not go back to the system in between.
"""

from __future__ import annotations

import ctypes
import logging
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

    def evaluate(self, fleet: LearningFleet, class_counts: IntArray) -> Accuracy:
        """The devices' accuracies; `class_counts` `[device, class]` say which classes are a device's own."""
        if fleet.stacked is not None and not fleet.one_model:
            correct = fleet.stacked.correct_by_class(self.chunks, self.labels)
        else:
            different = fleet.learners[:1] if fleet.one_model else fleet.learners
            counted = np.stack(fleet.engine.for_each(self._correct_by_class, different))
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
        predicted = learner.quick_logits(self.chunks).argmax(dim=1).cpu().numpy()
        return np.bincount(self.labels[predicted == self.labels], minlength=self.num_classes).astype(np.float64)


logger = logging.getLogger(__name__)
# From malloc.h of the GNU C library.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> None:
    """Tells the C library to hold on to what a round frees, in one pool for all threads.

    A round's activations are gigabytes in large blocks, which the library would hand back and fetch anew, page by page:
    on two cores that took as long as the arithmetic. Other C libraries have no such switch and are left as they are.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError) as error:
        logger.debug("freed memory goes back to the system: %s", error)
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
