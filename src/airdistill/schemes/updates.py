"""Federated averaging of clipped updates: how devices make them, and how the server and devices use the noisy mean.

Of a whole model, or of a linear head on the public embedding of feature means.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from airdistill.arrays import FloatArray, IntArray
from airdistill.data.datasets import Dataset
from airdistill.data.public import PublicSet
from airdistill.learning.embeddings import Embedding
from airdistill.learning.fleet import Engine, LearningFleet
from airdistill.learning.learner import Losses
from airdistill.learning.samples import to_tensor
from airdistill.learning.server_optimiser import ServerOptimiser, ServerStep
from airdistill.planning.plan import Plan
from airdistill.planning.updates import HeadUpdate, Update
from airdistill.radio.receivers import Estimate, Receiver
from airdistill.radio.superposition import Reception
from airdistill.schemes.feature_means import embedding_of
from airdistill.schemes.protocol import BaseProtocol, ConstructedPair, learn_from
from airdistill.stages import report_stage

_CLIP = "clip_norm"  # what devices remember: the clip of the next round
_EMBEDDED_AT_ONCE = 5000


class UpdateProtocol(BaseProtocol):
    """Devices train from the common model and return to it; then they take the server's step.

    `losses` are those of the training for the last vectors.
    """

    def __init__(self, plan: Plan) -> None:
        payload = plan.uplink.payload
        assert isinstance(payload, Update)
        self.plan, self._payload = plan, payload
        self.losses: Sequence[Losses] = ()

    def vectors(self, fleet: LearningFleet, round_index: int, devices: Iterable[int]) -> FloatArray:
        clip = fleet.remembered[_CLIP].item() if _CLIP in fleet.remembered else self._payload.clip_norm
        return clipped_vectors(self._payload, self.updates(fleet, round_index, devices), clip)

    def updates(self, fleet: LearningFleet, round_index: int, devices: Iterable[int]) -> FloatArray:
        """Δ of every learner, not clipped, `[learner, parameter]`; the models stay as they were."""
        kept = {name: tensor.clone() for name, tensor in fleet.state().items()}
        before = fleet.parameters()
        self.losses = learn_from(fleet, self.plan.scenario, round_index, None, devices)
        trained = fleet.parameters()
        fleet.load_state(kept)
        return np.asarray(trained - before)

    def learn(
        self,
        fleet: LearningFleet,
        round_index: int,  # noqa: ARG002
        broadcast: FloatArray | None,
        devices: Iterable[int],  # noqa: ARG002
    ) -> Sequence[Losses]:
        """Add the server's step to every model; if there is a next clip, remember it."""
        if broadcast is None or not np.isfinite(broadcast).all():  # a device has no channel: nothing was sent
            return []
        step, clip = np.split(broadcast[0], [self._payload.num_parameters])
        fleet.descend(-step, 1.0)
        if len(clip):
            fleet.remembered[_CLIP] = clip.copy()
        return []

    def constructed_pairs(self, device: int, rng: np.random.Generator) -> Sequence[ConstructedPair]:  # noqa: ARG002
        """Two opposite updates at the clip, of which the clip acted on one alone."""
        payload = self._payload
        direction = rng.standard_normal(payload.num_parameters)
        # The first is shorter by rounding's least, and the second longer: the clip acts on one alone.
        lengths = payload.clip_norm * np.array([[1 - 1e-12], [1 + 1e-12]])
        updates = lengths * np.stack([direction, -direction]) / np.linalg.norm(direction)
        vectors = clipped_vectors(payload, updates, payload.clip_norm)
        return [ConstructedPair("device", "two opposite updates as long as the clip allows", vectors)]

    def receiver(self, public: PublicSet | None, engine: Engine) -> Receiver | None:  # noqa: ARG002
        return UpdateReceiver(self.plan)

    def record(self, reception: Reception, round_index: int, public: PublicSet | None) -> dict[str, Any]:  # noqa: ARG002
        """The clip of the round, and the noisy share of updates that it left as they were."""
        estimate = reception.estimate
        return {} if estimate is None or not estimate.facts else {"update": estimate.facts}


def clipped_vectors(payload: Update, updates: FloatArray, clip: float) -> FloatArray:
    """What devices send, `[device, 1, entry]`: updates `[device, parameter]` clipped to C_t, in units of C_t/C.

    With adaptive clipping τ/2 follows if the update is at most as long as the clip, and −τ/2 otherwise.
    """
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    clipped = updates * (payload.clip_norm / np.maximum(norms, clip))
    if payload.indicator:
        left = np.where(norms <= clip, payload.indicator / 2, -payload.indicator / 2)
        clipped = np.concatenate([clipped, left], axis=1)
    return np.asarray(clipped[:, None])


class UpdateReceiver:
    """From the noisy mean update to the step of the common model, and to the clip of the next round if it adapts."""

    def __init__(self, plan: Plan, facts: dict[str, str | int | float] | None = None) -> None:
        payload, given = plan.uplink.payload, plan.scenario.federated
        assert isinstance(payload, Update)
        self._payload, self._given, self._facts = payload, given, facts or {}
        falls = plan.num_rounds if given.server_schedule == "cosine" else None
        how = ServerStep(given.server_optimizer, given.server_lr, given.server_momentum, falls)
        self._optimiser = ServerOptimiser(how, payload.num_parameters)
        self._clip = payload.clip_norm

    def estimate(self, received: FloatArray, noise_var: FloatArray) -> Estimate:  # noqa: ARG002
        """The step `[1, parameter]`, with the next clip as its last entry if there are indicators."""
        payload = self._payload
        if not np.isfinite(received).all():
            return Estimate(np.full((1, payload.vector_length), np.nan))
        update, indicator = np.split(received[0], [payload.num_parameters])
        used = self._clip
        step = self._optimiser.step(update * (used / payload.clip_norm))
        if payload.indicator == 0:
            return Estimate(step[None], facts=self._facts)
        share = float(indicator[0]) / payload.indicator + 0.5
        assert self._given.clip_quantile is not None  # or there would be no indicator
        self._clip *= math.exp(-self._given.clip_rate * (share - self._given.clip_quantile))
        facts = {**self._facts, "clip_norm": used, "share_below_clip": share}
        return Estimate(np.append(step, self._clip)[None], facts=facts)

    def state(self) -> dict[str, FloatArray]:
        return {"clip": np.array(self._clip), **self._optimiser.state()}

    def restore(self, state: dict[str, FloatArray]) -> None:
        self._clip = float(state["clip"])
        self._optimiser.restore(state)


class HeadUpdateProtocol(UpdateProtocol):
    """The same for a linear head: the models of devices take features, and an image is embedded once."""

    def dataset_of_models(
        self, dataset: Dataset, public: PublicSet | None, engine: Engine, indices: Sequence[IntArray]
    ) -> Dataset:
        """The dataset with the features of held training samples and of all test samples in place of the samples."""
        assert public is not None  # the scenario declares one, or there would be no such plan
        embedding = self._embedding(public, engine)
        train = np.zeros((len(dataset.x_train), embedding.width), dtype=np.float32)
        held = np.unique(np.concatenate(list(indices)))
        train[held] = _embedded(embedding, dataset.x_train[held], engine, "private samples embedded")
        return replace(
            dataset, x_train=train, x_test=_embedded(embedding, dataset.x_test, engine, "test samples embedded")
        )

    def receiver(self, public: PublicSet | None, engine: Engine) -> Receiver | None:
        assert public is not None  # the scenario declares one, or there would be no such plan
        embedding = self._embedding(public, engine)
        return UpdateReceiver(self.plan, {"embedding": embedding.digest, "embedding_bytes": embedding.num_bytes})

    def _embedding(self, public: PublicSet, engine: Engine) -> Embedding:
        assert isinstance(self._payload, HeadUpdate)
        return embedding_of(self.plan, to_tensor(public.samples, engine.dtype, engine.device), engine)


def _embedded(embedding: Embedding, samples: Any, engine: Engine, stage: str) -> FloatArray:
    """Features `[sample, feature]`, a portion at a time; a sample whose features are not all finite has zeros."""
    parts = []
    for start in range(0, len(samples), _EMBEDDED_AT_ONCE):
        part = to_tensor(samples[start : start + _EMBEDDED_AT_ONCE], engine.dtype, engine.device)
        parts.append(embedding.features(part).cpu().numpy())
        report_stage(stage, min(start + _EMBEDDED_AT_ONCE, len(samples)), len(samples))
    features = np.concatenate(parts) if parts else np.zeros((0, embedding.width), dtype=np.float32)
    return np.where(np.isfinite(features).all(axis=1, keepdims=True), features, 0.0)
