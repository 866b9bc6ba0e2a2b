"""Rows accumulated over rounds, against weighted means and measured errors."""

import numpy as np
import pytest

from airdistill.radio.receivers import PooledRows, TrackedRows
from airdistill.radio.superposition import error_free, mean_of_answers

ROWS, CLASSES = 400, 4


def truth(rng):
    return np.eye(CLASSES)[rng.integers(0, CLASSES, ROWS)]


def test_rounds_are_weighted_by_their_inverse_noise_variance():
    rng, pooled, received = np.random.default_rng(0), PooledRows(ROWS, CLASSES), []
    for noise_var in (0.5, 2.0, 0.1):
        received.append((rng.standard_normal((ROWS, CLASSES)), noise_var))
        pooled.add(np.arange(ROWS), *received[-1])
    weights = np.array([1 / noise_var for _, noise_var in received])
    mean = sum(w * rows for w, (rows, _) in zip(weights, received, strict=True)) / weights.sum()
    assert pooled.mean == pytest.approx(mean)
    assert pooled.noise_var == pytest.approx(np.full(ROWS, 1 / weights.sum()))


def test_rounds_with_part_of_the_rows_and_rows_that_were_not_received():
    pooled = PooledRows(ROWS, CLASSES)
    rows = np.ones((3, CLASSES))
    rows[1] = np.nan
    pooled.add(np.array([7, 8, 9]), rows, 0.25)
    received = np.isfinite(pooled.mean).all(axis=1)
    assert np.flatnonzero(received).tolist() == [7, 9]
    assert pooled.noise_var[[7, 8]].tolist() == [0.25, np.inf]


@pytest.mark.parametrize("kind", [PooledRows, lambda *shape: TrackedRows(*shape, 1e-4)])
def test_noiseless_rows_are_returned_unchanged(kind):
    rng, accumulated = np.random.default_rng(1), kind(ROWS, CLASSES)
    for _ in range(3):
        rows = rng.dirichlet(np.ones(CLASSES), ROWS)
        if kind is PooledRows:
            accumulated = kind(ROWS, CLASSES)
        accumulated.add(np.arange(ROWS), rows, 0.0)
        np.testing.assert_allclose(accumulated.mean, rows, rtol=0, atol=1e-12)


@pytest.mark.parametrize("noise_var", [0.02, 0.5])
def test_the_tracker_knows_its_error_and_reduces_it(noise_var):
    """On average its error is below that of the received rows and close to its own estimate, after 1 and 10 rounds."""
    rng, measured, expected = np.random.default_rng(2), [], []
    for _ in range(60):
        rows, tracked = truth(rng), TrackedRows(ROWS, CLASSES, 1e-6)
        for round_index in range(1, 11):
            noisy = rows + np.sqrt(noise_var) * rng.standard_normal(rows.shape)
            tracked.add(np.arange(ROWS), noisy, noise_var)
            if round_index in (1, 10):
                measured.append(((tracked.mean - rows) ** 2).mean())
                expected.append(tracked.noise_var.mean())
    measured, expected = (np.reshape(each, (-1, 2)).mean(axis=0) for each in (measured, expected))
    assert (measured < [noise_var, noise_var / 10]).all()
    assert measured == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("kind", [PooledRows, lambda *shape: TrackedRows(*shape, 1e-3)])
def test_accumulation_resumes_from_its_state(kind):
    rng = np.random.default_rng(3)
    rounds = [rng.standard_normal((ROWS, CLASSES)) for _ in range(4)]
    one, other = kind(ROWS, CLASSES), kind(ROWS, CLASSES)
    for place, rows in enumerate(rounds):
        one.add(np.arange(ROWS), rows, 0.3)
        if place == 1:
            state = {name: array.copy() for name, array in one.state().items()}
    other.restore(state)
    for rows in rounds[2:]:
        other.add(np.arange(ROWS), rows, 0.3)
    assert np.array_equal(one.mean, other.mean)
    assert np.array_equal(one.noise_var, other.noise_var)


def test_the_mean_is_over_the_devices_that_answered():
    answers = np.zeros((3, 4, 2))
    answers[0, 0], answers[1, 0], answers[0, 1] = [1, 0], [0.5, 0.5], [0.3, 0.7]
    mean = mean_of_answers(answers)
    assert mean.shape == (1, 8)
    rows = mean.reshape(4, 2)
    np.testing.assert_allclose(rows[:2], [[0.75, 0.25], [0.3, 0.7]])
    assert np.isnan(rows[2:]).all()
    assert error_free(mean, mean.size * 1e-6).uplink_seconds == pytest.approx(8e-6)
