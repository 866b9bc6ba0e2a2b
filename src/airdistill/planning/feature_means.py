"""Class means of public features, theory section 10: what a device sends without having trained anything.

The embedding φ is fixed before any private sample is looked at, and so one record moves the payload by a known amount:
the paper's own argument, in a setting where it is true.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from airdistill.arrays import FloatArray, IntArray, divide_or
from airdistill.errors import InputError
from airdistill.files import place_of
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.payload import OneVector, declared_public
from airdistill.planning.transceiver.required_noise import VectorRequiredNoise
from airdistill.privacy.neighbours import CLUSTER_MEANS, FEATURE_MEANS, LATER_FEATURE_MEANS
from airdistill.privacy.sensitivity import ConstantShift, feature_means_sensitivity
from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario
from airdistill.scenario.sections import Public

IMAGE_EMBEDDINGS = ("patches", "contrastive")
CONTRASTIVE_FEATURES = 64  # of the network that a CPU trains; that of a GPU has more, but a plan is for both
CLUSTERS = "clusters"
EMBEDDINGS = ("raw", "random", *IMAGE_EMBEDDINGS, CLUSTERS)
# Candidates of "auto". More than 256 add noise faster than they tell classes apart.
_WIDTHS = (256, 192, 128, 96, 64, 48, 32, 24, 16)
_LEAST_SNR = 0.08  # of an entry of a class sum; chosen on seeds from 100 on, docs/feature-reading.md
_SAMPLES_PER_FEATURE = 4  # public samples: a covariance of fewer is mostly noise
_COUNT_SHARE = 0.5  # τ/ρ of private counts: costs 6 % more noise (theory section 10)
# Clusters for each class: fewer mix classes, and more leave too little of a signal in each. The clip makes the vectors
# of all devices equally long, however many clusters their classes have. Below the evidence public labels are read
# better from clusters, which fewer samples of each hardly show. Chosen on seeds 100 to 105: docs/feature-embeddings.md.
_CLUSTERS_OF_CLASS, _CLUSTER_CLIP = 2, math.sqrt(1 / 2)
_CLUSTER_EVIDENCE, _SAMPLES_OF_CLUSTER, _MOST_CLASSES = 4.0, 10, 32
# Whitened class means have Σ_k π_k ‖m_k‖² ≤ K − 1; features of images reach a quarter (CIFAR-10) to two thirds of it
# (MNIST). A clip below a device's norm costs nothing in the guarantee of whole devices: signal and noise shrink alike.
LEAST_BETWEEN, MOST_BETWEEN = 1 / 4, 2 / 3


@dataclass(frozen=True)
class FeatureMeans(OneVector):
    """F_i^k = (1/√(n_ik n_i)) Σ φ(x): one vector of K·d entries, every device's weight 1/M.

    Every φ(x) is clipped to `sample_bound` and the whole vector to `norm_bound`. With private counts K entries follow,
    τ·√(n_ik/n_i) with τ = `count_norm`; otherwise `count_norm` is 0. The planned noise protects whole devices under the
    model "device", and one record under "class_mean".
    """

    dimensions: int
    norm_bound: float
    sample_bound: float
    count_norm: float = 0.0
    model: str = "device"

    kind = "feature_means"
    neighbours = FEATURE_MEANS
    receivers = ("linear", "learning")
    needs_public_set = True
    hides_counts = True
    error_label = "Error of a feature"
    words = "feature means"

    @classmethod
    def for_scenario(cls, scenario: Scenario, fleet: RealisedFleet, vector_length: int | None) -> FeatureMeans:
        """The payload; `vector_length` is that of `length_for`, or of a stored plan."""
        model, public = scenario.privacy.sensitivity, declared_public(scenario)
        if model not in ("device", "class_mean"):
            rule = 'feature means protect whole devices, "device", or one record, "class_mean"'
            raise InputError("privacy.sensitivity", model, rule)
        _check_public_set(public, fleet.num_classes)
        check_reading(scenario)
        is_private = scenario.privacy.counts == "private"
        if is_private and scenario.fleet.participation_hidden:
            rule = 'the amplified guarantee is for the features alone: set it to "public"'
            raise InputError("privacy.counts", "private", rule)
        if public.embedding == CLUSTERS:
            _check_clusters(scenario, fleet)
        if vector_length is None:
            return _of_width(scenario, fleet, num_features(scenario, fleet))
        return _of_width(scenario, fleet, vector_length // fleet.num_classes - is_private)

    @classmethod
    def chosen(cls, scenario: Scenario, fleet: RealisedFleet) -> Scenario:
        """With clusters as the embedding, if it is left to the planner and little evidence is foreseen."""
        public = declared_public(scenario)
        given = public.embedding != "auto" or public.features != "auto" or public.feature_norm or public.sample_norm
        other = public.later == "features" or scenario.fleet.participation_hidden or ":" in scenario.learning.receiver
        few = public.samples < _SAMPLES_OF_CLUSTER * _CLUSTERS_OF_CLASS * fleet.num_classes
        if given or other or few or not 1 < fleet.num_classes <= _MOST_CLASSES:
            return scenario
        width = num_features(scenario, fleet)
        if math.sqrt(width * entry_snr(scenario, fleet, width)) >= _CLUSTER_EVIDENCE:
            return scenario
        return changed(scenario, {"public": {"embedding": CLUSTERS}})

    @classmethod
    def length_for(cls, scenario: Scenario, fleet: RealisedFleet, shape: tuple[int, ...]) -> int | None:
        width = embedding_width(scenario, fleet, shape)
        return fleet.num_classes * (width + (scenario.privacy.counts == "private"))

    @property
    def vector_length(self) -> int:
        return self.fleet.num_classes * (self.dimensions + (1 if self.has_private_counts else 0))

    @property
    def has_private_counts(self) -> bool:
        return self.count_norm > 0

    @property
    def largest_norm(self) -> float:
        return math.hypot(self.norm_bound, self.count_norm)

    @property
    def diameter(self) -> float:
        return float(self.sensitivity("device").max())

    def sensitivity(self, model: str) -> FloatArray:
        """How far one device's vector moves, `[device]`: of another device's data, or of one changed record."""
        counts = self.fleet.class_counts
        clips = self.norm_bound, self.sample_bound, self.count_norm
        return feature_means_sensitivity(counts, model, *clips, self.neighbours.unit_distance)

    def shift(self, model: str) -> ConstantShift:
        return ConstantShift((self.nominal_weights * self.sensitivity(model)[:, None]) ** 2)

    def required_noise(self, split: bool, alone: bool, floor: FloatArray | None) -> VectorRequiredNoise:  # noqa: ARG002
        return VectorRequiredNoise(self.shift(self.model), self.fleet.mu)

    def over_fleet(self, of_row: FloatArray) -> FloatArray:
        return np.asarray(self.fleet.num_devices * of_row[..., 0])

    @property
    def class_weights(self) -> FloatArray:
        """a_ik = √(n_ik/n_i) of the declared counts, `[device, class]`."""
        return class_weights(self.fleet.class_counts)

    @property
    def sampling_error(self) -> FloatArray:
        """a_ik²/n_ik = 1/n_i of the classes that a device holds: the variance of F_i^k per unit of S_w."""
        counts = self.fleet.class_counts
        return np.where(counts > 0, 1.0 / counts.sum(axis=1, keepdims=True), 0.0)

    def split(self, vectors: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The features `[..., class, feature]` and the weights `[..., class]` in vectors `[..., entry]`.

        The weights are τ·a, without any entry if counts are public.
        """
        num_classes = self.fleet.num_classes
        features, weights = np.split(vectors, [num_classes * self.dimensions], axis=-1)
        return features.reshape(*vectors.shape[:-1], num_classes, self.dimensions), weights

    def problem(self, vectors: FloatArray) -> str | None:
        """Features and weights have a bound each: their sum alone would allow a longer one of either."""
        if not self.has_private_counts:
            return None
        features, weights = self.split(vectors[:, 0])
        norms = np.linalg.norm(features.reshape(len(features), -1), axis=1)
        if (norms > self.norm_bound * (1 + 1e-4)).any():
            device, most = int(norms.argmax()), f"at most {self.norm_bound:.6g}"
            return f"device {device} would send features of norm {norms[device]:.6g}: they must have {most}"
        lengths = np.linalg.norm(weights, axis=1)
        if (weights < 0).any() or (lengths > self.count_norm * (1 + 1e-4)).any():
            return f"weights must not be negative, and of norm {self.count_norm:.6g} at most: it is {lengths.max():.6g}"
        return None

    def reference_bounds(self, device: int) -> dict[str, FloatArray]:
        return {"one record, theory section 10": self.sensitivity("class_mean")[[device]]}

    def squared_length(self, between: float, held: IntArray) -> float:
        """‖m_k‖² = between·(K − 1), as far as the clip of the median device leaves it; `held` classes per device."""
        apart = between * _classes_apart(self.fleet)
        return apart * min(1.0, self.norm_bound**2 / (apart + self.dimensions * _sampling(self.fleet, held)))

    def header(self) -> dict[str, Any]:
        sizes = {"dimensions": self.dimensions, "norm": self.norm_bound, "sample_norm": self.sample_bound}
        return {"features": {**sizes, "count_norm": self.count_norm}}


class ClusterMeans(FeatureMeans):
    """The same with shares of clusters of the public samples in place of features: `dimensions` is their number.

    φ(x) has the entry 1 at the cluster of x and zeros elsewhere. Vectors without negative entries are at most √2 times
    their norm apart, not twice: at the same privacy a class sum exceeds the noise √2 times as far.
    """

    neighbours = CLUSTER_MEANS

    def squared_length(self, between: float, held: IntArray) -> float:  # noqa: ARG002
        """Of the shares of a class that has its part of the clusters for itself, as far as the clip leaves it. It
        hardly depends on how far apart classes are: shares of clusters with several classes are as long."""
        return min(self.norm_bound**2, 1.0, self.fleet.num_classes / self.dimensions)


class LaterFeatureMeans(FeatureMeans):
    """The same, sent in the public embedding first and then in features of the server's model of the round before."""

    neighbours = LATER_FEATURE_MEANS


def class_weights(class_counts: IntArray | FloatArray) -> FloatArray:
    """a_ik = √(n_ik/n_i), `[device, class]`: every device's squares sum to 1."""
    return np.asarray(np.sqrt(class_counts / class_counts.sum(axis=1, keepdims=True)))


def _of_width(scenario: Scenario, fleet: RealisedFleet, dimensions: int) -> FeatureMeans:
    public, model = declared_public(scenario), scenario.privacy.sensitivity
    kind: type[FeatureMeans] = LaterFeatureMeans if public.later == "features" else FeatureMeans
    clips = default_norm_bound(fleet, held_classes(scenario, fleet), dimensions, model), math.sqrt(dimensions)
    if public.embedding == CLUSTERS:
        kind, clips = ClusterMeans, (_cluster_norm_bound(fleet, dimensions, model), 1.0)
    bound, sample_bound = public.feature_norm or clips[0], public.sample_norm or clips[1]
    count_norm = _COUNT_SHARE * bound if scenario.privacy.counts == "private" else 0.0
    return kind(fleet, dimensions, bound, sample_bound, count_norm, model)


def _cluster_norm_bound(fleet: RealisedFleet, dimensions: int, model: str) -> float:
    """ρ below the length √(K/C) of shares of classes that have as many clusters each; 1, which is the length of one
    sample, if the noise is for one record and does not fall with ρ."""
    return 1.0 if model != "device" else _CLUSTER_CLIP * math.sqrt(min(1.0, fleet.num_classes / dimensions))


def held_classes(scenario: Scenario, fleet: RealisedFleet) -> IntArray:
    """The number of classes of every device; if counts are private, nothing may follow from the true ones."""
    if scenario.privacy.counts == "private":
        return np.full(fleet.num_devices, scenario.data.classes_per_device or fleet.num_classes)
    return np.asarray(np.count_nonzero(fleet.class_counts, axis=1))


def embedding_width(scenario: Scenario, fleet: RealisedFleet, shape: tuple[int, ...]) -> int:
    """d for samples of this shape. Raise `InputError` if the scenario's embedding cannot be made of them."""
    public = declared_public(scenario)
    _check_public_set(public, fleet.num_classes)
    for part in public.embedding.split("+"):
        _check_embedding(public.embedding, part, shape)
    if public.embedding == CLUSTERS:
        return num_features(scenario, fleet)
    is_raw = public.embedding == "raw" or (public.embedding == "auto" and len(shape) == 1)
    widest = math.prod(shape) if is_raw else None
    if public.embedding == "contrastive" and public.features == "auto":
        widest = CONTRASTIVE_FEATURES
    return num_features(scenario, fleet, widest)


def num_features(scenario: Scenario, fleet: RealisedFleet, widest: int | None = None) -> int:
    """d: as given; or the most that the public samples can whiten, that the embedding has, and that the foreseen noise
    leaves a signal-to-noise ratio of 0.08 in an entry."""
    public = declared_public(scenario)
    most = public.samples // _SAMPLES_PER_FEATURE
    if public.features == "auto" and public.embedding == CLUSTERS:
        return min(_CLUSTERS_OF_CLASS * fleet.num_classes, most)
    if public.features == "auto":
        widths = [min(width, most, most if widest is None else widest) for width in _WIDTHS]
        return next((width for width in widths if entry_snr(scenario, fleet, width) >= _LEAST_SNR), widths[-1])
    if public.features > most:
        rule = (
            f"{public.samples} public samples can whiten at most {most} features, a quarter of them; set it to {most} "
            "or less, or raise public.samples"
        )
        raise InputError("public.features", public.features, rule)
    if widest is not None and public.features > widest:
        rule = f"a sample has {widest} numbers, the width of the embedding raw; lower it, or choose a wider embedding"
        raise InputError("public.features", public.features, rule)
    return public.features


def check_reading(scenario: Scenario) -> None:
    """Raise unless the scenario's receiver can read feature means, and devices can use what it broadcasts."""
    public, receiver, models = declared_public(scenario), scenario.learning.receiver, scenario.model_names
    if receiver not in FeatureMeans.receivers and ":" not in receiver:
        names = ", ".join(FeatureMeans.receivers)
        rule = f"cannot read feature means: one of {names}, or your own as package.module:Class"
        raise InputError("learning.receiver", receiver, rule)
    if public.own_predictions and (public.broadcast == "model" or scenario.learning.local_epochs == 0):
        rule = 'needs broadcast = "predictions", and learning.local_epochs of 1 or more for a model of the device'
        raise InputError("public.own_predictions", True, rule)
    if public.broadcast != "model":
        return
    if receiver == "linear":
        rule = 'needs learning.receiver = "learning": a linear receiver has no model'
        raise InputError("public.broadcast", "model", rule)
    server = public.server_model or models[0]
    others = sorted({name for name in models if name != server})
    if others:
        rule = f"devices with another model ({', '.join(others)}) than the server's ({server}) cannot take it over"
        raise InputError("public.broadcast", "model", f'{rule}; set it to "predictions"')


def _check_embedding(name: str, part: str, shape: tuple[int, ...]) -> None:
    if part in IMAGE_EMBEDDINGS and len(shape) == 1:
        rule = f"needs images, not vectors of {shape[0]} numbers; use raw, random, or a network of your own"
        raise InputError("public.embedding", name, rule)
    if part == CLUSTERS and name != CLUSTERS:
        raise InputError("public.embedding", name, f"{CLUSTERS} cannot be part of a sum: use {CLUSTERS} alone")
    if part in EMBEDDINGS or part == "auto" or ":" in part or place_of(name).is_file():
        return
    rule = (
        f"must be one of {', '.join(EMBEDDINGS)}, an existing TorchScript file (net.pt), package.module:function, "
        "package.module:function@weights.safetensors, or a sum such as patches+contrastive"
    )
    raise InputError("public.embedding", name, rule)


def _check_clusters(scenario: Scenario, fleet: RealisedFleet) -> None:
    """Raise unless clusters can be made, sent and read as the scenario asks."""
    public, clusters = declared_public(scenario), num_features(scenario, fleet)
    if clusters < fleet.num_classes:
        rule = f"{clusters} clusters cannot tell {fleet.num_classes} classes apart: ask for at least as many"
        raise InputError("public.features", public.features, f"{rule}, from four times as many public samples")
    if fleet.num_classes > _MOST_CLASSES:
        rule = f"is read for at most {_MOST_CLASSES} classes, not {fleet.num_classes}; choose another embedding"
        raise InputError("public.embedding", CLUSTERS, rule)
    if public.later == "features":
        raise InputError("public.later", "features", f'is not for embedding = "{CLUSTERS}": set it to "repeat"')
    if scenario.fleet.participation_hidden:
        rule = f'secret participation is planned for features of any sign, not for embedding = "{CLUSTERS}": set it '
        raise InputError("fleet.participation_hidden", True, rule + "to false, or choose another embedding")


def has_own_embedding(scenario: Scenario) -> bool:
    """Whether the scenario names an embedding of the user's own."""
    public = scenario.public
    return public is not None and any(part not in ("auto", *EMBEDDINGS) for part in public.embedding.split("+"))


def default_norm_bound(fleet: RealisedFleet, held: IntArray, dimensions: int, model: str) -> float:
    """ρ ≈ √(‖m‖² + d·K_held/n_i) of the median device: the length of its class means, and of their sampling error.

    `held` is the number of classes of every device. Noise for one record does not fall with ρ, which then clips little.
    """
    share = LEAST_BETWEEN if model == "device" else MOST_BETWEEN
    return math.sqrt(share * _classes_apart(fleet) + dimensions * _sampling(fleet, held))


def entry_snr(scenario: Scenario, fleet: RealisedFleet, dimensions: int) -> float:
    """Mean square of an entry of a class sum over that of the noise that privacy requires, at most: the means of all
    classes are taken to be as long as those of easy data, and classes to be spread evenly.

    h_k² = M² K_held/K², ‖m_k‖² = 2/3 (K − 1), shortened by the clip; the noise of the sum is (shift/μ)².
    """
    payload, held = _of_width(scenario, fleet, dimensions), held_classes(scenario, fleet)
    weight = fleet.num_devices**2 * float(np.median(held)) / fleet.num_classes**2
    noise = float((payload.sensitivity(payload.model) / fleet.mu).max()) ** 2
    rounds = scenario.learning.rounds if isinstance(scenario.learning.rounds, int) else 1
    # Rows of the same features are pooled over the rounds; those of others are read one by one.
    noise *= rounds if isinstance(payload, LaterFeatureMeans) else 1
    return weight * payload.squared_length(MOST_BETWEEN, held) / (dimensions * noise) if noise else math.inf


def _classes_apart(fleet: RealisedFleet) -> int:
    return max(fleet.num_classes - 1, 1)


def _sampling(fleet: RealisedFleet, held: IntArray) -> float:
    """K_held/n_i of the median device."""
    return float(np.median(divide_or(held.astype(np.float64), fleet.class_counts.sum(axis=1), 0.0)))


def _check_public_set(public: Public, num_classes: int) -> None:
    if public.later == "features" and public.broadcast != "model":
        rule = 'devices need the server\'s model for its features: set public.broadcast = "model", or this to "repeat"'
        raise InputError("public.later", "features", rule)
    least = max(num_classes, _SAMPLES_PER_FEATURE)
    if public.samples < least:
        rule = f"features of {num_classes} classes need at least {least} public samples"
        raise InputError("public.samples", public.samples, rule)
