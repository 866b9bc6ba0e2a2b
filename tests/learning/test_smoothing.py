"""Smoothing over similar samples: the filter against explicit Gaussian regression, and its accuracy on digits."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from airdistill.data.datasets import load_dataset
from airdistill.learning.patches import (
    GraphSpectrum,
    maximum_likelihood_signal,
    neighbour_graph,
    patch_features,
    smoothed,
)


@pytest.fixture(scope="module")
def digits():
    mnist = load_dataset("mnist")
    return mnist.x_test[:600], mnist.y_test[:600]


@pytest.fixture(scope="module")
def spectrum(digits):
    return GraphSpectrum.of(patch_features(digits[0][:, None]))


def graph_by_definition(features, neighbours):
    """The graph's matrix, computed with loops."""
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    distance = 1 - unit @ unit.T
    np.fill_diagonal(distance, np.inf)
    nearest = np.argsort(distance, axis=1)[:, :neighbours]
    scale = np.mean([distance[i, near[-1]] for i, near in enumerate(nearest)])
    weights = np.zeros_like(distance)
    for i, near in enumerate(nearest):
        for j in near:
            weights[i, j] = weights[j, i] = np.exp(-distance[i, j] / scale)
    root = np.sqrt(weights.sum(axis=1))
    return weights / root[:, None] / root[None, :]


def test_the_graph_equals_its_definition():
    features = np.random.default_rng(0).standard_normal((40, 6))
    found = neighbour_graph(features, 5).toarray()
    np.testing.assert_allclose(found, graph_by_definition(features, 5), atol=1e-12)
    np.testing.assert_allclose(found, found.T)
    assert np.linalg.eigvalsh(found).max() == pytest.approx(1)


@pytest.mark.parametrize("noise_var", [0.0, 1e-6, 0.04, 9.0])
@pytest.mark.parametrize("parts", [1, 3])
def test_smoothing_by_polynomials_equals_smoothing_by_eigenvectors(parts, noise_var):
    """Also of a graph in three parts, which has the eigenvalue 1 three times."""
    rng = np.random.default_rng(5)
    count = 200 // parts * parts
    features = np.kron(np.eye(parts), np.ones((200 // parts, 2))) + 0.01 * rng.uniform(size=(count, 2 * parts))
    rows = np.eye(10)[np.arange(count) % 7] + noise_var**0.5 * rng.standard_normal((count, 10))
    whole = GraphSpectrum.of(features)
    values, vectors = np.linalg.eigh(whole.graph.toarray())
    assert np.sum(values > 1 - 1e-9) >= parts
    expected = smoothed(rows, noise_var, GraphSpectrum(whole.graph, values, vectors))
    np.testing.assert_allclose(smoothed(rows, noise_var, whole), expected, atol=1e-9)


def test_eigenvalues_are_those_of_the_graph(spectrum):
    assert spectrum.eigenvalues == pytest.approx(np.linalg.eigvalsh(spectrum.graph.toarray()), abs=1e-12)


def test_smoothing_is_gaussian_regression_with_the_maximum_likelihood_kernel():
    """Posterior mean K(K + vI)⁻¹r with K = c'(I − αS)⁻², with the maximum-likelihood α and c' by brute force."""
    rng = np.random.default_rng(1)
    features = np.concatenate([rng.standard_normal((25, 4)) + centre for centre in 4 * np.eye(4)[:3]])
    rows = np.repeat(np.eye(3), 25, axis=0) + 0.6 * rng.standard_normal((75, 3))
    noise_var, graph = 0.36, neighbour_graph(features, 6).toarray()
    centred = rows - rows.mean(axis=0)
    best = (-np.inf, None)
    for alpha in (0.9, 0.95, 0.98, 0.99, 0.995, 0.998):
        inverse = np.linalg.inv(np.eye(75) - alpha * graph)
        kernel = inverse @ inverse
        kernel = kernel / np.trace(kernel) * 75
        for ratio in np.geomspace(1e-3, 1e3, 49):
            covariance = ratio * noise_var * kernel + noise_var * np.eye(75)
            likelihood = sum(multivariate_normal(cov=covariance).logpdf(column) for column in centred.T)
            if likelihood > best[0]:
                best = likelihood, np.linalg.solve(covariance, centred).T @ (ratio * noise_var * kernel)
    found = smoothed(rows, noise_var, GraphSpectrum.of(features))
    np.testing.assert_allclose(found, best[1].T, atol=1e-8)


def test_pure_noise_is_shrunk_to_almost_zero():
    rng = np.random.default_rng(2)
    eigenvalues = np.linspace(-0.5, 1, 500)
    squares = rng.chisquare(10, 500) / 10 * 0.3
    signal = maximum_likelihood_signal(squares, 0.3, eigenvalues)
    assert (signal / (signal + 0.3)).mean() < 0.02


def test_without_noise_rows_are_not_shrunk(spectrum, digits):
    rows = np.eye(10)[digits[1]]
    np.testing.assert_allclose(smoothed(rows, 0.0, spectrum), rows - rows.mean(axis=0), atol=1e-9)


@pytest.mark.parametrize(("deviation", "least"), [(0.1, 0.88), (0.3, 0.70)])
def test_smoothed_rows_recover_the_digits(digits, spectrum, deviation, least):
    """A fifth of the devices vote for the correct digit."""
    rng, labels = np.random.default_rng(3), digits[1]
    rows = 0.2 * np.eye(10)[labels] + deviation * rng.standard_normal((600, 10))
    raw, found = (
        float((each.argmax(axis=1) == labels).mean()) for each in (rows, smoothed(rows, deviation**2, spectrum))
    )
    assert found > least
    assert found > raw + 0.2


def test_neighbours_by_patch_features_share_digits_more_often_than_by_pixels(digits):
    images, labels = digits

    def purity(features):
        graph = neighbour_graph(features, 10).toarray()
        return float(((graph > 0) * (labels[:, None] == labels)).sum() / (graph > 0).sum())

    assert purity(patch_features(images[:, None])) > purity(images.reshape(600, -1).astype(float)) + 0.03


@pytest.mark.parametrize("shape", [(30, 7), (30, 1, 8, 8)])
def test_samples_that_are_not_images_or_too_small_are_their_own_features(shape):
    samples = np.random.default_rng(4).uniform(-3, 3, shape)
    found = patch_features(samples)
    assert found.shape == (30, np.prod(shape[1:]))
    assert np.corrcoef(found.ravel(), samples.ravel())[0, 1] == pytest.approx(1)


def test_empty_images_have_finite_features():
    assert np.isfinite(patch_features(np.zeros((20, 1, 28, 28)))).all()
