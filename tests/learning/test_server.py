"""The server's model: accuracy on noisy rows, early stopping, and reproducibility."""

import numpy as np
import pytest
import torch

from airdistill.data.datasets import load_dataset
from airdistill.learning.fleet import Engine
from airdistill.learning.server import HeldOutRows, Server
from airdistill.stages import listening

COUNT = 400


@pytest.fixture(scope="module")
def digits():
    mnist = load_dataset("mnist")
    return mnist.x_test[:COUNT], mnist.y_test[:COUNT]


def votes(labels, deviation, seed=0):
    """Mean votes with noise: a fifth of the devices hold a digit, and 90 % of them vote for it."""
    rng = np.random.default_rng(seed)
    return 0.18 * np.eye(10)[labels] + deviation * rng.standard_normal((len(labels), 10))


def server_of(samples, model="mlp"):
    return Server(model, samples, 10, Engine(dtype=torch.float64), seed=0)


def test_it_recovers_labels_from_rows_that_are_mostly_noise(digits):
    samples, labels = digits
    rows = votes(labels, 0.15)
    found = server_of(samples, "paper_cnn").read(rows, np.full(COUNT, 0.15**2))
    assert found.sum(axis=1) == pytest.approx(np.ones(COUNT))
    accuracy = (found.argmax(axis=1) == labels).mean()
    assert (rows.argmax(axis=1) == labels).mean() < 0.5
    assert accuracy > 0.75


def test_rows_that_were_not_received_are_predicted_from_the_others(digits):
    samples, labels = digits
    rows, noise = votes(labels, 0.05), np.full(COUNT, 0.05**2)
    rows[300:], noise[300:] = np.nan, np.inf
    found = server_of(samples).read(rows, noise)
    assert np.isfinite(found).all()
    assert (found[300:].argmax(axis=1) == labels[300:]).mean() > 0.5


def test_without_received_rows_predictions_are_nan(digits):
    found = server_of(digits[0]).read(np.full((COUNT, 10), np.nan), np.full(COUNT, np.inf))
    assert np.isnan(found).all()


def test_the_same_rows_give_the_same_predictions(digits):
    rows, noise = votes(digits[1], 0.1), np.full(COUNT, 0.01)
    one, other = (server_of(digits[0]).read(rows, noise) for _ in range(2))
    assert np.array_equal(one, other)


def test_training_stops_after_the_epoch_with_the_best_agreement(digits, monkeypatch):
    """If the last epoch is significantly worse; here the third epoch has the best agreement."""
    samples, labels = digits
    rows, noise, progress = votes(labels, 0.05), np.full(COUNT, 0.05**2), []
    evaluated = []

    def agreement(_held_out, predictions):
        evaluated.append(predictions)
        return {3: 100.0}.get(len(evaluated), float(-len(evaluated)))

    monkeypatch.setattr(HeldOutRows, "agreement", agreement)
    monkeypatch.setattr(HeldOutRows, "prefers", lambda _held_out, one, other: not np.array_equal(one, other))
    with listening(lambda *update: progress.append(update)):
        server_of(samples).read(rows, noise)
    assert progress[-3:] == [("server epochs", number, 3) for number in (1, 2, 3)]
    assert len(evaluated) == 20


def test_held_out_rows_do_not_influence_the_model_that_they_validate(digits, monkeypatch):
    """Neither directly nor through smoothing: other held-out rows leave the validated predictions unchanged."""
    samples, labels = digits
    rows, noise, validated = votes(labels, 0.1), np.full(COUNT, 0.01), []
    server = server_of(samples)
    others = np.where(server._held_out[:, None], votes(labels, 0.1, seed=9), rows)
    assert 0.05 < server._held_out.mean() < 0.2
    monkeypatch.setattr(HeldOutRows, "prefers", lambda _held_out, one, other: validated.append((one, other)) or False)
    monkeypatch.setattr(HeldOutRows, "agreement", lambda _held_out, predictions: float(predictions[0, 0]))
    for given in (rows, others):
        server_of(samples).read(given, noise)
    assert np.array_equal(validated[0][0], validated[1][0])
    assert np.array_equal(validated[0][1], validated[1][1])


def test_samples_that_are_not_images_are_supported():
    rng = np.random.default_rng(1)
    labels = np.arange(200) % 10
    samples = 3 * np.eye(10)[labels] + rng.standard_normal((200, 10))
    found = server_of(samples, "softmax_regression").read(votes(labels, 0.1), np.full(200, 0.01))
    assert (found.argmax(axis=1) == labels).mean() > 0.8


def test_a_significantly_more_accurate_model_is_preferred_and_an_equal_one_seldom():
    """Of two models of equal accuracy, the first is preferred in about 1 of 740 draws (three standard deviations)."""
    rng, deviation, false_preferences, preferences = np.random.default_rng(2), 0.4, 0, 0
    labels = rng.integers(0, 10, 300)
    truth = np.eye(10)[labels]
    one, other = truth.copy(), truth.copy()
    one[:30], other[30:60] = np.roll(truth[:30], 1, axis=1), np.roll(truth[30:60], 1, axis=1)
    worse = truth.copy()
    worse[:200] = np.roll(truth[:200], 1, axis=1)
    for seed in range(400):
        held_out = HeldOutRows(np.arange(300), votes(labels, deviation, seed), deviation**2)
        false_preferences += held_out.prefers(one, other)
        preferences += held_out.prefers(one, worse)
    assert false_preferences < 6
    assert preferences > 300
    assert not held_out.prefers(one, one)


def test_without_noise_the_more_accurate_model_is_always_preferred():
    labels = np.arange(50) % 10
    truth = np.eye(10)[labels]
    worse = truth.copy()
    worse[0] = np.roll(truth[0], 1)
    held_out = HeldOutRows(np.arange(50), 0.2 * truth, 0.0)
    assert held_out.prefers(truth, worse)
    assert not held_out.prefers(worse, truth)


def test_coloured_images_have_the_same_features_whichever_axis_has_the_colours():
    images = np.random.default_rng(3).integers(0, 256, (30, 3, 16, 12)).astype(np.uint8)
    rows, noise = votes(np.arange(30) % 10, 0.1), np.full(30, 0.01)
    first, last = (server_of(each).read(rows, noise) for each in (images, images.transpose(0, 2, 3, 1)))
    assert np.array_equal(first, last)
