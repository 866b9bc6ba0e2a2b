"""Feature means (theory section 10): what a device sends, how the server reads it, and how devices learn from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import softmax
from torch import Tensor

from airdistill.arrays import FloatArray, IntArray
from airdistill.data.public import PublicSet
from airdistill.errors import AirDistillError
from airdistill.learning.class_features import (
    PublicFeatures,
    Reading,
    ReceivedMeans,
    Settings,
    lda,
    read_class_features,
    read_clusters,
    read_with,
)
from airdistill.learning.cluster_features import ClusterEmbedding, fit_clusters
from airdistill.learning.embeddings import Embedding, fit_embedding, own_networks_digest
from airdistill.learning.fleet import Engine, LearningFleet
from airdistill.learning.learner import Learner, Losses
from airdistill.learning.models import flat_weights, set_flat_weights
from airdistill.learning.own_features import OwnFeatures, check_has_linear_layer, check_separate
from airdistill.learning.samples import to_tensor
from airdistill.learning.student import Student
from airdistill.planning.feature_means import CLUSTERS, ClusterMeans, FeatureMeans, class_weights
from airdistill.planning.payloads import declared_public
from airdistill.planning.plan import Plan
from airdistill.planning.updates import HeadUpdate
from airdistill.radio.receivers import Estimate, Receiver
from airdistill.radio.superposition import Reception
from airdistill.schemes.feature_neighbours import embedded_pairs
from airdistill.schemes.protocol import ConstructedPair, PublicDistillation, share_right

EMBEDDING_SEED = 0  # one embedding of a public set, for all seeds and schemes of a comparison
_LEAST_PROBABILITY = 1e-6  # so that neither reading nor model alone rules a class out
# Of a model's own features: held-out rows prefer linear readings there, which label 4 to 12 % fewer samples right.
_OWN_FEATURES = Settings("map_em", 2.0, 0.3, 4)


class FeatureMeansProtocol(PublicDistillation):
    """Devices embed their samples, and learn from the server's predictions or take its model over."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        payload = plan.uplink.payload
        assert isinstance(payload, FeatureMeans)
        self._payload = payload
        self._embedding: Embedding | ClusterEmbedding | None = None

    def vectors(self, fleet: LearningFleet, round_index: int, devices: Iterable[int]) -> FloatArray:
        features = self._features_of_round(fleet, round_index)

        def of_one(learner: Learner, device: int) -> FloatArray:
            samples, labels = learner.samples_and_labels()
            counts = self._payload.fleet.class_counts[device]
            return device_vector(self._payload, features(samples), labels.cpu().numpy(), counts)

        vectors = fleet.engine.for_each(of_one, fleet.learners, devices, stage="devices embedded")
        return np.stack(vectors)[:, None]

    def constructed_pairs(self, device: int, rng: np.random.Generator) -> Sequence[ConstructedPair]:
        """Nothing is trained before a device sends, and so the same vectors are possible in every round."""
        counts, found = self._payload.fleet.class_counts[device], []
        for pair in embedded_pairs(self._payload, device, rng):
            data = zip(pair.features, pair.labels, strict=True)
            vectors = [device_vector(self._payload, features, labels, counts) for features, labels in data]
            found.append(ConstructedPair(pair.relation, pair.description, np.stack(vectors)[:, None]))
        return found

    def _features_of_round(self, fleet: LearningFleet, round_index: int) -> Callable[[Tensor], FloatArray]:
        """What embeds samples in this round: features of the model that all devices received, or the public ones."""
        if self.public.later == "features" and round_index > 1:
            if not fleet.are_equal():
                rule = "a device that has trained its model would send features that its samples have influenced"
                raise AirDistillError(f"round {round_index}: devices have other models than the server sent: {rule}")
            model, public = fleet.models()[0], fleet.public_samples()
            return OwnFeatures.fit(model, public, self._payload.dimensions, fleet.engine.chunk_samples).features
        return partial(_as_features, self._fitted(fleet))

    def _fitted(self, fleet: LearningFleet) -> Embedding | ClusterEmbedding:
        if self._embedding is None:
            self._embedding = public_embedding(self.plan, fleet.public_samples(), fleet.engine)
        return self._embedding

    def learn(
        self, fleet: LearningFleet, round_index: int, broadcast: FloatArray | None, devices: Iterable[int]
    ) -> Sequence[Losses]:
        assert broadcast is not None  # a scheme on a public set always broadcasts
        if self.public.broadcast == "predictions":
            if self.public.own_predictions and np.isfinite(broadcast).all():
                return self._learn_with_own(fleet, round_index, broadcast, list(devices))
            return super().learn(fleet, round_index, broadcast, devices)
        return fleet.use_model(broadcast[0] if np.isfinite(broadcast).all() else None)

    def _learn_with_own(
        self, fleet: LearningFleet, round_index: int, broadcast: FloatArray, devices: list[int]
    ) -> Sequence[Losses]:
        """Learn from the product of both predictions, whose errors are independent: the device's own samples are few,
        and those of the fleet are hidden in noise. Nothing of it is sent."""
        self.train(fleet, round_index, devices)
        own = fleet.public_predictions(np.arange(self.public.samples))
        counts = self._payload.fleet.class_counts[devices]
        holds_all = np.all(counts > 0, axis=1, keepdims=True)[..., None]
        product = np.where(holds_all, own, 1.0) * broadcast
        return self.learn_alone(fleet, round_index, product / product.sum(axis=-1, keepdims=True), devices)

    def receiver(self, public: PublicSet | None, engine: Engine) -> Receiver | None:
        assert public is not None  # the scenario declares one, or there would be no such plan
        kind = OwnFeatureReceiver if self.public.later == "features" else FeatureReceiver
        if isinstance(self._payload, ClusterMeans):
            kind = ClusterReceiver
        return kind(self.plan, public, engine)

    def record(self, reception: Reception, round_index: int, public: PublicSet | None) -> dict[str, Any]:  # noqa: ARG002
        """How the server read what it received; if the labels are known, the share of right ones before and after its
        model learned them."""
        estimate = reception.estimate
        if estimate is None or estimate.facts is None:
            return {}
        kept: dict[str, Any] = {"features": estimate.facts}
        if public is not None and public.hidden_labels is not None:
            rows = {"received": estimate.labels, "broadcast": estimate.predictions}
            right = {name: share_right(each, public.hidden_labels) for name, each in rows.items() if each is not None}
            kept["labels_right"] = right
        return kept


def public_embedding(plan: Plan, samples: Tensor, engine: Engine) -> Embedding | ClusterEmbedding:
    """The embedding of a plan's feature means, fitted on the public samples; a second call remembers the first."""
    made = clusters_of if isinstance(plan.uplink.payload, ClusterMeans) else embedding_of
    return made(plan, samples, engine)


def embedding_of(plan: Plan, samples: Tensor, engine: Engine) -> Embedding:
    """The embedding that a plan names, fitted on the public samples; a second call remembers the first."""
    payload, name = plan.uplink.payload, declared_public(plan.scenario).embedding
    assert isinstance(payload, FeatureMeans | HeadUpdate)
    if name == "auto":
        name = "patches" if samples.ndim == 4 else "raw"
    return fit_embedding(name, samples, payload.dimensions, engine=engine, seed=EMBEDDING_SEED)


def clusters_of(plan: Plan, samples: Tensor, engine: Engine) -> ClusterEmbedding:
    """The clusters of the public samples; a second call remembers the first."""
    payload = plan.uplink.payload
    assert isinstance(payload, ClusterMeans)
    return fit_clusters(samples, payload.dimensions, engine, EMBEDDING_SEED)


def own_embedding_digest(plan: Plan, samples: Tensor) -> str:
    """The digest of the user's own networks in the embedding that a plan names; empty without any."""
    payload, name = plan.uplink.payload, declared_public(plan.scenario).embedding
    is_own = isinstance(payload, FeatureMeans | HeadUpdate) and name not in ("auto", CLUSTERS)
    return own_networks_digest(name, samples, EMBEDDING_SEED) if is_own else ""


def device_vector(payload: FeatureMeans, features: FloatArray, labels: IntArray, counts: IntArray) -> FloatArray:
    """F of one device, `[entry]`, from its features `[sample, feature]`, labels and declared class counts `[class]`.

    F^k = (1/√(n_k n)) Σ clip(φ(x), ρ_s), then the whole vector is clipped to ρ. Declared counts divide, whatever the
    device holds; with private counts those that it holds, and τ·√(n_k/n) follows. A sample whose features are not all
    finite counts as zero. So do negative features if the payload has none.
    """
    num_classes = payload.fleet.num_classes
    if payload.has_private_counts:
        counts = np.bincount(labels, minlength=num_classes)
    # Zero, not an error: that would reveal such a sample, and one infinite number would make the whole vector NaN.
    features = np.where(np.isfinite(features).all(axis=1, keepdims=True), features, 0.0)
    if payload.neighbours.forbids_negative_entries:
        features = np.maximum(features, 0.0)
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    clipped = features * (payload.sample_bound / np.maximum(norms, payload.sample_bound))
    sums = np.zeros((num_classes, features.shape[1]))
    np.add.at(sums, labels, clipped)
    scale = np.sqrt(counts * counts.sum(), dtype=np.float64)
    sums = np.where(counts[:, None] > 0, sums / np.maximum(scale, 1.0)[:, None], 0.0)
    sums *= payload.norm_bound / max(float(np.linalg.norm(sums)), payload.norm_bound)
    if not payload.has_private_counts:
        return sums.ravel()
    return np.concatenate([sums.ravel(), payload.count_norm * class_weights(counts[None])[0]])


class FeatureReceiver:
    """Pools what was received over rounds, reads it, and broadcasts predictions or a model.

    `linear` reads by linear discriminant analysis and broadcasts the class probabilities. `learning` also uses the
    unlabelled public samples, and teaches a model.
    """

    def __init__(self, plan: Plan, public: PublicSet, engine: Engine) -> None:
        payload, declared = plan.uplink.payload, declared_public(plan.scenario)
        assert isinstance(payload, FeatureMeans)
        self._plan, self._payload, self._engine = plan, payload, engine
        self._samples = to_tensor(public.samples, engine.dtype, engine.device)
        embedding = self._embed()
        self._facts: dict[str, str | int | float] = {"embedding": embedding.digest}
        self._facts["embedding_bytes"] = embedding.num_bytes
        self._student = _student_of(plan, public, engine) if plan.scenario.learning.receiver == "learning" else None
        self._sends_model = declared.broadcast == "model"
        self._forget_rows()

    def _embed(self) -> Embedding | ClusterEmbedding:
        """Embed the public samples."""
        embedding = embedding_of(self._plan, self._samples, self._engine)
        self._features = _as_features(embedding, self._samples)
        return embedding

    def _forget_rows(self) -> None:
        num_classes = self._payload.fleet.num_classes
        self._pooled = np.zeros(self._payload.vector_length)
        self._weights = np.zeros(num_classes)
        self._sampling = np.zeros(num_classes)
        self._information = 0.0

    def estimate(self, received: FloatArray, noise_var: FloatArray) -> Estimate:
        return self.estimate_weighted(received, noise_var, self._payload.nominal_weights)

    def estimate_weighted(self, received: FloatArray, noise_var: FloatArray, weights: FloatArray) -> Estimate:
        """From the sum `[1, entry]` of vectors with these weights `[device, 1]` to what is broadcast."""
        if np.isfinite(received).all():
            self._add(received[0], float(noise_var[0]), weights[:, 0])
        if self._information == 0:
            return self._without_rows()
        means = self._received_means()
        if len(means.held) == 0:
            # No device that holds any class has joined so far.
            return replace(self._without_rows(), facts={**self._facts, "reading": "none"})
        if self._student is None:
            name, labels = self._read_linearly(means)
            return Estimate(labels, predictions=labels, labels=labels, facts={**self._facts, "reading": name})
        reading = self._read(means)
        model = self._student.taught(reading.probabilities)
        predictions = self._student.predictions(model)
        return Estimate(
            flat_weights(model)[None] if self._sends_model else predictions,
            predictions=predictions,
            labels=reading.probabilities,
            facts={**self._facts, "reading": reading.method, "read_dimensions": reading.dimensions},
        )

    def _without_rows(self) -> Estimate:
        """What is broadcast before anything was received: nothing."""
        return Estimate(np.full((len(self._features), self._payload.fleet.num_classes), np.nan))

    def _read_linearly(self, means: ReceivedMeans) -> tuple[str, FloatArray]:
        """The name of the reading, and class probabilities from the received rows alone."""
        return "lda", lda(means, self._features)

    def _read(self, means: ReceivedMeans) -> Reading:
        return read_class_features(means, self._features, self._engine.workers)

    def _add(self, received: FloatArray, noise_var: float, weights: FloatArray) -> None:
        """Pool a round by the inverse of its noise, in units of the sum over all devices."""
        payload = self._payload
        relative = weights / payload.nominal_weights[:, 0]
        information = 1.0 / max(noise_var, 1e-30)
        self._pooled += information * received
        self._weights += information * (relative @ payload.class_weights)
        self._sampling += information * (relative**2 @ payload.sampling_error)
        self._information += information

    def _received_means(self) -> ReceivedMeans:
        """What was received so far, as the sum over all devices."""
        payload, num_devices = self._payload, self._payload.fleet.num_devices
        rows, noisy_weights = payload.split(num_devices * self._pooled / self._information)
        noise_var = num_devices**2 / self._information
        counts = payload.fleet.class_counts.sum(axis=0)
        weights, shares, weights_var = self._weights / self._information, counts / counts.sum(), 0.0
        sampling = self._sampling / self._information
        if payload.has_private_counts:
            # Nothing of the true counts may be used here: the noisy weights take their place.
            noisy = noisy_weights / payload.count_norm
            weights, weights_var = likely_weights(noisy, noise_var / payload.count_norm**2)
            shares = np.maximum(weights, 1e-3 * weights.max())
            shares = shares / shares.sum()
            sampling = weights / np.median(payload.fleet.class_counts.sum(axis=1))
        return ReceivedMeans(rows, weights, noise_var, sampling, shares, weights_var)

    def state(self) -> dict[str, FloatArray]:
        information = np.array(self._information)
        return {
            "pooled": self._pooled,
            "weights": self._weights,
            "sampling": self._sampling,
            "information": information,
        }

    def restore(self, state: dict[str, FloatArray]) -> None:
        self._pooled, self._weights, self._sampling = (state[name].copy() for name in ("pooled", "weights", "sampling"))
        self._information = float(state["information"])


class ClusterReceiver(FeatureReceiver):
    """Reads which class each cluster of the public samples has. Only `learning` looks at their features as well."""

    def _embed(self) -> ClusterEmbedding:
        found = clusters_of(self._plan, self._samples, self._engine)
        self._codes, self._public = found.codes(), found.public
        self._features = self._codes
        return found

    def _read_linearly(self, means: ReceivedMeans) -> tuple[str, FloatArray]:
        found = read_clusters(means, self._codes, self._public, mixture=False)
        return found.method, found.probabilities

    def _read(self, means: ReceivedMeans) -> Reading:
        return read_clusters(means, self._codes, self._public, mixture=True)


def likely_weights(noisy: FloatArray, noise_var: float) -> tuple[FloatArray, float]:
    """The expected weights `[class]` given noisy ones, and their variance: shrunk towards the mean of all classes.

    Without it, noise would make classes that devices hold look like classes that no device holds. The largest weight
    always exceeds its deviation, and so at least one class is read: the transmission is paid for already.
    """
    mean = max(float(noisy.mean()), math.sqrt(noise_var / len(noisy)))
    signal = max(float(noisy.var()) - noise_var, 0.0)
    kept = signal / (signal + noise_var) if signal > 0 else 0.0
    weights = np.maximum(mean + kept * (noisy - mean), 0.0)
    return weights, min(kept * noise_var, 0.99 * float(weights.max()) ** 2)


class OwnFeatureReceiver(FeatureReceiver):
    """Reads the first round in the public embedding, and every later one in features of the model sent before it.

    A later reading is multiplied by what that model predicts. The model is all that it remembers: it has learned from
    earlier rounds, whose rows are of other features.
    """

    def __init__(self, plan: Plan, public: PublicSet, engine: Engine) -> None:
        super().__init__(plan, public, engine)
        assert self._student is not None  # public.later needs a broadcast model, which was checked
        check_has_linear_layer(self._student.untrained())
        check_separate(self._student.untrained(), self._samples)
        self._sent: FloatArray | None = None  # weights of the model that devices have
        self._predicted: FloatArray | None = None  # by this model

    def estimate_weighted(self, received: FloatArray, noise_var: FloatArray, weights: FloatArray) -> Estimate:
        if self._sent is not None:
            self._forget_rows()
            self._use_own_features(self._sent)
        made = super().estimate_weighted(received, noise_var, weights)
        if np.isfinite(made.knowledge).all():
            self._sent = made.knowledge[0]
        return made

    def _use_own_features(self, weights: FloatArray) -> None:
        assert self._student is not None
        model = self._student.untrained()
        set_flat_weights(model, weights)
        own = OwnFeatures.fit(model, self._samples, self._payload.dimensions, self._engine.chunk_samples)
        self._features, self._predicted = own.features(self._samples)[:, : own.rank], self._student.predictions(model)

    def _without_rows(self) -> Estimate:
        """The untrained model if the first round was lost: devices and server must embed by the same one."""
        if self._sent is not None:
            return super()._without_rows()
        assert self._student is not None
        return Estimate(flat_weights(self._student.untrained())[None])

    def _read(self, means: ReceivedMeans) -> Reading:
        if self._predicted is None:
            return super()._read(means)
        found = read_with(_OWN_FEATURES, means, PublicFeatures.of(self._features))
        both = [np.log(np.maximum(each, _LEAST_PROBABILITY)) for each in (found, self._predicted)]
        return Reading(softmax(sum(both), axis=1), _OWN_FEATURES.method, self._features.shape[1])

    def state(self) -> dict[str, FloatArray]:
        sent = {} if self._sent is None else {"sent": self._sent}
        return {**super().state(), **sent}

    def restore(self, state: dict[str, FloatArray]) -> None:
        super().restore(state)
        self._sent = state["sent"].copy() if "sent" in state else None


def _as_features(embedding: Embedding | ClusterEmbedding, samples: Any) -> FloatArray:
    return np.asarray(embedding.features(samples).cpu().numpy(), dtype=np.float64)


def _student_of(plan: Plan, public: PublicSet, engine: Engine) -> Student:
    name = declared_public(plan.scenario).server_model or plan.scenario.model_names[0]
    return Student(name, public.samples, plan.fleet.num_classes, engine, plan.scenario.seed)
