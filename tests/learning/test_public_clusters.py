"""Classes of whole clusters: posteriors by enumeration, scores by least squares, and a reading that noise defeated."""

import itertools

import numpy as np
import pytest

from airdistill.learning import class_features
from airdistill.learning.class_features import PublicFeatures, ReceivedMeans, read_class_features
from airdistill.learning.patches import neighbour_graph
from airdistill.learning.public_clusters import Evidence, class_probabilities, spectral_clusters


def evidence_of(rng, num_clusters=4, num_classes=3, noise_var=2.0):
    """Evidence of clusters at random places, and what it was made of."""
    means, centres = rng.standard_normal((num_clusters, 5)), 0.02 * rng.standard_normal((num_clusters, 2))
    rows, weights = rng.standard_normal((num_classes, 5)) * 3, rng.uniform(1, 3, num_classes)
    sizes, shares = rng.dirichlet(np.full(num_clusters, 9.0)), rng.dirichlet(np.full(num_classes, 9.0))
    grams = means @ means.T, centres @ centres.T
    evidence = Evidence(sizes, means @ rows.T, *grams, weights, shares, noise_var)
    return evidence, means, centres, rows


def test_scores_are_those_of_least_squares_and_of_the_variance_between_classes():
    rng = np.random.default_rng(0)
    evidence, means, centres, rows = evidence_of(rng)
    classes = np.array([[0, 1, 2, 1], [2, 1, 0, 0]])
    likelihoods, priors = evidence.scores(classes)
    for chain, of_cluster in enumerate(classes):
        taken = [np.flatnonzero(of_cluster == k) for k in range(3)]
        of_class = np.stack([np.average(means[each], axis=0, weights=evidence.sizes[each]) for each in taken])
        signal = (evidence.weights[:, None] * of_class).ravel()
        scale = max(np.linalg.lstsq(signal[:, None], rows.ravel(), rcond=None)[0][0], 0.0)
        residual = ((rows.ravel() - scale * signal) ** 2).sum()
        expected = ((rows**2).sum() - residual) / (2 * evidence.noise_var)
        assert likelihoods[chain] == pytest.approx(expected, rel=1e-9)
        mass = np.array([evidence.sizes[each].sum() for each in taken])
        within = sum(
            evidence.sizes[c]
            * ((centres[c] - np.average(centres[each], axis=0, weights=evidence.sizes[each])) ** 2).sum()
            for each in taken
            for c in each
        )
        between = (evidence.sizes * (centres**2).sum(axis=1)).sum() - within
        uneven = (((mass - evidence.shares) / (0.25 * evidence.shares)) ** 2).sum()
        assert priors[chain] == pytest.approx(2000 * between - uneven / 2, rel=1e-9)


def test_chains_visit_classes_as_often_as_all_states_together_have_them():
    evidence = evidence_of(np.random.default_rng(1), noise_var=30.0)[0]
    states = np.array(list(itertools.product(range(3), repeat=4)))
    score = sum(evidence.scores(states))
    share = np.exp(score - score.max())
    share /= share.sum()
    expected = np.einsum("s,sck->ck", share, np.eye(3)[states])
    assert 0.05 < expected.max(axis=1).min() < 0.95  # no trivial posterior
    np.testing.assert_allclose(class_probabilities(evidence), expected, atol=0.06)


def test_clusters_are_the_components_of_a_graph():
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(4), 60)
    points = 8 * np.eye(4)[labels] + rng.standard_normal((240, 4))
    first = spectral_clusters(neighbour_graph(points, 8), 4)[0]
    assert len(first.centres) == 4
    assert len(set(zip(first.of_sample.tolist(), labels.tolist(), strict=True))) == 4


@pytest.mark.parametrize("num_samples", [2, 5, 40])
def test_few_samples_have_clusters_too(num_samples):
    points = np.random.default_rng(3).standard_normal((num_samples, 3))
    for clusters in spectral_clusters(neighbour_graph(points, min(5, num_samples - 1)), 3):
        assert set(clusters.of_sample.tolist()) == set(range(len(clusters.centres)))
        assert np.isfinite(clusters.centres).all()


def strong_noise(seed, num_classes=8, evidence=2.1):
    """Whitened features of a mixture, labels, and rows in which a class mean is `evidence` deviations long."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=800)
    places = 3.5 * np.linalg.qr(rng.standard_normal((40, num_classes)))[0].T
    points = places[labels] + rng.standard_normal((800, 40))
    centred = points - points.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred / 800)
    features = (centred @ vectors / np.sqrt(values))[:, ::-1]
    means = np.stack([features[labels == k].mean(axis=0) for k in range(num_classes)])
    weights, counts = np.full(num_classes, 7.0), np.bincount(labels)
    deviation = 7 * np.linalg.norm(means, axis=1).mean() / evidence
    rows = 7 * means + deviation * rng.standard_normal(means.shape)
    return ReceivedMeans(rows, weights, deviation**2, np.zeros(num_classes), counts / 800), features, labels


def single_readings(received, features):
    """The geometric mean of the readings that know no clusters."""
    settings, public = class_features._POOLED, PublicFeatures.of(features)
    product = np.prod([np.maximum(class_features.read_with(each, received, public), 1e-6) for each in settings], axis=0)
    powers = product ** (1 / len(settings))
    return powers / powers.sum(axis=1, keepdims=True)


def right(probabilities, labels):
    return np.mean(probabilities.argmax(axis=1) == labels)


def test_clusters_recover_classes_that_single_readings_confuse():
    with_clusters, without = [], []
    for seed in (0, 1):
        received, features, labels = strong_noise(seed)
        with_clusters.append(right(read_class_features(received, features).probabilities, labels))
        without.append(right(single_readings(received, features), labels))
    assert right(read_class_features(received, features, workers=2).probabilities, labels) == with_clusters[-1]
    assert np.mean(with_clusters) > 0.78
    assert np.mean(without) < 0.7


def test_without_signal_all_classes_are_equally_likely_for_every_cluster():
    evidence = evidence_of(np.random.default_rng(4), noise_var=1e12)[0]
    alike = Evidence(
        np.full(4, 0.25), evidence.inner, evidence.gram, 0 * evidence.gram, np.ones(3), np.full(3, 1 / 3), 1e12
    )
    np.testing.assert_allclose(class_probabilities(alike), 1 / 3, atol=0.06)


def test_evidence_is_the_length_of_a_class_mean_over_the_noise():
    for expected in (8.0, 16.0):
        received, features, _ = strong_noise(0, evidence=expected)
        found = class_features.evidence(received, PublicFeatures.of(features))
        assert found == pytest.approx(expected, rel=0.1)


def test_clusters_count_in_strong_noise_alone():
    weights = [class_features.cluster_weight(each) for each in (0.5, 3.3, 4.5, 6.0, 20.0)]
    assert weights[0] > 0.99
    assert weights[1] == pytest.approx(0.5)
    assert 0.05 < weights[2] < 0.2
    assert weights[3:] == [0.0, 0.0]
    received, features, _ = strong_noise(1, evidence=12.0)
    found = read_class_features(received, features).probabilities
    np.testing.assert_allclose(found, single_readings(received, features), rtol=1e-9)
