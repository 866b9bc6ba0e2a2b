"""The terms of Theorem 1 against plain loops over its sums."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from airdistill.planning.convergence.gap import (
    LearningConstants,
    convergence_gap,
    effective_noise,
    fleet_gap,
    misalignment,
    over_fleet,
)
from airdistill.planning.transceiver.design import design_round

CONSTANTS = LearningConstants(
    distill_weight=0.7, initial_lr=0.02, grad_lipschitz=3.0, model_lipschitz=1.5, loss_bound=2.5, grad_norm_bound=4.0
)
COUNTS = np.array([[10, 30, 0], [20, 5, 15]])
RNG = np.random.default_rng(0)


def test_effective_noise_is_eq_14():
    noise_var = np.array([0.1, 0.2, 0.4])
    # K Σ_k (B_i^k/B_i) v_k, device 0: 3(¼·0.1 + ¾·0.2); device 1: 3(½·0.1 + ⅛·0.2 + ⅜·0.4).
    assert effective_noise(COUNTS, noise_var) == pytest.approx([0.525, 0.675])
    assert COUNTS.shape[1] * over_fleet(COUNTS, noise_var) == pytest.approx(1.2)
    several = COUNTS.shape[1] * over_fleet(COUNTS, np.stack([noise_var, 2 * noise_var]))
    assert several == pytest.approx([1.2, 2.4])


def test_noise_of_a_class_affects_only_its_holders():
    noise_var = np.array([0.1, 0.2, np.inf])
    assert effective_noise(COUNTS, noise_var)[0] == pytest.approx(0.525)
    assert 3 * over_fleet(np.array([[1, 1, 0]]), noise_var) == pytest.approx(3 * 0.15)


def test_effective_noise_is_the_mean_squared_error_of_the_noise():
    """Monte Carlo of the definition, E‖m̂/λ‖² weighted by class shares."""
    noise_var = np.array([0.1, 0.2, 0.4])
    draws = RNG.standard_normal((40_000, 3, 3)) * np.sqrt(noise_var)[:, None]
    samples = ((COUNTS[1] / 40) * (draws**2).sum(axis=2)).sum(axis=1)
    error = samples.std() / math.sqrt(len(samples))
    assert abs(samples.mean() - effective_noise(COUNTS, noise_var)[1]) < 5 * error


def test_misalignment_is_eq_14_and_vanishes_for_the_gains_of_eq_18():
    class_means = RNG.dirichlet(np.ones(3), (2, 3))
    channel = np.array([0.8 + 0.3j, -0.5j])
    made = design_round(COUNTS, channel, 1.0, 0.1, np.full((2, 3), 0.01), "fleet_noise")
    aligned = misalignment(COUNTS, channel, made.signal_gain, made.rx_scale, class_means)
    assert aligned == pytest.approx([0, 0], abs=1e-12)
    misaligned = made.signal_gain * np.array([[1.1], [0.8 + 0.2j]])
    weights = COUNTS / COUNTS.sum(axis=0)
    expected = np.zeros(2)
    for device in range(2):
        for klass in range(3):
            error = sum(
                (channel[j] * misaligned[j, klass] * math.sqrt(3) / made.rx_scale[klass] - weights[j, klass])
                * class_means[j, klass]
                for j in range(2)
            )
            expected[device] += COUNTS[device, klass] / COUNTS[device].sum() * np.linalg.norm(error)
    assert misalignment(COUNTS, channel, misaligned, made.rx_scale, class_means) == pytest.approx(expected)


def test_the_gap_is_theorem_1_term_by_term():
    num_rounds = 5
    noise, bias = RNG.random((num_rounds, 2)), RNG.random((num_rounds, 2))
    expected = np.zeros(2)
    for device in range(2):
        omega = 3 * 2.5 / (0.02 * math.sqrt(num_rounds))
        for t in range(1, num_rounds + 1):
            lr = 0.02 / math.sqrt(t)
            squared = bias[t - 1, device] ** 2 + noise[t - 1, device]
            omega += 6 * 0.02 * 0.7**2 * 1.5**2 * 3.0 * squared / num_rounds**1.5
            first_order = (3.0 * lr + 1) * 4.0 * bias[t - 1, device] / (lr * num_rounds**1.5)
            omega += 6 * 0.7 * 0.02 * 1.5 * first_order
        expected[device] = omega
    assert convergence_gap(num_rounds, CONSTANTS, noise, bias) == pytest.approx(expected)


def test_the_fleets_gap_is_the_sum_of_the_devices_gaps():
    noise = np.array([0.3, 0.9])
    devices = convergence_gap(7, CONSTANTS, noise)
    assert fleet_gap(7, CONSTANTS, 2, float(noise.sum())) == pytest.approx(devices.sum())


def test_constants_may_come_as_a_mapping_or_an_object():
    given = {
        "distill_weight": 1.0,
        "initial_lr": 0.01,
        "grad_lipschitz": 22.0,
        "model_lipschitz": 7.7,
        "loss_bound": 2.5,
        "grad_norm_bound": 4.0,
    }
    assert LearningConstants.of(given) == LearningConstants.of(SimpleNamespace(**given)) == LearningConstants(**given)
    several = LearningConstants(**(given | {"loss_bound": np.array([1.0, 2.0])}))
    assert several.total_loss_bound(2) == 3.0
