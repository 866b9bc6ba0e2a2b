"""Confident-GNMax against probabilities by quadrature, exact Rényi divergences, enumeration, and dp_accounting."""

import itertools
from math import erfc, exp, log, sqrt

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from airdistill.privacy.concentrated import concentrated_epsilon
from airdistill.privacy.gaussian import gaussian_delta, gaussian_epsilon
from airdistill.privacy.pate import (
    ORDERS,
    UNANSWERED,
    ConfidentGnmax,
    data_dependent_rdp,
    epsilon_of_rdp,
    gnmax_rdp,
    log_outvoted,
    published_rdp,
)

PUBLISHED = ConfidentGnmax(threshold=200, threshold_noise=150, vote_noise=40, num_queries=640, most_answers=286)
FEW_ORDERS = np.array([1.5, 2.0, 4.0, 8.0, 16.0, 32.0])
VOTES = ([20, 0, 0], [17, 2, 1], [11, 9, 0], [7, 7, 6], [0, 12, 8], [19, 1, 0])


def winners(counts, deviation, points=4001):
    """The probability of each class to win, by quadrature over the winner's own noise: Pr = ∫φ(z) Π Φ(…) dz."""
    counts = np.asarray(counts, dtype=float)
    z = np.linspace(-12, 12, points)
    gaps = (counts[:, None, None] + deviation * z - counts[None, :, None]) / deviation
    others = np.where(np.eye(len(counts), dtype=bool)[..., None], 0.0, norm.logcdf(gaps)).sum(axis=1)
    weight = norm.pdf(z) * (z[1] - z[0])
    return (weight * np.exp(others)).sum(axis=1)


def neighbours(counts):
    """The counts after one vote moved from one class to another."""
    for gave, got in itertools.permutations(range(len(counts)), 2):
        if counts[gave] > 0:
            moved = np.array(counts)
            moved[gave] -= 1
            moved[got] += 1
            yield moved


def renyi(mine, theirs, order):
    return logsumexp(order * np.log(mine) + (1 - order) * np.log(theirs)) / (order - 1)


def confident(counts, settings):
    """The probabilities of a refusal and of each class."""
    passed = norm.sf((settings.threshold - max(counts)) / settings.threshold_noise)
    return np.concatenate([[1 - passed], passed * winners(counts, settings.vote_noise)])


def test_winning_probabilities_by_quadrature_are_probabilities():
    assert winners([7, 7, 6], 3.0).sum() == pytest.approx(1, abs=1e-9)
    assert winners([11, 9], 2.0)[1] == pytest.approx(norm.sf(2 / (sqrt(2) * 2.0)), rel=1e-9)


@pytest.mark.parametrize("counts", VOTES)
@pytest.mark.parametrize("deviation", [1.5, 3.0, 8.0])
def test_proposition_7_bounds_the_probability_that_the_plurality_loses(counts, deviation):
    bound, top = exp(log_outvoted(np.array([counts]), deviation)[0]), int(np.argmax(counts))
    assert bound >= (1 - winners(counts, deviation)[top]) * (1 - 1e-6) - 1e-12
    gaps = [counts[top] - count for label, count in enumerate(counts) if label != top]
    printed = sum(erfc(gap / (2 * deviation)) for gap in gaps) / 2
    assert bound == pytest.approx(min(printed, 1 - 1 / len(counts)), rel=1e-9)


@pytest.mark.parametrize("counts", VOTES)
@pytest.mark.parametrize("deviation", [1.5, 3.0, 8.0])
def test_theorem_6_is_between_the_exact_divergence_and_that_of_any_votes(counts, deviation):
    bound = gnmax_rdp(log_outvoted(np.array([counts]), deviation), deviation, FEW_ORDERS)[0]
    mine = winners(counts, deviation)
    for order, value in zip(FEW_ORDERS, bound, strict=True):
        exact = max(renyi(mine, winners(moved, deviation), order) for moved in neighbours(counts))
        assert exact <= value * (1 + 1e-6) + 1e-9
        assert value <= order / deviation**2 * (1 + 1e-12)


def test_theorem_6_as_printed():
    q, deviation, order = 1e-6, 4.0, 3.0
    second = deviation * sqrt(log(1 / q))
    first = second + 1
    eps1, eps2 = first / deviation**2, second / deviation**2
    assert q <= exp((second - 1) * eps2) / (first / (first - 1) * second / (second - 1)) ** second
    a = (1 - q) / (1 - (q * exp(eps2)) ** ((second - 1) / second))
    b = exp(eps1) / q ** (1 / (first - 1))
    printed = log((1 - q) * a ** (order - 1) + q * b ** (order - 1)) / (order - 1)
    found = float(gnmax_rdp(np.array([log(q)]), deviation, np.array([order]))[0, 0])
    assert found == pytest.approx(printed, rel=1e-9)
    assert found < 0.1 * order / deviation**2


def test_an_answer_costs_less_the_more_devices_agree_and_nothing_if_it_is_certain():
    agreeing = np.array([[125 + half, 125 - half] for half in range(0, 126, 5)])
    cost = gnmax_rdp(log_outvoted(agreeing, 20.0), 20.0, ORDERS)
    assert (np.diff(cost, axis=0) <= 1e-12).all()
    assert cost[0] == pytest.approx(ORDERS / 20.0**2)
    assert cost[-1, 0] < 1e-6 * cost[0, 0]
    assert not gnmax_rdp(np.array([-np.inf]), 20.0, ORDERS).any()


@pytest.mark.parametrize("counts", VOTES)
@pytest.mark.parametrize("threshold", [8.0, 16.0, 30.0])
def test_the_cost_of_a_query_is_at_least_that_of_its_refusal_and_answers_together(counts, threshold):
    settings = ConfidentGnmax(threshold, 6.0, 3.0, 1, 1)
    bound, mine = data_dependent_rdp(settings, np.array([counts]), FEW_ORDERS), confident(counts, settings)
    for order, value in zip(FEW_ORDERS, bound, strict=True):
        exact = max(renyi(mine, confident(moved, settings), order) for moved in neighbours(counts))
        assert exact <= value * (1 + 1e-6) + 1e-9
        assert value <= order * (1 / (2 * 6.0**2) + 1 / 3.0**2) * (1 + 1e-9)


def test_the_published_accounting_is_the_mean_over_outcomes():
    counts, settings = np.array([[17, 2, 1]]), ConfidentGnmax(16.0, 6.0, 3.0, 1, 1)
    passed = norm.sf((16 - 17) / 6.0)
    check = gnmax_rdp(np.log([min(passed, 1 - passed)]), sqrt(2) * 6.0, ORDERS)[0]
    answer = gnmax_rdp(log_outvoted(counts, 3.0), 3.0, ORDERS)[0]
    assert published_rdp(settings, counts) == pytest.approx(check + passed * answer)


def sequences(queries, settings):
    """Every sequence of outcomes of these queries with its probability; nothing is asked after the last answer."""
    found = {(): 1.0}
    for counts in queries:
        each = confident(counts, settings)
        following = {}
        for past, probability in found.items():
            if sum(label != UNANSWERED for label in past) == settings.most_answers:
                following[past] = probability
                continue
            for label, share in enumerate(each, start=UNANSWERED):
                following[(*past, label)] = probability * share
        found = following
    return found


@pytest.mark.parametrize("most_answers", [1, 2])
def test_the_guarantee_covers_every_sequence_of_answers(most_answers):
    """The exact δ of three queries, which are asked until enough are answered, beside that of one Gaussian."""
    settings = ConfidentGnmax(6.0, 2.0, 1.5, 3, most_answers)
    mu = sqrt(settings.squared_distance) / settings.vote_noise
    assert mu**2 == pytest.approx(3 / 2.0**2 + most_answers * 2 / 1.5**2)
    mine = sequences([[5, 4], [6, 3], [4, 5]], settings)
    theirs = sequences([[4, 5], [5, 4], [3, 6]], settings)
    assert sum(mine.values()) == pytest.approx(1)
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        for one, other in ((mine, theirs), (theirs, mine)):
            exact = sum(max(0.0, one[way] - exp(epsilon) * other[way]) for way in one)
            assert exact <= gaussian_delta(epsilon, mu)
            assert epsilon > 0.5 or exact > 0.05 * gaussian_delta(epsilon, mu)


def test_the_published_setting_costs_what_dp_accounting_says():
    accounting = pytest.importorskip("dp_accounting")
    mu = sqrt(PUBLISHED.squared_distance) / PUBLISHED.vote_noise
    checks = accounting.SelfComposedDpEvent(accounting.GaussianDpEvent(150.0), 640)
    answers = accounting.SelfComposedDpEvent(accounting.GaussianDpEvent(40.0 / sqrt(2)), 286)
    event = accounting.ComposedDpEvent([checks, answers])
    by_loss = accounting.pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    by_renyi = accounting.rdp.RdpAccountant().compose(event).get_epsilon(1e-5)
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(by_loss, rel=2e-3)
    rho = ORDERS * (640 / (2 * 150.0**2) + 286 / 40.0**2)
    assert epsilon_of_rdp(rho, 1e-5) == pytest.approx(by_renyi, rel=2e-3)
    assert by_loss < by_renyi < epsilon_of_rdp(rho, 1e-5, published=True)


def test_divergences_become_epsilon_as_in_zcdp():
    for mu in (0.1, 0.6, 2.0):
        found = epsilon_of_rdp(ORDERS * mu**2 / 2, 1e-5)
        assert concentrated_epsilon(mu, 1e-5) <= found * (1 + 1e-9)
        assert found == pytest.approx(concentrated_epsilon(mu, 1e-5), rel=2e-3)


def test_agreement_lowers_the_data_dependent_cost_only():
    agreed, split = (np.tile(row, (640, 1)) for row in ([245, 5, 0], [90, 85, 75]))
    independent = gaussian_epsilon(sqrt(PUBLISHED.squared_distance) / 40, 1e-5)
    cost = {name: epsilon_of_rdp(data_dependent_rdp(PUBLISHED, votes), 1e-5) for name, votes in
            {"agreed": agreed, "split": split}.items()}  # fmt: skip
    assert cost["agreed"] < 0.5 * independent
    assert cost["agreed"] < cost["split"]


def test_only_confident_queries_are_answered_in_order_and_no_more_than_agreed():
    counts = np.array([[9, 1], [2, 8], [5, 5], [10, 0], [0, 10]])
    settings = ConfidentGnmax(8.0, 1.0, 1.0, 5, 3)
    still, silent = np.zeros(5), np.zeros((5, 2))
    assert settings.answers(counts, still, silent).tolist() == [0, 1, UNANSWERED, 0, UNANSWERED]
    pushed = np.array([-2.0, 0, 3.5, 0, 0])  # refuses the first, and lets the third pass
    assert settings.answers(counts, pushed, silent).tolist() == [UNANSWERED, 1, 0, 0, UNANSWERED]
    turned = silent.copy()
    turned[0] = [0, 8.5]
    assert settings.answers(counts, still, turned)[0] == 1


def test_drawn_answers_have_the_winners_distribution():
    counts, settings, draws = [11, 9, 4], ConfidentGnmax(10.0, 4.0, 3.0, 20_000, 20_000), np.random.default_rng(0)
    votes = np.tile(counts, (20_000, 1))
    labels = settings.answers(votes, 4.0 * draws.standard_normal(20_000), 3.0 * draws.standard_normal((20_000, 3)))
    shares = np.bincount(labels - UNANSWERED, minlength=4) / 20_000
    assert shares == pytest.approx(confident(counts, settings), abs=0.015)
