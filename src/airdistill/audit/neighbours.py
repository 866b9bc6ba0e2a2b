"""Neighbouring datasets of the audited device, and learners that train on them with the same broadcasts.

Neighbours have the same labels, because class counts are public. With `privacy.relabel` one record may also change its
label, between classes that the device holds before and after.
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
from airdistill.learning.fleet import LearningFleet
from airdistill.learning.learner import Learner
from airdistill.learning.learner_maker import LearnerMaker
from airdistill.learning.models import build_model, draws_at_random
from airdistill.learning.samples import input_shape, to_tensor
from airdistill.runs.simulation import seed_torch
from airdistill.schemes.payloads import receiver_of
from airdistill.streams import stream

Samples = NDArray[np.generic]


@dataclass(frozen=True)
class Neighbour:
    """A dataset D' that differs from D in one record, or in all records (`device`). Samples and labels `[sample]`."""

    relation: Literal["record", "device"]
    description: str
    samples: Samples
    labels: IntArray


def neighbours_of(context: AuditContext, num_records: int, seed: int) -> list[Neighbour]:
    """`num_records` neighbours by one record, then two by the whole device.

    Records are taken from every class in turn, the rarest first, because a record has the largest weight there. If
    labels may change, every second neighbour has another label as well.
    """
    rng, labels = stream(seed, "audit-candidates"), context.own_labels
    names, records = list(_REPLACEMENTS), _records_in_turn(labels, rng)
    found = []
    for number in range(num_records):
        record = int(records[(number // len(names)) % len(records)])
        neighbour = _with_replaced(context, record, names[number % len(names)], rng)
        if context.scenario.privacy.relabel and number % 2:
            neighbour = _relabelled(neighbour, record)
        found.append(neighbour)
    return found + _device_neighbours(context, rng)


def _with_replaced(context: AuditContext, record: int, name: str, rng: np.random.Generator) -> Neighbour:
    """Replace the sample of one record; keep its label."""
    samples, label = context.own_samples.copy(), int(context.own_labels[record])
    samples[record] = _REPLACEMENTS[name](context, label, samples[record], rng)
    return Neighbour("record", f"record {record} (class {label}) replaced by {name}", samples, context.own_labels)


def _relabelled(neighbour: Neighbour, record: int) -> Neighbour:
    """Give the record the label of the next class that the device holds; unchanged if its class would become empty."""
    held, counts = np.unique(neighbour.labels, return_counts=True)
    place = int(np.searchsorted(held, neighbour.labels[record]))
    if counts[place] < 2 or len(held) < 2:
        return neighbour
    labels = neighbour.labels.copy()
    labels[record] = held[(place + 1) % len(held)]
    description = f"{neighbour.description}, under label {labels[record]}"
    return replace(neighbour, description=description, labels=labels)


def _device_neighbours(context: AuditContext, rng: np.random.Generator) -> list[Neighbour]:
    labels = context.own_labels
    permuted, noise = _permuted(context, labels, rng), _noise(context, context.own_samples.shape, rng)
    return [
        Neighbour("device", "all samples replaced by those of other classes", permuted, labels),
        Neighbour("device", "all samples replaced by noise", noise, labels),
    ]


def _records_in_turn(labels: IntArray, rng: np.random.Generator) -> IntArray:
    """One record of every class, then a second of each, and so on, the rarest class first."""
    counts = np.bincount(labels)
    held = sorted(np.flatnonzero(counts), key=lambda klass: int(counts[klass]))
    columns = [rng.permutation(np.flatnonzero(labels == klass)) for klass in held]
    return np.array([record for turn in zip_longest(*columns) for record in turn if record is not None])


def _another_class(context: AuditContext, label: int, _: Samples, rng: np.random.Generator) -> Samples:
    pool = np.flatnonzero(context.dataset.y_train != label)
    chosen = rng.choice(pool) if len(pool) else rng.integers(len(context.dataset.y_train))
    return np.asarray(context.dataset.x_train[chosen])


def _outlier(context: AuditContext, label: int, _: Samples, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    """The sample of the class that is farthest from the class mean."""
    members = context.dataset.x_train[context.dataset.y_train == label].astype(np.float64)
    distances = ((members - members.mean(axis=0)) ** 2).reshape(len(members), -1).sum(axis=1)
    return np.asarray(members[np.argmax(distances)].astype(context.dataset.x_train.dtype))


def _inverted(context: AuditContext, label: int, sample: Samples, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    """The negative of the sample, within the range of the data."""
    low, high = _range(context)
    return np.asarray((low + high - sample.astype(np.float64)).astype(sample.dtype))


def _noise_for_one(context: AuditContext, label: int, sample: Samples, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    return _noise(context, sample.shape, rng)


def _noise(context: AuditContext, shape: tuple[int, ...], rng: np.random.Generator) -> Samples:
    """Uniform in the range of the data."""
    low, high = _range(context)
    dtype = context.dataset.x_train.dtype
    if dtype.kind == "f":
        return np.asarray(rng.uniform(low, high, shape).astype(dtype))
    return np.asarray(rng.integers(int(low), int(high), shape, endpoint=True).astype(dtype))


def _permuted(context: AuditContext, labels: IntArray, rng: np.random.Generator) -> Samples:
    """For every sample one of the next class of the data: a cyclic permutation of the classes."""
    y_train = context.dataset.y_train
    present = np.unique(y_train)
    following = dict(zip(present.tolist(), np.roll(present, -1).tolist(), strict=True))
    pools = {klass: np.flatnonzero(y_train == following[klass]) for klass in np.unique(labels).tolist()}
    return np.asarray(context.dataset.x_train[np.array([rng.choice(pools[klass]) for klass in labels.tolist()])])


def _range(context: AuditContext) -> tuple[float, float]:
    return float(context.dataset.x_train.min()), float(context.dataset.x_train.max())


_REPLACEMENTS: dict[str, Callable[[AuditContext, int, Samples, np.random.Generator], Samples]] = {
    "a sample of another class": _another_class,
    "an outlier of its class": _outlier,
    "its inverse": _inverted,
    "noise": _noise_for_one,
}


@dataclass(frozen=True)
class Followed:
    """One transcript: unweighted ‖q(D) − q(D')‖², `[round, neighbour, row]`, and the vectors that learners sent.

    `vectors[round]` is `[1 + neighbour, row, entry]`, D first; empty unless requested. With correlated noise
    `squared_joint_shift` are the weighted ‖Σ_s e_{t−s} w_s (q_s(D) − q_s(D'))‖² of all rounds together.
    """

    squared_shift: FloatArray
    vectors: tuple[FloatArray, ...] = ()
    squared_joint_shift: FloatArray | None = None


def follow(
    context: AuditContext,
    neighbours: Sequence[Neighbour],
    noise_seed: int,
    noise_source: NoiseSource,
    keep_vectors: bool = False,
) -> Followed:
    """Follow one transcript with fresh learners."""
    return NeighbouringPair(context, neighbours).follow(noise_seed, noise_source, keep_vectors)


def squared_joint_shift(context: AuditContext, weighted: Sequence[FloatArray]) -> FloatArray | None:
    """‖Σ_s e_{t−s} d_s‖², `[round, neighbour, row]`, from d `[neighbour, row, entry]` of every round; None without."""
    if not weighted:
        return None
    return np.stack([(each**2).sum(axis=-1) for each in context.without_repeated_noise(weighted)])


class NeighbouringPair:
    """Learners on D and on its neighbours that differ in their data alone.

    They have the same initial weights, order of batches and random draws. The first learner has the device's own data.
    They can follow many transcripts, each from the beginning.
    """

    def __init__(self, context: AuditContext, neighbours: Sequence[Neighbour]) -> None:
        self._context = context
        datasets = [(neighbour.samples, neighbour.labels) for neighbour in neighbours]
        learners = [self._learner(*data) for data in [(context.own_samples, context.own_labels), *datasets]]
        # A model that draws at random must draw the same for every learner: each then trains alone from the same seed.
        alone = any(draws_at_random(learner.model) for learner in learners)
        groups = [[learner] for learner in learners] if alone else [learners]
        public = None
        if context.public is not None:
            public = to_tensor(context.public.samples, context.engine.dtype, context.engine.device)
        self._fleets = [LearningFleet(group, context.engine, context.one_model, public) for group in groups]
        self._initial = [{name: value.clone() for name, value in fleet.state().items()} for fleet in self._fleets]

    def _learner(self, samples: Samples, labels: IntArray) -> Learner:
        context, engine, dataset = self._context, self._context.engine, self._context.dataset
        rng = stream(context.scenario.seed, "model-weights", 0, 0 if context.one_model else context.device)
        name, shape = context.scenario.model_names[context.device], input_shape(dataset.x_train)
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
        """Follow one transcript generated with D: fresh noise in every round; all learn from the same broadcast."""
        context = self._context
        # The knowledge of a class without samples is undefined.
        held = (context.link.nominal_weights()[context.device] > 0)[:, None]
        shifts, kept, weighted = [], [], list[FloatArray]()
        receiver = receiver_of(context.plan, context.public, context.engine)
        self._restart()
        for this in context.rounds:
            vectors = self._vectors(this.index)
            moved = np.where(held, vectors[1:] - vectors[0], 0.0)
            shifts.append((moved**2).sum(axis=-1))
            if context.plan.uplink.correlation is not None:
                weighted.append(this.design.weights[context.device][:, None] * moved)
            if this.index < len(context.rounds):  # learning after the last broadcast has no effect
                noise = noise_source(noise_seed, this.index, this.design)
                received = context.link.received(this, vectors[0], noise)
                self._learn(this.index, broadcast_of(receiver, received, this.design))
            if keep_vectors:
                kept.append(vectors)
            if on_round is not None:
                on_round(this.index)
        return Followed(np.stack(shifts), tuple(kept), squared_joint_shift(context, weighted))

    def _restart(self) -> None:
        for fleet, state in zip(self._fleets, self._initial, strict=True):
            fleet.load_state(state)

    def _vectors(self, round_index: int) -> FloatArray:
        """The vector that each learner would send, `[learner, row, entry]`."""
        found = []
        for fleet in self._fleets:
            seed_torch(self._context.scenario, round_index)
            found.append(self._context.protocol.vectors(fleet, round_index, self._devices(fleet)))
        return np.concatenate(found)

    def _learn(self, round_index: int, received: FloatArray) -> None:
        context = self._context
        for fleet in self._fleets:
            seed_torch(context.scenario, round_index)
            learn(context.protocol, fleet, round_index, received, self._devices(fleet))

    def _devices(self, fleet: LearningFleet) -> list[int]:
        """Device index of each learner: all stand for the audited device, and so share its order of batches."""
        return [self._context.device] * len(fleet.learners)
