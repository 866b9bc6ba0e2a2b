"""The posterior Cramér-Rao bound against one large information matrix, quadrature, and measured errors."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.linalg import block_diag
from scipy.special import expit, softmax

from airdistill.bench.bounds import posterior_bound, updated
from airdistill.bench.estimators import Kalman, LogisticNormal, best_unbiased, linear, projected
from airdistill.bench.receivers import errors_of
from airdistill.bench.state_space import StateSpace
from airdistill.planning.convergence.receiver_error import Part, Parts

K = 3
PARTS = Parts(common=Part(0.05, 0.002), own=Part(0.02, 0.004), rest=Part(0.01, 0.003), trend=Part(0.01, 0.0005))
PROCESSES = {name: StateSpace(PARTS, K, name == "simplex", start=0.2, trend=0.02) for name in ("gaussian", "simplex")}


def uneven_noise(num_rounds, level, seed=0):
    return level * 10 ** np.random.default_rng(seed).uniform(-0.5, 0.5, (num_rounds, K))


def numeric_derivative(process, state, step=1e-5):
    """Of all entries of the class means by all numbers of the state, `[entry, state]`, by central differences."""
    columns = []
    for move in step * np.eye(process.size):
        ahead, behind = (process.class_means(state + sign * move).ravel() for sign in (1, -1))
        columns.append((ahead - behind) / (2 * step))
    return np.stack(columns, axis=1)


def dense_bound(process, noise_var, states):
    """Of the last round, from one information matrix of all states; E is the mean of `[round, draw, state]`."""
    num_rounds, size = len(noise_var), process.size
    joint = np.zeros((num_rounds * size, num_rounds * size))
    joint[:size, :size] += np.linalg.inv(process.covariance)
    move = np.hstack([-process.onward, np.eye(size)])
    for t in range(num_rounds - 1):
        pair = slice(t * size, (t + 2) * size)
        joint[pair, pair] += move.T @ np.linalg.inv(process.drift) @ move
    for t, noise in enumerate(noise_var):
        own, precision = slice(t * size, (t + 1) * size), np.diag(np.repeat(1 / noise, K))
        found = [numeric_derivative(process, state) for state in states[t]]
        joint[own, own] += np.mean([each.T @ precision @ each for each in found], axis=0)
    last, derivative = np.linalg.inv(joint)[-size:, -size:], np.mean(found, axis=0)
    return np.diag(derivative @ last @ derivative.T).reshape(K, K).sum(axis=1)


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("num_rounds", [1, 2, 6])
def test_the_recursion_equals_the_inverse_of_the_information_of_all_rounds(name, num_rounds):
    process, noise_var = PROCESSES[name], uneven_noise(num_rounds, 0.05)
    states = process.simulate(np.random.default_rng(3), num_rounds, 5 if process.on_simplex else 1)
    bound = posterior_bound(process, noise_var, num_draws=5, rng=np.random.default_rng(3))
    assert bound[-1] == pytest.approx(dense_bound(process, noise_var, states), rel=1e-5)


def test_the_bound_of_one_logistic_observation_by_quadrature():
    """Two classes, one round: with q = expit(√2 z) the bound of both entries is 2 E[q']²/(1/p + 2 E[q'²]/v)."""
    variance, noise = 0.8, 0.03
    process = StateSpace(Parts(Part(0.0, 0.0), Part(variance, 0.0), Part(0.0, 0.0)), 2, True, start=0.3)

    def mean(power):
        def weighted(z):
            slope = np.sqrt(2) * expit(np.sqrt(2) * z) * expit(-np.sqrt(2) * z)
            return slope**power * np.exp(-((z - 0.3) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)

        return quad(weighted, -12, 12)[0]

    expected = 2 * mean(1) ** 2 / (1 / variance + 2 * mean(2) / noise)
    bound = posterior_bound(process, np.full((1, 2), noise), num_draws=200_000)
    assert bound[0] == pytest.approx([expected, expected], rel=0.01)


@pytest.mark.parametrize("level", [0.003, 0.1, 2.0])
def test_the_kalman_filter_reaches_the_bound_on_the_linear_process(level):
    process, noise_var = PROCESSES["gaussian"], uneven_noise(12, level)
    paths = np.moveaxis(process.class_means(process.simulate(np.random.default_rng(0), 12, 600)), 1, 0)
    errors = errors_of(lambda: Kalman(process, project=False), paths, noise_var, seed=1)
    bound, spread = posterior_bound(process, noise_var).mean(), errors.std(ddof=1) / len(errors) ** 0.5
    assert errors.mean() == pytest.approx(bound, abs=4 * spread)
    assert spread < 0.03 * bound
    for rival in (linear, best_unbiased):
        assert errors_of(lambda rival=rival: rival, paths, noise_var, seed=1).mean() > bound * 1.02


@pytest.mark.parametrize(("level", "most_db"), [(0.0003, 0.1), (0.01, 0.3), (1.0, 1.0)])
def test_no_receiver_is_below_the_bound_on_the_simplex_and_the_bayesian_one_is_near_it(level, most_db):
    process, noise_var = PROCESSES["simplex"], uneven_noise(10, level)
    paths = np.moveaxis(process.class_means(process.simulate(np.random.default_rng(0), 10, 100)), 1, 0)
    bound = posterior_bound(process, noise_var, num_draws=4000).mean()
    makers = (lambda: LogisticNormal(process), lambda: projected, lambda: best_unbiased)
    found = [errors_of(make, paths, noise_var, seed=1) for make in makers]
    for errors in found:
        assert errors.mean() > bound - 4 * errors.std(ddof=1) / len(errors) ** 0.5
    assert found[0].mean() == min(errors.mean() for errors in found)
    spread = found[0].std(ddof=1) / len(found[0]) ** 0.5
    assert found[0].mean() < bound * 10 ** (most_db / 10) + 4 * spread


def test_more_noise_or_more_drift_raises_the_bound():
    process = PROCESSES["simplex"]
    bounds = [posterior_bound(process, uneven_noise(5, level)).mean() for level in (1e-3, 1e-2, 1e-1)]
    assert bounds == sorted(bounds)
    faster = Parts(PARTS.common, Part(0.02, 0.04), PARTS.rest, PARTS.trend)
    noise = uneven_noise(5, 1e-2)
    assert posterior_bound(StateSpace(faster, K, True), noise).mean() > posterior_bound(process, noise).mean()


def test_an_update_needs_no_inverse_of_the_prior():
    """A number that is known exactly stays known, and the others are updated as if it was not there."""
    rng = np.random.default_rng(0)
    root = rng.standard_normal((5, 5))
    known, information = root @ root.T, block_diag(*[[[2.0, 0.3], [0.3, 1.0]]] * 2, 0.0)
    known[2, :] = known[:, 2] = 0.0
    after = updated(known, np.stack([[[2.0, 0.3], [0.3, 1.0]]] * 2))
    assert after[2] == pytest.approx(np.zeros(5))
    others = np.array([0, 1, 3, 4])
    part = np.linalg.inv(np.linalg.inv(known[np.ix_(others, others)]) + information[np.ix_(others, others)])
    assert after[np.ix_(others, others)] == pytest.approx(part)


def test_softmax_of_scipy_is_the_one_of_the_process():
    process = PROCESSES["simplex"]
    state = np.random.default_rng(0).standard_normal(process.size)
    vectors = np.stack([basis @ part for basis, part in zip(process.bases, state[:-1].reshape(K, -1), strict=True)])
    assert process.class_means(state) == pytest.approx(softmax(vectors, axis=1))
