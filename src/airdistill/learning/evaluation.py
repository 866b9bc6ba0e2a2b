"""Test accuracy of the devices' models, of all of them or of a random sample with its 95 % interval."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from airdistill.arrays import BoolArray, FloatArray, IntArray
from airdistill.data.datasets import Dataset
from airdistill.learning.fleet import Engine, LearningFleet
from airdistill.learning.learner import Learner
from airdistill.learning.samples import channels_last, to_tensor
from airdistill.streams import stream

EVALUATION = "evaluation"  # the stage that progress is reported under


@dataclass(frozen=True)
class Accuracy:
    """Accuracy on the common test set over devices: mean, worst, best; and the mean on each device's own classes.

    `sample` says on which sample it was measured, if it was one, and half the width of the mean's 95 % interval.
    """

    mean: float
    worst: float
    best: float
    own_classes: float
    sample: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The accuracy as records have it: without `sample` if everything was measured."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class EvaluationSample:
    """The devices and the test samples on which accuracy is measured: their positions, in increasing order."""

    devices: IntArray
    tests: IntArray
    num_devices: int
    num_tests: int

    @classmethod
    def draw(
        cls, seed: int, num_devices: int, num_tests: int, eval_devices: int | None, eval_samples: int | None
    ) -> EvaluationSample:
        """Draw both without replacement; None takes all. The draws depend on the seed and on nothing else.

        All rounds and schemes are therefore measured on the same devices and samples, and a smaller sample is part of a
        larger one.
        """
        return cls(
            _first_of(seed, "evaluation-devices", num_devices, eval_devices),
            _first_of(seed, "evaluation-samples", num_tests, eval_samples),
            num_devices,
            num_tests,
        )

    def to_dict(self, half_width: float | None) -> dict[str, Any]:
        return {
            "devices": len(self.devices),
            "of_devices": self.num_devices,
            "test_samples": len(self.tests),
            "of_test_samples": self.num_tests,
            "half_width": half_width,
        }

    def half_width(self, correct: BoolArray) -> float | None:
        """Half the width of the 95 % interval of the whole fleet's mean accuracy on the whole test set.

        `correct` is `[device, test sample]` for the sample. Devices and test samples are drawn independently and
        without replacement, so the variance of the mean is estimated without bias by

            (1 − n/N) s_d²/n + (1 − m/M) s_t²/m − (1 − n/N)(1 − m/M) s²/(nm),

        with the variances s_d² of the n devices' means, s_t² of the m test samples' means, and s² of what is left after
        both. The quantile is Student's with the fewer degrees of freedom of what was sampled. None if it was sampled
        only once.
        """
        (n, m), mean = correct.shape, correct.mean()
        by_device, by_test = correct.mean(axis=1), correct.mean(axis=0)
        of_devices, of_tests = 1 - n / self.num_devices, 1 - m / self.num_tests
        sampled = [count for count, share in ((n, of_devices), (m, of_tests)) if share > 0]
        if not sampled:
            return 0.0
        if min(sampled) < 2:
            return None
        spread_d, spread_t = ((each - mean) ** 2 for each in (by_device, by_test))
        variance = 0.0
        if of_devices > 0:
            variance += of_devices * spread_d.sum() / (n - 1) / n
        if of_tests > 0:
            variance += of_tests * spread_t.sum() / (m - 1) / m
        if of_devices > 0 and of_tests > 0:
            # Σ(y_ij − ȳ_i − ȳ_j + ȳ)², without an array of real numbers of that size; y² = y.
            left = correct.sum() - n * m * mean**2 - m * spread_d.sum() - n * spread_t.sum()
            variance -= of_devices * of_tests * left / ((n - 1) * (m - 1)) / (n * m)
        from scipy.stats import t

        return float(t.ppf(0.975, min(sampled) - 1) * np.sqrt(max(variance, 0.0)))


def _first_of(seed: int, name: str, total: int, count: int | None) -> IntArray:
    if count is None or count >= total:
        return np.arange(total)
    return np.sort(stream(seed, name).permutation(total)[:count])


@dataclass(frozen=True)
class TestSet:
    """Test samples, in chunks of one forward pass each, and their labels `[sample]`.

    With a `sample` these are its test samples, and its devices are the ones that are measured.
    """

    chunks: tuple[Tensor, ...]
    labels: IntArray
    num_classes: int
    sample: EvaluationSample | None = None

    @classmethod
    def of(cls, samples: Tensor, labels: IntArray, num_classes: int, chunk: int) -> TestSet:
        """The test set, split into chunks of `chunk` samples."""
        return cls(torch.split(channels_last(samples), chunk), labels, num_classes)

    @classmethod
    def of_dataset(cls, dataset: Dataset, engine: Engine, sample: EvaluationSample | None = None) -> TestSet:
        """The test samples of a dataset, all or those of a sample."""
        tests = slice(None) if sample is None else sample.tests
        samples = to_tensor(dataset.x_test[tests], engine.dtype, engine.device)
        chunks = torch.split(channels_last(samples), engine.chunk_samples)
        return cls(chunks, dataset.y_test[tests], dataset.num_classes, sample)

    def evaluate(self, fleet: LearningFleet, class_counts: IntArray) -> Accuracy:
        """Accuracy over devices; a device's own classes are those with samples in `class_counts` `[device, class]`."""
        if self.sample is None:
            return self._accuracy(self._all_correct_by_class(fleet), class_counts > 0)
        correct = self._sampled_correct(fleet, self.sample.devices)
        by_class = np.stack([correct[:, self.labels == klass].sum(axis=1) for klass in range(self.num_classes)], axis=1)
        sample = self.sample.to_dict(self.sample.half_width(correct))
        return self._accuracy(by_class, class_counts[self.sample.devices] > 0, sample)

    def _accuracy(
        self, correct: NDArray[np.generic], held: BoolArray, sample: dict[str, Any] | None = None
    ) -> Accuracy:
        """From the correctly classified samples and the classes held, both `[device, class]`."""
        size = np.bincount(self.labels, minlength=self.num_classes)
        overall = correct.sum(axis=1) / size.sum()
        own_size = (size * held).sum(axis=1)
        tested = own_size > 0
        own = (correct * held).sum(axis=1)[tested] / own_size[tested]
        own_mean = float(own.mean()) if tested.any() else float("nan")
        return Accuracy(float(overall.mean()), float(overall.min()), float(overall.max()), own_mean, sample)

    def _all_correct_by_class(self, fleet: LearningFleet) -> FloatArray:
        """Correctly classified samples of every device, `[device, class]`."""
        are_equal = fleet.are_equal()
        if fleet.stacked is not None and not are_equal:
            return fleet.stacked.correct_by_class(self.chunks, self.labels)
        distinct = fleet.learners[:1] if are_equal else fleet.learners
        counted = np.stack(fleet.engine.for_each(self._correct_by_class, distinct, stage=EVALUATION))
        return np.broadcast_to(counted, (len(fleet.learners), self.num_classes))

    def _sampled_correct(self, fleet: LearningFleet, devices: IntArray) -> BoolArray:
        """Whether these devices' models classify each sample correctly, `[device, sample]`."""
        are_equal = fleet.are_equal()
        if fleet.stacked is not None and not are_equal:
            return fleet.stacked.correct(self.chunks, self.labels, devices)
        distinct = [fleet.learners[device] for device in (devices[:1] if are_equal else devices)]
        found = np.stack(fleet.engine.for_each(self._correct, distinct, stage=EVALUATION))
        return np.broadcast_to(found, (len(devices), len(self.labels)))

    def _correct(self, learner: Learner) -> BoolArray:
        predicted = learner.approximate_logits(self.chunks).argmax(dim=1).cpu().numpy()
        return np.asarray(predicted == self.labels)

    def _correct_by_class(self, learner: Learner) -> FloatArray:
        correct = self._correct(learner)
        return np.bincount(self.labels[correct], minlength=self.num_classes).astype(np.float64)
