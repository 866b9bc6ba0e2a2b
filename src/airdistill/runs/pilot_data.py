"""Training data of a pilot: synthetic samples, public samples, or the fleet's own.

In all cases a device of the pilot holds as many samples of each class as the device of the fleet that it stands for;
class counts are public.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from airdistill.arrays import IntArray
from airdistill.data.datasets import Dataset, load_dataset
from airdistill.data.partition import assign_samples
from airdistill.data.public import check_not_private, load_data, normalised
from airdistill.data.synthetic import class_patterns, synthetic_samples
from airdistill.errors import InputError
from airdistill.learning.samples import input_shape
from airdistill.runs.simulation import check_has_data
from airdistill.scenario.model import Scenario
from airdistill.streams import stream

Source = Literal["synthetic", "public", "private"]


class PilotData(ABC):
    """A source of samples; `source` is the value of `constants.source` for constants measured on them."""

    source: ClassVar[Source]

    def __init__(self, scenario: Scenario, counts: IntArray) -> None:
        """`counts` are the fleet's, `[device, class]`."""
        self._scenario, self._counts = scenario, counts

    @abstractmethod
    def draw(self, repeat: int, devices: list[int]) -> tuple[Dataset, list[IntArray]]:
        """Return samples, and the indices of those that each of these devices holds; different ones in every repeat."""

    def _rng(self, purpose: str, repeat: int, device: int = 0) -> np.random.Generator:
        return stream(self._scenario.seed, f"pilot-{purpose}", repeat, device)


class Synthetic(PilotData):
    """Random samples that have only shape and number type in common with the scenario's samples."""

    source = "synthetic"

    def draw(self, repeat: int, devices: list[int]) -> tuple[Dataset, list[IntArray]]:
        like = load_data(self._scenario)[0].x_train
        num_classes = self._counts.shape[1]
        patterns = class_patterns(num_classes, like.shape[1:], self._rng("patterns", repeat))
        labels = [np.repeat(np.arange(num_classes), self._counts[device]) for device in devices]
        samples = [
            synthetic_samples(own, patterns, like.dtype, self._rng("samples", repeat, device))
            for device, own in zip(devices, labels, strict=True)
        ]
        ends = np.cumsum([len(own) for own in labels])
        return _dataset(np.concatenate(samples), np.concatenate(labels)), np.split(np.arange(ends[-1]), ends[:-1])


class Public(PilotData):
    """Samples of a dataset declared public; if it has fewer of a class than a device holds, all of them."""

    source = "public"

    def __init__(
        self, scenario: Scenario, counts: IntArray, name: str, samples: NDArray[np.generic], labels: IntArray
    ) -> None:
        super().__init__(scenario, counts)
        self._pool = _dataset(samples, labels)
        self._of_class = [np.flatnonzero(labels == klass) for klass in range(counts.shape[1])]
        for klass, members in enumerate(self._of_class):
            if len(members) == 0 and counts[:, klass].any():
                raise InputError("--data", name, f"has no sample of class {klass}, which devices hold")

    def draw(self, repeat: int, devices: list[int]) -> tuple[Dataset, list[IntArray]]:
        indices = []
        for device in devices:
            rng = self._rng("samples", repeat, device)
            taken = [
                rng.choice(members, min(int(count), len(members)), replace=False)
                for members, count in zip(self._of_class, self._counts[device], strict=True)
            ]
            indices.append(np.concatenate(taken))
        return self._pool, indices


class Private(PilotData):
    """The devices' own samples. Constants measured on them are not protected by differential privacy."""

    source = "private"

    def draw(self, repeat: int, devices: list[int]) -> tuple[Dataset, list[IntArray]]:  # noqa: ARG002 - always the same
        dataset, _ = load_data(self._scenario)
        held = assign_samples(self._scenario, dataset.y_train).indices
        return dataset, [held[device] for device in devices]


def pilot_data(scenario: Scenario, data: str, counts: IntArray) -> PilotData:
    """Return a source by name: synthetic, public (the scenario's test set), private, or a public dataset's path."""
    if data == "synthetic":
        return Synthetic(scenario, counts)
    if data == "private":
        check_has_data(scenario)
        return Private(scenario, counts)
    own, _ = load_data(scenario)
    if data == "public":
        return Public(scenario, counts, data, own.x_test, own.y_test)
    return _public_from(data, scenario, counts, own)


def _public_from(data: str, scenario: Scenario, counts: IntArray, own: Dataset) -> Public:
    if data != "mnist" and not Path(data).exists():
        rule = "must be synthetic, public, private, or an existing file or folder that data.dataset could name"
        raise InputError("--data", data, rule)
    if data == scenario.data.dataset or Path(data).resolve() == Path(scenario.data.dataset).resolve():
        rule = "its training set is the devices' own data: use private, or public for its test set"
        raise InputError("--data", data, rule)
    given = load_dataset(data, own.class_labels or range(counts.shape[1]))
    given = replace(given, x_train=normalised(given.x_train, scenario))
    kinds = [
        (input_shape(each.x_train), "bytes" if each.x_train.dtype == np.uint8 else "numbers") for each in (given, own)
    ]
    if kinds[0] != kinds[1]:
        described = [f"{kind} of shape {shape}" for shape, kind in kinds]
        raise InputError("--data", data, f"its samples are {described[0]}, the scenario's are {described[1]}")
    check_not_private("--data", data, given.x_train, own)
    return Public(scenario, counts, data, given.x_train, given.y_train)


def _dataset(samples: NDArray[np.generic], labels: IntArray) -> Dataset:
    """Return a dataset without a test set, which a pilot does not need."""
    return Dataset("pilot", samples, labels, samples[:0], labels[:0])
