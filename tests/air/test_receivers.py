"""Receivers against a generic solver, and on walks over the simplex whose drift is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from airdistill.air.receivers import Projected, Tracking, make_receiver, project_on_simplex
from airdistill.codesign.tracking import INITIAL_VARIANCE, filter_step

K = 10


def walk(rng, step, num_rounds, start):
    """K vectors that move by zero-sum Gaussian steps of this size an entry; a step that would leave is turned back."""
    vectors, path = start, []
    for _ in range(num_rounds):
        path.append(vectors)
        move = step * rng.standard_normal(vectors.shape)
        move -= move.mean(axis=1, keepdims=True)
        inside = [((vectors + sign * move) >= 0).all(axis=1, keepdims=True) for sign in (1, -1)]
        vectors = vectors + np.where(inside[0], move, np.where(inside[1], -move, 0.0))
    return np.stack(path)


def drift_of(path):
    return float(((path[1:] - path[:-1]) ** 2).mean())


def follow(receiver, path, noise_var, rng):
    """Mean squared errors per entry: before projection, as broadcast, as expected, and of projection alone."""
    errors = []
    for truth in path:
        received = truth + np.sqrt(noise_var) * rng.standard_normal(truth.shape)
        estimate = receiver.estimate(received, np.full(K, noise_var))
        errors.append(
            [
                ((receiver.state()["estimate"] - truth) ** 2).mean(),
                ((estimate.knowledge - truth) ** 2).mean(),
                estimate.expected_error.mean(),
                ((Projected().estimate(received, noise_var).knowledge - truth) ** 2).mean(),
            ]
        )
    return np.mean(errors, axis=0)


@pytest.mark.parametrize(
    ("noise_var", "told"),
    [(1e-6, True), (1e-4, True), (1e-2, True), (0.5, True), (5.0, True), (1e-6, False), (1e-4, False)],
)
def test_the_filter_knows_its_error_before_projection(noise_var, told):
    """Within 20 % once the first guess is forgotten, if it is told the drift or the noise lets it find out."""
    found = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        path = walk(rng, 3e-3, 800, rng.dirichlet(np.full(K, 20.0), K))
        receiver = Tracking(K, K, drift_of(path) if told else 1e-3)
        follow(receiver, path[:400], noise_var, rng)
        found.append(follow(receiver, path[400:], noise_var, rng))
    error, _, expected, _ = np.mean(found, axis=0)
    assert expected == pytest.approx(error, rel=0.2)


@pytest.mark.parametrize("noise_var", [1e-6, 1e-4, 1e-2, 0.5, 5.0])
@pytest.mark.parametrize("step", [1e-4, 1e-3, 1e-2, 0.1])
def test_tracking_is_on_average_never_worse_than_projection_alone(step, noise_var):
    """Whatever the drift, of which it has been told nothing; and projection is never worse than nothing."""
    tracked, projected = [], []
    for seed in range(4):
        rng = np.random.default_rng([seed, 7])
        path = walk(rng, step, 100, rng.dirichlet(np.full(K, 0.5), K))
        _, broadcast, _, alone = follow(Tracking(K, K, 1e-3), path, noise_var, rng)
        tracked.append(broadcast)
        projected.append(alone)
    assert np.mean(tracked) <= np.mean(projected) * 1.001 <= noise_var * 1.01


def test_the_drift_is_learned_from_quiet_innovations_and_kept_where_noise_hides_it():
    rng = np.random.default_rng(0)
    path = walk(rng, 1e-2, 300, rng.dirichlet(np.full(K, 5.0), K))
    quiet, loud = Tracking(K, K, 1e-3), Tracking(K, K, 1e-3)
    for truth in path:
        noise = rng.standard_normal(truth.shape)
        quiet.estimate(truth + 0.01 * noise, np.full(K, 1e-4))
        loud.estimate(truth + 2 * noise, np.full(K, 4.0))
    assert quiet.drift == pytest.approx(drift_of(path), rel=0.25)
    assert loud.drift == pytest.approx(1e-3, rel=0.05)


@given(st.integers(0, 2**32))
def test_without_noise_it_returns_what_it_got_to_the_last_bit(seed):
    rng = np.random.default_rng(seed)
    for receiver in (Tracking(K, K, 1e-3), Projected()):
        for _ in range(5):
            received = rng.dirichlet(np.full(K, rng.choice([0.05, 1.0, 50.0])), K)
            assert np.array_equal(receiver.estimate(received, np.zeros(K)).knowledge, received)


def test_one_round_by_hand():
    """p = 0.1 + 0.001; g = p/(p + v); estimate 1/K + g(r̂ − 1/K); p(1 − g) is left."""
    receiver, received = Tracking(2, 2, 1e-3), np.array([[0.9, 0.1], [0.2, 0.8]])
    estimate = receiver.estimate(received, np.array([0.101, 0.303]))
    assert estimate.knowledge == pytest.approx(np.array([[0.7, 0.3], [0.425, 0.575]]))
    assert estimate.expected_error == pytest.approx([0.0505, 0.101 * 0.75])


def test_a_round_not_heard_leaves_the_estimate_and_widens_it():
    receiver = Tracking(2, 2, 1e-3)
    nothing = np.full((1, 2), np.nan)
    first = receiver.estimate(np.array([[0.9, 0.1], [np.nan, np.nan]]), np.array([0.01, np.inf]))
    assert np.isnan(first.knowledge[1]).all()
    assert np.isnan(first.expected_error[1])
    again = receiver.estimate(np.concatenate([nothing, [[0.3, 0.7]]]), np.array([np.inf, 0.02]))
    assert np.array_equal(again.knowledge[0], first.knowledge[0])
    assert again.expected_error[0] == pytest.approx(first.expected_error[0] + 1e-3)
    assert again.knowledge[1] == pytest.approx([0.5 - 0.2 * 0.102 / 0.122, 0.5 + 0.2 * 0.102 / 0.122])


@given(arrays(np.float64, (3, 4), elements=st.floats(-5, 5)))
def test_projection_is_the_nearest_point_by_a_generic_solver(vectors):
    projected = project_on_simplex(vectors)
    assert (projected >= 0).all()
    assert projected.sum(axis=1) == pytest.approx(np.ones(3))
    for vector, nearest in zip(vectors, projected, strict=True):
        solved = minimize(
            lambda x, vector=vector: ((x - vector) ** 2).sum(),
            np.full(4, 0.25),
            jac=lambda x, vector=vector: 2 * (x - vector),
            bounds=[(0, 1)] * 4,
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert nearest == pytest.approx(solved.x, abs=2e-5)


@given(st.floats(1e-9, 1e3), st.floats(1e-9, 1), st.floats(0, 1))
def test_a_filter_step_is_the_fusion_of_two_gaussians(noise_var, variance, drift):
    """1/p' = 1/(p + drift) + 1/v."""
    gain, after = filter_step(np.array([variance]), np.array([noise_var]), drift)
    assert 1 / after[0] == pytest.approx(1 / (variance + drift) + 1 / noise_var, rel=1e-6)
    assert after[0] == pytest.approx(gain[0] * noise_var, rel=1e-6)


def test_state_is_all_that_a_receiver_remembers():
    rng = np.random.default_rng(3)
    first, second = Tracking(K, K, 1e-3), Tracking(K, K, 1e-3)
    for index in range(6):
        received, noise_var = rng.dirichlet(np.ones(K), K) + rng.normal(0, 0.1, (K, K)), rng.uniform(0.005, 0.02, K)
        if index == 3:
            second.restore({name: array.copy() for name, array in first.state().items()})
        got = first.estimate(received, noise_var)
        if index >= 3:
            assert np.array_equal(second.estimate(received, noise_var).knowledge, got.knowledge)
    assert first.state()["variance"].max() < INITIAL_VARIANCE


def test_receivers_by_name():
    assert make_receiver("linear", 2, 2, 1e-3) is None
    assert isinstance(make_receiver("projected", 2, 2, 1e-3), Projected)
    with pytest.raises(ValueError, match="receiver = 'kalman'"):
        make_receiver("kalman", 2, 2, 1e-3)
