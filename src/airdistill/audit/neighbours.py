"""Neighbouring datasets of the audited device.

They have the same labels, for class counts are public; where `privacy.relabel` is declared, one record may change its
label too, between classes that the device holds before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from airdistill.arrays import IntArray
from airdistill.audit.world import World
from airdistill.streams import stream

Samples = NDArray[np.generic]


@dataclass(frozen=True)
class Neighbour:
    """D' and how it differs from D: in one record, or in all of them (`device`). Samples and labels `[sample]`."""

    relation: Literal["record", "device"]
    description: str
    samples: Samples
    labels: IntArray


def neighbours_of(world: World, num_records: int, seed: int) -> list[Neighbour]:
    """`num_records` neighbours by one record, then two by the whole device.

    Records are taken from every class in turn, the rarest first, for a record weighs most where there are few. Where
    labels may change, every second neighbour has another label besides.
    """
    rng, labels = stream(seed, "audit-candidates"), world.own_labels
    names, records = list(_REPLACEMENTS), _records_in_turn(labels, rng)
    found = []
    for number in range(num_records):
        record = int(records[(number // len(names)) % len(records)])
        neighbour = _with_replaced(world, record, names[number % len(names)], rng)
        if world.scenario.privacy.relabel and number % 2:
            neighbour = _relabelled(neighbour, record)
        found.append(neighbour)
    return found + _device_neighbours(world, rng)


def _with_replaced(world: World, record: int, name: str, rng: np.random.Generator) -> Neighbour:
    """One record's sample replaced; its label stays."""
    samples, label = world.own_samples.copy(), int(world.own_labels[record])
    samples[record] = _REPLACEMENTS[name](world, label, samples[record], rng)
    return Neighbour("record", f"record {record} (class {label}) replaced by {name}", samples, world.own_labels)


def _relabelled(neighbour: Neighbour, record: int) -> Neighbour:
    """The record under the label of the next class that the device holds; the same where its class would be empty."""
    held, counts = np.unique(neighbour.labels, return_counts=True)
    place = int(np.searchsorted(held, neighbour.labels[record]))
    if counts[place] < 2 or len(held) < 2:
        return neighbour
    labels = neighbour.labels.copy()
    labels[record] = held[(place + 1) % len(held)]
    words = f"{neighbour.description}, under label {labels[record]}"
    return replace(neighbour, description=words, labels=labels)


def _device_neighbours(world: World, rng: np.random.Generator) -> list[Neighbour]:
    labels = world.own_labels
    permuted, noise = _permuted(world, labels, rng), _noise(world, world.own_samples.shape, rng)
    return [
        Neighbour("device", "all samples replaced by those of other classes", permuted, labels),
        Neighbour("device", "all samples replaced by noise", noise, labels),
    ]


def _records_in_turn(labels: IntArray, rng: np.random.Generator) -> IntArray:
    """One record of every class, then another of each, and so on."""
    counts = np.bincount(labels)
    held = sorted(np.flatnonzero(counts), key=lambda klass: int(counts[klass]))
    columns = [rng.permutation(np.flatnonzero(labels == klass)) for klass in held]
    return np.array([record for turn in zip_longest(*columns) for record in turn if record is not None])


def _another_class(world: World, label: int, _: Samples, rng: np.random.Generator) -> Samples:
    pool = np.flatnonzero(world.dataset.y_train != label)
    chosen = rng.choice(pool) if len(pool) else rng.integers(len(world.dataset.y_train))
    return np.asarray(world.dataset.x_train[chosen])


def _outlier(world: World, label: int, _: Samples, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    """The sample of its class that lies farthest from the class's mean."""
    members = world.dataset.x_train[world.dataset.y_train == label].astype(np.float64)
    distances = ((members - members.mean(axis=0)) ** 2).reshape(len(members), -1).sum(axis=1)
    return np.asarray(members[np.argmax(distances)].astype(world.dataset.x_train.dtype))


def _inverted(world: World, label: int, sample: Samples, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    """Bright for dark, within the range of the data."""
    low, high = _range(world)
    return np.asarray((low + high - sample.astype(np.float64)).astype(sample.dtype))


def _noise_for_one(world: World, label: int, sample: Samples, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    return _noise(world, sample.shape, rng)


def _noise(world: World, shape: tuple[int, ...], rng: np.random.Generator) -> Samples:
    """Uniform in the range of the data."""
    low, high = _range(world)
    dtype = world.dataset.x_train.dtype
    if dtype.kind == "f":
        return np.asarray(rng.uniform(low, high, shape).astype(dtype))
    return np.asarray(rng.integers(int(low), int(high), shape, endpoint=True).astype(dtype))


def _permuted(world: World, labels: IntArray, rng: np.random.Generator) -> Samples:
    """For every sample one of the next class of the data: as if all labels had been exchanged in a ring."""
    y_train = world.dataset.y_train
    present = np.unique(y_train)
    following = dict(zip(present.tolist(), np.roll(present, -1).tolist(), strict=True))
    pools = {klass: np.flatnonzero(y_train == following[klass]) for klass in np.unique(labels).tolist()}
    return np.asarray(world.dataset.x_train[np.array([rng.choice(pools[klass]) for klass in labels.tolist()])])


def _range(world: World) -> tuple[float, float]:
    return float(world.dataset.x_train.min()), float(world.dataset.x_train.max())


_REPLACEMENTS: dict[str, Callable[[World, int, Samples, np.random.Generator], Samples]] = {
    "a sample of another class": _another_class,
    "an outlier of its class": _outlier,
    "its inverse": _inverted,
    "noise": _noise_for_one,
}
