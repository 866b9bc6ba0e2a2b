"""Proposition 1 as printed: when it agrees with the optimum, and when it violates its own constraints."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airdistill.planning.transceiver.design import design_round
from airdistill.planning.transceiver.paper import design_round_paper, privacy_stringency
from airdistill.privacy.gaussian import paper_mu
from airdistill.privacy.sensitivity import required_noise_var


def test_the_case_rule_can_violate_the_privacy_constraint():
    """Theory, section 1: |h|²P = (1, 10), (B_i^k)² = (1, 4), equal ρ gives a quarter of the noise that is needed."""
    counts = np.array([[1, 2], [2, 1]])
    channel, power = np.array([1.0, 1.0]), np.array([1.0, 10.0])
    stringency, num_rounds = np.array([0.01, 0.01]), 5
    # Exactly on the border of Case I: σ_n² = 4TK min|h|²P max ρ.
    noise_var = 4 * num_rounds * 2 * 1.0 * 0.01
    made = design_round_paper(counts, channel, power, noise_var, stringency, num_rounds)
    assert made.case == 1
    assert made.power_holds
    assert not made.privacy_holds
    # Class 0, written out as eq. (17): the noise at the receiver against 4TK|h P1|²ρ of the stricter device.
    needed = 4 * num_rounds * 2 * np.max(np.abs(channel * made.signal_gain[:, 0]) ** 2 * stringency)
    assert noise_var / needed == pytest.approx(1 / 4)
    required = 4 * num_rounds * (counts / 3) ** 2 * stringency[:, None]
    assert made.privacy_slack(required).min() == pytest.approx(1 / 4 - 1)
    # The min form keeps both constraints on the same fleet.
    right = design_round(counts, channel, power, noise_var, required, "receiver_noise")
    assert right.privacy_slack(required).min() >= -1e-9
    assert right.power_slack(power).min() >= -1e-9


@given(st.integers(0, 10_000))
def test_for_equal_devices_the_paper_is_right(seed):
    """Equal counts, channels and targets: the products of extremes are then products of one device's numbers."""
    rng = np.random.default_rng(seed)
    counts = np.full((4, 3), 20)
    channel = np.full(4, rng.uniform(0.1, 2) * np.exp(2j * np.pi * rng.random()))
    epsilon, delta = np.full(4, 10 ** rng.uniform(-3, 0)), np.full(4, 1e-9)
    noise_var, num_rounds = 10 ** rng.uniform(-3, 3), int(rng.integers(1, 100))
    stringency = privacy_stringency(counts, epsilon, delta)
    printed = design_round_paper(counts, channel, 1.0, noise_var, stringency, num_rounds)
    required = required_noise_var(counts, paper_mu(epsilon, delta), num_rounds, "paper")
    right = design_round(counts, channel, 1.0, noise_var, required, "receiver_noise")
    assert printed.power_holds
    assert printed.privacy_holds
    assert printed.effective_noise_var == pytest.approx(right.effective_noise_var, rel=1e-9)
    assert printed.signal_gain == pytest.approx(right.signal_gain, rel=1e-9)


def test_both_cases_by_hand():
    counts, stringency = np.array([[5, 5], [5, 5]]), np.array([0.02, 0.01])
    # K = 2, w = ½, |h|²P = (1, 4): cap = 2·1/¼ = 8; threshold 4T·2·1·0.02 = 0.16T; req = 4T·¼·0.02 = 0.02T.
    channel, power = np.array([1.0, 1j]), np.array([1.0, 4.0])
    first = design_round_paper(counts, channel, power, 0.5, stringency, 3)
    assert (first.case, first.rx_scale**2) == (1, pytest.approx([8, 8]))
    assert first.effective_noise_var == pytest.approx([0.5 / 8] * 2)
    second = design_round_paper(counts, channel, power, 0.5, stringency, 4)
    # λ² = σ²/req = 0.5/0.08 = 6.25, under the cap.
    assert (second.case, second.rx_scale**2) == (2, pytest.approx([6.25, 6.25]))
    assert second.effective_noise_var == pytest.approx([0.08] * 2)
    assert (second.noise_gain == 0).all()


def test_without_a_privacy_target_it_is_always_case_one():
    made = design_round_paper([[5, 5]], np.ones(1), 1.0, 1e-9, np.zeros(1), 1000)
    assert made.case == 1
    assert made.privacy_holds


def test_stringency_by_hand():
    # ln(1/e^−3)/(20·0.5)² = 3/100.
    assert privacy_stringency([[5, 15]], 0.5, np.exp(-3)) == pytest.approx([0.03])
