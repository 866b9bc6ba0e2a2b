"""The public set: unlabelled samples that everybody has, kept apart from what devices hold and from what tests them."""

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
    """Samples as stored, `[sample, ...]`.

    `hidden_labels` `[sample]` are there where the set was held out of labelled data: to say in a report how many
    received labels are right, and for nothing else.
    """

    samples: NDArray[np.generic]
    hidden_labels: IntArray | None = None


def load_data(scenario: Scenario) -> tuple[Dataset, PublicSet | None]:
    """What devices hold and are tested on, without what the scenario makes public."""
    dataset = load_dataset(scenario.data.dataset)
    if scenario.public is None:
        return dataset, None
    wanted, source = scenario.public.samples, scenario.public.source
    if source == "test":
        _check_enough(wanted, len(dataset.y_test), "the test set", least_left=1)
        public = PublicSet(dataset.x_test[:wanted], dataset.y_test[:wanted])
        return replace(dataset, x_test=dataset.x_test[wanted:], y_test=dataset.y_test[wanted:]), public
    if source == "train":
        kept = _kept_for_training(wanted, len(dataset.y_train))
        public = PublicSet(dataset.x_train[kept:], dataset.y_train[kept:])
        return replace(dataset, x_train=dataset.x_train[:kept], y_train=dataset.y_train[:kept]), public
    return dataset, _from_elsewhere(scenario.public, dataset)


def private_labels(scenario: Scenario) -> IntArray:
    """Of the training samples that can fall to devices, `[sample]`."""
    labels, public = load_train_labels(scenario.data.dataset), scenario.public
    if public is None or public.source != "train":
        return labels
    return labels[: _kept_for_training(public.samples, len(labels))]


def _kept_for_training(wanted: int, available: int) -> int:
    """The last ones are public."""
    _check_enough(wanted, available, "the training set", least_left=1)
    return available - wanted


def _check_enough(wanted: int, available: int, name: str, least_left: int = 0) -> None:
    if wanted > available - least_left:
        rule = f"{name} has {available}" + (", and some must be left" if least_left else "")
        raise InputError("public.samples", wanted, rule)


def _from_elsewhere(public: Public, dataset: Dataset) -> PublicSet:
    if not Path(public.source).exists():
        rule = 'must be "test", "train", an existing folder of IDX files or an .npz file'
        raise InputError("public.source", public.source, rule)
    samples = read_samples(public.source)
    if samples.shape[1:] != dataset.x_train.shape[1:] or (samples.dtype == np.uint8) != (
        dataset.x_train.dtype == np.uint8
    ):
        told = [f"{each.dtype} of shape {each.shape[1:]}" for each in (samples, dataset.x_train)]
        raise InputError("public.source", public.source, f"its samples are {told[0]}, the devices' {told[1]}")
    _check_enough(public.samples, len(samples), public.source)
    return PublicSet(samples[: public.samples])
