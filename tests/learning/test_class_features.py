"""Reading class means of public features: each formula against another computation of the same."""

import numpy as np
from scipy.optimize import approx_fprime
from scipy.sparse import csr_array
from scipy.stats import multivariate_normal

from airdistill.learning import class_features
from airdistill.learning.class_features import (
    Prior,
    PublicFeatures,
    ReceivedMeans,
    Settings,
    coupled,
    map_means,
    prior_of,
    read_class_features,
    read_with,
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


def test_coupled_probabilities_agree_with_their_neighbours_and_have_the_class_shares():
    rng = np.random.default_rng(4)
    graph = csr_array(np.full((6, 6), 1 / 6))
    settings, logits = Settings("lda", 1.0, temper=0.3, coupling=2.0), rng.normal([3.0, 0.0, 0.0], 1.0, (6, 3))
    found = coupled(logits, graph, settings, SHARES)
    np.testing.assert_allclose(found.mean(axis=0), SHARES, atol=1e-3)
    # All else is as without shares: a constant for each class is what remains.
    balance = np.log(found) - settings.temper * logits - settings.coupling * (graph @ found)
    balance -= balance[:, :1]
    np.testing.assert_allclose(balance, np.broadcast_to(balance[0], balance.shape), atol=1e-3)


def test_a_reading_is_the_geometric_mean_of_several():
    features, labels, means = world(num_samples=600, spread=2.5)
    received, public = received_of(means, noise_var=1.0), PublicFeatures.of(features)
    single = [read_with(settings, received, public) for settings in class_features._POOLED]
    assert len(single) == 15
    product = np.prod([np.maximum(each, 1e-6) ** (1 / 15) for each in single], axis=0)
    for workers in (1, 3):
        found = read_class_features(received, features, workers).probabilities
        np.testing.assert_allclose(found, product / product.sum(axis=1, keepdims=True), rtol=1e-9)
    assert np.mean(found.argmax(axis=1) == labels) > 0.8


def test_a_reading_of_scrambled_rows_is_wrong():
    features, labels, means = world(num_samples=600, spread=2.5)
    scrambled = received_of(means[[1, 2, 0]], noise_var=1.0)
    assert np.mean(read_class_features(scrambled, features).probabilities.argmax(axis=1) == labels) < 0.3
