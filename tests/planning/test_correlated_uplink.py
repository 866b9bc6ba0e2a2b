"""Plans with correlated noise: the matrix against dense optimisation, shares, gains, forecasts, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

import airdistill as ad
from airdistill.channel import channel_source
from airdistill.errors import InputError
from airdistill.planning.plan import Plan, plan
from airdistill.planning.transceiver.correlated import best_correlation, prefix_variance
from airdistill.privacy.correlation import Correlation
from airdistill.privacy.gaussian import gaussian_mu
from airdistill.schemes.planning import as_run_by
from airdistill.schemes.registry import load_scheme

D, CLIP, ROUNDS = 50, 1.5, 14
COUNTS = [[30, 10], [5, 15], [20, 20], [9, 1], [12, 18]]
SAMPLES = np.array(COUNTS).sum(axis=1)
POWER = np.array([1e-3, 2e-3, 3e-3, 1e-3, 1e-3])
BASE = [
    "fleet.devices=5", f"data.class_counts={COUNTS}", f"learning.clip_norm={CLIP}",
    "privacy.epsilon={values=[2, 8, 4, 8, 8]}",
    "privacy.delta=1e-5", "radio.peak_power={values=['1 mW', '2 mW', '3 mW', '1 mW', '1 mW']}",
    "radio.noise_power=1e-12 W", f"learning.rounds={ROUNDS}", "privacy.correlation=banded",
]  # fmt: skip
CYCLIC = ["fleet.sampling=cyclic", "fleet.cycle=3"]


def made(*changes):
    return plan(ad.load("quick", [*BASE, *changes]), "gradient", D)


def matrix_of(correlation, num_rounds):
    coefficients = correlation.coefficients(num_rounds)
    return sum(np.diag(np.full(num_rounds - lag, coefficients[lag]), -lag) for lag in range(num_rounds))


def loss_of(matrix, cycle):
    """S(E) times the mean squared prefix error, for the device that joins most rounds, with Σ|EᵀE|."""
    num_rounds = len(matrix)
    joined = np.arange(0, num_rounds, cycle)
    squared = np.abs(matrix.T @ matrix)[np.ix_(joined, joined)].sum()
    sums = np.tril(np.ones((num_rounds, num_rounds))) @ np.linalg.inv(matrix)
    return squared * (sums**2).sum() / num_rounds


@pytest.mark.parametrize("cycle", [3, 6])
def test_banded_matrix_is_the_optimum_of_a_dense_search(cycle):
    num_rounds = 12

    def matrix(x):
        return np.eye(num_rounds) + sum(
            np.diag(np.full(num_rounds - lag - 1, value), -lag - 1) for lag, value in enumerate(x)
        )

    rng = np.random.default_rng(0)
    tried = [
        minimize(lambda x: np.log(loss_of(matrix(np.abs(x)), cycle)), rng.uniform(0, 0.8, cycle - 1)) for _ in range(3)
    ]
    found = best_correlation("banded", num_rounds, cycle)
    assert np.log(loss_of(matrix_of(found, num_rounds), cycle)) == pytest.approx(
        min(each.fun for each in tried), abs=1e-6
    )


@pytest.mark.parametrize("cycle", [3, 12])
def test_buffered_matrix_is_the_optimum_of_a_dense_search(cycle):
    num_rounds, power = 12, np.arange(11)

    def loss(x):
        weight, decay = np.abs(x[0]), 1 / (1 + np.exp(-x[1]))
        column = np.append(1.0, weight * decay**power)
        dense = sum(np.diag(np.full(num_rounds - lag, column[lag]), -lag) for lag in range(num_rounds))
        return np.log(loss_of(dense, cycle))

    best = min(minimize(loss, start, method="Nelder-Mead").fun for start in ([0.5, 0.0], [0.3, 2.0]))
    found = np.log(loss_of(matrix_of(best_correlation("blt", num_rounds, cycle), num_rounds), cycle))
    assert found < best + 1e-6  # more buffers are allowed


def test_with_all_devices_in_every_round_the_best_toeplitz_matrix_is_the_identity():
    for kind in ("banded", "blt"):
        assert best_correlation(kind, 30).weights == ()
    tried = np.abs(np.random.default_rng(1).standard_normal((50, 3))) * 0.2
    independent = loss_of(np.eye(30), 1)
    assert independent == pytest.approx(30 * 31 / 2)
    for weights in tried:
        dense = np.eye(30) + sum(np.diag(np.full(29 - lag, value), -lag - 1) for lag, value in enumerate(weights))
        assert loss_of(dense, 1) > independent


@pytest.mark.parametrize("num_rounds", [2, 4, 6])
def test_with_all_devices_in_every_round_any_lower_triangular_matrix_gains_little(num_rounds):
    """The best found has no correlation at all: less noise in early rounds, 1/d_t² with d_t² ∝ √(T − t + 1)."""
    places = np.tril_indices(num_rounds)

    def loss(entries):
        matrix = np.zeros((num_rounds, num_rounds))
        matrix[places] = entries
        return np.log(loss_of(matrix, 1))

    diagonal = np.diag((num_rounds - np.arange(num_rounds)) ** 0.25)
    gain = num_rounds * (num_rounds + 1) / 2 / loss_of(diagonal, 1)
    assert 1.02 < gain < 9 / 8  # its limit for many rounds
    rng = np.random.default_rng(num_rounds)
    for spread in (0.05, 0.3):
        start = (diagonal + np.tril(spread * rng.standard_normal(diagonal.shape), -1))[places]
        best = minimize(loss, start, method="Powell", options={"maxfev": 4000}).fun
        assert best > np.log(loss_of(diagonal, 1)) - 1e-6


def test_square_root_matrix_loses_with_all_devices_in_every_round():
    for num_rounds, factor in [(8, 1.76), (50, 2.53)]:
        later = np.arange(1, num_rounds)
        column = np.append(1.0, np.cumprod((2 * later - 1) / (2 * later)))
        dense = sum(np.diag(np.full(num_rounds - lag, column[lag]), -lag) for lag in range(num_rounds))
        assert loss_of(dense, 1) / (num_rounds * (num_rounds + 1) / 2) == pytest.approx(factor, abs=0.01)


def test_prefix_variance_with_step_sizes():
    steps = 0.3 / np.sqrt(np.arange(1, 10))
    matrix = best_correlation("blt", 9, 3)
    sums = np.tril(np.ones((9, 9))) @ np.diag(steps / steps[0]) @ np.linalg.inv(matrix_of(matrix, 9))
    assert prefix_variance(matrix, steps) == pytest.approx((sums**2).sum(axis=1), rel=1e-12)


@pytest.mark.parametrize("kind", ["banded", "blt"])
@pytest.mark.parametrize("more", [CYCLIC, [], ["privacy.trust=own_noise"]], ids=["cyclic", "all", "own_noise"])
def test_every_round_has_the_same_shares_whatever_the_channel(kind, more):
    planned = made(f"privacy.correlation={kind}", *more)
    inverse = np.linalg.inv(matrix_of(planned.uplink.correlation, ROUNDS))
    variance = (inverse**2).sum(axis=1)
    shares, source = planned.uplink.shares(ROUNDS)[:, 0], channel_source(planned.scenario)
    for index in range(1, ROUNDS + 1):
        channel = source.round_channel(index)
        drawn = planned.design(channel, index)
        received = np.abs(channel * drawn.noise_gain[:, 0]) ** 2 / drawn.rx_scale[0] ** 2
        assert received == pytest.approx(shares * variance[index - 1], rel=1e-10)
        # At least one device sends with full power, and no device with more.
        assert drawn.power_slack(POWER).min() == pytest.approx(0, abs=1e-9)
        expected = received.sum() + 0.5e-12 / drawn.rx_scale[0] ** 2
        assert drawn.effective_noise_var[0] == pytest.approx(expected, rel=1e-10)
        counted = planned.uplink.release(drawn, channel, index).counted_noise_var
        assert counted["own_noise"][:, 0] == pytest.approx(shares, rel=1e-10)
        for trust in ("fleet_noise", "receiver_noise"):  # the receiver noise is white
            assert counted[trust][:, 0] == pytest.approx(np.full(5, shares.sum()), rel=1e-10)


@pytest.mark.parametrize("more", [CYCLIC, [], ["privacy.trust=own_noise"]], ids=["cyclic", "all", "own_noise"])
def test_noise_follows_from_the_joint_sensitivity(more):
    planned = made(*more)
    cycle = 3 if more == CYCLIC else 1
    matrix, mu = matrix_of(planned.uplink.correlation, ROUNDS), gaussian_mu(np.array([2.0, 8, 4, 8, 8]), 1e-5)
    joined = (np.arange(ROUNDS)[:, None] - np.arange(5)) % cycle == 0
    weights = joined * SAMPLES / (joined * SAMPLES).sum(axis=1, keepdims=True)
    squared = ((matrix @ weights) ** 2).sum(axis=0) * (2 * CLIP) ** 2
    needed = squared / mu**2
    shares = planned.uplink.shares(ROUNDS)[:, 0]
    if "privacy.trust=own_noise" in more:
        assert shares == pytest.approx(needed, rel=1e-10)
        epsilon = [2, 8, 4, 8, 8]
    else:
        assert shares.sum() == pytest.approx(needed.max(), rel=1e-10)
        epsilon = [2]
    assert planned.epsilon_by_model["device"][: len(epsilon)] == pytest.approx(epsilon, rel=1e-6)
    assert (planned.epsilon_by_model["device"] <= np.array([2, 8, 4, 8, 8]) * (1 + 1e-9)).all()


@pytest.mark.parametrize("trust", ["own_noise", "fleet_noise"])
@pytest.mark.parametrize("matrix", [Correlation("blt", (0.4,), (0.7,)), Correlation("banded", (0.5, 0.2))])
def test_all_devices_in_every_round_with_a_matrix_of_their_own(trust, matrix):
    """No planner would choose it; it is counted like any other, under each trust model with its noise."""
    planned = made(f"privacy.trust={trust}")
    uplink, source = replace(planned.uplink, matrix=matrix), channel_source(planned.scenario)
    rounds = [(index, source.round_channel(index)) for index in range(1, ROUNDS + 1)]
    releases = [uplink.release(uplink.design(channel, ROUNDS, index), channel, index) for index, channel in rounds]
    inverse, weights = np.linalg.inv(matrix_of(matrix, ROUNDS)), SAMPLES / SAMPLES.sum()
    shares = uplink.shares(ROUNDS)[:, 0]
    for lens in ("own_noise", "fleet_noise"):
        spent = sum(release.cost("device", lens)[:, 0] for release in releases)
        for device in range(5):
            noise = shares[device] if lens == "own_noise" else shares.sum()
            shift = np.full(ROUNDS, 2 * CLIP * weights[device])
            expected = shift @ np.linalg.solve(noise * inverse @ inverse.T, shift)
            assert spent[device] == pytest.approx(expected, rel=1e-9)
    granted = gaussian_mu(np.array([2.0, 8, 4, 8, 8]), 1e-5) ** 2
    spent = sum(release.cost("device", trust)[:, 0] for release in releases)
    assert spent == pytest.approx(granted, rel=1e-9) if trust == "own_noise" else (spent <= granted * (1 + 1e-9)).all()


def test_prediction_is_that_of_dense_matrices():
    planned = made(*CYCLIC, "radio.noise_power=1e-18 W")
    found, steps = planned.correlation, 1 / np.sqrt(np.arange(1, ROUNDS + 1))
    sums = np.tril(np.ones((ROUNDS, ROUNDS))) @ np.diag(steps)
    matrix, mu = matrix_of(planned.uplink.correlation, ROUNDS), gaussian_mu(np.array([2.0, 8, 4, 8, 8]), 1e-5)
    joined = (np.arange(ROUNDS)[:, None] - np.arange(5)) % 3 == 0
    weights = joined * SAMPLES / (joined * SAMPLES).sum(axis=1, keepdims=True)
    moved = (2 * CLIP / mu) ** 2
    noise = (((matrix @ weights) ** 2).sum(axis=0) * moved).max()
    error = noise * ((sums @ np.linalg.inv(matrix)) ** 2).sum(axis=1)
    assert (found.mean, found.last) == pytest.approx((error.mean(), error[-1]), rel=1e-9)
    independent = ((weights**2).sum(axis=0) * moved).max() * (sums**2).sum(axis=1)
    assert (found.mean_if_independent, found.last_if_independent) == pytest.approx(
        (independent.mean(), independent[-1]), rel=1e-9
    )
    of_all = (ROUNDS * (SAMPLES / SAMPLES.sum()) ** 2 * moved).max() * (sums**2).sum(axis=1)
    assert found.mean_of_all == pytest.approx(of_all.mean(), rel=1e-3)  # the receiver noise is small
    assert found.devices_gain > 1.2
    assert any("all devices in every round" in warning for warning in planned.warnings)


def test_the_receivers_part_is_that_of_the_rounds():
    """σ_n²/λ² of the drawn rounds, whose outage is left out; a noiseless receiver adds nothing."""
    planned = made(*CYCLIC, "radio.noise_power=1e-10 W", "radio.outage=0")
    steps = 1 / np.arange(1, ROUNDS + 1)  # (η_s/η_1)²
    uplink, source = planned.uplink, channel_source(planned.scenario)
    channels = source.planning_channels(planned.forecast.num_draws)
    drawn = uplink.num_planned(len(channels), ROUNDS)
    floors = [
        0.5e-10 / planned.design(channels[draw % len(channels)], draw % ROUNDS + 1).rx_scale[0] ** 2
        for draw in range(drawn)
    ]
    assert planned.correlation.receiver == pytest.approx(np.mean(floors) * np.cumsum(steps).mean(), rel=1e-6)
    assert planned.correlation.gain < planned.correlation.devices_gain
    quiet = made(*CYCLIC, "radio.noise_power=0 W").correlation
    assert quiet.receiver == pytest.approx(0, abs=1e-9)
    assert quiet.gain == pytest.approx(quiet.devices_gain)


def test_nothing_is_gained_with_all_devices_and_the_plan_says_so():
    planned = made()
    assert planned.correlation.devices_gain == pytest.approx(1.0)
    assert any("gains nothing" in warning for warning in planned.warnings)


def test_a_plan_is_stored_with_its_matrix_and_shares():
    planned = made(*CYCLIC)
    stored = planned.to_dict()
    again = Plan.from_dict(stored)
    assert again.to_dict() == stored
    assert np.array_equal(again.uplink.shares(ROUNDS), planned.uplink.shares(ROUNDS))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        (["privacy.trust=receiver_noise"], "privacy.trust"),
        ([*CYCLIC, "privacy.trust=own_noise"], "privacy.trust"),
        (["privacy.noise=secure"], "privacy.noise"),
        (["privacy.carry_over=true"], "privacy.carry_over"),
        (["radio.truncation=-100 dB"], "radio.truncation"),
        (["radio.csi_error_db=-20"], "radio.csi_error_db"),
        (["radio.antennas=2"], "radio.antennas"),
        (["fleet.participation=0.5"], "fleet.participation"),
        (["fleet.sampling=with_replacement", "fleet.sampled_devices=2"], "fleet.sampling"),
        (["fleet.sampling=package.module:Own"], "fleet.sampling"),
        (["air.medium=secure_sum"], "air.medium"),
        (["learning.rounds=optimal"], "learning.rounds"),
    ],
)
def test_combinations_that_are_not_sound_are_refused(changes, field):
    with pytest.raises(InputError, match=r"privacy\.correlation = banded") as refused:
        made(*changes)
    assert str(refused.value).startswith(field)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        (["fleet.sampling=cyclic"], "needs a number of rounds"),
        (["fleet.cycle=3"], 'needs fleet.sampling = "cyclic"'),
        (["fleet.sampling=cyclic", "fleet.cycle=6"], "shorter cycle"),
        (["fleet.sampling=cyclic", "fleet.cycle=3", "fleet.min_devices=2"], "shorter cycle"),
    ],
)
def test_cycles_that_leave_rounds_without_devices_are_refused(changes, rule):
    with pytest.raises(InputError, match=rule):
        made(*changes)


def test_other_payloads_are_refused_and_other_schemes_run_without():
    with pytest.raises(InputError, match="class means have independent noise"):
        plan(ad.load("quick", [*BASE, *CYCLIC]))
    scenario = ad.load("quick", [*BASE, *CYCLIC])
    for name in ("fedsgd", "ota_fl_sampled"):
        adapted = as_run_by(load_scheme(name), ad.load("quick", [*BASE[:-1], *CYCLIC]))
        assert adapted.fleet.sampling == "none"
    assert as_run_by(load_scheme("fedsgd"), scenario).privacy.correlation == "none"


def test_cyclic_participation_with_independent_noise():
    """A device is charged for its own rounds only, and a round's weights are those of its devices."""
    planned = made(*CYCLIC, "privacy.correlation=none")
    joined = (np.arange(ROUNDS)[:, None] - np.arange(5)) % 3 == 0
    for index in range(1, ROUNDS + 1):
        weights = joined[index - 1] * SAMPLES / (joined[index - 1] @ SAMPLES)
        assert planned.uplink.weights(index)[:, 0] == pytest.approx(weights)
    required = joined.sum(axis=0) * (2 * CLIP * SAMPLES / SAMPLES.sum()) ** 2
    mu = gaussian_mu(np.array([2.0, 8, 4, 8, 8]), 1e-5)
    assert planned.required_noise_var()[:, 0] == pytest.approx(required / mu**2, rel=1e-10)
    assert any("Cyclic participation" in line for line in planned.assumptions)
    assert (planned.participation.least_rounds, planned.participation.most_rounds) == (4, 5)
