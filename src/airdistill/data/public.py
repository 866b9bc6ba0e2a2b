"""The public set: unlabelled samples that server and devices share, disjoint from training and test samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from airdistill.arrays import IntArray
from airdistill.data.datasets import Dataset, load_dataset, load_train_labels, read_samples
from airdistill.errors import InputError
from airdistill.scenario.model import Public, Scenario


@dataclass(frozen=True)
class PublicSet:
    """Public samples as stored, `[sample, ...]`.

    `hidden_labels` `[sample]` exist if the set was held out of labelled data. They are used only to report how many of
    the received labels are correct.
    """

    samples: NDArray[np.generic]
    hidden_labels: IntArray | None = None


def load_data(scenario: Scenario) -> tuple[Dataset, PublicSet | None]:
    """Load training and test samples, and the public set; they are disjoint."""
    dataset = load_dataset(scenario.data.dataset)
    if scenario.public is None:
        return dataset, None
    requested, source = scenario.public.samples, scenario.public.source
    if source == "test":
        _check_enough(requested, len(dataset.y_test), "the test set", least_left=1)
        public = PublicSet(dataset.x_test[:requested], dataset.y_test[:requested])
        return replace(dataset, x_test=dataset.x_test[requested:], y_test=dataset.y_test[requested:]), public
    if source == "train":
        kept = _kept_for_training(requested, len(dataset.y_train))
        public = PublicSet(dataset.x_train[kept:], dataset.y_train[kept:])
        return replace(dataset, x_train=dataset.x_train[:kept], y_train=dataset.y_train[:kept]), public
    return dataset, _from_file(scenario.public, dataset)


def private_labels(scenario: Scenario) -> IntArray:
    """The labels of the training samples that are not public, `[sample]`."""
    labels, public = load_train_labels(scenario.data.dataset), scenario.public
    if public is None or public.source != "train":
        return labels
    return labels[: _kept_for_training(public.samples, len(labels))]


def _kept_for_training(requested: int, available: int) -> int:
    """The number of training samples that are not public; the public ones are the last."""
    _check_enough(requested, available, "the training set", least_left=1)
    return available - requested


def _check_enough(requested: int, available: int, name: str, least_left: int = 0) -> None:
    if requested > available - least_left:
        rule = f"{name} has {available}" + (", and some must be left" if least_left else "")
        raise InputError("public.samples", requested, rule)


def _from_file(public: Public, dataset: Dataset) -> PublicSet:
    if not Path(public.source).exists():
        rule = 'must be "test", "train", an existing folder of IDX files or an .npz file'
        raise InputError("public.source", public.source, rule)
    samples = read_samples(public.source)
    if samples.shape[1:] != dataset.x_train.shape[1:] or (samples.dtype == np.uint8) != (
        dataset.x_train.dtype == np.uint8
    ):
        formats = [f"{each.dtype} of shape {each.shape[1:]}" for each in (samples, dataset.x_train)]
        raise InputError("public.source", public.source, f"its samples are {formats[0]}, the devices' {formats[1]}")
    _check_enough(public.samples, len(samples), public.source)
    return PublicSet(samples[: public.samples])
