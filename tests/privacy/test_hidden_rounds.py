"""Rounds whose coins nobody sees: the ladder, what T rounds may have, what a ledger composes of them."""

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
    mu_of,
    published_fewest,
    published_mu,
    published_round,
)
from airdistill.privacy.release import TRUST_MODELS, Release, SubsampledSpending
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS

HALF_RUNG = 2 ** (1 / 256)


@given(st.floats(1e-12, 1e3))
def test_a_rung_is_the_lowest_that_is_not_below(mu):
    rung = int(grid_index(np.array(mu)))
    assert mu_of(rung) >= mu * (1 - 1e-8)
    assert mu_of(rung - 1) < mu


def test_the_ends_of_the_ladder():
    np.testing.assert_array_equal([mu_of(int(rung)) for rung in grid_index(np.array([0.0, np.inf]))], [0.0, np.inf])
    planned = np.array([mu_of(rung) for rung in range(-900, 900, 7)])
    # What rounding leaves of a planned μ must not lift it to the next rung, and quarter of a rung more must.
    np.testing.assert_array_equal(grid_index(planned * (1 + 1e-12)), grid_index(planned))
    np.testing.assert_array_equal(grid_index(planned * HALF_RUNG), grid_index(planned) + 1)
    assert mu_of(int(grid_index(np.array(1e-300)))) > 0, "whatever is sent costs something"


def one_round(coin, mu):
    return partial(delta_of_round, probability=coin.probability, mu=mu, geometry=coin.geometry)


@pytest.mark.parametrize("geometry", [OPPOSITE, ORTHOGONAL])
@pytest.mark.parametrize(("probability", "num_rounds"), [(0.95, 7), (0.5, 60), (0.05, 60), (0.3, 1)])
def test_rounds_may_have_what_spends_the_target_and_no_more(geometry, probability, num_rounds):
    coin = SubsampledGaussian(probability, geometry)
    asked, delta = np.array([8.0, 0.3, np.inf]), np.array([1e-5, 1e-9, 1e-5])
    granted = coin.largest_round_mu(num_rounds, asked, delta, np.zeros(3))
    for mu, epsilon, at in zip(granted[:2], asked[:2], delta[:2], strict=True):
        assert composed_epsilon([(one_round(coin, mu), num_rounds)], at) <= epsilon
        assert composed_epsilon([(one_round(coin, mu * HALF_RUNG**2), num_rounds)], at) > epsilon
        assert mu > 0.99 * gaussian_mu(epsilon, at) / np.sqrt(num_rounds)
    assert granted[2] == np.inf


@pytest.mark.parametrize("num_rounds", [60, 2000])
@pytest.mark.parametrize("together", [0.01, 0.5, 6.0, 20.0])
def test_no_rounding_of_many_rounds_promises_too_little(num_rounds, together):
    """Without a coin the truth is known: the library's transforms alone are 7e-5 below it at T = 2000, δ = 1e-11."""
    curve = partial(delta_of_round, probability=1.0, mu=together / np.sqrt(num_rounds), geometry=OPPOSITE)
    for delta in (1e-5, 1e-11):
        exact = gaussian_epsilon(together, delta)
        assert exact * (1 - 1e-9) <= composed_epsilon([(curve, num_rounds)], delta) <= exact * 1.003
    assert composed_epsilon([(curve, num_rounds)], 1e-16 * num_rounds) == np.inf


def test_quiet_rounds_beside_a_loud_one_are_told_from_nothing():
    """A grid for the loud one alone would make the quiet ones cost a multiple."""
    quiet = partial(delta_of_round, probability=0.5, mu=0.02, geometry=ORTHOGONAL)
    loud = partial(delta_of_round, probability=1.0, mu=2.0, geometry=ORTHOGONAL)
    about = gaussian_epsilon(np.sqrt(4 + 2000 * 0.01**2), 1e-5)
    assert about * 0.999 < composed_epsilon([(quiet, 2000), (loud, 1)], 1e-5) < about * 1.003


@pytest.mark.parametrize("earlier_mu", [0.0, 1e3, 3e3, 1e12, 1e18])
def test_whatever_is_loud_has_an_epsilon(earlier_mu):
    """As of noise that is next to none: a device's own where the fleet's was planned for."""
    for mu in (0.01, 70.0, 1e3, 1e5, 1e15):
        coin, rung = SubsampledGaussian(0.5, ORTHOGONAL), int(grid_index(np.array(mu)))
        epsilon = coin.epsilon(((rung, 6),), 1e-5, earlier_mu)
        assert epsilon >= gaussian_epsilon(earlier_mu, 1e-5) * (1 - 1e-9)


def test_nothing_is_left_to_who_has_spent_it_and_certain_failure_asks_for_nothing():
    coin, one = SubsampledGaussian(0.5, ORTHOGONAL), np.ones(1)
    for spent in (gaussian_mu(8.0, 1e-5) ** 2, 100.0, np.inf):
        np.testing.assert_array_equal(coin.largest_round_mu(6, 8 * one, 1e-5 * one, spent * one), [0.0])
    assert coin.largest_round_mu(6, 8 * one, 0.999 * one, 0 * one)[0] > 1e3


def test_what_was_spent_before_is_composed_in_full():
    coin, earlier_mu, delta = SubsampledGaussian(0.5, ORTHOGONAL), 1.0, 1e-5
    before = SubsampledGaussian(1.0, ORTHOGONAL)
    granted = coin.largest_round_mu(20, np.array([8.0]), np.array([delta]), np.array([earlier_mu**2]))[0]
    both = [(one_round(coin, granted), 20), (one_round(before, earlier_mu), 1)]
    assert 8 * 0.98 < composed_epsilon(both, delta) <= 8
    assert granted < coin.largest_round_mu(20, np.array([8.0]), np.array([delta]), np.zeros(1))[0]
    alone = coin.epsilon((), delta, earlier_mu)
    assert gaussian_epsilon(earlier_mu, delta) <= alone <= 1.02 * gaussian_epsilon(earlier_mu, delta)


@given(st.floats(0.05, 20), st.floats(0.3, 1.0), st.sampled_from([1e-3, 1e-6]), st.sampled_from([60, 400]))
def test_the_published_form_is_inverted(epsilon, probability, delta, num_devices):
    """With its μ the published form, as printed, says the very (ε, δ)."""
    if published_fewest(num_devices, probability, delta / 2) <= 0:
        return
    together = published_mu(np.array([epsilon]), np.array([delta]), probability, num_devices)[0]
    delta_0 = delta / 2 * (1 - delta / 2) / probability
    # Its noises are of one device each, and this μ is over all of theirs.
    alone = together * np.sqrt(num_devices)
    back = published_round(num_devices, probability, alone, delta_0, delta / 2, "paper")
    assert back.epsilon == pytest.approx(epsilon, rel=1e-9)
    assert back.delta == pytest.approx(delta, rel=1e-9)


def test_the_published_form_for_noise_that_is_not_the_devices():
    """Nothing can be missing of it: δ' = 0. It says nothing where κ is not above zero."""
    epsilon, delta = np.array([2.0]), np.array([1e-5])
    amplified = np.log(1 + (np.e**2 - 1) / 0.25)
    assert published_mu(epsilon, delta, 0.25, None)[0] == pytest.approx(paper_mu(amplified, 4e-5))
    assert published_mu(epsilon, delta, 0.1, 50)[0] == 0


def test_the_distribution_grants_no_less_than_the_published_form_where_that_is_valid():
    """One round, amplified once: the sound accounting needs no more noise than the published form plans for."""
    for epsilon, probability, num_devices in [(1.0, 0.5, 200), (0.5, 0.9, 60), (3.0, 0.3, 400)]:
        asked, delta = np.array([epsilon]), np.array([1e-4])
        form = published_mu(asked, delta, probability, num_devices)[0]
        sound = SubsampledGaussian(probability, ORTHOGONAL).largest_round_mu(1, asked, delta, np.zeros(1))[0]
        assert 0 < form <= sound


def test_all_rounds_amplified_at_once_promise_too_much():
    """The published form is about one round: of twenty, each with its own coin, more is told than it says."""
    asked, delta, coin = np.array([20.0]), np.array([1e-5]), SubsampledGaussian(0.9, OPPOSITE)
    form = published_mu(asked, delta, coin.probability, None)[0]
    real = [
        composed_epsilon([(one_round(coin, form / np.sqrt(num_rounds)), num_rounds)], delta[0])
        for num_rounds in (1, 20, 400)
    ]
    assert real[0] < 20 < real[1] < real[2]


def release_with(round_index, mu):
    """Of devices whose μ is given, `[device]`, under receiver noise; others see twice as much."""
    weights = np.ones((len(mu), 1))
    with np.errstate(divide="ignore"):
        counted = 1 / np.array(mu)[:, None] ** 2
    noise = {trust: factor * counted for trust, factor in zip(TRUST_MODELS, (1, 0.25, 0.25), strict=True)}
    return Release(round_index, weights, dict.fromkeys(SENSITIVITY_MODELS, weights), noise)


def spending_of(*rounds, probability=0.4):
    spent = SubsampledSpending(SubsampledGaussian(probability, ORTHOGONAL))
    for index, mu in enumerate(rounds, 1):
        spent = spent.after(release_with(index, mu))
    return spent


@given(st.dictionaries(st.integers(-700, 100), st.integers(1, 9), min_size=1, max_size=60))
def test_many_rungs_are_raised_to_few_and_none_above_the_highest(counts):
    few = composition_groups(counts)
    before, after = (sorted(np.repeat(*zip(*kinds, strict=True))) for kinds in (sorted(counts.items()), few))
    assert len(few) <= 8
    assert len(before) == len(after)
    assert all(low <= high for low, high in zip(before, after, strict=True))
    assert max(after) == max(before)
    if len(counts) <= 8:
        assert dict(few) == counts
    assert composition_groups(counts, 10_000) == ((max(before), len(before)),)


class TestSpending:
    def test_rounds_of_a_kind_are_composed_whatever_their_order(self):
        delta, nothing = np.array([1e-5, 1e-4]), np.zeros(2)
        loud, quiet = (0.5, 0.2), (0.25, 0.1)
        mixed = spending_of(loud, quiet, loud, quiet, quiet).epsilon("receiver_noise", delta, nothing)
        sorted_ = spending_of(quiet, quiet, quiet, loud, loud).epsilon("receiver_noise", delta, nothing)
        np.testing.assert_array_equal(mixed, sorted_)
        coin = SubsampledGaussian(0.4, ORTHOGONAL)
        exact = composed_epsilon([(one_round(coin, 0.5), 2), (one_round(coin, 0.25), 3)], 1e-5)
        assert exact <= mixed[0] * (1 + 1e-4)
        assert mixed[0] <= 1.02 * exact
        twice = spending_of((1.0, 0.4), (0.5, 0.2), (1.0, 0.4), (0.5, 0.2), (0.5, 0.2))
        np.testing.assert_array_equal(
            spending_of(loud, quiet, loud, quiet, quiet).epsilon("fleet_noise", delta, nothing),
            twice.epsilon("receiver_noise", delta, nothing),
        )

    @settings(max_examples=20)
    @given(st.lists(st.tuples(*[st.floats(0.01, 2.0)] * 5), min_size=1, max_size=4), st.integers(0, 9))
    def test_nobody_exceeds_the_highest_epsilon(self, rounds, seed):
        draw = np.random.default_rng(seed)
        delta, earlier = 10.0 ** draw.integers(-6, -3, 5), draw.choice([0.0, 0.3], 5)
        spent = spending_of(*rounds)
        epsilon = spent.epsilon("receiver_noise", delta, earlier)
        assert spent.highest_epsilon("receiver_noise", delta, earlier) >= epsilon.max() * (1 - 3e-4)

    def test_the_highest_epsilon_is_that_of_whoever_has_paid_most(self):
        delta, nothing = np.array([1e-5, 1e-4, 1e-5]), np.zeros(3)
        spent = spending_of((0.5, 0.5, 0.1), (0.1, 0.1, 0.4), (0.2, 0.2, 0.1))
        worst = spent.epsilon("receiver_noise", delta, nothing)[0]
        assert spent.highest_epsilon("receiver_noise", delta, nothing) == pytest.approx(worst, rel=1e-6)

    def test_nothing_sent_costs_nothing_and_nothing_hidden_everything(self):
        spent = spending_of((0.0, np.inf), (0.0, 0.1))
        np.testing.assert_array_equal(spent.epsilon("receiver_noise", np.full(2, 1e-5), np.zeros(2)), [0, np.inf])
