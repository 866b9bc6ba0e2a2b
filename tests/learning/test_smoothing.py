"""Rows pooled over alike samples: the filter against Gaussian regression written out, and what it does on digits."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from airdistill.data.datasets import load_dataset
from airdistill.learning.patches import Modes, features_of, likeliest_signal, neighbour_graph, smoothed


@pytest.fixture(scope="module")
def digits():
    mnist = load_dataset("mnist")
    return mnist.x_test[:600], mnist.y_test[:600]


@pytest.fixture(scope="module")
def modes(digits):
    return Modes.of(features_of(digits[0][:, None]))


def graph_by_definition(features, neighbours):
    """With loops."""
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


def test_the_graph_is_as_defined():
    features = np.random.default_rng(0).standard_normal((40, 6))
    found = neighbour_graph(features, 5).toarray()
    np.testing.assert_allclose(found, graph_by_definition(features, 5), atol=1e-12)
    np.testing.assert_allclose(found, found.T)
    assert np.linalg.eigvalsh(found).max() == pytest.approx(1)


def test_the_modes_are_the_graphs(modes):
    assert modes.vectors.T @ modes.vectors == pytest.approx(np.eye(600), abs=1e-9)
    assert modes.eigenvalues.max() == pytest.approx(1)


def test_smoothing_is_gaussian_regression_with_the_likeliest_kernel():
    """Posterior mean K(K + vI)⁻¹r with K = c'(I − αS)⁻², for the α and c' of greatest likelihood by brute force."""
    rng = np.random.default_rng(1)
    features = np.concatenate([rng.standard_normal((25, 4)) + centre for centre in 4 * np.eye(4)[:3]])
    rows = np.repeat(np.eye(3), 25, axis=0) + 0.6 * rng.standard_normal((75, 3))
    noise_var, graph = 0.36, neighbour_graph(features, 6).toarray()
    centred = rows - rows.mean(axis=0)
    best = (-np.inf, None)
    for reach in (0.9, 0.95, 0.98, 0.99, 0.995, 0.998):
        inverse = np.linalg.inv(np.eye(75) - reach * graph)
        kernel = inverse @ inverse
        kernel = kernel / np.trace(kernel) * 75
        for size in np.geomspace(1e-3, 1e3, 49):
            covariance = size * noise_var * kernel + noise_var * np.eye(75)
            likelihood = sum(multivariate_normal(cov=covariance).logpdf(column) for column in centred.T)
            if likelihood > best[0]:
                best = likelihood, np.linalg.solve(covariance, centred).T @ (size * noise_var * kernel)
    found = smoothed(rows, noise_var, Modes.of(features))
    np.testing.assert_allclose(found, best[1].T, atol=1e-8)


def test_where_there_is_no_signal_nearly_nothing_is_left():
    rng = np.random.default_rng(2)
    eigenvalues = np.linspace(-0.5, 1, 500)
    squares = rng.chisquare(10, 500) / 10 * 0.3
    signal = likeliest_signal(squares, 0.3, eigenvalues)
    assert (signal / (signal + 0.3)).mean() < 0.02


def test_without_noise_rows_stay(modes, digits):
    rows = np.eye(10)[digits[1]]
    np.testing.assert_allclose(smoothed(rows, 0.0, modes), rows - rows.mean(axis=0), atol=1e-9)


@pytest.mark.parametrize(("deviation", "least"), [(0.1, 0.88), (0.3, 0.70)])
def test_pooled_rows_tell_the_digits(digits, modes, deviation, least):
    """A fifth of the devices vote for the right digit."""
    rng, labels = np.random.default_rng(3), digits[1]
    rows = 0.2 * np.eye(10)[labels] + deviation * rng.standard_normal((600, 10))
    raw, found = (float((each.argmax(axis=1) == labels).mean()) for each in (rows, smoothed(rows, deviation**2, modes)))
    assert found > least
    assert found > raw + 0.2


def test_patches_find_alike_digits_better_than_pixels(digits):
    images, labels = digits

    def purity(features):
        graph = neighbour_graph(features, 10).toarray()
        return float(((graph > 0) * (labels[:, None] == labels)).sum() / (graph > 0).sum())

    assert purity(features_of(images[:, None])) > purity(images.reshape(600, -1).astype(float)) + 0.03


@pytest.mark.parametrize("shape", [(30, 7), (30, 1, 8, 8)])
def test_what_is_no_image_or_too_small_a_one_is_its_own_feature(shape):
    samples = np.random.default_rng(4).uniform(-3, 3, shape)
    found = features_of(samples)
    assert found.shape == (30, np.prod(shape[1:]))
    assert np.corrcoef(found.ravel(), samples.ravel())[0, 1] == pytest.approx(1)


def test_empty_images_have_features_too():
    assert np.isfinite(features_of(np.zeros((20, 1, 28, 28)))).all()
