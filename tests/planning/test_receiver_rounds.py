"""Rounds for biased receivers: the gap by hand, T by exhaustive search, the truncation threshold, the what-if."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_fleets import fleets, uplink_of

import airdistill as ad
from airdistill.planning import plan as make_plan
from airdistill.planning.convergence.gap import (
    LearningConstants,
    biased_gap,
    class_shares,
    convergence_gap,
    fleet_gap,
    misalignment_gap,
)
from airdistill.planning.convergence.receiver_error import Parts, ProjectedError, TrackingError
from airdistill.planning.convergence.rounds import GapObjective, best_truncation, typical_floor
from airdistill.planning.plan import Plan, choose_uplink, gap_objective, planning_draws
from airdistill.planning.what_if.steps import RECEIVERS, what_if
from airdistill.schemes.planning import as_run_by, plan_scheme
from airdistill.schemes.registry import load_scheme

CONSTANTS = LearningConstants(
    distill_weight=0.7, initial_lr=0.03, grad_lipschitz=3.0, model_lipschitz=0.9, loss_bound=2.0, grad_norm_bound=1.7
)
PARTS = Parts.for_drift(1e-3)


def drawn(fleet, seed, num_draws=15):
    rng = np.random.default_rng(seed)
    return fleet.channel * np.sqrt(rng.exponential(size=(num_draws, len(fleet.channel))))


def gap_by_hand(fleet, noise_var, num_rounds):
    """Theory section 2, round by round and device by device, with a scalar recursion for each part and class."""
    num_devices, num_classes = fleet.class_counts.shape
    shares = class_shares(fleet.class_counts)
    own, rest, total, ever = [0.003] * num_classes, [0.001] * num_classes, 0.0, set()
    spread = np.diag([0.1, 1e-4])
    for t in range(1, num_rounds + 1):
        noise = noise_var[(t - 1) % len(noise_var)]
        received = [k for k in range(num_classes) if np.isfinite(noise[k])]
        ever |= {*received}
        mean = 1 / sum(1 / noise[k] for k in received) if received else np.inf
        if received:
            # c and its trend: a prediction step, then Bayes' rule.
            spread = np.array([[1, 1], [0, 1]]) @ spread @ np.array([[1, 0], [1, 1]])
        spread = spread + np.diag([1e-5, 1e-6])
        spread = np.linalg.inv(np.linalg.inv(spread) + np.diag([1 / mean, 0]))
        common = spread[0, 0]
        for k in range(num_classes):
            own[k], rest[k] = own[k] + 1e-4, rest[k] + 1e-5
            if k in received:
                if len(received) > 1:
                    own[k] = 1 / (1 / own[k] + 1 / (noise[k] - mean)) if noise[k] > mean else 0.0
                rest[k] = 1 / (1 / rest[k] + 1 / noise[k])
        for device in range(num_devices):
            error = sum(
                shares[device, k] * (min(2, common + own[k] + max(num_classes - 2, 0) * rest[k]) if k in ever else 2)
                for k in range(num_classes)
            )
            total += 6 * (0.7 * 0.9) ** 2 * np.sqrt(t) * error / num_rounds**1.5
    return num_devices * 3 * 2.0 / (0.03 * np.sqrt(num_rounds)) + total


@settings(max_examples=40)
@given(fleets, st.integers(1, 30), st.integers(0, 2**32))
def test_the_gap_of_the_tracker_by_hand(fleet, num_rounds, seed):
    fleet = replace(fleet, channel_noise_var=max(fleet.channel_noise_var, 1e-3))
    channels = drawn(fleet, seed)
    uplink = uplink_of(fleet, "receiver_noise")
    objective = GapObjective.over(uplink, channels, CONSTANTS, 0.05, TrackingError(PARTS))
    noise_var = uplink.noise_over(channels)(num_rounds)
    assert objective.gap(num_rounds) == pytest.approx(gap_by_hand(fleet, noise_var, num_rounds), rel=1e-6)
    several = objective.gaps([1, num_rounds, num_rounds + 3])
    assert several[1] == pytest.approx(objective.gap(num_rounds), rel=1e-12)


@settings(max_examples=25)
@given(fleets, st.integers(0, 2**32), st.sampled_from(["tracking", "projected"]))
def test_the_best_rounds_agree_with_exhaustive_search(fleet, seed, name):
    receiver = {"tracking": TrackingError(PARTS), "projected": ProjectedError()}[name]
    objective = GapObjective.over(uplink_of(fleet, "fleet_noise"), drawn(fleet, seed), CONSTANTS, 0.05, receiver)
    every = objective.gaps(list(range(1, 151)))
    assert objective.gap(objective.best_rounds(150)) <= min(every) * (1 + 1e-9)


def test_a_search_simulates_each_number_of_rounds_once():
    """The same T has the same gap to the last bit, alone or beside others, and under scaled constants."""

    class Counting(TrackingError):  # noqa: N818
        def weighted_sums(self, noise_vars, squared_bias, num_rounds, length):
            asked.extend(num_rounds)
            return super().weighted_sums(noise_vars, squared_bias, num_rounds, length)

    asked: list[int] = []
    scenario = ad.load("quick", ["learning.rounds=9"])
    planned = make_plan(scenario)
    channels = planning_draws(scenario)
    objective = GapObjective.over(planned.uplink, channels, CONSTANTS, 0.05, Counting(PARTS))
    together = objective.gaps([40, 3, 7])
    objective.best_rounds(60)
    smaller = objective.with_constants_scaled(0.1).gaps([3, 40])
    assert len(set(asked)) == len(asked) > 3

    def alone(num_rounds, factor=1.0):
        fresh = GapObjective.over(planned.uplink, channels, CONSTANTS, 0.05, TrackingError(PARTS))
        return fresh.with_constants_scaled(factor).gap(num_rounds)

    assert together == [alone(40), alone(3), alone(7)]
    assert smaller == [alone(3, 0.1), alone(40, 0.1)]


def test_projection_bounds_the_error_by_the_simplex():
    noise_var = np.array([[0.01, 50.0], [0.03, np.inf]])
    bias = np.array([[0.0, 0.0], [0.5, 0.0]])
    assert ProjectedError().mean_error(noise_var, bias, 7, 10) == pytest.approx([(0.1 + 0.8) / 2, 2.0])


@given(st.integers(1, 50), st.floats(0, 2), st.floats(0, 3))
def test_a_bias_enters_theorem_1_as_printed_in_the_paper(num_rounds, bias, noise):
    """One class, one device: the mean square of the bias and the square of its mean are the same."""
    printed = convergence_gap(num_rounds, CONSTANTS, np.array([[noise]]), np.array([[bias]]))[0]
    ours = fleet_gap(num_rounds, CONSTANTS, 1, noise + bias**2) + misalignment_gap(num_rounds, CONSTANTS, bias)
    assert ours == pytest.approx(printed, rel=1e-12)


def test_the_biased_bound_has_no_first_order_term_in_the_bias():
    """A small bias enters the biased bound squared, and Theorem 1 in its first power."""
    small = 1e-4
    roots = np.sqrt(np.arange(1, 101)).sum()
    biased = biased_gap(100, CONSTANTS, 1, small**2 * roots) - fleet_gap(100, CONSTANTS, 1, 0.0)
    assert biased == pytest.approx(6 * (0.7 * 0.9) ** 2 * small**2 * roots / 1000)
    assert misalignment_gap(100, CONSTANTS, small) > 1000 * biased


def test_the_truncation_threshold_minimises_the_gap():
    scenario = ad.load("quick", ["learning.receiver=tracking", "radio.truncation=optimal", "learning.max_rounds=60"])
    chosen = make_plan(scenario)
    channels = planning_draws(scenario)
    gains = np.abs(channels) ** 2
    for share in (0.0, 0.002, 0.01, 0.05, 0.2):
        threshold = float(np.quantile(gains, share)) if share else 0.0
        other = replace(chosen.uplink, truncation=threshold)
        assert chosen.convergence_gap <= gap_objective(scenario, other, channels).gap(60) * (1 + 1e-9)
    assert chosen.forecast.silent_share == pytest.approx((gains < chosen.uplink.truncation).mean(), abs=1e-9)
    steady = make_plan(ad.load("quick", ["radio.truncation=optimal", "radio.fading=none", "radio.distance=100 m"]))
    assert steady.uplink.truncation == 0


def test_the_search_takes_the_best_rounds_for_each_threshold():
    asked = []

    class Objective:
        def __init__(self, threshold):
            self.threshold = threshold

        def best_rounds(self, largest):
            asked.append(largest)
            return 7

        def gap(self, num_rounds):
            return abs(self.threshold - 0.04) + num_rounds

    channels = np.sqrt(np.linspace(0.001, 1, 200)).reshape(50, 4)
    found = best_truncation(channels, lambda threshold, _: Objective(threshold), 10, None, 33)
    assert found == pytest.approx(0.04, abs=0.012)
    assert set(asked) == {33}


@pytest.mark.parametrize(
    "changes",
    [
        ["radio.truncation=optimal"],
        ["privacy.class_budget=optimal", "privacy.trust=receiver_noise", "privacy.carry_over=true"],
        ["radio.csi_error_db=-15", "radio.truncation=-95 dB", "learning.receiver=tracking"],
    ],
)
def test_a_stored_plan_designs_bit_identical_rounds(changes):
    plan = make_plan(ad.load("quick", changes))
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    channel, spent = planning_draws(plan.scenario)[3], np.full((20, 10), 1e-3)
    for name, value in vars(plan.design(channel, 5, spent)).items():
        assert np.array_equal(value, getattr(again.design(channel, 5, spent), name)), name


def test_the_class_budget_uses_the_channel_noise_that_classes_have_anyway():
    """Under receiver noise the typical channel noise of a class is a floor, which leaves more budget to the others."""
    changes = ["privacy.class_budget=optimal", "privacy.trust=receiver_noise", "privacy.epsilon=100"]
    scenario = ad.load("quick", changes)
    plan = make_plan(scenario)
    floor = typical_floor(plan.uplink, planning_draws(scenario))
    assert plan.uplink.floor == pytest.approx(floor)
    required = plan.required_noise_var().max(axis=0)
    assert (required >= floor * (1 - 1e-9)).all()
    without = replace(plan.uplink, floor=None).privacy_noise_var(plan.num_rounds)
    assert (np.maximum(required, floor) <= np.maximum(without, floor) * (1 + 1e-9)).all()


def test_the_what_if_compares_receivers_and_steps():
    plan = make_plan(ad.load("paper", ["seed=1"]))
    found = what_if(plan)
    assert [receiver.name for receiver in found.receivers] == list(RECEIVERS)
    linear, projected, tracking = found.receivers
    assert linear.best_rounds == plan.rounds.exact
    assert linear.convergence_gap == pytest.approx(plan.convergence_gap)
    assert linear.squared_error == pytest.approx(plan.forecast.effective_noise)
    assert tracking.squared_error < 0.1 * linear.squared_error
    assert projected.squared_error <= 2 * (1 + 1e-9)
    names = [step.name for step in found.steps]
    assert names == ["the paper's accountant", "exact accountant", "budget carried over", "truncated channel inversion"]
    first, exact, carried, _ = (step.noise_var for step in found.steps)
    assert first == pytest.approx(plan.forecast.effective_noise / 10)
    assert first / exact >= 1.4
    assert carried < exact


def test_steps_of_joint_models_and_of_loose_targets():
    found = what_if(make_plan(ad.load("quick")))
    assert "budget divided among classes" in [step.name for step in found.steps]
    assert not found.steps[0].holds  # at ε = 8 the paper's accountant gives too little
    assert all(step.holds for step in found.steps[1:])
    assert what_if(make_plan(ad.load("paper", ["radio.transceiver=paper"]))) is None


def test_the_last_step_has_the_noise_of_the_scheme():
    """The last step has the noise of the plan for `airdistill`."""
    given = ad.load("quick")
    scheme = load_scheme("airdistill")
    own = plan_scheme(scheme, as_run_by(scheme, given))
    assert what_if(make_plan(given)).steps[-1].noise_var == pytest.approx(own.forecast.effective_noise / 10)


def test_a_declared_truncation_threshold_is_kept():
    scenario = ad.load("quick", ["radio.truncation=-100 dB"])
    plan = make_plan(scenario)
    assert plan.uplink.truncation == pytest.approx(1e-10)
    sent = choose_uplink(scenario, plan.fleet, "knowledge", None, planning_draws(scenario))
    assert sent.truncation == plan.uplink.truncation


def test_very_many_rounds_are_extrapolated_from_the_last_simulated_ones(monkeypatch):
    """Against the full recursion."""
    noise_var = np.random.default_rng(0).uniform(0.1, 1, (50, 4))
    no_bias = np.zeros_like(noise_var)
    in_full = TrackingError(PARTS).weighted_sums([noise_var], no_bias, [3000], 4)
    monkeypatch.setattr("airdistill.planning.convergence.receiver_error._MOST_ROUNDS", 500)
    assert TrackingError(PARTS).weighted_sums([noise_var], no_bias, [3000], 4) == pytest.approx(in_full, rel=5e-3)
    assert TrackingError(PARTS).weighted_sums([noise_var], no_bias, [300], 4) == pytest.approx(
        TrackingError(PARTS).weighted_sums([noise_var] * 2, no_bias, [300, 400], 4)[:1]
    )


def test_a_device_without_a_channel_is_left_out_by_truncation(tmp_path):
    """Rounds in which nothing is received teach nothing: the plan must not rely on the tracker's prior."""
    gains = np.random.default_rng(0).normal(size=(20, 6, 2)) @ np.array([1e-5, 1e-5j])
    gains[:, 2] = 0
    np.savez(tmp_path / "trace.npz", channel=gains)
    changes = ["fleet.devices=6", f"radio.trace={tmp_path / 'trace.npz'}", "learning.rounds=20"]
    scheme = load_scheme("airdistill")
    plan = plan_scheme(scheme, as_run_by(scheme, ad.load("quick", changes)))
    assert plan.uplink.truncation > 0
    assert np.isfinite(plan.forecast.effective_noise)
    assert 1 / 6 <= plan.forecast.silent_share < 1
