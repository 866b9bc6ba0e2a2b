import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from airdistill.data.datasets import load_dataset
from airdistill.learning.public_predictions import ClientSelector, DensityRatio, certain_rows

WIDTH = 0.7


def gram(left, right, width=WIDTH):
    return np.exp(-cdist(left, right, "sqeuclidean") / (2 * width**2))


class Objective:
    """The objective of KuLSIF for r = Σ_i c_i k(·, u_i) over known and auxiliary samples; its minimum has this form."""

    def __init__(self, known, auxiliary, strength):
        self.centres = np.concatenate([known, auxiliary])
        at_known, at_auxiliary = gram(known, self.centres), gram(auxiliary, self.centres)
        self.linear = at_known.mean(axis=0)
        self.hessian = at_auxiliary.T @ at_auxiliary / len(auxiliary) + strength * gram(self.centres, self.centres)

    def __call__(self, coefficients):
        return 0.5 * coefficients @ self.hessian @ coefficients - self.linear @ coefficients

    def minimum(self):
        def gradient(c):
            return self.hessian @ c - self.linear

        start = np.zeros(len(self.centres))
        found = minimize(
            self, start, jac=gradient, hess=lambda _: self.hessian, method="trust-exact", options={"gtol": 1e-12}
        )
        return found.x


@pytest.mark.parametrize("strength", [None, 0.3, 0.01])
@pytest.mark.parametrize(("num_known", "num_auxiliary"), [(5, 9), (12, 4), (1, 1)])
def test_the_ratio_minimises_the_objective(strength, num_known, num_auxiliary):
    rng = np.random.default_rng(num_known)
    known, auxiliary = rng.standard_normal((num_known, 3)), rng.uniform(-2, 2, (num_auxiliary, 3))
    ratio = DensityRatio.fit(known, auxiliary, WIDTH, strength)
    assert ratio.regularisation == (strength or num_auxiliary**-0.5)
    objective = Objective(known, auxiliary, ratio.regularisation)
    points = rng.standard_normal((20, 3))
    expected = gram(points, objective.centres) @ objective.minimum()
    np.testing.assert_allclose(ratio.ratio(points), expected, rtol=1e-8, atol=1e-8)


def test_multiplying_by_the_matrix_instead_of_inverting_it_is_worse():
    """As in the authors' published demo."""
    rng = np.random.default_rng(0)
    known, auxiliary, strength = rng.standard_normal((5, 3)), rng.uniform(-2, 2, (9, 3)), 0.3
    objective = Objective(known, auxiliary, strength)
    cross = -gram(auxiliary, known).sum(axis=1) / (9 * 5 * strength)
    not_inverted = (gram(auxiliary, auxiliary) / 9 + strength * np.eye(9)) @ cross
    mistaken = np.concatenate([np.full(5, 1 / (5 * strength)), not_inverted])
    ratio = DensityRatio.fit(known, auxiliary, WIDTH, strength)
    fitted = np.concatenate([np.full(5, 1 / (5 * strength)), ratio.weights])
    assert objective(fitted) < objective(mistaken) - 1e-3
    assert np.abs(gram(auxiliary, objective.centres) @ mistaken - ratio.ratio(auxiliary)).max() > 0.05


def test_the_weights_are_proportional_to_the_ratios_at_auxiliary_samples():
    """α_l = −r(z_l)/(nλ): the gradient of the objective vanishes."""
    rng = np.random.default_rng(1)
    ratio = DensityRatio.fit(rng.standard_normal((30, 2)), rng.uniform(-3, 3, (40, 2)), width=1.0)
    at_auxiliary = ratio.ratio(ratio.auxiliary)
    np.testing.assert_allclose(ratio.weights, -at_auxiliary / (40 * ratio.regularisation), rtol=1e-9, atol=1e-12)


def test_the_ratio_converges_to_the_true_ratio():
    """Known samples with density 6x(1 − x) on [0, 1], auxiliaries uniform there."""
    points = np.linspace(0.02, 0.98, 97)[:, None]
    true = 6 * points[:, 0] * (1 - points[:, 0])

    def error(count):
        squares = []
        for seed in range(5):
            rng = np.random.default_rng(seed)
            ratio = DensityRatio.fit(rng.beta(2, 2, (count, 1)), rng.uniform(0, 1, (count, 1)), width=0.2)
            squares.append((ratio.ratio(points) - true) ** 2)
        return np.sqrt(np.mean(squares))

    few, more, many = error(10), error(100), error(1000)
    assert few > 1.5 * more
    assert more > 2 * many
    assert many < 0.12


def test_many_samples_are_processed_in_chunks():
    rng = np.random.default_rng(2)
    ratio = DensityRatio.fit(rng.standard_normal((6, 2)), rng.uniform(-2, 2, (7, 2)), width=1.0)
    points = rng.standard_normal((5000, 2))
    np.testing.assert_allclose(ratio.ratio(points)[4990:], ratio.ratio(points[4990:]), rtol=1e-12)


@pytest.fixture(scope="module")
def digits():
    """MNIST scaled as for a model: training and test images, with labels."""
    mnist = load_dataset("mnist")

    def scaled(images):
        return (images / 255 - 0.1307) / 0.3081

    return scaled(mnist.x_train[:12000]), mnist.y_train[:12000], scaled(mnist.x_test[:1500]), mnist.y_test[:1500]


def device_of(digits, classes, per_class):
    images, labels = digits[:2]
    held = np.concatenate([np.flatnonzero(labels == label)[:per_class] for label in classes])
    return images[held], labels[held]


def accepted(digits, classes, per_class, **options):
    """The fractions of test images that a device accepts: of each of its classes, and of all others."""
    images, labels = digits[2:]
    chosen = ClientSelector.for_device(
        *device_of(digits, classes, per_class), np.random.default_rng(0), **options
    ).accepts(images)
    return [chosen[labels == label].mean() for label in classes], chosen[~np.isin(labels, classes)].mean()


def test_a_device_accepts_images_of_its_classes_and_few_others(digits):
    own, others = accepted(digits, (0, 1), 600)
    assert min(own) > 0.6
    assert others < 0.08
    # Threes and fives have similar pixels: the authors' selector is much weaker here than with zeros and ones.
    own, others = accepted(digits, (2, 3), 600)
    assert min(own) > 0.6
    assert 0.15 < others < 0.45


def test_the_quantile_is_the_fraction_of_own_samples_that_are_rejected(digits):
    for quantile in (0.1, 0.5, 0.9):
        own, _ = accepted(digits, (0,), 900, quantile=quantile)
        assert own[0] == pytest.approx(1 - quantile, abs=0.15)


def test_few_samples_are_split_between_ratio_and_threshold(digits):
    images, labels = device_of(digits, (0, 1), 300)
    for counts, known in [((300, 300), [40, 40]), ((60, 9), [30, 4]), ((2, 1), [1]), ((1, 1), []), ((0, 3), [1])]:
        held = np.concatenate([np.flatnonzero(labels == label)[:count] for label, count in enumerate(counts)])
        selector = ClientSelector.for_device(images[held], labels[held], np.random.default_rng(0))
        assert [len(ratio.known) for ratio in selector.ratios] == known
        chosen = selector.accepts(images)
        assert chosen.shape == (600,)
        assert chosen.any() == bool(known)


def test_a_fraction_of_many_samples_fits_the_ratio(digits):
    images, labels = device_of(digits, (1,), 1000)
    selector = ClientSelector.for_device(images, labels, np.random.default_rng(0), share=0.2, num_auxiliary=11)
    assert selector.ratios[0].known.shape == (200, 784)
    assert selector.ratios[0].auxiliary.shape == (11, 784)
    assert images.min() <= selector.ratios[0].auxiliary.min() < selector.ratios[0].auxiliary.max() <= images.max()


def test_the_same_seed_gives_the_same_selector(digits):
    device = device_of(digits, (2, 7), 100)
    first, second = (ClientSelector.for_device(*device, np.random.default_rng(5)) for _ in range(2))
    assert first.thresholds == second.thresholds
    other = ClientSelector.for_device(*device, np.random.default_rng(6))
    assert first.thresholds != other.thresholds


def test_rows_near_their_one_hot_are_certain():
    rows = np.array([[1.0, 0, 0], [0.8, 0.1, 0.1], [0.4, 0.3, 0.3], [0, 0, 0], [1.2, -0.1, -0.1], [np.nan, 1, 0]])
    # L1 distances: 0, 0.4, 1.2, 1, 0.4, none.
    assert certain_rows(rows, 0.41).tolist() == [True, True, False, False, True, False]
    assert certain_rows(rows, 1.0).tolist() == [True, True, False, True, True, False]
    assert certain_rows(rows, 0.39).tolist() == [True, False, False, False, False, False]
    assert certain_rows(np.array([[0.5, 0.25, 0.25]]), 1.0).all(), "at most the threshold, not below it"
