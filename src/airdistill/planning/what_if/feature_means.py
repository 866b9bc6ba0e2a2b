"""What-if for feature means: how sure the reading of the class sums is, and what sending the embedding costs.

The server receives R_k = h_k m_k + noise, and unlabelled public samples show which means are possible. Whether the
right one is recognised depends on ‖h_k m_k‖ over the noise per entry, and hardly on the number of entries.

The numbers in an embedding, which is sent once before it is fitted, follow from the shape of the samples, the number of
public samples and d alone. The sizes of its parts are those of `learning/base_features.py` and
`learning/contrastive.py`, which need PyTorch; `tests/planning/test_embedding_cost.py` compares them with fitted
embeddings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from airdistill.data.public import load_data
from airdistill.planning.feature_means import (
    CLUSTERS,
    LEAST_BETWEEN,
    MOST_BETWEEN,
    ClusterMeans,
    FeatureMeans,
    LaterFeatureMeans,
    held_classes,
)
from airdistill.planning.payload import declared_public
from airdistill.planning.plan import Plan
from airdistill.planning.updates import HeadUpdate

# Measured, 12 runs each with 3000 public samples of ten classes (docs/feature-reading.md): evidence, and the share of
# public labels read rightly, mean, least and most. Beyond the first value hardly any classes are confused; below the
# second whole classes are, and which ones is chance.
_PLENTY, _TOO_LITTLE = 5.0, 2.5
_MEASURED = (0.92, 1.7, 2.47, 3.17, 5.58, 6.42, 19.8)
_HARD = ((0.28, 0.08, 0.44), (0.45, 0.27, 0.62), (0.63, 0.48, 0.74), (0.71, 0.52, 0.78), (0.81, 0.77, 0.84),
         (0.82, 0.79, 0.84), (0.85, 0.84, 0.86))  # fmt: skip
_EASY = ((0.36, 0.24, 0.61), (0.66, 0.42, 0.95), (0.91, 0.68, 0.97), (0.94, 0.87, 0.97), (0.95, 0.92, 0.97),
         (0.95, 0.94, 0.96), (0.97, 0.96, 0.97))  # fmt: skip
# The same with clusters: 16 runs at 2.3 with seven public sets of MNIST, otherwise 6 runs with one.
_MEASURED_CLUSTERS = (2.3, 3.7)
_HARD_CLUSTERS = ((0.47, 0.33, 0.65), (0.66, 0.58, 0.7))
_EASY_CLUSTERS = ((0.78, 0.38, 0.97), (0.96, 0.95, 0.97))
_BYTES = 4  # of a number in single precision
_PATCH = 6  # pixels along a patch
_CENTRES, _CENTRES_GREY, _FEWEST_CENTRES, _SAMPLES_OF_CENTRE = 800, 400, 50, 3
_REGIONS, _REGIONS_GREY = 2, 4  # along an axis
_RANDOM = 2048
_ENCODER_WIDTH = {"cpu": 16, "cuda": 96}
_CLUSTER_FEATURES = 256  # in which the neighbours of clusters are found, at most
_SAMPLES_OF_FEATURE = 4


@dataclass(frozen=True)
class Foreseen:
    """h_k‖m_k‖ of the median class over the received noise per entry, of all rounds whose sums are pooled.

    `right`, `least` and `most` are the shares of right public labels that were measured at this evidence on `like`.
    """

    evidence: float
    like: str
    right: float
    least: float
    most: float


@dataclass(frozen=True)
class FeatureEvidence:
    """The evidence of data whose classes are a quarter of the greatest distance apart, and two thirds of it."""

    hard: Foreseen
    easy: Foreseen
    verdict: str  # "enough", "scarce" or "faint"


def feature_evidence(plan: Plan) -> FeatureEvidence | None:
    """The evidence of a plan for feature means; None for other plans, and for plans without noise."""
    payload, fleet = plan.uplink.payload, plan.fleet
    noise_var = float(np.median(plan.forecast.effective_noise_var))
    if not isinstance(payload, FeatureMeans) or noise_var == 0:
        return None
    pooled = 1 if isinstance(payload, LaterFeatureMeans) else plan.num_rounds
    deviation = fleet.num_devices * np.sqrt(noise_var / pooled)
    held = held_classes(plan.scenario, fleet)
    weights = payload.class_weights.sum(axis=0)
    # If counts are private, classes are taken to be spread evenly: nothing follows from the true ones.
    even = fleet.num_devices * np.sqrt(np.median(held)) / fleet.num_classes
    weight = even if payload.has_private_counts else np.median(weights[weights > 0])
    lengths = (np.sqrt(payload.squared_length(between, held)) for between in (LEAST_BETWEEN, MOST_BETWEEN))
    hard, easy = (float(weight * length / deviation) for length in lengths)
    verdict = "enough" if hard >= _PLENTY else "faint" if easy < _TOO_LITTLE else "scarce"
    if isinstance(payload, ClusterMeans):
        # Hard data have clusters of several classes: their sums are as long, and lie closer together.
        of_hard = _foreseen(easy, "Fashion-MNIST", _MEASURED_CLUSTERS, _HARD_CLUSTERS)
        return FeatureEvidence(of_hard, _foreseen(easy, "MNIST", _MEASURED_CLUSTERS, _EASY_CLUSTERS), verdict)
    of_hard = _foreseen(hard, "Fashion-MNIST", _MEASURED, _HARD)
    return FeatureEvidence(of_hard, _foreseen(easy, "MNIST", _MEASURED, _EASY), verdict)


def _foreseen(
    evidence: float, like: str, measured: tuple[float, ...], shares: tuple[tuple[float, float, float], ...]
) -> Foreseen:
    # Between measured values shares are interpolated, and beyond them they are those of the nearest.
    right, least, most = (float(np.interp(np.log(evidence), np.log(measured), each)) for each in np.transpose(shares))
    return Foreseen(evidence, like, right, least, most)


@dataclass(frozen=True)
class EmbeddingCost:
    """Bytes of the embedding that a plan names, fitted by a CPU and by a GPU: only the contrastive one differs.

    `features` is d, or the number of clusters. The bytes are None if the embedding has a network of the user's own.
    """

    embedding: str
    features: int
    cpu_bytes: int | None
    cuda_bytes: int | None


def embedding_cost(plan: Plan) -> EmbeddingCost | None:
    """The cost of the plan's embedding; None for plans without one, and for plans without samples."""
    payload, scenario = plan.uplink.payload, plan.scenario
    if not isinstance(payload, FeatureMeans | HeadUpdate) or scenario.data.class_counts is not None:
        return None
    dataset, _ = load_data(scenario)
    public, shape = declared_public(scenario), _with_channel(dataset.x_train.shape[1:])
    name = public.embedding
    if name == "auto":
        name = "raw" if len(shape) == 1 else "patches"
    cpu, cuda = (_bytes_of(name, shape, public.samples, payload.dimensions, device) for device in ("cpu", "cuda"))
    return EmbeddingCost(name, payload.dimensions, cpu, cuda)


def _with_channel(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1, *shape) if len(shape) == 2 else shape


def _bytes_of(name: str, shape: tuple[int, ...], samples: int, features: int, device: str) -> int | None:
    if name == CLUSTERS:
        base = "raw" if len(shape) == 1 else "patches"
        width = min(_CLUSTER_FEATURES, samples // _SAMPLES_OF_FEATURE, math.prod(shape))
        found = _bytes_of(base, shape, samples, width, device)
        return None if found is None else found + _BYTES * samples  # and the cluster of every public sample
    parts = [_part(part, shape, samples, device) for part in name.split("+")]
    if not all(parts):
        return None
    fitted, outputs = (sum(each) for each in zip(*(part for part in parts if part), strict=True))
    scale = 2 * (shape[0] if len(shape) == 3 else 1)  # the lowest number and the span of every channel
    weights = len(parts)
    numbers: int = scale + fitted + weights + outputs + outputs * features  # the last two: mean and projection
    return _BYTES * numbers


def _part(name: str, shape: tuple[int, ...], samples: int, device: str) -> tuple[int, int] | None:
    """The numbers that a part is fitted to, and those that it gives for a sample; None for a network of one's own."""
    if name == "raw":
        return 0, math.prod(shape)
    if name == "random":
        return _RANDOM * (math.prod(shape) + 1), _RANDOM
    if name == "patches":
        return _patches(shape, samples)
    return _encoder(shape[0], _ENCODER_WIDTH[device]) if name == "contrastive" else None


def _patches(shape: tuple[int, ...], samples: int) -> tuple[int, int]:
    channels, *sides = shape
    most, regions = (_CENTRES, _REGIONS) if channels == 3 else (_CENTRES_GREY, _REGIONS_GREY)
    centres = min(most, max(_FEWEST_CENTRES, samples // _SAMPLES_OF_CENTRE))
    filters = centres * channels * _PATCH**2
    pooled = math.prod(min(regions, side - _PATCH + 1) for side in sides)
    return filters + centres + 1, 2 * centres * pooled  # filter and offset of each, and the threshold


def _encoder(channels: int, width: int) -> tuple[int, int]:
    """Six convolutions of 3 × 3 pixels, and weight, offset, mean and variance of each output channel."""
    layers = [(channels, width), (width, 2 * width), (2 * width, 2 * width), (2 * width, 4 * width)]
    layers += [(4 * width, 4 * width)] * 2
    return sum(9 * before * after + 4 * after for before, after in layers), 4 * width
