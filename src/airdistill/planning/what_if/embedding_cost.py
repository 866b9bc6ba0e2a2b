"""What-if for feature means: what sending the public embedding to the devices costs, once, before it is fitted.

The numbers in an embedding follow from the shape of the samples, the number of public samples and d alone. The sizes of
its parts are those of `learning/base_features.py` and `learning/contrastive.py`, which need PyTorch;
`tests/planning/test_embedding_cost.py` compares them with fitted embeddings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from airdistill.data.public import load_data
from airdistill.planning.feature_means import CLUSTERS, FeatureMeans
from airdistill.planning.payload import declared_public
from airdistill.planning.plan import Plan
from airdistill.planning.updates import HeadUpdate

_BYTES = 4  # of a number in single precision
_PATCH = 6  # pixels along a patch
_CENTRES, _CENTRES_GREY, _FEWEST_CENTRES, _SAMPLES_OF_CENTRE = 800, 400, 50, 3
_REGIONS, _REGIONS_GREY = 2, 4  # along an axis
_RANDOM = 2048
_ENCODER_WIDTH = {"cpu": 16, "cuda": 96}
_CLUSTER_FEATURES = 256  # in which the neighbours of clusters are found, at most
_SAMPLES_OF_FEATURE = 4


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
