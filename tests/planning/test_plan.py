"""The plan as a whole: its gains keep power, privacy and noise as planned."""

import json
import math

import numpy as np
import pytest

import airdistill as ad
from airdistill.channel import channel_source
from airdistill.planning import plan as make_plan
from airdistill.planning.fleet import channel_noise_var
from airdistill.privacy.sensitivity import required_noise_var

PRESETS = ["paper", "paper-literal", "quick", "device-level", "small-data"]
TWO = ["fleet.devices=2", "radio.gains=[[1e-6, 0], [0, 2e-6]]"]


@pytest.fixture(scope="module")
def plans():
    return {name: make_plan(ad.load(name)) for name in PRESETS}


@pytest.mark.parametrize("name", PRESETS)
def test_every_round_of_a_run_meets_power_and_privacy_constraints(plans, name):
    plan, source = plans[name], channel_source(plans[name].scenario)
    for round_index in range(1, 30):
        channel = source.round_channel(round_index)
        assert plan.power_slack(channel).min() >= -1e-9
        assert plan.privacy_slack(channel).min() >= -1e-9


@pytest.mark.parametrize("noise", ["complex", "real"])
def test_the_planned_variance_is_measured_at_the_receiver(noise):
    """A round simulated slot by slot: transmit (7), superpose (10), take the real part, scale (12)."""
    plan = make_plan(ad.load("quick", [f"radio.noise={noise}", "radio.noise_power=2e-14 W"]))
    rng, source = np.random.default_rng(0), channel_source(plan.scenario)
    channel, num_classes, repeats = source.round_channel(1), 10, 400
    made = plan.design(channel)
    # The receiver noise must matter in this test, or a factor of two in it would go unnoticed.
    assert (made.effective_noise_var / made.counted_noise_var[0]).max() > 1.3
    class_means = rng.dirichlet(np.ones(num_classes), (20, num_classes))
    ideal = np.einsum("ik,ikd->kd", plan.fleet.class_counts / plan.fleet.class_counts.sum(axis=0), class_means)
    squared = np.zeros(num_classes)
    for _ in range(repeats):
        artificial = rng.standard_normal((20, num_classes, num_classes))
        sent = made.signal_gain[:, :, None] * math.sqrt(num_classes) * class_means
        sent = sent + made.noise_gain[:, :, None] * artificial
        thermal = rng.standard_normal((num_classes, num_classes)) + 0j
        if noise == "complex":
            thermal = (thermal + 1j * rng.standard_normal(thermal.shape)) / math.sqrt(2)
        received = np.einsum("i,ikd->kd", channel, sent) + math.sqrt(2e-14) * thermal
        estimate = received.real / made.rx_scale[:, None]
        squared += ((estimate - ideal) ** 2).mean(axis=1) / repeats
    # The standard error of a variance over n Gaussian draws is v√(2/n).
    error = made.effective_noise_var * math.sqrt(2 / (repeats * num_classes))
    assert np.all(np.abs(squared - made.effective_noise_var) < 5 * error)


def test_the_presets_have_the_numbers_of_the_theory_page(plans):
    """Section 6: σ_n²/cap about 0.02 to 0.04 in `paper`, 6e4 in `paper-literal`, whose worst device is at −92 dB."""
    literal, paper = plans["paper-literal"], plans["paper"]
    assert literal.forecast.worst_snr_db == pytest.approx(-92, abs=1)
    assert 10 ** (-literal.forecast.channel_snr_db / 10) / 10 == pytest.approx(6e4, rel=0.3)
    assert 0.01 < 10 ** (-paper.forecast.channel_snr_db / 10) / 10 < 0.04
    assert literal.forecast.regime == "channel"
    assert any("Channel noise exceeds" in warning for warning in literal.warnings)
    assert not any("Channel noise exceeds" in warning for warning in paper.warnings)
    # "For quick and small-data the bound would stop after 2 and 9 rounds", depending on the channel draws.
    assert 1 <= plans["quick"].rounds.exact <= 5
    assert 7 <= plans["small-data"].rounds.exact <= 12
    assert plans["quick"].num_rounds == 60
    # K² slots of 3.6 µs: 0.36 ms a round.
    assert plans["quick"].uplink_seconds == pytest.approx(60 * 0.36e-3)


def test_the_papers_rounds_range_from_about_50_to_3000_over_seeds():
    rounds = [make_plan(ad.load("paper", [f"seed={seed}"])).rounds.paper for seed in range(12)]
    assert 40 < min(rounds) < 200
    assert 1000 < max(rounds) < 3500


@pytest.mark.parametrize("name", PRESETS)
def test_a_plan_survives_json(plans, name):
    written = plans[name].to_dict()
    text = json.dumps(written, allow_nan=False)
    again = ad.Plan.from_dict(json.loads(text))
    assert again.to_dict() == written
    channel = channel_source(again.scenario).round_channel(5)
    assert np.array_equal(again.design(channel).signal_gain, plans[name].design(channel).signal_gain)
    assert np.array_equal(again.design(channel).noise_gain, plans[name].design(channel).noise_gain)


def test_json_has_the_documented_keys(plans):
    written = plans["paper"].to_dict()
    assert {"chosen", "exact", "paper"} <= set(written["rounds"])
    assert written["regime"] in {"privacy", "channel", "mixed"}
    assert len(written["required_noise_var"]) == len(written["effective_noise_var"]) == 10
    for name in ("effective_noise", "convergence_gap", "uplink_seconds", "uplink_joules"):
        assert written[name] > 0
    assert len(written["privacy"]["devices"]) == 50
    assert {"epsilon", "delta", "mu"} <= set(written["privacy"]["devices"][0])
    assert isinstance(written["warnings"], list)


def test_infinity_is_null_in_json_and_is_restored():
    plan = make_plan(ad.load("quick", [*TWO, "privacy.epsilon=inf", "data.class_counts=[[5, 5, 0], [5, 5, 0]]"]))
    written = plan.to_dict()
    assert written["privacy"]["devices"][0] == {
        "epsilon": None,
        "delta": 1e-5,
        "mu": None,
        "epsilon_at_end": {"paper": None, "class_mean": None, "trajectory": None, "device": None},
    }
    assert written["effective_noise_var"][2] is None
    assert written["required_noise_var"] == [0, 0, 0]
    assert written["rounds"]["paper"] is None
    assert ad.Plan.from_dict(json.loads(json.dumps(written))).to_dict() == written
    assert any("class 2" in warning for warning in plan.warnings)
    assert any("no privacy" in warning for warning in plan.warnings)


def test_infinite_epsilon_leaves_only_channel_noise():
    plan = make_plan(ad.load("paper", ["privacy.epsilon=inf"]))
    assert plan.forecast.regime == "channel"
    links_floor = 10 ** (-plan.forecast.channel_snr_db / 10) / 10
    assert plan.forecast.effective_noise_var.max() == pytest.approx(links_floor, rel=1e-9)


def test_the_declared_model_never_exceeds_its_target(plans):
    for name in PRESETS:
        plan = plans[name]
        spent = plan.epsilon_by_model[plan.scenario.privacy.sensitivity]
        assert (spent <= plan.fleet.epsilon * (1 + 1e-9)).all()
    # Under a sound sensitivity model the paper's design exceeds its target.
    paper = plans["paper"]
    assert (paper.epsilon_by_model["class_mean"] > paper.fleet.epsilon).any()
    assert (paper.epsilon_by_model["device"] > 100 * paper.fleet.epsilon).all()


def test_the_strictest_device_spends_exactly_its_target():
    plan = make_plan(
        ad.load("quick", [*TWO, "data.class_counts=[[5, 5], [5, 5]]", "privacy.epsilon={values=[0.5, 8]}"])
    )
    assert plan.epsilon_by_model["device"][0] == pytest.approx(0.5, rel=1e-9)
    assert plan.epsilon_by_model["device"][1] < 0.6


def test_energy_by_hand():
    """One device, one channel: the power is reduced to λ² = σ²/req, and P1 = λ/(√K h)."""
    changes = [
        "fleet.devices=1", "radio.gains=[[1e-6, 0]]", "data.class_counts=[[10, 10]]", "learning.rounds=4",
        "privacy.trust=receiver_noise", "radio.noise=real", "radio.noise_power=1e-17 W",
    ]  # fmt: skip
    plan = make_plan(ad.load("quick", changes))
    required = required_noise_var([[10, 10]], plan.fleet.mu, 4, "device")[0, 0]
    scale_sq = min(2 * 1e-12 * 1e-3, 1e-17 / required)
    power = scale_sq / (2 * 1e-12)
    # 4 rounds × K slots × 2 classes.
    assert plan.uplink_joules == pytest.approx(4 * 3.6e-6 * 2 * 2 * power, rel=1e-9)
    assert plan.forecast.signal_power_w == pytest.approx([power])


def test_receiver_noise_is_converted_to_the_decision_axis_once():
    assert channel_noise_var(ad.load("paper")) == pytest.approx(2.5e-15)
    assert channel_noise_var(ad.load("paper-literal")) == 1e-8


@pytest.mark.parametrize(
    ("changes", "regime"), [([], "privacy"), (["privacy.epsilon=1e3", "privacy.accountant=exact"], "channel")]
)
def test_the_regime_follows_the_target(changes, regime):
    gains = ["radio.distance=300 m", "radio.fading=none", "privacy.epsilon=0.01", *changes]
    assert make_plan(ad.load("paper", [*gains])).forecast.regime == regime


def test_violations_of_the_papers_transceiver_are_counted():
    # Unequal classes and links make its case rule fail.
    changes = [
        "fleet.devices=2", "radio.transceiver=paper", "radio.fading=none", "radio.distance={values=[400, 200]}",
        "data.class_counts=[[10, 20], [20, 10]]", "privacy.epsilon=0.5", "privacy.delta=1e-9",
        "radio.noise_power=1e-15 W",
    ]  # fmt: skip
    plan = None
    for num_rounds in range(1, 200):
        plan = make_plan(ad.load("paper", [*changes, f"learning.rounds={num_rounds}"]))
        if plan.forecast.privacy_holds_share < 1:
            break
    assert plan.forecast.privacy_holds_share == 0
    assert any("(17) is violated" in warning for warning in plan.warnings)
    right = make_plan(ad.load("paper", [*changes, f"learning.rounds={num_rounds}", "radio.transceiver=optimal"]))
    assert right.forecast.privacy_holds_share == 1


def test_rounds_follow_the_declared_rule():
    assert make_plan(ad.load("quick", ["learning.rounds=paper"])).num_rounds == 2000
    optimal = make_plan(ad.load("quick", ["learning.rounds=optimal"]))
    assert optimal.num_rounds == optimal.rounds.exact
    assert make_plan(ad.load("quick", ["learning.rounds=3000"])).num_rounds == 3000


@pytest.mark.parametrize(
    ("base", "changes", "words"),
    [
        ("quick", ["learning.initial_lr=0.05"], "exceeds 1/L1"),
        ("paper", ["privacy.epsilon=50", "privacy.delta=1e-3"], "less noise than (ε, δ) requires"),
        ("paper", ["radio.noise_power=0 W"], "planned as fleet_noise"),
        ("paper", ["learning.rounds=paper"], "limited to 2000"),
        ("paper", ["privacy.epsilon=1"], "limit of 2000 rounds"),
        ("quick", ["radio.fading=real_gaussian"], "of rounds carry"),
        ("paper", ["privacy.sensitivity=trajectory"], "only under its assumptions"),
        ("quick", ["constants.source=private"], "pilot was not private"),
        ("quick", ["constants.source=public", "privacy.sensitivity=trajectory"], "only the largest it observed"),
    ],
)
def test_expected_warnings(base, changes, words):
    plan = make_plan(ad.load(base, changes))
    assert any(words in warning for warning in plan.warnings), plan.warnings


def test_a_harmless_plan_has_no_warnings():
    calm = ["learning.initial_lr=0.01", "learning.rounds=1", "radio.fading=none", "radio.distance=100 m"]
    assert make_plan(ad.load("quick", [*calm, "privacy.epsilon=50"])).warnings == ()


def test_a_noiseless_receiver_and_a_device_without_channel_can_be_planned():
    quiet = make_plan(ad.load("quick", ["radio.noise_power=0 W", "privacy.epsilon=inf"]))
    assert quiet.forecast.effective_noise == 0
    assert quiet.to_dict()["forecast"]["worst_snr_db"] is None
    dead = make_plan(ad.load("quick", ["fleet.devices=2", "radio.gains=[[0, 0], [1e-6, 0]]"]))
    assert dead.to_dict()["effective_noise"] is None
    assert any("cannot be received" in warning for warning in dead.warnings)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("declared", "taken to be public"),
        ("synthetic", "synthetic data"),
        ("public", "declared public"),
        ("private", "not covered by the guarantee"),
    ],
)
def test_a_plan_states_the_source_of_its_constants(source, words):
    plan = make_plan(ad.load("quick", [f"constants.source={source}"]))
    assert sum(words in line for line in plan.assumptions) == 1
    assert any("pilot" in warning for warning in plan.warnings) == (source == "private")


def test_a_plan_states_its_assumptions(plans):
    for plan in plans.values():
        assert any("Neighbours differ" in line for line in plan.assumptions)
        assert any("are public" in line for line in plan.assumptions)
