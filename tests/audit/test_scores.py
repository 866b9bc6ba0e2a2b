"""Scores against brute force, and intervals against their nominal coverage."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, norm

from airdistill.audit.empirical import variance_interval
from airdistill.audit.membership import auc, proportion, rate_at, roc

scores = st.lists(st.integers(-3, 3), min_size=2, max_size=20).map(lambda values: np.array(values, dtype=float))


@given(scores, scores)
def test_the_auc_counts_pairs_and_is_the_area_under_the_curve(positive, negative):
    gaps = positive[:, None] - negative[None]
    by_pairs = ((gaps > 0) + 0.5 * (gaps == 0)).mean()
    found, curve = auc(positive, negative), roc(positive, negative)
    assert found.value == pytest.approx(by_pairs)
    assert found.low <= found.value <= found.high
    assert np.trapezoid(curve.true_positive, curve.false_positive) == pytest.approx(by_pairs)
    assert (curve.false_positive[-1], curve.true_positive[-1]) == (1, 1)


@pytest.mark.parametrize(("mu", "size"), [(0.0, 60), (1.5, 150), (1.5, 1000)])
def test_delongs_interval_has_its_nominal_coverage(mu, size):
    rng, truth, covered = np.random.default_rng(1), norm.cdf(mu / np.sqrt(2)), 0
    for _ in range(400):
        found = auc(rng.normal(mu, 1, size), rng.normal(0, 1, size), level=0.95)
        covered += found.low <= truth <= found.high
    assert 0.91 <= covered / 400 <= 0.985


def test_the_lower_end_keeps_its_level_with_few_trials():
    """It alone raises an alarm, at half of 0.1 %."""
    rng, truth = np.random.default_rng(4), norm.cdf(1.5 / np.sqrt(2))
    alarms = sum(auc(rng.normal(1.5, 1, 25), rng.normal(0, 1, 25)).low > truth for _ in range(4000))
    assert alarms <= 6  # two are expected


def test_delongs_variance_is_the_sum_of_the_placements():
    rng = np.random.default_rng(2)
    positive, negative = rng.normal(1, 1, 40), rng.normal(0, 1, 30)
    above = (positive[:, None] > negative[None]).mean(axis=1)
    below = (positive[:, None] > negative[None]).mean(axis=0)
    spread = above.var(ddof=1) / 40 + below.var(ddof=1) / 30
    found = auc(positive, negative, level=0.95)
    half = 1.959964 * np.sqrt(spread) / (found.value * (1 - found.value))
    ends = np.log([found.low / (1 - found.low), found.high / (1 - found.high)])
    assert ends == pytest.approx(np.log(found.value / (1 - found.value)) + np.array([-half, half]), rel=1e-5)


def test_groups_without_overlap_have_an_interval_of_positive_width():
    found = auc(np.arange(10.0) + 100, np.arange(20.0), level=0.95)
    assert (found.value, found.high) == (1, 1)
    assert found.low == pytest.approx(0.025**0.1)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_proportions_have_clopper_and_pearsons_interval(counts, level):
    found = proportion(*counts, level=level)
    exact = binomtest(*counts).proportion_ci(level, method="exact")
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_a_rate_keeps_to_the_requested_false_positive_rate():
    negative, positive = np.arange(1000.0), np.arange(1000.0) + 10.5
    point = rate_at(positive, negative, 0.01)
    assert point.false_positive.value == 0.01  # 990 to 999 lie above 989
    assert point.true_positive.value == pytest.approx(np.mean(positive > 989))
    none = rate_at(positive, negative, 0.0001)
    assert none.false_positive.value == 0
    assert none.true_positive.value == pytest.approx(np.mean(positive > 999))


def test_the_interval_of_a_variance_has_its_nominal_coverage():
    rng, misses = np.random.default_rng(3), 0
    for _ in range(2000):
        found = variance_interval(float((rng.standard_normal(50) ** 2).sum()), 50)
        misses += not found.low <= 1 <= found.high
    assert misses <= 10  # two are expected
    wide = variance_interval(50.0, 50, num_looks=100)
    assert wide.low < variance_interval(50.0, 50).low
