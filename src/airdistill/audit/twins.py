"""The audited device with its own data and with each neighbour's, trained in step on the same broadcasts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from airdistill.arrays import FloatArray, IntArray
from airdistill.audit.link import NoiseSource
from airdistill.audit.neighbours import Neighbour, Samples
from airdistill.audit.world import World, broadcast_of, learn
from airdistill.learning.fleet import LearnerMaker, LearningFleet
from airdistill.learning.learner import Learner
from airdistill.learning.models import build_model, draws_at_random
from airdistill.learning.samples import input_shape, to_tensor
from airdistill.runs.simulation import seed_torch
from airdistill.schemes.receiving import receiver_of
from airdistill.streams import stream


@dataclass(frozen=True)
class Followed:
    """Along one transcript: ‖q(D) − q(D')‖² before any weight, `[round, neighbour, row]`, and what twins sent.

    `vectors[round]` is `[1 + neighbour, row, entry]`, D first; empty unless asked for.
    """

    squared_shift: FloatArray
    vectors: tuple[FloatArray, ...] = ()


def follow(
    world: World,
    neighbours: Sequence[Neighbour],
    noise_seed: int,
    noise_source: NoiseSource,
    keep_vectors: bool = False,
) -> Followed:
    """One transcript, by twins that are made for it alone."""
    return Twins(world, neighbours).follow(noise_seed, noise_source, keep_vectors)


class Twins:
    """Learners that differ in their data alone: same initial weights, same order of batches, same random draws.

    The first has the device's own data D. They can follow many transcripts, each from the beginning.
    """

    def __init__(self, world: World, neighbours: Sequence[Neighbour]) -> None:
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
        held = (world.link.usual_weights()[world.device] > 0)[:, None]  # a class that it lacks has no knowledge
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
