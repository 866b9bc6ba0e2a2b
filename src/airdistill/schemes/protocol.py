"""What all payload protocols share: the interface, distillation on a public set, and what a record keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from airdistill.arrays import FloatArray, IntArray
from airdistill.data.datasets import Dataset
from airdistill.data.public import PublicSet
from airdistill.learning.fleet import Engine, LearningFleet, check_finite
from airdistill.learning.gradients import Target
from airdistill.learning.learner import Learner, Losses
from airdistill.learning.mixed import MixedSteps, passes_in_batches, rise_and_fall
from airdistill.learning.public_predictions import sharpened
from airdistill.planning.payloads import declared_public
from airdistill.planning.plan import Plan
from airdistill.radio.receivers import Receiver
from airdistill.radio.superposition import Reception
from airdistill.scenario.model import Scenario
from airdistill.streams import stream

# Tuned on MNIST, docs/results.md.
_MOMENTUM = 0.9
_CLIP_NORM = 4.0
_SHIFT_LOCAL, _SHIFT_DISTILLING = 1, 2  # pixels of random translation; tuned on MNIST, docs/results.md
_PUBLIC_BATCH, _OWN_BATCH, _WARM_UP = 50, 10, 30
MOST_CLASSES = 100  # larger tables are not recorded: they are long to write and too large to read
_DIGITS = 6


class PayloadProtocol(Protocol):
    """The device side of a payload. Learner n of the fleet is device `devices[n]`: it takes its batches in that
    device's
    public order."""

    def vectors(self, fleet: LearningFleet, round_index: int, devices: Iterable[int]) -> FloatArray:
        """What every learner sends, `[learner, row, entry]`, after any training that the payload needs first."""

    def learn(
        self, fleet: LearningFleet, round_index: int, broadcast: FloatArray | None, devices: Iterable[int]
    ) -> Sequence[Losses]:
        """Update every learner from the server's broadcast, or on its own samples without one."""

    def receiver(self, public: PublicSet | None, engine: Engine) -> Receiver | None:
        """The server's receiver at the start of a run; None if the received sum is broadcast as it is."""

    def record(self, reception: Reception, round_index: int, public: PublicSet | None) -> dict[str, Any]:
        """What the record of a round keeps of the quality of what was received."""

    def tables(self, reception: Reception, round_index: int, public: PublicSet | None) -> dict[str, Any]:
        """What the record of an evaluated round keeps of the payload itself, for figures."""


@dataclass(frozen=True)
class ConstructedPair:
    """What one device would send with two neighbouring datasets that were built for an attack, `[2, row, entry]`."""

    relation: Literal["record", "device"]
    description: str
    vectors: FloatArray


class BaseProtocol:
    """A protocol that records nothing and has no receiver, for payloads that need neither."""

    def constructed_pairs(self, device: int, rng: np.random.Generator) -> Sequence[ConstructedPair]:  # noqa: ARG002
        """Pairs that an audit follows besides those of real samples, the same in every round; none by default."""
        return ()

    def dataset_of_models(
        self,
        dataset: Dataset,
        public: PublicSet | None,  # noqa: ARG002
        engine: Engine,  # noqa: ARG002
        indices: Sequence[IntArray],  # noqa: ARG002
    ) -> Dataset:
        """The dataset as the devices' models take it; `indices` are the training samples that each device holds."""
        return dataset

    def receiver(self, public: PublicSet | None, engine: Engine) -> Receiver | None:  # noqa: ARG002
        return None

    def record(self, reception: Reception, round_index: int, public: PublicSet | None) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def tables(self, reception: Reception, round_index: int, public: PublicSet | None) -> dict[str, Any]:  # noqa: ARG002
        return {}


class PublicDistillation(BaseProtocol):
    """The device side of schemes whose broadcast has a row of predictions for every public sample."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.scenario, self.public = plan, plan.scenario, declared_public(plan.scenario)

    def learn(
        self, fleet: LearningFleet, round_index: int, broadcast: FloatArray | None, devices: Iterable[int]
    ) -> Sequence[Losses]:
        assert broadcast is not None  # a scheme on a public set always broadcasts
        return fleet.mixed_steps(
            self._all_distilling_steps(fleet, round_index, devices), self._target(fleet, broadcast), "devices taught"
        )

    def learn_alone(
        self, fleet: LearningFleet, round_index: int, own: FloatArray, devices: Iterable[int]
    ) -> Sequence[Losses]:
        """Update every device from its own rows `[device, sample, class]`, by the steps of `learn`."""
        public, steps = fleet.public_samples(), self._all_distilling_steps(fleet, round_index, devices)

        def of_one(learner: Learner, pair: tuple[MixedSteps, FloatArray]) -> Losses:
            return learner.mixed_steps(pair[0], public, self._target(fleet, pair[1]))

        return fleet.engine.for_each(of_one, fleet.learners, list(zip(steps, own, strict=True)), stage="devices taught")

    def train(self, fleet: LearningFleet, round_index: int, devices: Iterable[int], unsure_weight: float = 0.0) -> None:
        """Train every device on its own samples, and with this weight to be uncertain on public ones."""
        engine, num_classes = fleet.engine, self.plan.fleet.num_classes
        unsure = np.full((self.public.samples, num_classes), 1.0 / num_classes)
        steps = [
            self._local_steps(learner, round_index, device, unsure_weight)
            for device, learner in zip(devices, fleet.learners, strict=True)
        ]
        losses = fleet.mixed_steps(steps, Target.of(unsure, engine.dtype, engine.device), "devices trained")
        check_finite(losses, fleet.finite_weights(), round_index)

    def _local_steps(self, learner: Learner, round_index: int, device: int, public_weight: float) -> MixedSteps:
        learning, own = self.scenario.learning, stream(self.scenario.seed, "batch-order", round_index, device)
        shared = stream(self.scenario.seed, "public-order", round_index, device)
        num_steps = learning.local_epochs * -(-learner.num_samples // learning.batch_size)
        batch = learning.batch_size if public_weight else 0
        lr = np.full(num_steps, learning.step_size(round_index))
        batches = (
            passes_in_batches(learner.num_samples, num_steps, learning.batch_size, own),
            passes_in_batches(self.public.samples, num_steps, batch, shared),
        )
        steps = self.steps(batches, (1.0, public_weight), lr)
        return self.translated(steps, _SHIFT_LOCAL, learner, own)

    def _target(self, fleet: LearningFleet, rows: FloatArray) -> Target:
        return Target.of(sharpened(rows, self.public.temperature), fleet.engine.dtype, fleet.engine.device)

    def _all_distilling_steps(self, fleet: LearningFleet, round_index: int, devices: Iterable[int]) -> list[MixedSteps]:
        return [
            self._distilling_steps(learner, round_index, device)
            for device, learner in zip(devices, fleet.learners, strict=True)
        ]

    def _distilling_steps(self, learner: Learner, round_index: int, device: int) -> MixedSteps:
        learning, public = self.scenario.learning, self.public
        rng = stream(self.scenario.seed, "distilling-order", round_index, device)
        num_steps = public.distill_epochs * -(-public.samples // _PUBLIC_BATCH)
        batches = (
            passes_in_batches(learner.num_samples, num_steps, _OWN_BATCH if public.own_weight else 0, rng),
            passes_in_batches(public.samples, num_steps, _PUBLIC_BATCH, rng),
        )
        lr = learning.step_size(round_index, public.distill_lr) * rise_and_fall(num_steps, _WARM_UP)
        steps = self.steps(batches, (public.own_weight, learning.distill_weight), lr)
        return self.translated(steps, _SHIFT_DISTILLING, learner, rng)

    def steps(self, batches: tuple[IntArray, IntArray], weights: tuple[float, float], lr: FloatArray) -> MixedSteps:
        optimiser = self.scenario.learning.optimizer
        return MixedSteps(*batches, *weights, lr, _MOMENTUM, clip_norm=self._clip_norm, optimiser=optimiser)

    @property
    def _clip_norm(self) -> float | None:
        """Without abstention a device is overconfident, and its first distillation steps can diverge: clip them."""
        return None if self.public.abstain else _CLIP_NORM

    def translated(self, steps: MixedSteps, most: int, learner: Learner, rng: np.random.Generator) -> MixedSteps:
        """The same steps with every image translated by a few pixels; other samples stay."""
        if learner.samples_and_labels()[0].ndim != 4:
            return steps
        num_samples = steps.own.shape[1] + steps.public.shape[1]
        offsets = rng.integers(0, 2 * most, (len(steps.lr), num_samples, 2), endpoint=True)
        return replace(steps, offsets=offsets, most_moved=most)


def learn_from(
    fleet: LearningFleet, scenario: Scenario, round_index: int, received: FloatArray | None, devices: Iterable[int]
) -> Sequence[Losses]:
    """Update every learner in a round; learner n takes its batches in the public order of device `devices[n]`."""
    learning, engine = scenario.learning, fleet.engine
    lr = learning.step_size(round_index)
    target = None if received is None else Target.of(received, engine.dtype, engine.device)
    if learning.local_epochs == 0:
        return fleet.full_batch_step(target, lr, learning.distill_weight, learning.optimizer)
    sizes = [learner.num_samples for learner in fleet.learners]
    streams = [stream(scenario.seed, "batch-order", round_index, device) for device in devices]
    orders = [
        [rng.permutation(size) for _ in range(learning.local_epochs)] for rng, size in zip(streams, sizes, strict=True)
    ]
    return fleet.local_epochs(target, lr, learning.distill_weight, orders, learning.batch_size, learning.optimizer)


def share_right(rows: FloatArray, labels: IntArray) -> float:
    """The share of the known rows `[row, class]` whose largest entry is that of the label."""
    known = np.isfinite(rows).all(axis=1) & rows.any(axis=1)
    return float((rows[known].argmax(axis=1) == labels[known]).mean()) if known.any() else 0.0


def mean_by_label(rows: FloatArray, labels: IntArray, num_classes: int) -> FloatArray:
    means = np.full((num_classes, num_classes), np.nan)
    for label in np.unique(labels):
        known = rows[(labels == label) & np.isfinite(rows).all(axis=1)]
        if len(known):
            means[label] = known.mean(axis=0)
    return means


def kept_tables(tables: dict[str, FloatArray], num_classes: int) -> dict[str, Any]:
    if num_classes > MOST_CLASSES:
        return {}
    return {"knowledge": {name: _rounded(table) for name, table in tables.items()}}


def _rounded(table: FloatArray) -> list[list[float | None]]:
    """The table with six digits; null for unknown entries."""
    return [[float(f"{x:.{_DIGITS}g}") if np.isfinite(x) else None for x in row] for row in table.tolist()]
