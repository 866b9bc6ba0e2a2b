"""Classes of whole clusters of public samples, from received class sums in strong noise.

Public samples cluster by themselves. If received rows are too noisy to tell where a class mean lies, they still tell
which clusters it is likely to be the mean of: there are few such choices.

1. `spectral_clusters`: k-means on the leading eigenvectors of the graph of neighbours (Ng, Jordan and Weiss, 2001).
2. `class_probabilities`: the posterior over all ways to give each cluster a class, by annealed Metropolis chains.
3. `clustered_labels`: the geometric mean over clusterings into different numbers of clusters.

Chains and starts are drawn from fixed seeds: the same rows always have the same reading. No label is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.linalg import eigsh

from airdistill.arrays import FloatArray, IntArray

# Clusters and eigenvectors for each class.
_CLUSTERINGS = ((1.0, 1.0), (1.2, 1.2), (1.5, 1.2), (2.0, 2.0))
_STARTS, _PASSES = 5, 30  # of k-means
_DENSE = 10  # samples for each eigenvector up to which all of them are computed
_MOST_CHAINS, _LEAST_CHAINS, _CHAIN_NUMBERS = 48, 8, 2**18
_STEPS, _STEPS_OF_CLUSTER, _SAMPLED, _EVERY = 1500, 75, 1 / 3, 10
_HOTTEST, _HOTTEST_PRIOR = 20.0, 3.0  # temperatures at the start of the annealing
_SHARE_ERROR = 0.25  # standard deviation of a class share, relative to it: clusters do not split samples exactly
_TOGETHER = 2000.0  # weight of the variance between classes, in spectral coordinates of length 1
_LEAST_PROBABILITY = 1e-3  # so that no single clustering rules a class out
_TINY = 1e-12


@dataclass(frozen=True)
class Clusters:
    """Clusters of samples: `of_sample` `[sample]`, and the mean spectral coordinates of each, `[cluster, mode]`."""

    of_sample: IntArray
    centres: FloatArray


def clustered_labels(
    rows: FloatArray, weights: FloatArray, noise_var: float, shares: FloatArray, features: FloatArray, graph: csr_array
) -> FloatArray:
    """Class probabilities `[sample, class]` from rows R_k ~ N(s·h_k·m_k, noise) `[class, direction]`.

    `weights` are h and `shares` the class shares, `[class]`; the scale s is unknown.
    """
    logits = np.zeros((len(features), len(rows)))
    for clusters in spectral_clusters(graph, len(rows)):
        assigned = np.eye(len(clusters.centres))[clusters.of_sample]
        means = assigned.T @ features / assigned.sum(axis=0)[:, None]
        grams = means @ means.T, clusters.centres @ clusters.centres.T
        evidence = Evidence(assigned.mean(axis=0), means @ rows.T, *grams, weights, shares, noise_var)
        found = class_probabilities(evidence)
        logits += np.log(np.maximum(found, _LEAST_PROBABILITY))[clusters.of_sample]
    powers = np.exp((logits - logits.max(axis=1, keepdims=True)) / len(_CLUSTERINGS))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def spectral_clusters(graph: csr_array, num_classes: int) -> list[Clusters]:
    """Clusterings of the samples of a normalised graph into different numbers of clusters; none is empty."""
    num_samples = graph.shape[0]
    vectors = _leading_vectors(graph, max(round(modes * num_classes) for _, modes in _CLUSTERINGS))
    found = []
    for clusters, modes in _CLUSTERINGS:
        points = _on_sphere(vectors[:, : round(modes * num_classes)])
        of_sample = _k_means(points, min(num_samples, round(clusters * num_classes)), np.random.default_rng(1))
        names, of_sample = np.unique(of_sample, return_inverse=True)
        assigned = np.eye(len(names))[of_sample]
        found.append(Clusters(of_sample, assigned.T @ points / assigned.sum(axis=0)[:, None]))
    return found


def one_clustering(graph: csr_array, num_clusters: int, num_vectors: int) -> IntArray:
    """The cluster `[sample]` of every sample of a normalised graph, from that many eigenvectors."""
    points = _on_sphere(_leading_vectors(graph, num_vectors))
    return _k_means(points, num_clusters, np.random.default_rng(1)).astype(np.int64)


def _leading_vectors(graph: csr_array, count: int) -> FloatArray:
    """Eigenvectors `[sample, vector]` of the largest eigenvalues, the largest first."""
    num_samples = graph.shape[0]
    if num_samples <= _DENSE * count:
        return np.asarray(np.linalg.eigh(graph.toarray())[1][:, ::-1][:, :count])
    # A fixed start vector: the solver's random one would make the rounding irreproducible.
    start = np.random.default_rng(0).standard_normal(num_samples)
    values, vectors = eigsh(graph, k=count, which="LA", v0=start)
    return np.asarray(vectors[:, np.argsort(-values)])


def _on_sphere(points: FloatArray) -> FloatArray:
    return np.asarray(points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), _TINY))


def _k_means(points: FloatArray, num_clusters: int, rng: np.random.Generator) -> IntArray:
    """The cluster of every point, by the best of several starts of k-means++."""
    best, best_cost = np.zeros(len(points), dtype=np.int64), np.inf
    for _ in range(_STARTS):
        centres = points[rng.integers(len(points), size=1)]
        while len(centres) < num_clusters:
            nearest = np.maximum(_distances(points, centres).min(axis=1), _TINY)
            centres = np.concatenate([centres, points[rng.choice(len(points), size=1, p=nearest / nearest.sum())]])
        for _ in range(_PASSES):
            assigned = np.eye(num_clusters)[_distances(points, centres).argmin(axis=1)]
            counts = assigned.sum(axis=0)[:, None]
            centres = np.where(counts > 0, assigned.T @ points / np.maximum(counts, 1), centres)
        distances = _distances(points, centres)
        if (cost := float(distances.min(axis=1).sum())) < best_cost:
            best, best_cost = distances.argmin(axis=1), cost
    return best


def _distances(points: FloatArray, centres: FloatArray) -> FloatArray:
    """Squared distances `[point, centre]`."""
    inner = points @ centres.T
    return np.asarray((points**2).sum(axis=1)[:, None] - 2 * inner + (centres**2).sum(axis=1))


@dataclass(frozen=True)
class Evidence:
    """What is known about the classes of clusters with means z_c, sizes `[cluster]` and spectral centres u_c.

    `inner` has R_k · z_c `[cluster, class]`, `gram` z_c · z_c' and `closeness` u_c · u_c' `[cluster, cluster]`.
    """

    sizes: FloatArray  # shares of the samples
    inner: FloatArray
    gram: FloatArray
    closeness: FloatArray
    weights: FloatArray
    shares: FloatArray
    noise_var: float

    def scores(self, classes: IntArray) -> tuple[FloatArray, FloatArray]:
        """The log likelihood of the rows and the log prior `[chain]` of clusters with these classes `[chain, cluster]`.

        The likelihood is the highest over all s ≥ 0. By the prior the class shares are as given, up to an error, and
        the clusters of a class lie close together.
        """
        of_class = (classes[:, None, :] == np.arange(len(self.shares))[:, None]) * self.sizes  # [chain, class, cluster]
        mass = np.maximum(of_class.sum(axis=2), _TINY)
        matched = (self.weights * (of_class * self.inner.T).sum(axis=2) / mass).sum(axis=1)
        length = (self.weights**2 * _squares(of_class, self.gram) / mass**2).sum(axis=1)
        uneven = (((mass - self.shares) / (_SHARE_ERROR * self.shares)) ** 2).sum(axis=1)
        together = (_squares(of_class, self.closeness) / mass).sum(axis=1)
        likelihood = np.maximum(matched, 0.0) ** 2 / (2 * self.noise_var * length + _TINY)
        return likelihood, _TOGETHER * together - uneven / 2


def _squares(of_class: FloatArray, gram: FloatArray) -> FloatArray:
    """‖Σ_c w_c z_c‖² `[chain, class]` of weights `[chain, class, cluster]`."""
    chains, classes, clusters = of_class.shape
    flat = of_class.reshape(-1, clusters)
    return np.asarray(np.einsum("ij,ij->i", flat @ gram, flat).reshape(chains, classes))


def class_probabilities(evidence: Evidence) -> FloatArray:
    """Posterior probabilities `[cluster, class]`: the share of states of Metropolis chains.

    A chain changes the class of a cluster, exchanges the classes of two clusters, or exchanges two classes. All chains
    cool down from a high temperature first.
    """
    rng = np.random.default_rng(0)
    num_clusters, num_classes = evidence.inner.shape
    num_chains = int(np.clip(_CHAIN_NUMBERS // (num_clusters**2 * num_classes), _LEAST_CHAINS, _MOST_CHAINS))
    steps = max(_STEPS, _STEPS_OF_CLUSTER * num_clusters)
    cooling = steps - round(_SAMPLED * steps)
    classes = rng.integers(num_classes, size=(num_chains, num_clusters))
    likelihood, prior = evidence.scores(classes)
    visits = np.zeros((num_clusters, num_classes))
    for step in range(steps):
        heat = max(1.0, _HOTTEST * (1 - step / cooling))
        proposed = _proposed(classes, num_classes, rng)
        likelihoods, priors = evidence.scores(proposed)
        gain = (likelihoods - likelihood) / heat + (priors - prior) / min(heat, _HOTTEST_PRIOR)
        accepted = np.log(rng.random(num_chains)) < gain
        classes = np.where(accepted[:, None], proposed, classes)
        likelihood, prior = np.where(accepted, likelihoods, likelihood), np.where(accepted, priors, prior)
        if step >= cooling and step % _EVERY == 0:
            visits += np.eye(num_classes)[classes].sum(axis=0)
    return np.asarray(visits / visits.sum(axis=1, keepdims=True))


def _proposed(classes: IntArray, num_classes: int, rng: np.random.Generator) -> IntArray:
    """One symmetric proposal for the classes `[chain, cluster]` of every chain."""
    num_chains, num_clusters = classes.shape
    chains, move = np.arange(num_chains), rng.random()
    if move < 0.4:
        proposed = classes.copy()
        proposed[chains, rng.integers(num_clusters, size=num_chains)] = rng.integers(num_classes, size=num_chains)
        return proposed
    if move < 0.65:
        proposed = classes.copy()
        first, second = rng.integers(num_clusters, size=(2, num_chains))
        proposed[chains, first], proposed[chains, second] = classes[chains, second], classes[chains, first]
        return proposed
    one, other = rng.integers(num_classes, size=(2, num_chains, 1))
    return np.where(classes == one, other, np.where(classes == other, one, classes))
