"""The Gaussian accountant against dp_accounting, against 60-digit arithmetic, and for self-consistency."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian, get_sigma_gaussian
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from airdistill.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu, paper_mu
from airdistill.privacy.targets import target_mu

EPSILONS = np.logspace(-4, 3, 15)
DELTAS = np.logspace(-12, -1, 12)
GRID = [(epsilon, delta) for epsilon in EPSILONS for delta in DELTAS]

targets = st.tuples(
    st.floats(math.log(1e-4), math.log(1e3)).map(math.exp), st.floats(math.log(1e-12), math.log(0.1)).map(math.exp)
)


def exact_delta(epsilon, mu):
    with mpmath.workdps(60):
        epsilon, mu = mpmath.mpf(float(epsilon)), mpmath.mpf(float(mu))
        near, far = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
        return mpmath.ncdf(near) - mpmath.exp(epsilon) * mpmath.ncdf(far)


@pytest.mark.filterwarnings("ignore:divide by zero")  # inside dp_accounting
def test_mu_agrees_with_dp_accounting():
    for epsilon, delta in GRID:
        assert gaussian_mu(epsilon, delta) == pytest.approx(1 / get_sigma_gaussian(epsilon, delta), rel=1e-6)


@pytest.mark.filterwarnings("ignore:divide by zero")  # inside dp_accounting
def test_epsilon_agrees_with_dp_accounting():
    for epsilon, delta in GRID:
        mu = gaussian_mu(epsilon, delta)
        assert gaussian_epsilon(mu, delta) == pytest.approx(get_epsilon_gaussian(1 / mu, delta), rel=1e-6)


@given(targets)
def test_mu_meets_its_delta_in_60_digit_arithmetic(target):
    epsilon, delta = target
    assert float(exact_delta(epsilon, gaussian_mu(epsilon, delta)) / delta) == pytest.approx(1, rel=1e-8)


@given(targets)
def test_mu_and_epsilon_are_inverse(target):
    epsilon, delta = target
    assert gaussian_epsilon(gaussian_mu(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-9)


@given(targets, st.floats(1.001, 10))
def test_a_weaker_target_allows_a_larger_mu(target, factor):
    epsilon, delta = target
    assert gaussian_mu(epsilon * factor, delta) > gaussian_mu(epsilon, delta)
    assert gaussian_mu(epsilon, min(delta * factor, 0.5)) > gaussian_mu(epsilon, delta)


def test_arrays_and_numbers_give_the_same_values():
    epsilon, delta = np.meshgrid(EPSILONS, DELTAS)
    mu = gaussian_mu(epsilon, delta)
    assert mu.shape == epsilon.shape
    assert mu[3, 5] == gaussian_mu(epsilon[3, 5], delta[3, 5])
    assert isinstance(gaussian_mu(1.0, 1e-5), float)
    assert gaussian_mu([1.0, 2.0], 1e-5).shape == (2,)


def test_limits_at_zero_and_infinity():
    assert gaussian_mu(math.inf, 1e-5) == math.inf
    assert gaussian_epsilon(math.inf, 1e-5) == math.inf
    assert gaussian_epsilon(0.0, 1e-5) == 0.0
    # 2Φ(μ/2) − 1 ≤ δ: (0, δ)-DP, and so ε is 0.
    assert gaussian_epsilon(1e-6, 1e-3) == 0.0
    assert gaussian_epsilon(0.5, 0.5) == 0.0


def test_paper_mu_by_hand():
    # ε = 1, δ = e^−2: μ = 1/√4.
    assert paper_mu(1.0, math.exp(-2)) == pytest.approx(0.5)
    assert paper_mu(math.inf, 0.1) == math.inf


def test_the_paper_formula_is_conservative_for_small_epsilon_and_invalid_for_large():
    epsilon, delta = np.meshgrid([0.001, 0.01, 0.1], [1e-11, 1e-10, 1e-9])
    waste = (gaussian_mu(epsilon, delta) / paper_mu(epsilon, delta)) ** 2
    assert waste.min() > 1.4
    assert waste.max() < 2.5
    # docs/theory.md: at ε = 100, δ = 1e-3 Theorem 2 gives 18 % of the required variance.
    assert (gaussian_mu(100, 1e-3) / paper_mu(100, 1e-3)) ** 2 == pytest.approx(0.18, abs=0.005)
    # It changes from too much to too little noise between ε = 7 and 10, depending on δ.
    for delta in (1e-3, 1e-5, 1e-11):
        assert paper_mu(6.9, delta) < gaussian_mu(6.9, delta)
        assert paper_mu(9.7, delta) > gaussian_mu(9.7, delta)


@pytest.mark.parametrize(
    ("function", "value", "delta", "rule"),
    [
        (gaussian_mu, 0.0, 0.1, "epsilon = 0.0: must be greater than 0"),
        (gaussian_mu, math.nan, 0.1, "epsilon = nan"),
        (gaussian_mu, 1.0, 1.0, "delta = 1.0"),
        (gaussian_epsilon, -1.0, 0.1, "mu = -1.0: must be at least 0"),
        (paper_mu, 1.0, 0.0, "delta = 0.0"),
    ],
)
def test_values_out_of_range_are_rejected(function, value, delta, rule):
    with pytest.raises(ValueError, match=rule):
        function(value, delta)


def test_accountants_are_selected_by_name():
    assert target_mu(1.0, 1e-5, "paper").tolist() == [paper_mu(1.0, 1e-5)]
    with pytest.raises(ValueError, match="must be one of exact, paper"):
        target_mu(1.0, 1e-5, "guess")


@given(st.floats(1e-4, 1.0), st.floats(-12, -2))
def test_the_exact_epsilon_is_at_most_the_papers_up_to_one(epsilon, log_delta):
    """Theorem 2 never understates ε up to 1; at ε = 30 it does."""
    delta = 10**log_delta
    assert gaussian_epsilon(paper_mu(epsilon, delta), delta) <= epsilon
    assert gaussian_epsilon(paper_mu(30.0, delta), delta) > 30.0


@pytest.mark.parametrize("mu", [1e-3, 0.3, 2.0, 30.0])
def test_delta_is_the_inverse_of_epsilon(mu):
    for delta in (1e-11, 1e-4):
        assert gaussian_delta(gaussian_epsilon(mu, delta), mu) == pytest.approx(delta, rel=1e-9)
    assert gaussian_delta(0.0, mu) == pytest.approx(2 * norm.cdf(mu / 2) - 1)
    np.testing.assert_array_equal(gaussian_delta(1.0, [0.0, np.inf]), [0.0, 1.0])
