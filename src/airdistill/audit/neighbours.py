"""Neighbouring datasets of the audited device.

They have the same labels, for class counts are public; where `privacy.relabel` is declared, one record may change its
label too, between classes that the device holds before and after.

The audited device with its own data and with each neighbour's, trained in step on the same broadcasts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from airdistill.arrays import FloatArray, IntArray
from airdistill.audit.context import AuditContext, NoiseSource, broadcast_of, learn
from airdistill.learning.fleet import LearnerMaker, LearningFleet
from airdistill.learning.learner import Learner
from airdistill.learning.models import build_model, draws_at_random
from airdistill.learning.samples import input_shape, to_tensor
from airdistill.runs.simulation import seed_torch
from airdistill.schemes.receivers import receiver_of
from airdistill.streams import stream

Samples = NDArray[np.generic]


@dataclass(frozen=True)
class Neighbour:
    """D' and how it differs from D: in one record, or in all of them (`device`). Samples and labels `[sample]`."""

    relation: Literal["record", "device"]
    description: str
    samples: Samples
    labels: IntArray


def neighbours_of(world: AuditContext, num_records: int, seed: int) -> list[Neighbour]:
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


def _with_replaced(world: AuditContext, record: int, name: str, rng: np.random.Generator) -> Neighbour:
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


def _device_neighbours(world: AuditContext, rng: np.random.Generator) -> list[Neighbour]:
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


def _another_class(world: AuditContext, label: int, _: Samples, rng: np.random.Generator) -> Samples:
    pool = np.flatnonzero(world.dataset.y_train != label)
    chosen = rng.choice(pool) if len(pool) else rng.integers(len(world.dataset.y_train))
    return np.asarray(world.dataset.x_train[chosen])


def _outlier(world: AuditContext, label: int, _: Samples, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    """The sample of its class that lies farthest from the class's mean."""
    members = world.dataset.x_train[world.dataset.y_train == label].astype(np.float64)
    distances = ((members - members.mean(axis=0)) ** 2).reshape(len(members), -1).sum(axis=1)
    return np.asarray(members[np.argmax(distances)].astype(world.dataset.x_train.dtype))


def _inverted(world: AuditContext, label: int, sample: Samples, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    """Bright for dark, within the range of the data."""
    low, high = _range(world)
    return np.asarray((low + high - sample.astype(np.float64)).astype(sample.dtype))


def _noise_for_one(world: AuditContext, label: int, sample: Samples, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    return _noise(world, sample.shape, rng)


def _noise(world: AuditContext, shape: tuple[int, ...], rng: np.random.Generator) -> Samples:
    """Uniform in the range of the data."""
    low, high = _range(world)
    dtype = world.dataset.x_train.dtype
    if dtype.kind == "f":
        return np.asarray(rng.uniform(low, high, shape).astype(dtype))
    return np.asarray(rng.integers(int(low), int(high), shape, endpoint=True).astype(dtype))


def _permuted(world: AuditContext, labels: IntArray, rng: np.random.Generator) -> Samples:
    """For every sample one of the next class of the data: as if all labels had been exchanged in a ring."""
    y_train = world.dataset.y_train
    present = np.unique(y_train)
    following = dict(zip(present.tolist(), np.roll(present, -1).tolist(), strict=True))
    pools = {klass: np.flatnonzero(y_train == following[klass]) for klass in np.unique(labels).tolist()}
    return np.asarray(world.dataset.x_train[np.array([rng.choice(pools[klass]) for klass in labels.tolist()])])


def _range(world: AuditContext) -> tuple[float, float]:
    return float(world.dataset.x_train.min()), float(world.dataset.x_train.max())


_REPLACEMENTS: dict[str, Callable[[AuditContext, int, Samples, np.random.Generator], Samples]] = {
    "a sample of another class": _another_class,
    "an outlier of its class": _outlier,
    "its inverse": _inverted,
    "noise": _noise_for_one,
}


@dataclass(frozen=True)
class Followed:
    """Along one transcript: ‖q(D) − q(D')‖² before any weight, `[round, neighbour, row]`, and what twins sent.

    `vectors[round]` is `[1 + neighbour, row, entry]`, D first; empty unless asked for.
    """

    squared_shift: FloatArray
    vectors: tuple[FloatArray, ...] = ()


def follow(
    world: AuditContext,
    neighbours: Sequence[Neighbour],
    noise_seed: int,
    noise_source: NoiseSource,
    keep_vectors: bool = False,
) -> Followed:
    """One transcript, by twins that are made for it alone."""
    return NeighbouringPair(world, neighbours).follow(noise_seed, noise_source, keep_vectors)


class NeighbouringPair:
    """Learners that differ in their data alone: same initial weights, same order of batches, same random draws.

    The first has the device's own data D. They can follow many transcripts, each from the beginning.
    """

    def __init__(self, world: AuditContext, neighbours: Sequence[Neighbour]) -> None:
        self._world = world
        datasets = [(neighbour.samples, neighbour.labels) for neighbour in neighbours]
        learners = [self._learner(*data) for data in [(world.own_samples, world.own_labels), *datasets]]
        # A model that draws at random must draw the same for every twin, so each goes alone from the same seed.
        alone = any(draws_at_random(learner.model) for learner in learners)
        groups = [[learner] for learner in learners] if alone else [learners]
        public = None
        if world.public is not None:
            public = to_tensor(world.public.samples, world.engine.dtype, world.engine.device)
        self._fleets = [LearningFleet(group, world.engine, world.one_model, public) for group in groups]
        self._initial = [{name: value.clone() for name, value in fleet.state().items()} for fleet in self._fleets]

    def _learner(self, samples: Samples, labels: IntArray) -> Learner:
        world, engine, dataset = self._world, self._world.engine, self._world.dataset
        rng = stream(world.scenario.seed, "model-weights", 0, 0 if world.one_model else world.device)
        name, shape = world.scenario.model_names[world.device], input_shape(dataset.x_train)
        model = build_model(name, shape, dataset.num_classes, rng, engine.dtype).to(engine.device)
        tensor = to_tensor(samples, engine.dtype, engine.device)
        return LearnerMaker(engine).learner(model, tensor, labels, dataset.num_classes)

    def follow(
        self,
        noise_seed: int,
        noise_source: NoiseSource,
        keep_vectors: bool = False,
        on_round: Callable[[int], None] | None = None,
    ) -> Followed:
        """One transcript in the world of D: fresh noise in every round, and all learn from the same broadcast."""
        world = self._world
        held = (world.link.nominal_weights()[world.device] > 0)[:, None]  # a class that it lacks has no knowledge
        shifts, kept, receiver = [], [], receiver_of(world.plan, world.public, world.engine)
        self._restart()
        for this in world.rounds:
            vectors = self._vectors(this.index)
            shifts.append((np.where(held, vectors[1:] - vectors[0], 0.0) ** 2).sum(axis=-1))
            if this.index < len(world.rounds):  # what would be learned after the last broadcast nobody looks at
                noise = noise_source(noise_seed, this.index, this.design)
                received = world.link.received(this, vectors[0], noise)
                self._learn(this.index, broadcast_of(receiver, received, this.design))
            if keep_vectors:
                kept.append(vectors)
            if on_round is not None:
                on_round(this.index)
        return Followed(np.stack(shifts), tuple(kept))

    def _restart(self) -> None:
        for fleet, state in zip(self._fleets, self._initial, strict=True):
            fleet.load_state(state)

    def _vectors(self, round_index: int) -> FloatArray:
        """What each would send, `[twin, row, entry]`."""
        found = []
        for fleet in self._fleets:
            seed_torch(self._world.scenario, round_index)
            found.append(self._world.sharing.vectors(fleet, round_index, self._same_order(fleet)))
        return np.concatenate(found)

    def _learn(self, round_index: int, received: FloatArray) -> None:
        world = self._world
        for fleet in self._fleets:
            seed_torch(world.scenario, round_index)
            learn(world.sharing, fleet, round_index, received, self._same_order(fleet))

    def _same_order(self, fleet: LearningFleet) -> list[int]:
        """All twins stand for the audited device."""
        return [self._world.device] * len(fleet.learners)
