"""Accuracy on a random sample of devices and test samples, and its interval."""

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import t
from torch import nn

from airdistill.errors import InputError
from airdistill.learning.evaluation import EvaluationSample
from airdistill.learning.evaluation import TestSet as EvaluationSet
from airdistill.learning.fleet import Engine, LearningFleet
from airdistill.learning.learner import Learner
from airdistill.runs.options import RunOptions

# Devices and samples differ in more than chance, so that no sample's variance is estimated below zero.
CORRECT = np.array(
    [[1, 1, 1, 1, 0, 1], [1, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0]], dtype=bool
)


def half_width(correct, num_devices, num_tests):
    places = (np.arange(size) for size in correct.shape)
    return EvaluationSample(*places, num_devices, num_tests).half_width(correct)


@pytest.mark.parametrize(("n", "m"), [(3, 4), (5, 3), (2, 6)])
def test_the_variance_of_the_interval_is_that_of_all_possible_samples(n, m):
    """Against an enumeration: the mean of the estimates is the variance of the sampled accuracy."""
    (all_devices, all_tests), means, estimates = CORRECT.shape, [], []
    for devices in combinations(range(all_devices), n):
        for tests in combinations(range(all_tests), m):
            sample = CORRECT[np.ix_(devices, tests)]
            fewest = min(count for count, total in ((n, all_devices), (m, all_tests)) if count < total)
            means.append(sample.mean())
            estimates.append((half_width(sample, all_devices, all_tests) / t.ppf(0.975, fewest - 1)) ** 2)
    if n < all_devices and m < all_tests:
        assert min(estimates) > 0  # none was cut at zero
    assert np.mean(estimates) == pytest.approx(np.var(means), rel=1e-12)


def test_an_interval_needs_two_and_vanishes_if_all_are_measured():
    assert half_width(CORRECT, *CORRECT.shape) == 0
    assert half_width(CORRECT[:1], *CORRECT.shape) is None
    assert half_width(CORRECT[:, :1], *CORRECT.shape) is None


def test_a_sample_depends_on_the_seed_alone_and_grows_by_adding():
    small, large = (EvaluationSample.draw(7, 40, 90, devices, tests) for devices, tests in ((5, 20), (9, None)))
    assert set(small.devices) < set(large.devices) <= set(range(40))
    assert set(small.tests) < set(large.tests) == set(range(90))
    assert (np.diff(small.devices) > 0).all()
    assert set(EvaluationSample.draw(8, 40, 90, 5, 20).devices) != set(small.devices)


class Answer(nn.Module):
    """Says what the sample says, from the device's first class on."""

    def __init__(self, least):
        super().__init__()
        self.least, self.weight = least, nn.Parameter(torch.tensor([float(least)]))

    def forward(self, x):
        return nn.functional.one_hot(x[:, 0].long().clamp(min=self.least), 4).float()


def test_only_the_sampled_devices_are_tried_on_the_sampled_tests():
    labels, rng = np.arange(24) % 4, np.random.default_rng(0)
    learners = [Learner(Answer(k % 4), torch.zeros(1, 1), np.zeros(1, np.int64), 4, 5) for k in range(12)]
    counts = rng.integers(0, 3, (12, 4))
    sample = EvaluationSample.draw(0, 12, 24, 5, 11)
    chosen = torch.from_numpy(labels[sample.tests]).float()[:, None]
    fleet = LearningFleet(learners, Engine())
    found = EvaluationSet(torch.split(chosen, 4), labels[sample.tests], 4, sample).evaluate(fleet, counts)
    right = np.array([[label >= device % 4 for label in labels] for device in range(12)])
    expected = right[np.ix_(sample.devices, sample.tests)]
    assert (found.mean, found.worst) == (pytest.approx(expected.mean()), expected.mean(axis=1).min())
    own = [
        expected[row, held].mean()
        for row, device in enumerate(sample.devices)
        if (held := counts[device][labels[sample.tests]] > 0).any()
    ]
    assert found.own_classes == pytest.approx(np.mean(own))
    assert found.sample == {
        "devices": 5,
        "of_devices": 12,
        "test_samples": 11,
        "of_test_samples": 24,
        "half_width": half_width(expected, 12, 24),
    }


def test_evaluations_are_sampled_above_ten_million_predictions():
    assert RunOptions().for_fleet(1000, 10_000) == RunOptions()
    large = RunOptions().for_fleet(1001, 10_000)
    assert (large.eval_devices, large.eval_samples) == (100, None)
    assert (RunOptions().for_fleet(100, 10**6).eval_devices, RunOptions().for_fleet(100, 10**6).eval_samples) == (
        None,
        10_000,
    )
    # What is given is kept: the whole fleet, on a sample of the test set only if that is larger.
    assert RunOptions(eval_devices=5000).for_fleet(5000, 10_000) == RunOptions()
    assert RunOptions(eval_samples=400).for_fleet(5000, 10_000).eval_devices is None
    stored = RunOptions(eval_devices=7).to_dict()
    assert RunOptions.from_dict(stored) == RunOptions(eval_devices=7)
    assert "eval_devices" not in RunOptions().to_dict()


@pytest.mark.parametrize(
    ("given", "field", "rule"),
    [
        ({"eval_devices": 0}, "--eval-devices", "at least 1"),
        ({"eval_samples": -3}, "--eval-samples", "at least 1"),
        ({"eval_devices": 21}, "--eval-devices", "the fleet has only 20 devices"),
        ({"eval_samples": 31}, "--eval-samples", "the test set has only 30 samples"),
    ],
)
def test_impossible_samples_are_refused(given, field, rule):
    with pytest.raises(InputError, match=rule) as error:
        RunOptions(**given).for_fleet(20, 30)
    assert error.value.field == field
