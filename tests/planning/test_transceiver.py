"""The closed-form designs against generic solvers, and the properties that every design must have."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from random_fleets import TRUSTS, fleets, random_fleet
from scipy.optimize import linprog, minimize

from airdistill.errors import InputError
from airdistill.planning.transceiver.design import design_round

NUM_FLEETS = 200


def design(fleet, trust, **changes):
    given = {
        "class_counts": fleet.class_counts,
        "channel": fleet.channel,
        "peak_power_w": fleet.peak_power_w,
        "channel_noise_var": fleet.channel_noise_var,
        "required_noise_var": fleet.required,
    }
    return design_round(**(given | changes), trust=trust)


def held_classes(fleet):
    return np.flatnonzero(fleet.class_counts.sum(axis=0) > 0)


def counts_receiver(fleet, trust):
    """Whether receiver noise counts; if the receiver is noiseless, receiver_noise falls back to the fleet's noise."""
    return trust == "receiver_noise" and fleet.channel_noise_var > 0


def noise_over_least(fleet, trust, klass, made):
    """The design's v over the optimum of a linear programme.

    Everything is linear in u = 1/λ² and ν_j = |h_jP2_j|²/λ²: v = Σν + σ²u, power w_j²/K + ν_j ≤ |h_j|²P_j u. Both are
    measured in units of the design's own values, because the solver's tolerance is absolute.
    """
    unit_v, unit_u = made.effective_noise_var[klass], 1 / made.rx_scale[klass] ** 2
    weights, link = fleet.weights[:, klass], fleet.link_power_w * unit_u / unit_v
    num, sigma2 = len(weights), fleet.channel_noise_var * unit_u / unit_v
    required = fleet.required[:, klass] / unit_v
    limits = [np.append(np.eye(num)[j], -link[j]) for j in range(num)]
    bounds = list(-(weights**2) / fleet.class_counts.shape[1] / unit_v)
    if trust == "own_noise":
        limits += [np.append(-np.eye(num)[j], 0.0) for j in range(num)]
        bounds += list(-required)
    else:
        limits.append(np.append(-np.ones(num), -sigma2 if counts_receiver(fleet, trust) else 0.0))
        bounds.append(-required.max())
    cost = np.append(np.ones(num), sigma2)
    # Each row in units of its largest number.
    size = np.abs(np.column_stack([limits, bounds])).max(axis=1)
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    solution = linprog(cost, A_ub=np.array(limits) / size[:, None], b_ub=np.array(bounds) / size, options=tight)
    assert solution.success, solution.message
    return 1 / solution.fun


def least_noise_by_slsqp(fleet, trust, klass, rng):
    """The paper's own variables log λ²/cap and z_j = |P2_j|²/P_j, from several starts; the best feasible point."""
    weights, link = fleet.weights[:, klass], fleet.link_power_w
    num, num_classes = len(weights), fleet.class_counts.shape[1]
    required, sigma2 = fleet.required[:, klass], fleet.channel_noise_var
    cap = num_classes * np.min(link[weights > 0] / weights[weights > 0] ** 2)
    asked = required > 0

    def noise(x):
        return (link @ x[1:] + sigma2) / (cap * np.exp(x[0]))

    def slack(x):
        scale_sq = cap * np.exp(x[0])
        power = 1 - x[1:] - scale_sq * weights**2 / (num_classes * link)
        if trust == "own_noise":
            counted = (link * x[1:])[asked] / scale_sq
            return np.concatenate([power, counted / required[asked] - 1])
        counted = (link @ x[1:] + (sigma2 if counts_receiver(fleet, trust) else 0.0)) / scale_sq
        return np.append(power, counted / required.max() - 1 if asked.any() else 0.0)

    best = np.inf
    for _ in range(4):
        start = np.append(rng.uniform(-7, -0.5), rng.uniform(0.05, 0.6, num))
        found = minimize(
            lambda x: np.log(noise(x) + 1e-12),
            start,
            method="SLSQP",
            bounds=[(-25.0, 0.0)] + [(0.0, 1.0)] * num,
            constraints={"type": "ineq", "fun": slack},
            options={"maxiter": 300, "ftol": 1e-12},
        )
        if slack(found.x).min() >= -1e-6:
            best = min(best, noise(found.x))
    return best


@pytest.mark.parametrize("trust", TRUSTS)
def test_no_design_has_less_noise(trust):
    """A linear programme proves the optimum from both sides on every fleet."""
    for seed in range(NUM_FLEETS):
        fleet = random_fleet(seed)
        made = design(fleet, trust)
        for klass in held_classes(fleet):
            if made.effective_noise_var[klass] > 0:
                ratio = noise_over_least(fleet, trust, klass, made)
                assert ratio == pytest.approx(1, abs=1e-5), f"fleet {seed}, class {klass}"


@pytest.mark.filterwarnings("ignore:Values in x were outside bounds")  # SLSQP's own steps
@pytest.mark.parametrize("trust", TRUSTS)
def test_a_generic_solver_never_beats_the_closed_form(trust):
    """SLSQP in the paper's own variables, independent of the linear reformulation above.

    It is slow and bounds the optimum from one side only: it runs on the first fleets of the test above.
    """
    rng = np.random.default_rng(1)
    ratios = []
    for seed in range(NUM_FLEETS // 4):
        fleet = random_fleet(seed)
        klass = held_classes(fleet)[0]
        got = design(fleet, trust).effective_noise_var[klass]
        if got > 0:
            ratios.append(least_noise_by_slsqp(fleet, trust, klass, rng) / got)
    ratios = np.array(ratios)
    assert len(ratios) > 0.9 * NUM_FLEETS // 4
    assert ratios.min() > 1 - 1e-4
    # The solver must come close to the optimum, or the test would prove nothing.
    assert np.mean(ratios < 1.01) > 0.6


@pytest.mark.parametrize("trust", TRUSTS)
def test_every_design_meets_power_and_privacy_constraints(trust):
    for seed in range(NUM_FLEETS):
        fleet = random_fleet(seed)
        made = design(fleet, trust)
        assert made.power_slack(fleet.peak_power_w).min() >= -1e-9
        assert made.privacy_slack(fleet.required).min() >= -1e-9


@given(fleets, st.sampled_from(TRUSTS))
def test_reported_noise_follows_from_the_gains(fleet, trust):
    made = design(fleet, trust)
    num_classes = fleet.class_counts.shape[1]
    arriving = np.abs(fleet.channel[:, None] * made.noise_gain) ** 2
    for klass in held_classes(fleet):
        scale = made.rx_scale[klass]
        # Eq. (12): every device's vector is received with its weight, on the real axis.
        received = np.sqrt(num_classes) * fleet.channel * made.signal_gain[:, klass] / scale
        assert received == pytest.approx(fleet.weights[:, klass], abs=1e-12)
        assert (fleet.channel * made.noise_gain[:, klass]).imag == pytest.approx(0, abs=1e-9 * scale)
        total = (arriving[:, klass].sum() + fleet.channel_noise_var) / scale**2
        assert made.effective_noise_var[klass] == pytest.approx(total, rel=1e-9)
        counted = {
            "receiver_noise": np.full(len(fleet.mu), total),
            "fleet_noise": np.full(len(fleet.mu), arriving[:, klass].sum() / scale**2),
            "own_noise": arriving[:, klass] / scale**2,
        }[trust]
        assert made.counted_noise_var[:, klass] == pytest.approx(counted, rel=1e-9, abs=1e-300)


@given(fleets, st.sampled_from(TRUSTS), st.floats(1, 100), st.integers(0, 5))
def test_more_power_never_adds_noise(fleet, trust, factor, device):
    power = fleet.peak_power_w.copy()
    power[device % len(power)] *= factor
    held = held_classes(fleet)
    before = design(fleet, trust).effective_noise_var[held]
    assert (design(fleet, trust, peak_power_w=power).effective_noise_var[held] <= before * (1 + 1e-12)).all()


@given(fleets, st.sampled_from(TRUSTS), st.floats(1, 100), st.integers(0, 5))
def test_a_stricter_requirement_never_lowers_the_noise(fleet, trust, factor, device):
    required = fleet.required
    required[device % len(required)] *= factor
    held = held_classes(fleet)
    before = design(fleet, trust).effective_noise_var[held]
    after = design(fleet, trust, required_noise_var=required).effective_noise_var[held]
    assert (after >= before * (1 - 1e-12)).all()


@given(fleets, st.sampled_from(TRUSTS), st.integers(0, 1000))
def test_the_order_of_devices_does_not_matter(fleet, trust, seed):
    order = np.random.default_rng(seed).permutation(len(fleet.mu))
    made = design(fleet, trust)
    shuffled = design_round(
        fleet.class_counts[order],
        fleet.channel[order],
        fleet.peak_power_w[order],
        fleet.channel_noise_var,
        fleet.required[order],
        trust,
    )
    assert shuffled.effective_noise_var == pytest.approx(made.effective_noise_var, rel=1e-12)
    assert shuffled.signal_gain == pytest.approx(made.signal_gain[order], rel=1e-12)
    assert shuffled.noise_gain == pytest.approx(made.noise_gain[order], rel=1e-9, abs=1e-12)


@given(fleets)
def test_a_stricter_trust_model_never_has_less_noise(fleet):
    assume(fleet.channel_noise_var > 0)
    held = held_classes(fleet)
    receiver, fleet_wide, alone = (design(fleet, trust).effective_noise_var[held] for trust in TRUSTS)
    assert (receiver <= fleet_wide * (1 + 1e-9)).all()
    assert (fleet_wide <= alone * (1 + 1e-9)).all()


def test_the_design_by_hand():
    """Two devices, a class that one of them holds and a class of both; K = 2: every number can be checked on paper."""
    counts = np.array([[10, 10], [0, 30]])
    channel, power = np.array([1.0, 2j]), np.array([1.0, 3.0])
    required = np.array([[0.5, 0.1], [0.0, 0.2]])
    # w = [[1, ¼], [0, ¾]]; |h|²P = (1, 12); cap = (2·1/1, min(2/(1/16), 24/(9/16))) = (2, 32).
    made = design_round(counts, channel, power, 0.8, required, "receiver_noise")
    # λ² = min(cap, σ²/req) = (min(2, 1.6), min(32, 4)) = (1.6, 4); v = (0.5, 0.2).
    assert made.rx_scale**2 == pytest.approx([1.6, 4.0])
    assert made.effective_noise_var == pytest.approx([0.5, 0.2])
    assert (made.noise_gain == 0).all()
    # P1 of device 1 in class 1: ¾·2·conj(2j)/(√2·4).
    assert made.signal_gain[1, 1] == pytest.approx(0.75 * 2 * -2j / (np.sqrt(2) * 4))
    fleet = design_round(counts, channel, power, 0.8, required, "fleet_noise")
    # λ² = min(2, 13/(0.5 + ½)) = 2 and min(32, 13/(0.2 + (1/16 + 9/16)/2)) = 13/0.5125; v = req + 0.8/λ².
    assert fleet.rx_scale**2 == pytest.approx([2.0, 13 / 0.5125])
    assert fleet.effective_noise_var == pytest.approx([0.5 + 0.4, 0.2 + 0.8 * 0.5125 / 13])
    own = design_round(counts, channel, power, 0.8, required, "own_noise")
    # λ² = 2·1/(1 + 2·0.5) = 1 and min(2/(1/16 + 0.2), 24/(9/16 + 0.4)); v = Σreq + 0.8/λ².
    assert own.rx_scale**2 == pytest.approx([1.0, min(2 / 0.2625, 24 / 0.9625)])
    assert own.effective_noise_var == pytest.approx([0.5 + 0.8, 0.3 + 0.8 * 0.2625 / 2])


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_class_without_holders_is_not_sent(trust):
    counts, required = np.array([[5, 0], [5, 0]]), np.array([[0.1, 0], [0.1, 0]])
    made = design_round(counts, np.ones(2), 1.0, 0.1, required, trust)
    assert made.rx_scale[1] == 0
    assert made.effective_noise_var[1] == np.inf
    assert (made.signal_gain[:, 1] == 0).all()
    assert (made.noise_gain[:, 1] == 0).all()
    assert np.isfinite(made.effective_noise_var[0])


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_holder_without_a_channel_blocks_only_its_own_classes(trust):
    counts, required = np.array([[5, 5], [5, 0]]), np.array([[0.1, 0.1], [0.1, 0]])
    made = design_round(counts, np.array([1.0, 0.0]), np.ones(2), 0.1, required, trust)
    assert made.effective_noise_var[0] == np.inf
    assert np.isfinite(made.effective_noise_var[1])
    assert np.isfinite(made.signal_gain).all()
    assert np.isfinite(made.noise_gain).all()
    assert made.privacy_slack(required).min() >= -1e-9


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_design_allocates_at_most_seven_arrays_of_the_fleets_size(trust):
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 20, (3000, 40))
    required = rng.random(counts.shape)
    channel, power = rng.standard_normal(3000) + 1j, np.ones(3000)
    tracemalloc.start()
    design_round(counts, channel, power, 0.1, required, trust)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 7 * counts.size * 8


def test_invalid_arguments_are_refused():
    counts, required = np.array([[5, 5]]), np.array([[0.1, 0.1]])
    with pytest.raises(InputError, match='trust = "me"'):
        design_round(counts, np.ones(1), 1.0, 0.1, required, "me")
    with pytest.raises(ValueError, match="channel of 2 devices"):
        design_round(counts, np.ones(2), 1.0, 0.1, required, "own_noise")
    with pytest.raises(ValueError, match="required_noise_var of shape"):
        design_round(counts, np.ones(1), 1.0, 0.1, required[0], "own_noise")
    with pytest.raises(ValueError, match="must not be negative"):
        design_round(counts, np.ones(1), 1.0, -0.1, required, "own_noise")
