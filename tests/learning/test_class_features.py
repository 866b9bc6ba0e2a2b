"""Reading class means of public features: each formula against another computation of the same."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize_scalar
from scipy.sparse import csr_array
from scipy.stats import multivariate_normal, norm

from airdistill.learning.class_features import (
    Prior,
    PublicFeatures,
    ReceivedMeans,
    Settings,
    coupled,
    evidence,
    map_means,
    prior_of,
    read_class_features,
    read_with,
    split,
    within_covariance,
)

SHARES = np.array([0.5, 0.3, 0.2])
CLIPPED = 1.3  # what the rows are multiplied by; the largest factor that the reading tries


def world(seed=0, num_samples=3000, spread=1.6):
    """Whitened features of three Gaussian classes `[sample, feature]`, their labels and exact class means."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, num_samples, p=SHARES)
    points = spread * np.eye(3, 5)[labels] + rng.standard_normal((num_samples, 5)) * [1, 1, 1, 2, 0.5]
    centred = points - points.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred / num_samples)
    features = (centred @ vectors / np.sqrt(values))[:, ::-1]
    return features, labels, np.stack([features[labels == k].mean(axis=0) for k in range(3)])


def received_of(means, noise_var=1e-12, sampling=0.0, seed=1):
    weights = np.array([7.0, 5.0, 4.0])
    noise = np.random.default_rng(seed).standard_normal(means.shape) * np.sqrt(noise_var + sampling)
    rows = CLIPPED * weights[:, None] * means + noise
    return ReceivedMeans(rows, weights, noise_var, np.full(3, sampling), SHARES)


def test_discriminant_analysis_is_bayes_rule_of_gaussians_with_one_covariance():
    features, labels, means = world()
    within = np.eye(5) - (means.T * SHARES) @ means  # the total covariance is I
    density = np.stack(
        [share * multivariate_normal(mean, within).pdf(features) for share, mean in zip(SHARES, means, strict=True)],
        axis=1,
    )
    found = read_with(Settings("lda", 1.0), received_of(means), PublicFeatures.of(features))
    np.testing.assert_allclose(found, density / density.sum(axis=1, keepdims=True), atol=1e-4)
    assert np.mean(found.argmax(axis=1) == labels) > 0.6


def test_a_class_that_no_device_holds_has_no_probability():
    features, _, means = world()
    received = received_of(means)
    received.weights[1] = 0.0
    found = read_with(Settings("map_em", 1.0, 0.3), received, PublicFeatures.of(features))
    assert not found[:, 1].any()
    np.testing.assert_allclose(found.sum(axis=1), 1)


def test_classes_whose_noisy_weight_is_below_its_noise_do_not_count():
    rows, weights = np.zeros((3, 5)), np.array([3.1, 2.9, 0.0])
    for weights_var, held in ((0.0, [0, 1]), (9.0, [0]), (16.0, [])):
        assert ReceivedMeans(rows, weights, 1.0, np.zeros(3), SHARES, weights_var).held.tolist() == held


def test_the_prior_shrinks_rows_by_their_signal_and_more_if_they_are_noisier():
    features, _, means = world()
    public = PublicFeatures.of(features)
    clean, noisy = (prior_of(received_of(means, noise_var), np.arange(3), public, 1.0) for noise_var in (1e-12, 4.0))
    np.testing.assert_allclose(clean.mean @ public.rotation.T, means, atol=1e-4)
    # Of a Gaussian, 1/var is the precision of the row plus that of the signal: never above that of the row alone.
    assert (noisy.var > clean.var).all()
    assert (clean.var >= 0).all()


def test_means_of_the_mixture_are_where_the_posterior_is_highest():
    rng = np.random.default_rng(3)
    features, assigned = rng.standard_normal((40, 5)), rng.dirichlet(np.ones(3), 40)
    factor = rng.standard_normal((5, 5))
    inverse, weight = factor @ factor.T + np.eye(5), 0.05
    prior = Prior(rng.standard_normal((3, 5)), rng.uniform(0.1, 1, (3, 5)), SHARES)

    def log_posterior(flat):
        means = flat.reshape(3, 5)
        from_rows = -0.5 * ((means - prior.mean) ** 2 / prior.var).sum()
        apart = features[:, None] - means
        return from_rows - 0.5 * weight * (assigned * np.einsum("nkd,de,nke->nk", apart, inverse, apart)).sum()

    found = map_means(assigned, features, inverse, prior, weight)
    assert np.abs(approx_fprime(found.ravel(), log_posterior, 1e-6)).max() < 1e-3
    assert np.abs(approx_fprime(prior.mean.ravel(), log_posterior, 1e-6)).max() > 0.1


def test_the_covariance_within_classes_is_that_of_the_assigned_samples():
    features, labels, means = world(num_samples=500)
    assigned = 0.9 * np.eye(3)[labels] + 0.1 / 3
    apart = features[:, None] - means
    expected = np.einsum("nk,nkd,nke->de", assigned, apart, apart) / len(features)
    np.testing.assert_allclose(within_covariance(assigned, features, means), expected, atol=1e-10)


def test_the_two_halves_of_a_split_have_independent_noise():
    zeros = np.zeros((3, 4000))
    received = received_of(zeros, noise_var=2.0, sampling=1.0)
    fit, held_out = split(received, np.random.default_rng(2))
    for half in (fit, held_out):
        assert half.rows.var() == pytest.approx(half.noise_var + half.sampling[0], rel=0.06)
    correlation = np.corrcoef(fit.rows.ravel(), held_out.rows.ravel())[0, 1]
    assert abs(correlation) < 4 / np.sqrt(12000)
    assert np.corrcoef(fit.rows.ravel(), received.rows.ravel())[0, 1] > 0.8  # of which the split is made


def test_evidence_is_the_likelihood_ratio_at_the_likeliest_scale():
    features, labels, means = world(num_samples=300)
    held_out, probabilities = received_of(means, noise_var=3.0, sampling=0.5), np.eye(3)[labels]
    deviation = np.sqrt(3.5)

    def log_ratio(scale):
        mean = scale * held_out.weights[:, None] * means
        rows = held_out.rows
        return float((norm.logpdf(rows, mean, deviation) - norm.logpdf(rows, 0, deviation)).sum())

    best = minimize_scalar(lambda scale: -log_ratio(scale), bounds=(0, 5), method="bounded")
    assert evidence(probabilities, held_out, features) == pytest.approx(-best.fun, rel=1e-6)


def test_coupled_probabilities_agree_with_their_neighbours():
    rng = np.random.default_rng(4)
    graph = csr_array(np.full((6, 6), 1 / 6))
    settings, logits = Settings("lda", 1.0, temper=0.3, coupling=2.0), rng.standard_normal((6, 3))
    found = coupled(logits, graph, settings)
    powers = np.exp(settings.temper * logits + settings.coupling * (graph @ found))
    np.testing.assert_allclose(found, powers / powers.sum(axis=1, keepdims=True), atol=1e-3)


def test_the_reading_is_chosen_and_scored_by_rows_that_it_has_not_seen():
    features, labels, means = world(num_samples=600, spread=2.5)
    reading = read_class_features(received_of(means, noise_var=1.0), features, np.random.default_rng(0))
    assert reading.score > 0
    assert np.mean(reading.probabilities.argmax(axis=1) == labels) > 0.8
    scrambled = received_of(np.random.default_rng(5).permuted(means, axis=1), noise_var=1.0)
    assert read_class_features(scrambled, features, np.random.default_rng(0)).score < reading.score
