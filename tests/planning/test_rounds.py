"""The number of rounds against brute force over every T, and against the paper's formula."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_fleets import TRUSTS, random_fleet, uplink_of

from airdistill.planning.convergence.gap import LearningConstants, paper_rounds
from airdistill.planning.convergence.rounds import GapObjective, below_outage, exact_rounds, least_integer
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.payloads import ClassMeans
from airdistill.planning.transceiver.design import design_round
from airdistill.planning.transceiver.superposed import SuperposedUplink
from airdistill.privacy.gaussian import gaussian_mu, paper_mu
from airdistill.privacy.sensitivity import TrajectoryDynamics, required_noise_var

CONSTANTS = LearningConstants(
    distill_weight=1.0, initial_lr=0.05, grad_lipschitz=10.0, model_lipschitz=2.0, loss_bound=2.5, grad_norm_bound=4.0
)
DYNAMICS = TrajectoryDynamics(0.05, 10.0, 2.0, 4.0, local_epochs=0)


def gap_by_definition(fleet, channels, trust, num_rounds, outage, model=None, dynamics=None):
    """Σ_iΩ_i written out with loops, one designed round for every draw."""
    counts, model = fleet.class_counts, model or fleet.model
    num_devices, num_classes = counts.shape
    required = required_noise_var(counts, fleet.mu, num_rounds, model, dynamics=dynamics)
    totals = []
    for channel in channels:
        made = design_round(counts, channel, fleet.peak_power_w, fleet.channel_noise_var, required, trust)
        total = 0.0
        for device in range(num_devices):
            for klass in range(num_classes):
                if counts[device, klass] > 0:
                    share = counts[device, klass] / counts[device].sum()
                    total += num_classes * share * made.effective_noise_var[klass]
        totals.append(total)
    kept = [total for total in totals if total <= np.quantile(totals, 1 - outage)]
    a2 = 6 * 0.05 * 1.0**2 * 2.0**2 * 10.0
    return 3 * 2.5 * num_devices / (0.05 * math.sqrt(num_rounds)) + a2 * np.mean(kept) / math.sqrt(num_rounds)


def channels_of(fleet, num_draws, seed):
    rng = np.random.default_rng(seed)
    gauss = rng.standard_normal((2, num_draws, len(fleet.mu)))
    return (gauss[0] + 1j * gauss[1]) * np.abs(fleet.channel)


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("seed", range(4))
def test_the_exact_optimum_is_that_of_brute_force(trust, seed):
    fleet, largest = random_fleet(seed), 150
    channels = channels_of(fleet, 11, seed)
    gaps = [gap_by_definition(fleet, channels, trust, t, 0.2) for t in range(1, largest + 1)]
    best = exact_rounds(
        fleet.class_counts, fleet.mu, channels, fleet.peak_power_w, fleet.channel_noise_var, CONSTANTS,
        fleet.model, trust, largest, outage=0.2,
    )  # fmt: skip
    assert gaps[best - 1] <= min(gaps) * (1 + 1e-9)


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("seed", range(3))
def test_trajectory_is_scanned_over_every_number_of_rounds(trust, seed):
    fleet, largest = random_fleet(seed), 60
    channels = channels_of(fleet, 5, seed)
    gaps = [gap_by_definition(fleet, channels, trust, t, 0.05, "trajectory", DYNAMICS) for t in range(1, largest + 1)]
    best = exact_rounds(
        fleet.class_counts, fleet.mu, channels, fleet.peak_power_w, fleet.channel_noise_var, CONSTANTS,
        "trajectory", trust, largest, dynamics=DYNAMICS,
    )  # fmt: skip
    assert gaps[best - 1] <= min(gaps) * (1 + 1e-9)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from(TRUSTS), st.sampled_from([30, 2000, 10**6]))
def test_no_neighbour_beats_the_optimum(seed, trust, largest):
    fleet = random_fleet(seed)
    objective = GapObjective.over(uplink_of(fleet, trust), channels_of(fleet, 40, seed), CONSTANTS)
    best = objective.best_rounds(largest)
    assert 1 <= best <= largest
    for neighbour in {1, best - 1, best + 1, largest} - {0, largest + 1, best}:
        assert objective.gap(best) <= objective.gap(neighbour) * (1 + 1e-12)


def test_the_order_of_devices_does_not_matter():
    fleet = random_fleet(3)
    channels, order = channels_of(fleet, 20, 0), np.random.default_rng(0).permutation(len(fleet.mu))
    settings = (CONSTANTS, fleet.model, "fleet_noise", 500)
    first = exact_rounds(fleet.class_counts, fleet.mu, channels, fleet.peak_power_w, fleet.channel_noise_var, *settings)
    second = exact_rounds(
        fleet.class_counts[order], fleet.mu[order], channels[:, order], fleet.peak_power_w[order],
        fleet.channel_noise_var, *settings,
    )  # fmt: skip
    assert first == second


def privacy_limited_rounds(counts, mu, model):
    fleet = RealisedFleet(counts, np.ones(len(mu)), mu, mu, mu)
    uplink = SuperposedUplink(fleet, 1.0, "receiver_noise", ClassMeans(fleet, model, False, DYNAMICS))
    return GapObjective.over(uplink, np.ones((1, len(mu))), CONSTANTS).privacy_limited_rounds()


@given(st.floats(0.001, 0.1), st.floats(1e-11, 1e-9), st.integers(0, 1000))
def test_privacy_limited_noise_at_the_optimum_does_not_depend_on_epsilon(epsilon, delta, seed):
    """T̂ ∝ 1/req(1), and so the noise at the optimum, T̂·req(1), depends only on the learning problem."""
    counts = np.random.default_rng(seed).integers(5, 50, (6, 4))
    noise = []
    for target in (epsilon, 3 * epsilon):
        mu = gaussian_mu(np.full(6, target), delta)
        one_round = required_noise_var(counts, mu, 1, "device")
        noise.append(privacy_limited_rounds(counts, mu, "device") * one_round.max(axis=0))
    assert noise[0] == pytest.approx(noise[1], rel=1e-9)


def test_the_exact_search_finds_the_closed_form_if_only_privacy_limits():
    counts = np.full((6, 4), 25)
    mu = np.full(6, 0.5)
    closed = privacy_limited_rounds(counts, mu, "class_mean")
    found = exact_rounds(counts, mu, np.ones((3, 6)), 1e9, 1.0, CONSTANTS, "class_mean", "receiver_noise", 10**7)
    assert 10 < closed < 10**7
    assert found == pytest.approx(closed, abs=1)


def test_eq_21_by_hand():
    counts = np.array([[30, 10], [10, 30]])
    epsilon, delta = np.array([0.5, 0.2]), np.array([math.exp(-20), math.exp(-10)])
    # ρ = (20/(40·0.5)², 10/(40·0.2)²) = (0.05, 0.15625), Σ_k w² = 0.625 for both.
    # (3/2)·5/(24·0.05²·1·4·10·0.15625·0.625) = 7.5/0.234375 = 32.
    assert paper_rounds(counts, epsilon, delta, CONSTANTS) == 32
    # Ten times the loss: 320. A looser strictest device would be 3.125 times that; the maximum decides.
    assert paper_rounds(counts, epsilon, delta, {**vars(CONSTANTS), "loss_bound": 25.0}) == 320


def test_eq_21_takes_the_maximum_of_products_not_the_product_of_maxima():
    # Device 0 has the larger ρ, device 1 the larger Σ_k w²: no device has the product of both.
    counts = np.array([[10, 10], [90, 90]])
    epsilon, delta = np.array([1.0, 1.0]), np.array([1e-5, 1e-5])
    weights, stringency = counts / 100, math.log(1e5) / (counts.sum(axis=1)) ** 2
    strictest = max(stringency * (weights**2).sum(axis=1))
    expected = 3 * 2.5 / (24 * 0.05**2 * 4 * 10 * strictest)
    assert paper_rounds(counts, epsilon, delta, CONSTANTS) == round(expected)


def test_eq_21_is_at_least_one_and_may_be_infinite():
    strict = {**vars(CONSTANTS), "grad_lipschitz": 1e12}
    assert paper_rounds([[5, 5]], 0.01, 1e-9, strict) == 1
    assert paper_rounds([[5, 5]], math.inf, 1e-9, CONSTANTS) == math.inf


def test_eq_21_is_the_exact_optimum_of_a_balanced_privacy_limited_fleet():
    counts = np.full((8, 5), 20)
    epsilon, delta = np.full(8, 0.05), np.full(8, 1e-10)
    printed = paper_rounds(counts, epsilon, delta, CONSTANTS)
    found = exact_rounds(
        counts, paper_mu(epsilon, delta), np.ones((1, 8)), 1e12, 1e-3, CONSTANTS, "paper", "receiver_noise", 10**9
    )
    assert printed > 40
    assert found == pytest.approx(printed, abs=1)


def test_without_a_privacy_target_the_optimum_is_the_largest_number_of_rounds():
    found = exact_rounds(
        [[5, 5]], np.array([np.inf]), np.ones((1, 1)), 1.0, 0.1, CONSTANTS, "device", "fleet_noise", 777
    )
    assert found == 777


def test_the_outage_leaves_out_the_worst_draws():
    noise = np.array([5.0, 1.0, 9.0, 2.0, np.inf])
    assert below_outage(noise, 0.0).all()
    assert below_outage(noise, 0.2).tolist() == [True, True, True, True, False]
    assert below_outage(noise, 0.99).tolist() == [False, True, False, False, False]
    many = np.random.default_rng(0).random(200)
    assert np.array_equal(below_outage(many, 0.05), many <= np.quantile(many, 0.95))


@given(st.integers(1, 5000), st.floats(0.1, 1e8), st.floats(0, 10))
def test_the_search_finds_the_minimising_integer(largest, noise, floor):
    assume(noise > 0)

    def objective(t):
        return 1e3 / math.sqrt(t) + max(noise * t, floor) / math.sqrt(t)

    values = [objective(t) for t in range(1, largest + 1)]
    assert objective(least_integer(lambda points: [objective(point) for point in points], 1, largest)) <= min(
        values
    ) * (1 + 1e-12)
