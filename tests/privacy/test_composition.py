"""Secret Poisson sampling over many rounds: the μ grid, the largest μ of T rounds, and a ledger's composition."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airdistill.privacy.gaussian import gaussian_epsilon, gaussian_mu, paper_mu
from airdistill.privacy.pld import composed_epsilon
from airdistill.privacy.poisson_sampling import (
    OPPOSITE,
    ORTHOGONAL,
    SubsampledGaussian,
    composition_groups,
    delta_of_round,
    grid_index,
    published_min_participants,
    published_mu,
    published_round,
    quantised_mu,
)
from airdistill.privacy.release import GroupedRelease, Release
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.privacy.spending import SubsampledSpending
from airdistill.privacy.trust import TRUST_MODELS

HALF_STEP = 2 ** (1 / 256)  # of the μ grid


@given(st.floats(1e-12, 1e3))
def test_mu_is_rounded_up_to_the_next_grid_point(mu):
    index = int(grid_index(np.array(mu)))
    assert quantised_mu(index) >= mu * (1 - 1e-8)
    assert quantised_mu(index - 1) < mu


def test_the_ends_of_the_mu_grid_and_rounding():
    ends = grid_index(np.array([0.0, np.inf]))
    np.testing.assert_array_equal([quantised_mu(int(index)) for index in ends], [0.0, np.inf])
    planned = np.array([quantised_mu(index) for index in range(-900, 900, 7)])
    # A rounding error in a planned μ must not raise it to the next grid point; half a step must.
    np.testing.assert_array_equal(grid_index(planned * (1 + 1e-12)), grid_index(planned))
    np.testing.assert_array_equal(grid_index(planned * HALF_STEP), grid_index(planned) + 1)
    assert quantised_mu(int(grid_index(np.array(1e-300)))) > 0, "every transmission has a cost"


def one_round(mechanism, mu):
    return partial(delta_of_round, probability=mechanism.probability, mu=mu, geometry=mechanism.geometry)


@pytest.mark.parametrize("geometry", [OPPOSITE, ORTHOGONAL])
@pytest.mark.parametrize(("probability", "num_rounds"), [(0.95, 7), (0.5, 60), (0.05, 60), (0.3, 1)])
def test_the_largest_round_mu_spends_the_target_and_no_more(geometry, probability, num_rounds):
    mechanism = SubsampledGaussian(probability, geometry)
    asked, delta = np.array([8.0, 0.3, np.inf]), np.array([1e-5, 1e-9, 1e-5])
    granted = mechanism.largest_round_mu(num_rounds, asked, delta, np.zeros(3))
    for mu, epsilon, at in zip(granted[:2], asked[:2], delta[:2], strict=True):
        assert composed_epsilon([(one_round(mechanism, mu), num_rounds)], at) <= epsilon
        assert composed_epsilon([(one_round(mechanism, mu * HALF_STEP**2), num_rounds)], at) > epsilon
        assert mu > 0.99 * gaussian_mu(epsilon, at) / np.sqrt(num_rounds)
    assert granted[2] == np.inf


@pytest.mark.parametrize("num_rounds", [60, 2000])
@pytest.mark.parametrize("together", [0.01, 0.5, 6.0, 20.0])
def test_rounding_errors_never_understate_epsilon(num_rounds, together):
    """At p = 1 the exact ε is known: the library's transforms alone are 7e-5 below it at T = 2000, δ = 1e-11."""
    curve = partial(delta_of_round, probability=1.0, mu=together / np.sqrt(num_rounds), geometry=OPPOSITE)
    for delta in (1e-5, 1e-11):
        exact = gaussian_epsilon(together, delta)
        assert exact * (1 - 1e-9) <= composed_epsilon([(curve, num_rounds)], delta) <= exact * 1.003
    assert composed_epsilon([(curve, num_rounds)], 1e-16 * num_rounds) == np.inf


def test_rounds_of_small_mu_are_resolved_next_to_one_of_large_mu():
    """A loss grid for the large μ alone would multiply the cost of the small ones."""
    small = partial(delta_of_round, probability=0.5, mu=0.02, geometry=ORTHOGONAL)
    large = partial(delta_of_round, probability=1.0, mu=2.0, geometry=ORTHOGONAL)
    about = gaussian_epsilon(np.sqrt(4 + 2000 * 0.01**2), 1e-5)
    assert about * 0.999 < composed_epsilon([(small, 2000), (large, 1)], 1e-5) < about * 1.003


@pytest.mark.parametrize("earlier_mu", [0.0, 1e3, 3e3, 1e12, 1e18])
def test_any_large_mu_has_an_epsilon(earlier_mu):
    """Almost no noise is counted, for example, under `own_noise` if the plan was for `fleet_noise`."""
    for mu in (0.01, 70.0, 1e3, 1e5, 1e15):
        mechanism, index = SubsampledGaussian(0.5, ORTHOGONAL), int(grid_index(np.array(mu)))
        epsilon = mechanism.epsilon(((index, 6),), 1e-5, earlier_mu)
        assert epsilon >= gaussian_epsilon(earlier_mu, 1e-5) * (1 - 1e-9)


def test_a_spent_budget_leaves_no_mu_and_a_delta_near_one_allows_almost_any():
    mechanism, one = SubsampledGaussian(0.5, ORTHOGONAL), np.ones(1)
    for spent in (gaussian_mu(8.0, 1e-5) ** 2, 100.0, np.inf):
        np.testing.assert_array_equal(mechanism.largest_round_mu(6, 8 * one, 1e-5 * one, spent * one), [0.0])
    assert mechanism.largest_round_mu(6, 8 * one, 0.999 * one, 0 * one)[0] > 1e3


def test_earlier_spending_is_composed_without_amplification():
    mechanism, earlier_mu, delta = SubsampledGaussian(0.5, ORTHOGONAL), 1.0, 1e-5
    before = SubsampledGaussian(1.0, ORTHOGONAL)
    granted = mechanism.largest_round_mu(20, np.array([8.0]), np.array([delta]), np.array([earlier_mu**2]))[0]
    both = [(one_round(mechanism, granted), 20), (one_round(before, earlier_mu), 1)]
    assert 8 * 0.98 < composed_epsilon(both, delta) <= 8
    assert granted < mechanism.largest_round_mu(20, np.array([8.0]), np.array([delta]), np.zeros(1))[0]
    alone = mechanism.epsilon((), delta, earlier_mu)
    assert gaussian_epsilon(earlier_mu, delta) <= alone <= 1.02 * gaussian_epsilon(earlier_mu, delta)


@given(st.floats(0.05, 20), st.floats(0.3, 1.0), st.sampled_from([1e-3, 1e-6]), st.sampled_from([60, 400]))
def test_published_mu_inverts_the_published_bound(epsilon, probability, delta, num_devices):
    """With this μ the published bound, as printed, gives the target (ε, δ)."""
    if published_min_participants(num_devices, probability, delta / 2) <= 0:
        return
    together = published_mu(np.array([epsilon]), np.array([delta]), probability, num_devices)[0]
    delta_0 = delta / 2 * (1 - delta / 2) / probability
    # The bound takes the noise of one device, and this μ refers to the noise of all devices.
    alone = together * np.sqrt(num_devices)
    back = published_round(num_devices, probability, alone, delta_0, delta / 2, "paper")
    assert back.epsilon == pytest.approx(epsilon, rel=1e-9)
    assert back.delta == pytest.approx(delta, rel=1e-9)


def test_the_published_bound_for_receiver_noise():
    """Receiver noise does not depend on participation: δ' = 0. With κ ≤ 0 the bound allows no μ."""
    epsilon, delta = np.array([2.0]), np.array([1e-5])
    amplified = np.log(1 + (np.e**2 - 1) / 0.25)
    assert published_mu(epsilon, delta, 0.25, None)[0] == pytest.approx(paper_mu(amplified, 4e-5))
    assert published_mu(epsilon, delta, 0.1, 50)[0] == 0


def test_pld_accounting_allows_at_least_the_mu_of_the_published_bound_for_one_round():
    """For one round the published bound is valid, and the exact accounting never requires more noise."""
    for epsilon, probability, num_devices in [(1.0, 0.5, 200), (0.5, 0.9, 60), (3.0, 0.3, 400)]:
        asked, delta = np.array([epsilon]), np.array([1e-4])
        published = published_mu(asked, delta, probability, num_devices)[0]
        exact = SubsampledGaussian(probability, ORTHOGONAL).largest_round_mu(1, asked, delta, np.zeros(1))[0]
        assert 0 < published <= exact


def test_amplifying_all_rounds_at_once_understates_epsilon():
    """The published bound holds for one round: twenty rounds, each sampled anew, reveal more than it states."""
    asked, delta, mechanism = np.array([20.0]), np.array([1e-5]), SubsampledGaussian(0.9, OPPOSITE)
    published = published_mu(asked, delta, mechanism.probability, None)[0]
    real = [
        composed_epsilon([(one_round(mechanism, published / np.sqrt(num_rounds)), num_rounds)], delta[0])
        for num_rounds in (1, 20, 400)
    ]
    assert real[0] < 20 < real[1] < real[2]


def release_with(round_index, mu):
    """A release with the given μ `[device]` under receiver noise, and twice that under the other trust models."""
    weights = np.ones((len(mu), 1))
    with np.errstate(divide="ignore"):
        counted = 1 / np.array(mu)[:, None] ** 2
    noise = {trust: factor * counted for trust, factor in zip(TRUST_MODELS, (1, 0.25, 0.25), strict=True)}
    return Release(round_index, weights, dict.fromkeys(SENSITIVITY_MODELS, weights), noise)


def spending_of(*rounds, probability=0.4):
    spent = SubsampledSpending(SubsampledGaussian(probability, ORTHOGONAL))
    for index, mu in enumerate(rounds, 1):
        spent = spent.after(GroupedRelease.of(release_with(index, mu)))
    return spent


@given(st.dictionaries(st.integers(-700, 100), st.integers(1, 9), min_size=1, max_size=60))
def test_many_grid_indices_are_merged_into_few_groups_never_above_the_highest(counts):
    few = composition_groups(counts)
    before, after = (sorted(np.repeat(*zip(*groups, strict=True))) for groups in (sorted(counts.items()), few))
    assert len(few) <= 8
    assert len(before) == len(after)
    assert all(low <= high for low, high in zip(before, after, strict=True))
    assert max(after) == max(before)
    if len(counts) <= 8:
        assert dict(few) == counts
    assert composition_groups(counts, 10_000) == ((max(before), len(before)),)


class TestSpending:
    def test_composition_does_not_depend_on_the_order_of_rounds(self):
        delta, nothing = np.array([1e-5, 1e-4]), np.zeros(2)
        large, small = (0.5, 0.2), (0.25, 0.1)
        mixed = spending_of(large, small, large, small, small).epsilon("receiver_noise", delta, nothing)
        sorted_ = spending_of(small, small, small, large, large).epsilon("receiver_noise", delta, nothing)
        np.testing.assert_array_equal(mixed, sorted_)
        mechanism = SubsampledGaussian(0.4, ORTHOGONAL)
        exact = composed_epsilon([(one_round(mechanism, 0.5), 2), (one_round(mechanism, 0.25), 3)], 1e-5)
        assert exact <= mixed[0] * (1 + 1e-4)
        assert mixed[0] <= 1.02 * exact
        twice = spending_of((1.0, 0.4), (0.5, 0.2), (1.0, 0.4), (0.5, 0.2), (0.5, 0.2))
        np.testing.assert_array_equal(
            spending_of(large, small, large, small, small).epsilon("fleet_noise", delta, nothing),
            twice.epsilon("receiver_noise", delta, nothing),
        )

    @settings(max_examples=20)
    @given(st.lists(st.tuples(*[st.floats(0.01, 2.0)] * 5), min_size=1, max_size=4), st.integers(0, 9))
    def test_no_device_exceeds_the_highest_epsilon(self, rounds, seed):
        draw = np.random.default_rng(seed)
        delta, earlier = 10.0 ** draw.integers(-6, -3, 5), draw.choice([0.0, 0.3], 5)
        spent = spending_of(*rounds)
        epsilon = spent.epsilon("receiver_noise", delta, earlier)
        assert spent.highest_epsilon("receiver_noise", delta, earlier) >= epsilon.max() * (1 - 3e-4)

    def test_the_highest_epsilon_is_that_of_the_device_with_the_highest_cost(self):
        delta, nothing = np.array([1e-5, 1e-4, 1e-5]), np.zeros(3)
        spent = spending_of((0.5, 0.5, 0.1), (0.1, 0.1, 0.4), (0.2, 0.2, 0.1))
        worst = spent.epsilon("receiver_noise", delta, nothing)[0]
        assert spent.highest_epsilon("receiver_noise", delta, nothing) == pytest.approx(worst, rel=1e-6)

    def test_no_transmission_costs_zero_and_no_noise_costs_infinity(self):
        spent = spending_of((0.0, np.inf), (0.0, 0.1))
        np.testing.assert_array_equal(spent.epsilon("receiver_noise", np.full(2, 1e-5), np.zeros(2)), [0, np.inf])
