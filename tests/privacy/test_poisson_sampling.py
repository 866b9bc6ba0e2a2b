"""Secret Poisson sampling: one round against numerical integration, several rounds against sums over all outcomes, and
the published bound against both."""

from functools import partial

import mpmath
import numpy as np
import pytest
from scipy.stats import binom, norm

from airdistill.privacy.gaussian import gaussian_delta, gaussian_epsilon
from airdistill.privacy.pld import composed_epsilon
from airdistill.privacy.poisson_sampling import (
    OPPOSITE,
    ORTHOGONAL,
    delta_of_round,
    delta_with_participants_noise,
    min_participants,
    published_min_participants,
    published_round,
)

STEP = 0.04
AXIS = np.arange(-11, 11 + STEP, STEP)
PLANE = np.meshgrid(AXIS, AXIS, indexing="ij")


def mixture(probability, centre):
    """p·N(centre) + (1−p)·N(0) on the grid of the plane, as masses."""

    def density(at):
        return norm.pdf(PLANE[0] - at[0]) * norm.pdf(PLANE[1] - at[1])

    return (probability * density(centre) + (1 - probability) * density((0.0, 0.0))) * STEP**2


def hockey_stick(first, second, epsilon):
    return float(np.maximum(first - np.exp(epsilon) * second, 0).sum())


def worst_pair(geometry, mu):
    half, leg = mu / 2, mu / np.sqrt(2)
    return ((-half, 0.0), (half, 0.0)) if geometry == OPPOSITE else ((leg, 0.0), (0.0, leg))


@pytest.mark.parametrize("geometry", [OPPOSITE, ORTHOGONAL])
@pytest.mark.parametrize(("probability", "mu"), [(0.1, 0.5), (0.3, 3.0), (0.5, 1.0), (0.9, 2.0)])
def test_delta_of_a_round_is_the_integral_for_the_worst_pair(geometry, probability, mu):
    pair = [mixture(probability, centre) for centre in worst_pair(geometry, mu)]
    for epsilon in (0.0, 0.05, 0.5, 1.5):
        ours = delta_of_round(epsilon, probability, mu, geometry)[0]
        for first, second in (pair, pair[::-1]):
            assert ours == pytest.approx(hockey_stick(first, second, epsilon), rel=2e-3, abs=1e-7)


@pytest.mark.parametrize("epsilon", [0.3, 4.0, 9.0])
def test_opposite_vectors_in_40_digit_arithmetic(epsilon):
    """Deep in the tail, where a factor of 2 in the shift or a missing c would be visible."""
    mpmath.mp.dps = 40
    p, m, alpha = mpmath.mpf("0.2"), mpmath.mpf("0.75"), mpmath.e ** mpmath.mpf(epsilon)

    def density(x, centre):
        return p * mpmath.npdf(x, centre) + (1 - p) * mpmath.npdf(x, 0)

    def excess(x):
        return mpmath.log(density(x, -m) / density(x, m)) - epsilon

    edge = mpmath.findroot(excess, (-40, 5), solver="anderson")
    exact = mpmath.quad(lambda x: density(x, -m) - alpha * density(x, m), [-60, edge - 20, edge - 5, edge])
    assert delta_of_round(epsilon, 0.2, 1.5, OPPOSITE)[0] == pytest.approx(float(exact), rel=1e-8, abs=1e-16)


@pytest.mark.parametrize("geometry", [OPPOSITE, ORTHOGONAL])
def test_no_other_pair_of_neighbours_reveals_more(geometry):
    """Random vectors within the norm bound; without negative entries for knowledge."""
    draw, probability, mu = np.random.default_rng(0), 0.3, 1.6
    longest = mu / 2 if geometry == OPPOSITE else mu / np.sqrt(2)
    for _ in range(12):
        low = -np.pi if geometry == OPPOSITE else 0.0
        angles, lengths = draw.uniform(low, np.pi / 2, 2), longest * np.sqrt(draw.uniform(0.2, 1, 2))
        first, second = (
            mixture(probability, (length * np.cos(angle), length * np.sin(angle)))
            for angle, length in zip(angles, lengths, strict=True)
        )
        for epsilon in (0.0, 0.2, 1.0):
            bound = delta_of_round(epsilon, probability, mu, geometry)[0]
            assert hockey_stick(first, second, epsilon) <= bound * (1 + 2e-3)


@pytest.mark.parametrize("geometry", [OPPOSITE, ORTHOGONAL])
def test_full_participation_is_the_gaussian_mechanism_and_sampling_never_increases_delta(geometry):
    epsilon = np.linspace(0, 5, 40)
    for mu in (0.2, 1.0, 4.0):
        full = gaussian_delta(epsilon, mu)
        np.testing.assert_allclose(delta_of_round(epsilon, 1.0, mu, geometry), full, rtol=1e-12)
        nearly = delta_of_round(epsilon, 1 - 1e-9, mu, geometry)
        np.testing.assert_allclose(nearly, full, rtol=1e-5, atol=1e-12)
        assert (delta_of_round(epsilon, 0.4, mu, geometry) <= 0.4 * full + 1e-15).all()


@pytest.mark.parametrize("num_rounds", [1, 2, 3])
def test_few_rounds_agree_with_the_sum_over_all_outcomes(num_rounds):
    """δ at the ε of the privacy loss distribution, from T-fold products of densities on a grid."""
    probability, mu, delta = 0.3, 1.4, 1e-4
    epsilon = composed_epsilon([(lambda e: delta_of_round(e, probability, mu, OPPOSITE), num_rounds)], delta)
    step = 0.01 if num_rounds < 3 else 0.06
    x = np.arange(-8, 8 + step, step)
    first = (probability * norm.pdf(x + mu / 2) + (1 - probability) * norm.pdf(x)) * step
    second = (probability * norm.pdf(x - mu / 2) + (1 - probability) * norm.pdf(x)) * step
    products = [first, second]
    for _ in range(num_rounds - 1):
        products = [np.multiply.outer(products[0], first), np.multiply.outer(products[1], second)]
    assert np.maximum(products[0] - np.exp(epsilon) * products[1], 0).sum() == pytest.approx(delta, rel=3e-3)


def test_many_rounds_agree_with_dp_accountings_replace_one_relation():
    from dp_accounting.pld import privacy_loss_distribution as pld

    relation = pld.NeighborRel.REPLACE_ONE  # its sensitivity is the norm m: neighbours differ by 2m
    for probability, mu, num_rounds, delta in [(0.1, 0.5, 10, 1e-5), (0.1, 1.0, 400, 1e-5), (0.5, 0.1, 300, 1e-9)]:
        theirs = pld.from_gaussian_mechanism(
            2 / mu, sampling_prob=probability, neighboring_relation=relation, value_discretization_interval=1e-3
        ).self_compose(num_rounds)
        one_round = partial(delta_of_round, probability=probability, mu=mu, geometry=OPPOSITE)
        ours = composed_epsilon([(one_round, num_rounds)], delta)
        assert ours == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=1e-4)


def test_several_composition_groups_compose_and_no_rounds_cost_nothing():
    def round_of(mu):
        return lambda epsilon: delta_of_round(epsilon, 1.0, mu, ORTHOGONAL)

    mixed = composed_epsilon([(round_of(0.3), 4), (round_of(0.8), 2), (round_of(5.0), 0)], 1e-6)
    assert mixed == pytest.approx(gaussian_epsilon(np.sqrt(4 * 0.3**2 + 2 * 0.8**2), 1e-6), rel=1e-4)
    assert composed_epsilon([], 1e-6) == 0


def test_min_participants_by_monte_carlo():
    """At least κ devices participate in each of T rounds with probability 1 − δ'; κ + 1 would be too many."""
    num_devices, probability, failure, num_rounds, trials = 50, 0.3, 0.05, 20, 20_000
    draw = np.random.default_rng(1)
    least = draw.binomial(num_devices, probability, (trials, num_rounds)).min(axis=1)
    fewest = min_participants(num_devices, probability, failure, num_rounds)
    error_bar = 4 * np.sqrt(failure / trials)
    assert (least < fewest).mean() <= failure + error_bar
    assert num_rounds * binom.cdf(fewest, num_devices, probability) > failure
    # Hoeffding's κ for the same failure probability per round is never larger.
    assert published_min_participants(num_devices, probability, failure / num_rounds) <= fewest


@pytest.mark.parametrize(("num_devices", "probability"), [(7, 0.5), (50, 0.02), (200, 0.9)])
def test_min_participants_is_the_largest_number_within_the_failure_probability(num_devices, probability):
    for failure in (0.3, 1e-3, 1e-9):
        fewest = min_participants(num_devices, probability, failure)
        assert binom.cdf(fewest - 1, num_devices, probability) <= failure
        assert binom.cdf(fewest, num_devices, probability) > failure


VALID = [
    (num_devices, probability, mu, delta_0, failure)
    for num_devices in (20, 50, 200)
    for probability in (0.3, 0.5, 0.9)
    for mu in (0.3, 3.0)
    for delta_0, failure in ((1e-5, 1e-6), (1e-3, 1e-3))
    if published_min_participants(num_devices, probability, failure) > 0
]


def test_pld_accounting_never_exceeds_a_valid_published_bound():
    """One round, noise from participating devices only, at the δ of the published bound."""
    assert len(VALID) > 20
    for num_devices, probability, mu, delta_0, failure in VALID:
        published = published_round(num_devices, probability, mu, delta_0, failure)

        def round_of(epsilon, given=(num_devices, probability, mu)):
            return delta_with_participants_noise(epsilon, *given)

        assert composed_epsilon([(round_of, 1)], published.delta) <= published.epsilon


def test_the_published_bound_as_printed():
    made = published_round(100, 0.5, 1.0, 1e-5, 1e-3)
    fewest = 50 - np.sqrt(50 * np.log(1000))
    assert made.min_participants == pytest.approx(fewest)
    epsilon_0 = gaussian_epsilon(1 / np.sqrt(fewest), 1e-5)
    assert made.epsilon == pytest.approx(np.log(1 + 0.5 / 0.999 * (np.exp(epsilon_0) - 1)))
    assert made.delta == pytest.approx(1e-3 + 0.5e-5 / 0.999)


class TestWhereThePublishedBoundIsNotValid:
    def test_few_devices_or_a_small_probability_leave_no_counted_noise(self):
        """κ ≤ 0: the published bound is infinite; the exact number of participants is still positive."""
        assert published_min_participants(50, 0.1, 1e-5) < 0
        assert published_round(50, 0.1, 1.0, 1e-5, 1e-5).epsilon == np.inf
        assert min_participants(50, 0.5, 1e-5) > published_min_participants(50, 0.5, 1e-5) > 0

    def test_theorem_2_understates_epsilon_for_large_mu(self):
        """ε_0 by Theorem 2 above 7 to 10: the resulting ε is below the exact one."""
        made = published_round(20, 0.9, 30.0, 1e-3, 1e-6, "paper")
        assert made.epsilon < composed_epsilon(
            [(lambda epsilon: delta_with_participants_noise(epsilon, 20, 0.9, 30.0), 1)], made.delta
        )

    def test_one_record_is_not_amplified_if_participation_is_visible(self):
        """ε_0 for one record, in a device whose norm reveals its participation: only δ is amplified, not ε."""
        probability, shift, norm_of_device, delta_0 = 0.1, 1.0, 9.0, 1e-5
        epsilon_0 = gaussian_epsilon(shift, delta_0)
        claimed = np.log(1 + probability * (np.exp(epsilon_0) - 1))
        own, neighbour = (-norm_of_device, 0.0), (-norm_of_device, shift)
        revealed = hockey_stick(mixture(probability, own), mixture(probability, neighbour), claimed)
        assert revealed > 50 * probability * delta_0
        assert hockey_stick(mixture(probability, own), mixture(probability, neighbour), epsilon_0) == pytest.approx(
            probability * delta_0, rel=0.05
        )

    def test_sampling_once_for_all_rounds_is_not_sampling_in_each(self):
        """ε_0 of all T rounds amplified once ignores that a device is sampled T times."""
        probability, mu, num_rounds = 0.01, 8.0, 20
        delta_0 = gaussian_delta(0.0, mu * np.sqrt(num_rounds))  # all rounds are (0, δ_0); amplified once, (0, pδ_0)
        one_round = partial(delta_of_round, probability=probability, mu=mu, geometry=OPPOSITE)
        assert composed_epsilon([(one_round, num_rounds)], probability * delta_0) > 5

    def test_the_failure_probability_grows_with_the_number_of_rounds(self):
        """δ' holds for one round: over T rounds too few devices participate in some round almost T times as often."""
        num_devices, probability, failure, num_rounds = 50, 0.3, 0.02, 50
        fewest = min_participants(num_devices, probability, failure)
        counts = np.random.default_rng(2).binomial(num_devices, probability, (4000, num_rounds))
        assert (counts.min(axis=1) < fewest).mean() > 10 * failure


@pytest.mark.parametrize("wrong", [0.0, -0.1, 1.1, float("nan")])
def test_a_probability_is_above_0_and_at_most_1(wrong):
    with pytest.raises(ValueError, match="probability"):
        published_min_participants(10, wrong, 0.1)
    with pytest.raises(ValueError, match="probability"):
        delta_of_round(0.1, wrong, 1.0, OPPOSITE)
