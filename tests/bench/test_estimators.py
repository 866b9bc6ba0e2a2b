"""Estimators against closed forms, a dense joint Gaussian, and numerical integration."""

import numpy as np
import pytest
from scipy.special import softmax

from airdistill.bench.estimators import Kalman, LogisticNormal, SingleRound, best_unbiased, linear
from airdistill.bench.receivers import errors_of
from airdistill.bench.state_space import StateSpace, class_bases
from airdistill.planning.convergence.receiver_error import Part, Parts

PARTS = Parts(common=Part(0.05, 0.002), own=Part(0.02, 0.004), rest=Part(0.01, 0.003), trend=Part(0.01, 0.0005))


def test_errors_of_the_linear_and_of_the_best_unbiased_receiver():
    """K v and (K − 1) v, whatever the class means are; and neither has a bias."""
    rng = np.random.default_rng(0)
    paths, noise_var = rng.dirichlet(np.ones(6), (400, 5, 6)), np.full((5, 6), 0.3)
    noise_var[:, :3] = 0.1
    mean = noise_var.mean()
    assert errors_of(lambda: linear, paths, noise_var, 0).mean() == pytest.approx(6 * mean, rel=0.02)
    assert errors_of(lambda: best_unbiased, paths, noise_var, 0).mean() == pytest.approx(5 * mean, rel=0.02)
    truth = paths[0, 0]
    received = truth + rng.standard_normal((20_000, 6, 6))
    found = np.mean([best_unbiased(each, np.ones(6)) for each in received], axis=0)
    assert found == pytest.approx(truth, abs=0.04)


def test_all_receivers_get_the_same_noise():
    seen = []

    def keep(received, _noise_var):
        seen.append(received)
        return received

    paths = np.random.default_rng(0).dirichlet(np.ones(3), (2, 4, 3))
    for _ in range(2):
        errors_of(lambda: keep, paths, np.full((4, 3), 0.1), 5)
    assert np.array_equal(seen[:8], seen[8:])
    assert len(np.unique(np.array(seen[:8]) - paths.reshape(8, 3, 3))) > 60


def test_the_kalman_filter_is_the_conditional_mean_of_a_joint_gaussian():
    process, num_rounds = StateSpace(PARTS, 3, False, start=0.2, trend=0.02), 5
    rng = np.random.default_rng(0)
    noise_var = 10 ** rng.uniform(-2, 0, (num_rounds, 3))
    received = rng.standard_normal((num_rounds, 3, 3))
    # The covariance of the states of all rounds, from independent first states and movements.
    size = process.size
    powers = [np.linalg.matrix_power(process.onward, n) for n in range(num_rounds)]
    roots = np.block([[powers[t - s] if s <= t else np.zeros((size, size)) for s in range(5)] for t in range(5)])
    moved = np.kron(np.eye(5), process.drift)
    moved[:size, :size] = process.covariance
    covariance = roots @ moved @ roots.T
    mean = np.concatenate([power @ process.mean for power in powers])
    seen = np.zeros((9, size))
    for klass, basis in enumerate(class_bases(3)):
        seen[3 * klass : 3 * klass + 3, 2 * klass : 2 * klass + 2] = basis
    estimator = Kalman(process, project=False)
    for t in range(num_rounds):
        found = estimator(received[t], noise_var[t])
        past = np.kron(np.eye(num_rounds)[: t + 1], seen)
        total = past @ covariance @ past.T + np.diag(np.repeat(noise_var[: t + 1].ravel(), 3))
        innovation = received[: t + 1].ravel() - 1 / 3 - past @ mean
        state = mean + covariance @ past.T @ np.linalg.solve(total, innovation)
        newest = seen @ state[t * size : (t + 1) * size] + 1 / 3
        assert found == pytest.approx(newest.reshape(3, 3), abs=1e-9)


def test_the_single_round_receiver_is_the_conditional_mean_of_its_prior():
    """With so little movement that nothing leaves the simplex: projection then changes nothing."""
    rng = np.random.default_rng(1)
    mean = rng.dirichlet(np.full(4, 50.0), 4)
    single = SingleRound(mean, common=4e-4, own=2e-4, rest=1e-4)
    bases, prior = class_bases(4), np.zeros((16, 16))
    for first in range(4):
        for second in range(4):
            both = single.common * np.outer(bases[first][:, 0], bases[second][:, 0])
            if first == second:
                both += bases[first] @ np.diag([single.own, single.rest, single.rest]) @ bases[first].T
            prior[4 * first : 4 * first + 4, 4 * second : 4 * second + 4] = both
    noise_var = np.array([0.001, 0.01, 0.1, 1.0])
    received = mean + 0.05 * rng.standard_normal((4, 4))
    total = prior + np.diag(np.repeat(noise_var, 4))
    expected = mean.ravel() + prior @ np.linalg.solve(total, (received - mean).ravel())
    assert single(received, noise_var) == pytest.approx(expected.reshape(4, 4), abs=1e-9)


def test_a_fitted_single_round_receiver_has_the_moments_of_the_runs():
    process = StateSpace(Parts(Part(4e-4, 0.0), Part(3e-4, 0.0), Part(2e-4, 0.0)), 5, False, start=0.1)
    paths = np.moveaxis(process.class_means(process.simulate(np.random.default_rng(0), 1, 20_000)), 1, 0)
    fitted = SingleRound.fitted(paths)
    assert fitted.mean == pytest.approx(1 / 5 + 0.1 * class_bases(5)[:, :, 0], abs=1e-3)
    assert fitted.common == pytest.approx(4e-4, rel=0.05)
    assert fitted.own == pytest.approx(3e-4, rel=0.05)
    assert fitted.rest == pytest.approx(2e-4, rel=0.05)


@pytest.mark.parametrize("noise", [0.003, 0.05, 1.0])
def test_the_logistic_normal_receiver_is_the_posterior_mean(noise):
    """Three classes whose parts are independent, one round, by a fine grid over the two coordinates of each class."""
    process = StateSpace(Parts(Part(0.0, 0.0), Part(0.3, 0.0), Part(0.2, 0.0)), 3, True, start=0.5)
    rng = np.random.default_rng(4)
    truth = process.class_means(process.simulate(rng, 1, 1))[0, 0]
    received = truth + np.sqrt(noise) * rng.standard_normal((3, 3))
    found = LogisticNormal(process)(received, np.full(3, noise))
    grid = np.stack(np.meshgrid(np.linspace(-3, 4, 400), np.linspace(-3.5, 3.5, 400)), axis=-1)
    for klass, basis in enumerate(class_bases(3)):
        means = softmax(grid @ basis.T, axis=-1)
        log_prior = -((grid[..., 0] - 0.5) ** 2) / 0.6 - grid[..., 1] ** 2 / 0.4
        weights = softmax(log_prior - ((received[klass] - means) ** 2).sum(axis=-1) / (2 * noise))
        exact = (weights[..., None] * means).sum(axis=(0, 1))
        # Approximations: a Gaussian posterior, and 64 draws of it.
        assert found[klass] == pytest.approx(exact, abs=0.02)
    assert found.sum(axis=1) == pytest.approx(np.ones(3))
    assert found.min() > 0
