"""Processes like class means: their moments, their derivatives, and what is fitted to them."""

import numpy as np
import pytest

from airdistill.bench.state_space import StateSpace, class_bases, fit_process
from airdistill.planning.convergence.receiver_error import Part, Parts

PARTS = Parts(common=Part(4e-4, 2e-5), own=Part(3e-4, 1e-4), rest=Part(2e-4, 3e-5), trend=Part(4e-6, 1e-7))


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_bases_are_orthonormal_and_begin_with_the_direction_of_their_class(num_classes):
    for klass, basis in enumerate(class_bases(num_classes)):
        assert basis.shape == (num_classes, num_classes - 1)
        assert basis.T @ basis == pytest.approx(np.eye(num_classes - 1))
        assert basis.sum(axis=0) == pytest.approx(np.zeros(num_classes - 1), abs=1e-12)
        towards = np.eye(num_classes)[klass] - 1 / num_classes
        assert basis[:, 0] == pytest.approx(towards / np.linalg.norm(towards))


def test_simulated_states_have_the_moments_of_the_recursion():
    process = StateSpace(PARTS, 3, False, start=0.1, trend=0.01)
    states = process.simulate(np.random.default_rng(0), 4, 200_000)
    mean, covariance = process.mean, process.covariance
    for at_round in states:
        assert at_round.mean(axis=0) == pytest.approx(mean, abs=3e-4)
        assert np.cov(at_round.T) == pytest.approx(covariance, rel=0.03, abs=1e-5)
        mean, covariance = process.onward @ mean, process.onward @ covariance @ process.onward.T + process.drift


def test_the_trend_moves_every_class_towards_itself():
    process = StateSpace(Parts(*[Part(0.0, 0.0)] * 4), 4, False, start=0.1, trend=0.05)
    (first, second) = process.class_means(process.simulate(np.random.default_rng(0), 2, 1))[:, 0]
    towards = (np.eye(4) - 1 / 4) / np.sqrt(3 / 4)
    assert first == pytest.approx(1 / 4 + 0.1 * towards)
    assert second - first == pytest.approx(0.05 * towards)


@pytest.mark.parametrize("on_simplex", [False, True])
def test_derivatives_equal_differences(on_simplex):
    process = StateSpace(PARTS, 4, on_simplex)
    state, step = np.random.default_rng(1).standard_normal(process.size), 1e-6
    derivatives = process.derivatives(state)
    for place in range(process.size - 1):
        klass, coordinate = divmod(place, 3)
        move = step * np.eye(process.size)[place]
        expected = np.zeros((4, 4))
        expected[klass] = derivatives[klass, :, coordinate]
        found = (process.class_means(state + move) - process.class_means(state - move)) / (2 * step)
        assert found == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("on_simplex", [False, True])
def test_a_fit_finds_the_constants_of_simulated_runs(on_simplex):
    process = StateSpace(PARTS, 5, on_simplex, start=0.05, trend=0.01)
    states = process.simulate(np.random.default_rng(2), 60, 400)
    fitted = fit_process(np.moveaxis(process.class_means(states), 1, 0), on_simplex)
    assert fitted.start == pytest.approx(0.05, abs=0.005)
    assert fitted.trend == pytest.approx(0.01, abs=0.001)
    for name in ("common", "own", "rest", "trend"):
        found, given = getattr(fitted.parts, name), getattr(PARTS, name)
        assert found.drift == pytest.approx(given.drift, rel=0.2), name
    for name in ("common", "own", "rest"):
        found, given = getattr(fitted.parts, name), getattr(PARTS, name)
        assert found.initial_variance == pytest.approx(given.initial_variance, rel=0.2), name


def test_a_fit_needs_one_run_of_three_rounds_and_two_classes():
    process = StateSpace(PARTS, 2, True)
    paths = np.moveaxis(process.class_means(process.simulate(np.random.default_rng(0), 3, 1)), 1, 0)
    fitted = fit_process(paths, True)
    parts = fitted.parts
    assert all(part.drift > 0 for part in (parts.common, parts.own, parts.trend))
    assert np.isfinite(fitted.simulate(np.random.default_rng(0), 5, 2)).all()
