"""Clusters of the public samples as an embedding: a sample becomes the cluster of its nearest public neighbours.

1. Public samples are embedded by patches (images) or as they are (vectors), whitened, and connected with their nearest
   neighbours (`class_features.PublicFeatures`).
2. They are divided into C clusters by k-means on the leading eigenvectors of this graph (`public_clusters`).
3. Any other sample belongs to the cluster that most of its nearest public neighbours are in. Its features are one 1 and
   zeros: no entry is negative, which is what the bound of `ClusterMeans` rests on.

Nothing here takes labels.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from airdistill.arrays import FloatArray, IntArray
from airdistill.errors import InputError
from airdistill.learning.class_features import NEIGHBOURS, PublicFeatures
from airdistill.learning.embeddings import LEAST_VARIANCE, SAMPLES_OF_FEATURE, Embedding, fit_embedding
from airdistill.learning.fits import digest_of, remembered
from airdistill.learning.fleet import Engine
from airdistill.learning.public_clusters import one_clustering

_VERSION = 1  # of the clusters that are kept: raised when the same samples would get other ones
_WIDTH = 256  # of the features in which neighbours are found, at most: they are not sent, and so noise does not matter
_MODES_OF_CLUSTER = 0.6  # eigenvectors for each cluster
_AT_ONCE = 4096  # samples whose neighbours are found together


@dataclass(frozen=True, eq=False)
class ClusterEmbedding:
    """Clusters of public samples, and the cluster of any other sample.

    `of_public` `[public sample]` are their clusters, `public` their features and graph. `num_bytes` is what sending the
    embedding and the clusters to the devices, which have the public samples, costs once.
    """

    width: int
    digest: str
    num_bytes: int
    of_public: IntArray
    public: PublicFeatures
    _embedding: Embedding = field(repr=False)
    _metric: Tensor = field(repr=False)  # [feature, direction]
    _points: Tensor = field(repr=False)  # [public sample, direction]

    def features(self, samples: Tensor, chunk: int = 0) -> Tensor:
        """One row `[sample, cluster]` with a single 1 for each sample.

        If one record of a data set is replaced, all other rows are computed by the same operations on the same numbers:
        they do not change, not even by rounding.
        """
        embedded = self._embedding.features(samples, chunk).double() @ self._metric
        parts = [self._clusters(part) for part in torch.split(embedded, _AT_ONCE)]
        return torch.eye(self.width)[torch.cat(parts)] if len(embedded) else torch.zeros(0, self.width)

    def _clusters(self, points: Tensor) -> Tensor:
        """The most frequent cluster among the nearest public samples of each point, the first one if there are two."""
        nearest = torch.cdist(points, self._points).topk(min(NEIGHBOURS, len(self._points)), largest=False).indices
        votes = torch.eye(self.width)[torch.from_numpy(self.of_public)[nearest]].sum(dim=1)
        return votes.argmax(dim=1)

    def codes(self) -> FloatArray:
        """The rows of the public samples themselves, each in its own cluster."""
        return np.eye(self.width)[self.of_public]


def fit_clusters(samples: Tensor, num_clusters: int, engine: Engine, seed: int) -> ClusterEmbedding:
    """Divide public samples into clusters."""
    base = "patches" if samples.ndim == 4 else "raw"
    spectrum = fit_embedding(base, samples, 1, engine=engine, seed=seed).spectrum
    rank = int((spectrum > LEAST_VARIANCE * spectrum[0]).sum())
    width = min(_WIDTH, len(samples) // SAMPLES_OF_FEATURE, rank)
    embedding = fit_embedding(base, samples, width, engine=engine, seed=seed)
    public = PublicFeatures.of(embedding.features(samples).double().numpy())
    found = _remembered_clusters(public, num_clusters, embedding.digest)
    if (used := len(np.unique(found))) < num_clusters:
        rule = f"the public samples form {used} clusters only; ask for at most {used}, or choose another embedding"
        raise InputError("public.features", num_clusters, rule)
    metric = torch.from_numpy(public.rotation * np.sqrt(public.correlation))
    digest = digest_of({"clusters": torch.from_numpy(found)}, embedding.digest)
    # The metric follows from the public samples; their clusters are sent as a 32-bit number each.
    num_bytes = embedding.num_bytes + 4 * len(samples)
    points = torch.from_numpy(public.features * np.sqrt(public.correlation))
    return ClusterEmbedding(num_clusters, digest, num_bytes, found, public, embedding, metric, points)


def _remembered_clusters(public: PublicFeatures, num_clusters: int, digest: str) -> IntArray:
    """Devices and server, and all seeds of a comparison, use the same clusters."""

    def fit() -> dict[str, Tensor]:
        vectors = round(_MODES_OF_CLUSTER * num_clusters)
        return {"clusters": torch.from_numpy(one_clustering(public.graph, num_clusters, vectors))}

    return remembered(f"{_VERSION} clusters {num_clusters} {digest}", fit)["clusters"].numpy()
