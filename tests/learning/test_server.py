"""The server's own model: what it makes of noisy rows, when it stops, and that nothing in it is left to chance."""

import numpy as np
import pytest
import torch

from airdistill.data.datasets import load_dataset
from airdistill.learning.fleet import Engine
from airdistill.learning.server import Check, Server
from airdistill.stages import told_to

COUNT = 400


@pytest.fixture(scope="module")
def digits():
    mnist = load_dataset("mnist")
    return mnist.x_test[:COUNT], mnist.y_test[:COUNT]


def votes(labels, deviation, seed=0):
    """A fifth of the devices know a digit, and nine of ten of them vote for it."""
    rng = np.random.default_rng(seed)
    return 0.18 * np.eye(10)[labels] + deviation * rng.standard_normal((len(labels), 10))


def server_of(samples, model="mlp"):
    return Server(model, samples, 10, Engine(dtype=torch.float64), seed=0)


def test_it_reads_labels_off_rows_that_are_mostly_noise(digits):
    samples, labels = digits
    rows = votes(labels, 0.15)
    found = server_of(samples, "paper_cnn").read(rows, np.full(COUNT, 0.15**2))
    assert found.sum(axis=1) == pytest.approx(np.ones(COUNT))
    right = (found.argmax(axis=1) == labels).mean()
    assert (rows.argmax(axis=1) == labels).mean() < 0.5
    assert right > 0.75


def test_rows_that_were_not_received_are_predicted_from_the_others(digits):
    samples, labels = digits
    rows, noise = votes(labels, 0.05), np.full(COUNT, 0.05**2)
    rows[300:], noise[300:] = np.nan, np.inf
    found = server_of(samples).read(rows, noise)
    assert np.isfinite(found).all()
    assert (found[300:].argmax(axis=1) == labels[300:]).mean() > 0.5


def test_of_nothing_it_knows_nothing(digits):
    found = server_of(digits[0]).read(np.full((COUNT, 10), np.nan), np.full(COUNT, np.inf))
    assert np.isnan(found).all()


def test_the_same_rows_give_the_same_predictions(digits):
    rows, noise = votes(digits[1], 0.1), np.full(COUNT, 0.01)
    one, other = (server_of(digits[0]).read(rows, noise) for _ in range(2))
    assert np.array_equal(one, other)


def test_no_more_passes_are_made_than_until_it_agreed_best(digits, monkeypatch):
    """If the last pass is found clearly worse; here every check after the third one says so."""
    samples, labels = digits
    rows, noise, told = votes(labels, 0.05), np.full(COUNT, 0.05**2), []
    asked = []

    def agreement(_check, predictions):
        asked.append(predictions)
        return {3: 100.0}.get(len(asked), float(-len(asked)))

    monkeypatch.setattr(Check, "agreement", agreement)
    monkeypatch.setattr(Check, "prefers", lambda _check, one, other: not np.array_equal(one, other))
    with told_to(lambda *news: told.append(news)):
        server_of(samples).read(rows, noise)
    assert told[-3:] == [("passes of the server", number, 3) for number in (1, 2, 3)]
    assert len(asked) == 20


def test_rows_to_stop_by_have_no_part_in_what_they_judge(digits, monkeypatch):
    """Neither their noise nor what pooling makes of it: other rows there, the same predictions to be judged."""
    samples, labels = digits
    rows, noise, judged = votes(labels, 0.1), np.full(COUNT, 0.01), []
    server = server_of(samples)
    others = np.where(server._left_out[:, None], votes(labels, 0.1, seed=9), rows)
    assert 0.05 < server._left_out.mean() < 0.2
    monkeypatch.setattr(Check, "prefers", lambda _check, one, other: judged.append((one, other)) or False)
    monkeypatch.setattr(Check, "agreement", lambda _check, predictions: float(predictions[0, 0]))
    for given in (rows, others):
        server_of(samples).read(given, noise)
    assert np.array_equal(judged[0][0], judged[1][0])
    assert np.array_equal(judged[0][1], judged[1][1])


def test_samples_that_are_no_images_are_read_too():
    rng = np.random.default_rng(1)
    labels = np.arange(200) % 10
    samples = 3 * np.eye(10)[labels] + rng.standard_normal((200, 10))
    found = server_of(samples, "softmax_regression").read(votes(labels, 0.1), np.full(200, 0.01))
    assert (found.argmax(axis=1) == labels).mean() > 0.8


def test_a_check_prefers_what_is_clearly_righter_and_seldom_what_is_not():
    """Two models that are right equally often: the one is preferred in about 1 of 740 draws (three deviations)."""
    rng, deviation, wrongly, rightly = np.random.default_rng(2), 0.4, 0, 0
    labels = rng.integers(0, 10, 300)
    truth = np.eye(10)[labels]
    one, other = truth.copy(), truth.copy()
    one[:30], other[30:60] = np.roll(truth[:30], 1, axis=1), np.roll(truth[30:60], 1, axis=1)
    worse = truth.copy()
    worse[:200] = np.roll(truth[:200], 1, axis=1)
    for seed in range(400):
        check = Check(np.arange(300), votes(labels, deviation, seed), deviation**2)
        wrongly += check.prefers(one, other)
        rightly += check.prefers(one, worse)
    assert wrongly < 6
    assert rightly > 300
    assert not check.prefers(one, one)


def test_without_noise_the_righter_one_is_always_preferred():
    labels = np.arange(50) % 10
    truth = np.eye(10)[labels]
    worse = truth.copy()
    worse[0] = np.roll(truth[0], 1)
    check = Check(np.arange(50), 0.2 * truth, 0.0)
    assert check.prefers(truth, worse)
    assert not check.prefers(worse, truth)
