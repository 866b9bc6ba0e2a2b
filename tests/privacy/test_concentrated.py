"""zCDP accounting against dp_accounting's Rényi accountant and against exactly convolved sums of discrete Gaussians."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

from airdistill.privacy.concentrated import (
    concentrated_epsilon,
    concentrated_mu,
    sum_closeness,
)
from airdistill.privacy.gaussian import gaussian_epsilon

# Standard deviations, in grid units, of the discrete Gaussians in each sum.
SUMS = [(1.0,), (2.5,), (0.75, 0.75), (1.0, 1.0, 1.0), (0.8, 1.7), (1.0, 2.0, 4.0), (4.0, 4.0), (0.75,) * 6]


def log_uniform(low, high):
    return st.floats(math.log(low), math.log(high)).map(math.exp)


def pmf(deviations, half_width=160):
    """The exact distribution of the sum on −half_width..half_width; the tails beyond are zero in double precision."""
    grid = np.arange(-half_width, half_width + 1)
    total = np.ones(1)
    for deviation in deviations:
        one = np.exp(-(grid**2) / (2 * deviation**2))
        total = np.convolve(total, one / one.sum())
    middle = len(total) // 2
    return total[middle - half_width : middle + half_width + 1]


def shifted(probabilities, shift):
    moved = np.zeros_like(probabilities)
    moved[shift:] = probabilities[: len(probabilities) - shift]
    return moved


def squared_mu_of(deviations, shift):
    variance = sum(deviation**2 for deviation in deviations)
    closeness = sum_closeness(deviations)
    # Cost of a sum that is only nearly a discrete Gaussian: min(μ² + 2τd, (μ + τ√d)²) for d = 1 entry.
    return min(shift**2 / variance + 2 * closeness, (shift / math.sqrt(variance) + closeness) ** 2)


def test_epsilon_agrees_with_the_renyi_accountant():
    """Both minimise the same bound, dp_accounting over a finite list of orders: its ε is slightly larger."""
    for mu, delta in itertools.product([0.1, 0.5, 1, 3, 10], [1e-3, 1e-5, 1e-10, 1e-100]):
        orders = 1 + np.sqrt(2 * math.log(1 / delta)) / mu * np.logspace(-1, 0.5, 4000)
        theirs = RdpAccountant(orders).compose(GaussianDpEvent(1 / mu)).get_epsilon(delta)
        ours = concentrated_epsilon(mu, delta)
        assert theirs * (1 - 1e-5) < ours < theirs * (1 + 1e-12)


@given(log_uniform(1e-6, 1e3), log_uniform(1e-100, 0.5))
def test_the_optimal_order_is_found(mu, delta):
    alpha = 1 + np.logspace(-8, 14, 20_000)
    rest = (-math.log(delta) - np.log(alpha)) / (alpha - 1) + np.log1p(-1 / alpha)
    best = max(0.0, float((mu**2 / 2 * alpha + rest).min()))
    # The bound is flat at the optimal α, but ε itself may be close to zero there.
    assert concentrated_epsilon(mu, delta) <= best * (1 + 1e-12) + 1e-13 * mu


@given(log_uniform(1e-6, 1e3), log_uniform(1e-100, 0.5))
def test_epsilon_is_never_below_that_of_continuous_noise(mu, delta):
    assert concentrated_epsilon(mu, delta) >= gaussian_epsilon(mu, delta)


def test_the_overhead_over_continuous_noise_is_small():
    """ε relative to the exact curve of continuous noise: 1.08 at μ = 1 and δ = 1e-5, 1.13 at 1e-3."""
    mu, delta = np.meshgrid([0.1, 0.3, 1, 3, 10], [1e-3, 1e-5, 1e-7, 1e-10])
    ratio = concentrated_epsilon(mu, delta) / gaussian_epsilon(mu, delta)
    assert ratio.max() < 1.25
    assert ratio[1, 2] == pytest.approx(1.0802, abs=1e-4)
    assert ratio[0, 2] == pytest.approx(1.1268, abs=1e-4)


@given(log_uniform(1e-5, 1e4), log_uniform(1e-100, 0.5))
def test_mu_is_the_largest_that_epsilon_allows(epsilon, delta):
    mu = concentrated_mu(epsilon, delta)
    assert concentrated_epsilon(mu, delta) <= epsilon
    assert concentrated_epsilon(mu * (1 + 1e-9), delta) > epsilon * (1 - 1e-12)
    assert concentrated_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-8)


def test_arrays_and_numbers_give_the_same_values():
    mu, delta = np.meshgrid([0.0, 0.1, 1.0, math.inf], [1e-5, 1e-3])
    epsilon = concentrated_epsilon(mu, delta)
    assert epsilon.shape == (2, 4)
    assert epsilon[1, 2] == concentrated_epsilon(1.0, 1e-3)
    assert isinstance(concentrated_epsilon(1.0, 1e-5), float)
    back = concentrated_mu(epsilon[:, 1:], 1e-5)
    assert back.shape == (2, 3)
    assert back[0, 1] == concentrated_mu(epsilon[0, 2], 1e-5)


def test_limits_at_zero_and_infinity():
    assert concentrated_epsilon(0.0, 1e-5) == 0.0
    assert concentrated_epsilon(1e-9, 1e-3) == 0.0
    assert concentrated_epsilon(1e-300, 1e-300) >= 0.0
    assert concentrated_epsilon(math.inf, 1e-5) == math.inf
    assert concentrated_mu(math.inf, 1e-5) == math.inf


@pytest.mark.parametrize(
    ("function", "value", "delta", "rule"),
    [
        (concentrated_mu, 0.0, 0.1, "epsilon = 0.0: must be greater than 0"),
        (concentrated_mu, 1.0, 1.0, "delta = 1.0"),
        (concentrated_epsilon, -1.0, 0.1, "mu = -1.0: must be at least 0"),
    ],
)
def test_values_out_of_range_are_rejected(function, value, delta, rule):
    with pytest.raises(ValueError, match=rule):
        function(value, delta)


@pytest.mark.parametrize("deviations", SUMS)
@pytest.mark.parametrize("shift", [1, 2, 5])
def test_epsilon_and_delta_hold_for_the_true_distribution(deviations, shift):
    probabilities = pmf(deviations)
    mu = math.sqrt(squared_mu_of(deviations, shift))
    for delta in (1e-9, 1e-6, 1e-4, 1e-2, 0.1, 0.3):
        epsilon = concentrated_epsilon(mu, delta)
        loss = probabilities - math.exp(epsilon) * shifted(probabilities, shift)
        assert loss[loss > 0].sum() <= delta


def test_a_smaller_epsilon_would_not_hold():
    """The test above is not vacuous: with ε a third smaller, the true δ exceeds the stated one."""
    probabilities, mu = pmf((4.0, 4.0)), 2 / math.sqrt(32)
    loss = probabilities - math.exp(concentrated_epsilon(mu, 1e-6) / 1.5) * shifted(probabilities, 2)
    assert loss[loss > 0].sum() > 1e-6


@pytest.mark.parametrize("deviations", SUMS)
def test_the_sum_is_as_close_to_a_discrete_gaussian_as_the_lemma_says(deviations):
    gaussian = pmf([math.sqrt(sum(deviation**2 for deviation in deviations))])
    truth = pmf(deviations)
    seen = (gaussian > 1e-280) & (truth > 1e-280)
    ratio = np.abs(np.log(truth[seen] / gaussian[seen]))
    assert ratio.max() <= sum_closeness(deviations) / 2 + 1e-12


@pytest.mark.parametrize("deviations", SUMS)
@pytest.mark.parametrize("shift", [1, 2, 3])
def test_every_renyi_divergence_is_below_the_bound_of_the_theorem(deviations, shift):
    probabilities = pmf(deviations)
    moved = shifted(probabilities, shift)
    seen = (probabilities > 1e-280) & (moved > 1e-280)
    loss, bound = np.log(probabilities[seen] / moved[seen]), squared_mu_of(deviations, shift)
    for order in (1.001, 1.1, 1.5, 2.0, 4.0, 7.0):
        moment = (probabilities[seen] * np.exp((order - 1) * loss)).sum()
        assert math.log(moment) / (order - 1) <= order / 2 * bound + 1e-10


def test_equal_deviations_give_the_papers_formula():
    for deviation, count in [(0.8, 2), (1.1, 7), (2.0, 40)]:
        terms = [math.exp(-2 * math.pi**2 * deviation**2 * k / (k + 1)) for k in range(1, count)]
        assert sum_closeness(np.full(count, deviation)) == pytest.approx(10 * sum(terms), rel=1e-12)


@given(st.lists(st.floats(0.75, 3), min_size=2, max_size=5))
def test_largest_first_is_the_optimal_order(deviations):
    def successively(order):
        before, total = order[0] ** 2, 0.0
        for deviation in order[1:]:
            total += 10 * math.exp(-2 * math.pi**2 / (1 / before + 1 / deviation**2))
            before += deviation**2
        return total

    assert sum_closeness(deviations) <= min(map(successively, itertools.permutations(deviations))) * (1 + 1e-9)


def test_devices_without_noise_and_single_summands_cost_nothing():
    assert sum_closeness([3.0]) == 0.0
    assert sum_closeness([]) == 0.0
    assert sum_closeness([0.0, 0.0]) == 0.0
    assert sum_closeness([0.0, 2.0, 0.0, 1.0]) == sum_closeness([1.0, 2.0])
    assert sum_closeness([[1.0, 0.0], [2.0, 5.0]]).tolist() == [sum_closeness([1.0, 2.0]), 0.0]
    assert 0 < sum_closeness(np.full(1000, 8.0)) < 1e-200
    with pytest.raises(ValueError, match="at least √½"):
        sum_closeness([0.7, 3.0])
