"""Receivers against a generic solver, and on random walks over the simplex with a known drift."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from airdistill.planning.convergence.receiver_error import Part, Parts, TrackingError, filter_step, noise_of_parts
from airdistill.radio.receivers import Projected, Tracking, make_receiver, project_on_simplex

K = 10
PARTS = Parts.for_drift(1e-3)


def walk(rng, step, num_rounds, start):
    """K vectors in zero-sum Gaussian steps of this size per entry; a step that would leave the simplex is reversed."""
    vectors, path = start, []
    for _ in range(num_rounds):
        path.append(vectors)
        move = step * rng.standard_normal(vectors.shape)
        move -= move.mean(axis=1, keepdims=True)
        inside = [((vectors + sign * move) >= 0).all(axis=1, keepdims=True) for sign in (1, -1)]
        vectors = vectors + np.where(inside[0], move, np.where(inside[1], -move, 0.0))
    return np.stack(path)


def equal_parts(drift):
    """Parts with the same drift, like those of a walk without a preferred direction."""
    return Parts(Part(0.1, drift), Part(0.1, drift), Part(0.1, drift))


def drift_of(path):
    return float(((path[1:] - path[:-1]) ** 2).mean())


def errors_along(receiver, path, noise_var, rng):
    """Mean squared errors per entry: before projection, as broadcast, as expected, and of projection alone."""
    errors = []
    for truth in path:
        received = truth + np.sqrt(noise_var) * rng.standard_normal(truth.shape)
        estimate = receiver.estimate(received, np.full(K, noise_var))
        errors.append(
            [
                ((receiver.before_projection() - truth) ** 2).mean(),
                ((estimate.knowledge - truth) ** 2).mean(),
                estimate.expected_error.mean(),
                ((Projected().estimate(received, noise_var).knowledge - truth) ** 2).mean(),
            ]
        )
    return np.mean(errors, axis=0)


@pytest.mark.parametrize(
    ("noise_var", "drift_given"),
    [(1e-6, True), (1e-4, True), (1e-2, True), (0.5, True), (5.0, True), (1e-6, False), (1e-4, False)],
)
def test_the_filter_knows_its_error_before_projection(noise_var, drift_given):
    """Within 20 % once the initial variance is forgotten, if the drift is given or low noise lets the filter learn it.

    One walk determines the error within 4 % at low noise, and within 10 % if the filter has a long memory.
    """
    found = []
    for seed in range(3 if noise_var > 0.1 else 2):
        rng = np.random.default_rng(seed)
        path = walk(rng, 3e-3, 800, rng.dirichlet(np.full(K, 20.0), K))
        receiver = Tracking(K, equal_parts(drift_of(path) if drift_given else 1e-3))
        errors_along(receiver, path[:400], noise_var, rng)
        found.append(errors_along(receiver, path[400:], noise_var, rng))
    error, _, expected, _ = np.mean(found, axis=0)
    assert expected == pytest.approx(error, rel=0.2)


@pytest.mark.parametrize("noise_var", [1e-6, 1e-4, 1e-2, 0.5, 5.0])
@pytest.mark.parametrize("step", [1e-4, 1e-3, 1e-2, 0.1])
def test_tracking_is_on_average_never_worse_than_projection_alone(step, noise_var):
    """For any drift, which is not given to it; and projection is never worse than no receiver."""
    tracked, projected = [], []
    for seed in range(4):
        rng = np.random.default_rng([seed, 7])
        path = walk(rng, step, 100, rng.dirichlet(np.full(K, 0.5), K))
        _, broadcast, _, alone = errors_along(Tracking(K, PARTS), path, noise_var, rng)
        tracked.append(broadcast)
        projected.append(alone)
    assert np.mean(tracked) <= np.mean(projected) * 1.001 <= noise_var * 1.01


def test_the_drift_is_learned_at_low_noise_and_stays_at_its_initial_value_at_high_noise():
    rng = np.random.default_rng(0)
    path = walk(rng, 1e-2, 300, rng.dirichlet(np.full(K, 5.0), K))
    low, high = Tracking(K, PARTS), Tracking(K, PARTS)
    for truth in path:
        noise = rng.standard_normal(truth.shape)
        low.estimate(truth + 0.01 * noise, np.full(K, 1e-4))
        high.estimate(truth + 2 * noise, np.full(K, 4.0))
    # Entries move independently: no part of the drift is common to all classes.
    common, own, rest = low.drifts
    assert rest == pytest.approx(drift_of(path), rel=0.25)
    assert own == pytest.approx(drift_of(path), rel=0.5)
    assert common < 0.2 * drift_of(path)
    assert high.drifts == pytest.approx((1e-5, 1e-4, 1e-5), rel=0.05)


@given(st.integers(0, 2**32))
def test_noiseless_vectors_are_returned_bit_for_bit(seed):
    rng = np.random.default_rng(seed)
    for receiver in (Tracking(K, PARTS), Projected()):
        for _ in range(5):
            received = rng.dirichlet(np.full(K, rng.choice([0.05, 1.0, 50.0])), K)
            assert np.array_equal(receiver.estimate(received, np.zeros(K)).knowledge, received)


def dense_filter(path, noise_var, receiver, rng):
    """A Kalman filter on all K² entries and the trend at once, with the drifts that the receiver learned."""
    towards = (np.eye(K) - 1 / K) / np.sqrt(1 - 1 / K)
    sureness = np.zeros((K, K, K))
    sureness[range(K), range(K)] = towards  # the direction of class k, `[k, class, entry]`
    sureness = sureness.reshape(K, -1)
    sums = np.kron(np.eye(K), np.ones(K) / np.sqrt(K))
    rest = np.eye(K * K) - sureness.T @ sureness - sums.T @ sums

    def covariance(of_common, of_own, of_rest, of_trend):
        entries = sureness.T @ (of_common * np.ones((K, K)) + of_own * np.eye(K)) @ sureness + of_rest * rest
        return np.block([[entries, np.zeros((K * K, 1))], [np.zeros((1, K * K)), np.full((1, 1), of_trend)]])

    mean, spread = np.append(np.full(K * K, 1 / K), 0.0), covariance(0.1, 0.003, 0.001, 1e-4)
    onward = np.eye(K * K + 1)
    onward[:-1, -1] = sureness.sum(axis=0)  # the trend moves every class mean towards its own class
    noise, seen = np.diag(np.repeat(noise_var, K)), np.eye(K * K, K * K + 1)
    for truth in path:
        received = truth + np.sqrt(noise_var)[:, None] * rng.standard_normal(truth.shape)
        estimate = receiver.estimate(received, noise_var)
        mean, spread = onward @ mean, onward @ spread @ onward.T + covariance(*receiver.drifts, 1e-6)
        gain = spread @ seen.T @ np.linalg.inv(seen @ spread @ seen.T + noise)
        innovation = received.ravel() - seen @ mean
        mean = mean + gain @ (innovation - sums.T @ sums @ innovation)
        spread = spread - gain @ seen @ spread
        yield estimate, mean[:-1].reshape(K, K), np.trace(spread[:-1, :-1]) / K**2


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("noise_var", [1e-3, 0.1, 4.0])
def test_the_filters_of_the_parts_equal_one_kalman_filter_of_all_entries(noise_var, uneven):
    rng = np.random.default_rng(5)
    noise = noise_var * (10 ** rng.uniform(-1, 1, K) if uneven else np.ones(K))
    path, receiver = walk(rng, 3e-3, 40, rng.dirichlet(np.full(K, 1.0), K)), Tracking(K, PARTS)
    for estimate, mean, variance in dense_filter(path, noise, receiver, rng):
        assert receiver.before_projection() == pytest.approx(mean, abs=1e-9)
        assert estimate.knowledge == pytest.approx(project_on_simplex(mean), abs=1e-9)
        assert estimate.expected_error.mean() == pytest.approx(variance, rel=1e-6)


@pytest.mark.parametrize("noise_var", [0.0, 0.01, 0.1])
def test_steady_growth_is_tracked_without_lag(noise_var):
    """Confidence grows by 0.008 a round in every class. With a trend the estimate is unbiased and has less noise."""
    path = np.stack([(0.1 + 0.008 * t) * np.eye(K) + (0.9 - 0.008 * t) / (K - 1) * (1 - np.eye(K)) for t in range(100)])

    def errors(parts):
        found = []
        for seed in range(20):
            receiver, rng = Tracking(K, parts), np.random.default_rng([seed, 1])
            for truth in path:
                received = truth + np.sqrt(noise_var) * rng.standard_normal(truth.shape)
                receiver.estimate(received, np.full(K, noise_var))
            found.append(np.diag(receiver.before_projection() - path[-1]).mean())
        return np.mean(found), np.std(found)

    lag, spread = errors(PARTS)
    assert abs(lag) < 1e-9 + 3 * spread / np.sqrt(20)
    if noise_var > 0:
        static_lag, static_spread = errors(Parts(Part(0.1, 1e-3), PARTS.own, PARTS.rest))
        assert static_lag < lag - 0.005
        assert spread < static_spread


def test_one_round_by_hand():
    """Two classes of confidence (r_k − r_l)/√2, 0.8/√2 and 0.6/√2: their mean has variance p_c + p_d/2, their half
    difference p_d/2, each observed with half of the noise."""
    parts = Parts(Part(0.099, 1e-3), Part(0.049, 1e-3), Part(0.0, 1e-3))
    receiver, received = Tracking(2, parts), np.array([[0.9, 0.1], [0.2, 0.8]])
    estimate = receiver.estimate(received, np.full(2, 0.1))
    mean, half = 0.7 * 0.125 / (0.125 + 0.05), 0.1 * 0.025 / (0.025 + 0.05)
    first, second = 0.5 + (mean + half) / 2, 0.5 + (mean - half) / 2
    assert estimate.knowledge == pytest.approx(np.array([[first, 1 - first], [1 - second, second]]))
    left = 0.125 * 0.05 / 0.175 + 0.025 * 0.05 / 0.075
    assert estimate.expected_error == pytest.approx([left / 2, left / 2])


def test_a_round_without_reception_keeps_the_estimate_and_raises_its_variance():
    receiver = Tracking(3, PARTS)
    received, noise_var = np.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [np.nan] * 3]), np.array([0.01, 0.01, np.inf])
    first = receiver.estimate(received, noise_var)
    assert np.isnan(first.knowledge[2]).all()
    assert np.isnan(first.expected_error[2])
    again = receiver.estimate(np.full((3, 3), np.nan), np.full(3, np.inf))
    assert np.array_equal(again.knowledge[:2], first.knowledge[:2])
    assert again.expected_error[:2] == pytest.approx(first.expected_error[:2] + sum(receiver.drifts) / 3)
    # A class that is received late starts with the confidence of the others.
    late = receiver.estimate(np.array([[np.nan] * 3, [np.nan] * 3, [0.1, 0.1, 0.8]]), np.array([np.inf, np.inf, 50.0]))
    assert late.knowledge[2, 2] > 0.5


@pytest.mark.parametrize("others", [np.inf, 1e6, 1.0, 0.01])
def test_a_class_received_with_much_less_noise_does_not_decide_for_the_others(others):
    """The extra confidence of one class must not count as the common part of both."""
    truth, receiver, rng = np.array([[0.95, 0.05], [0.45, 0.55]]), Tracking(2, PARTS), np.random.default_rng(0)
    for index in range(60):
        noise_var = np.where(np.arange(2) == index % 2, 1e-4, others)
        finite = np.where(np.isfinite(noise_var), noise_var, 0.0)
        received = truth + np.sqrt(finite)[:, None] * rng.standard_normal((2, 2))
        received = np.where(np.isfinite(noise_var)[:, None], received, np.nan)
        estimate = receiver.estimate(received, noise_var)
    assert estimate.knowledge == pytest.approx(truth, abs=0.05)


def test_projection_keeps_the_sum_of_huge_entries():
    assert project_on_simplex(np.array([1e17, 1e17, 0.0])) == pytest.approx([0.5, 0.5, 0.0])


def test_noise_of_the_common_part_and_of_the_differences_between_classes():
    """Against Monte Carlo, with unequal noise and a class that is not received."""
    noise_var = np.array([0.1, 0.4, np.inf, 2.0])
    common, own = noise_of_parts(noise_var)
    received = np.isfinite(noise_var)
    draws = np.sqrt(noise_var[received]) * np.random.default_rng(0).standard_normal((200_000, 3))
    mean = draws @ (1 / noise_var[received]) / (1 / noise_var[received]).sum()
    assert common[0] == pytest.approx(mean.var(), rel=0.02)
    assert own[received] == pytest.approx((draws - mean[:, None]).var(axis=0), rel=0.02)
    assert np.isinf(own[2])
    assert np.isinf(noise_of_parts(np.array([0.3, np.inf]))[1]).all()


def test_the_planner_predicts_the_error_that_the_receiver_expects():
    """At noise too high to learn drifts from, the planner's recursion is the receiver's own, round by round."""
    rng, num_rounds = np.random.default_rng(2), 30
    noise_var = rng.uniform(2, 8, (num_rounds, K))
    receiver, expected = Tracking(K, PARTS), []
    for row in noise_var:
        estimate = receiver.estimate(np.full((K, K), 1 / K) + np.sqrt(row)[:, None] * rng.normal(size=(K, K)), row)
        expected.append(K * estimate.expected_error)
    nothing = np.zeros_like(noise_var)
    predicted = TrackingError(PARTS).mean_error(noise_var, nothing, num_rounds, K)
    assert predicted == pytest.approx(np.mean(expected, axis=0), rel=0.02)
    roots = np.sqrt(np.arange(1, num_rounds + 1))
    several = TrackingError(PARTS).weighted_sums([noise_var] * 3, nothing, [7, num_rounds, 1], K)
    assert several[1] == pytest.approx(roots @ np.array(expected), rel=0.02)
    assert several[0] == pytest.approx(roots[:7] @ np.array(expected)[:7], rel=0.02)


@given(arrays(np.float64, (3, 4), elements=st.floats(-5, 5)))
def test_projection_agrees_with_a_generic_solver(vectors):
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


def test_a_receiver_resumes_from_its_state():
    rng = np.random.default_rng(3)
    first, second = Tracking(K, PARTS), Tracking(K, PARTS)
    for index in range(6):
        received, noise_var = rng.dirichlet(np.ones(K), K) + rng.normal(0, 0.1, (K, K)), rng.uniform(0.005, 0.02, K)
        if index == 3:
            second.restore({name: array.copy() for name, array in first.state().items()})
        got = first.estimate(received, noise_var)
        if index >= 3:
            assert np.array_equal(second.estimate(received, noise_var).knowledge, got.knowledge)


def test_receivers_by_name():
    assert make_receiver("linear", 2, 1e-3) is None
    assert isinstance(make_receiver("projected", 2, 1e-3), Projected)
    with pytest.raises(ValueError, match="receiver = 'kalman'"):
        make_receiver("kalman", 2, 1e-3)
