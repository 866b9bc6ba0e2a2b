"""Equations of the paper that hold or fail as printed, as docs/theory.md states."""

import numpy as np
import pytest

from airdistill.planning.convergence.gap import (
    LearningConstants,
    convergence_gap,
    effective_noise,
    misalignment,
    paper_rounds,
)
from airdistill.planning.transceiver.design import design_round
from airdistill.planning.transceiver.paper import design_round_paper, privacy_stringency

CONSTANTS = LearningConstants(
    distill_weight=1.0, initial_lr=0.01, grad_lipschitz=22.0, model_lipschitz=7.7, loss_bound=2.5, grad_norm_bound=4.0
)


def test_29_holds_as_printed():
    """E‖(2γ/B)Σ_b A_b(q − r̂)‖² = ‖mean‖² + noise, the first at most (2γL2Φ1)², the second at most 4γ²L2²Φ2."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        num_classes, num_samples = rng.integers(2, 6), rng.integers(1, 12)
        labels = rng.integers(0, num_classes, num_samples)
        jacobians = rng.standard_normal((num_samples, rng.integers(1, 8), num_classes))
        jacobians /= np.linalg.norm(jacobians, 2, axis=(1, 2))[:, None, None]  # L2 = 1
        bias = rng.standard_normal((num_classes, num_classes)) * rng.exponential(size=(num_classes, 1))
        noise_var = rng.exponential(0.3, num_classes)
        mean = 2 / num_samples * np.einsum("bdk,bk->d", jacobians, bias[labels])
        of_class = [2 / num_samples * jacobians[labels == klass].sum(axis=0) for klass in range(num_classes)]
        noise = sum(var * (part**2).sum() for var, part in zip(noise_var, of_class, strict=True))
        shares = np.bincount(labels, minlength=num_classes) / num_samples
        sizes = np.linalg.norm(bias, axis=1)
        phi1, phi2 = shares @ sizes, num_classes * shares @ noise_var
        assert mean @ mean + noise <= 4 * (phi1**2 + phi2) * (1 + 1e-12)
        # The paper takes these for equal: it is an inequality in the other direction.
        assert shares @ sizes**2 >= phi1**2 * (1 - 1e-12)


def test_33_needs_rounds_numbered_from_one():
    for num_rounds in (1, 2, 10, 1000):
        integral = 2 / 3 * num_rounds**1.5
        assert np.sqrt(np.arange(num_rounds)).sum() < integral <= np.sqrt(np.arange(1, num_rounds + 1)).sum()


def test_34_lacks_squares():
    one, other = np.array([0.5, 0.5]), np.array([1.0, 0.0])
    size = np.linalg.norm
    assert size(one - other) == pytest.approx(np.sqrt(0.5))
    assert np.sqrt(size(one) + size(other) - 2 * one @ other) == pytest.approx(0.8409, rel=1e-4)
    assert np.sqrt(size(one) ** 2 + size(other) ** 2 - 2 * one @ other) == pytest.approx(np.sqrt(0.5))


def test_41_alignment_is_not_always_best():
    """A larger λ with the same P1 and P2: power (9) and privacy (17) do not change; the gap falls if Φ2 is large."""
    counts, channel, num_rounds = np.full((2, 2), 10), np.ones(2), 10
    class_means = np.full((2, 2, 2), 0.5)

    def gap(noise_var, larger):
        made = design_round(counts, channel, 1.0, noise_var, np.zeros((2, 2)), "receiver_noise")
        scale = larger * made.rx_scale
        noise = effective_noise(counts, noise_var / scale**2)
        bias = misalignment(counts, channel, made.signal_gain, scale, class_means)
        return noise[0], convergence_gap(num_rounds, CONSTANTS, noise, bias[None])[0]

    assert gap(1.0, 1.0) == pytest.approx((0.25, 243.4), rel=1e-3)
    assert gap(1.0, 1.05)[1] > gap(1.0, 1.0)[1]
    assert gap(40.0, 1.0) == pytest.approx((10.0, 484.7), rel=1e-3)
    assert gap(40.0, 4.0)[1] == pytest.approx(336.1, rel=1e-3)
    # The turning point: 2A2 Φ2 = A1 S ‖q‖ (L1 + 1/η_t), for a mean over the rounds.
    mean_rate = np.mean(22 + np.sqrt(np.arange(1, num_rounds + 1)) / 0.01)
    turn = 4.0 * np.sqrt(0.5) * mean_rate / (2 * 7.7 * 22)
    for noise, larger_is_better in ((1.05 * turn, True), (0.95 * turn, False)):
        assert (gap(4 * noise, 1.001)[1] < gap(4 * noise, 1.0)[1]) == larger_is_better


def test_20_may_have_no_solution_within_the_power_limit():
    """|h|²P = 1, (B_i^k)² = (1, 4) in class 0, ρ = (1, 0.01)·ρ: λ² of (20) is beyond the cap, more so with P2 > 0."""
    counts = np.array([[1, 1], [2, 2]])
    stringency, num_rounds = np.array([0.01, 0.0001]), 5
    threshold = 4 * num_rounds * 2 * 1.0 * 0.01
    made = design_round_paper(counts, np.ones(2), 1.0, 0.5 * threshold, stringency, num_rounds)
    assert made.case == 2
    required = 4 * num_rounds * (counts / 3) ** 2 * stringency[:, None]
    solution = 0.5 * threshold / required.max(axis=0)
    assert (made.rx_scale**2 < 0.51 * solution).all()  # clipped to the cap


def test_21_is_not_the_optimum_below_t0_even_for_equal_devices():
    """Here (49) is an equality. With T̂ < T_0 the noise is the channel's, and more rounds cost nothing up to T_0."""
    counts, num_devices, num_classes = np.full((4, 2), 50), 4, 2
    epsilon, delta = np.full(num_devices, 0.05), np.full(num_devices, 1e-9)
    stringency = privacy_stringency(counts, epsilon, delta)
    best = paper_rounds(counts, epsilon, delta, CONSTANTS)
    assert best == 23
    last = 1156  # T_0
    noise_var = last * 4 * num_classes * stringency.max()

    def gap(num_rounds):
        made = design_round_paper(counts, np.ones(4), 1.0, noise_var, stringency, num_rounds)
        assert made.power_holds
        assert made.privacy_holds
        return convergence_gap(num_rounds, CONSTANTS, effective_noise(counts, made.effective_noise_var))[0]

    assert gap(best) > 7 * gap(last)
    assert gap(last) < min(gap(last - 50), gap(last + 50))
