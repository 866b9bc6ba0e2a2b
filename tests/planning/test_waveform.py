"""What is certain of noise and signals through a waveform, against draws of the channel errors themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import airdistill as ad
from airdistill.channel.selective import WideLink, aging, tone_gains
from airdistill.channel.sources import channel_source
from airdistill.channel.waveform import Grid, air_time
from airdistill.errors import AirDistillError, InputError
from airdistill.planning.noise_factors import check_delays
from airdistill.planning.waveform import (
    Observation,
    backed_off,
    coherence_db,
    design_of_round,
    drift_misalignment,
    error_limits,
    error_probability,
    kept_noise,
    log_inverse_tail,
    observed,
    round_link,
)
from airdistill.privacy.trust import trust_statement
from airdistill.scenario.loading import changed
from airdistill.scenario.sections import Waveform

WAVE = ["waveform.kind=ofdm", "waveform.observed=elements"]
STATIC_SAMPLES = ["waveform.observed=samples", "waveform.csi=perfect"]
STRONG = ["radio.distance=100 m", "waveform.pilot_symbols=20", "radio.fading=tdl-a"]


def planned(*changes, scheme="airdistill", base="quick"):
    return ad.plan(ad.load(base, [*WAVE, *STRONG, *changes]), scheme=scheme)


def a_link(devices=5, tones=16, error=0.01, seed=0):
    """Random links with the same error variance on all tones."""
    rng = np.random.default_rng(seed)
    taps = (rng.standard_normal((devices, 4)) + 1j * rng.standard_normal((devices, 4))) / np.sqrt(8)
    grid = Grid(tones, 30e3, 10e-6, 2)
    known = np.fft.fft(taps, grid.fft_size)[:, grid.bins]
    return WideLink(grid, Waveform(kind="ofdm"), taps, known, np.full(known.shape, error), np.ones(devices))


def test_factors_by_trust_model():
    seen = Observation(limit=0.5, kept=0.8)
    assert seen.factor(trust_statement("own_noise")) == 1
    assert seen.factor(trust_statement("receiver_noise")) == pytest.approx(1.5**2)
    assert seen.factor(trust_statement("fleet_noise")) == pytest.approx(1.5**2 / 0.8)
    assert Observation(limit=0.5, kept=0.0).factor(trust_statement("fleet_noise")) == np.inf
    assert Observation().factor(trust_statement("fleet_noise")) == 1


def test_limits_hold_for_drawn_errors_as_often_as_they_say(monkeypatch):
    """|He| of every tone stays below 1 + q, and Σ s|He|² above V, for all but the stated share of draws."""
    scenario = ad.load("quick", [*WAVE, "waveform.speed=0"])
    monkeypatch.setattr("airdistill.planning.waveform.log_inverse_tail", lambda *_: np.log(200.0))
    link, rng = a_link(error=0.001), np.random.default_rng(1)
    limits, shares = error_limits(scenario, link, 100), np.array([0.4, 0.3, 0.1, 0.1, 0.1])
    least = kept_noise(scenario, link, 100, shares)
    draws = 20_000
    parts = rng.standard_normal((2, draws, *link.known.shape)) * np.sqrt(0.001 / 2)
    arriving = np.abs((link.known + parts[0] + 1j * parts[1]) * link.equaliser)
    beyond = (arriving - 1 > limits[:, None]).mean(axis=0)
    assert (beyond <= 1 / 200 + 4 * np.sqrt(1 / 200 / draws)).all()
    assert beyond.max() > 0.1 / 200  # reached within an order: the limit is no gross bound
    noise = np.einsum("i,tin->tn", shares, arriving**2)
    assert ((noise < least).mean(axis=0) <= 1 / 200 + 4 * np.sqrt(1 / 200 / draws)).all()
    assert least > 0.3


@pytest.mark.parametrize("fading", ["rayleigh", "tdl-a"])
def test_limits_hold_for_channels_that_change_after_they_have_faded(fading, monkeypatch):
    """The change of a channel in a deep fade is as strong as that of any other: the source's own channels show it."""
    monkeypatch.setattr("airdistill.planning.waveform.log_inverse_tail", lambda *_: np.log(100.0))
    fleet = ["fleet.devices=10", "waveform.tones=16", "waveform.speed=14", f"radio.fading={fading}"]
    plan = planned(*fleet, "learning.rounds=3")
    source, num_numbers, limit = channel_source(plan.scenario), plan.uplink.num_slots, plan.uplink.observation.limit
    shares, beyond, below = np.full(10, 0.1), [], []
    for round_index in range(1, 201):
        link = round_link(plan.scenario, plan.uplink, source, round_index)
        last = tone_gains(source.grid, source.taps_of_symbols(round_index, num_numbers)[:, -1])
        arriving = np.abs(last * link.equaliser)
        beyond.append((arriving - 1 > limit).mean())
        below.append((shares @ arriving**2 < kept_noise(plan.scenario, link, num_numbers, shares)).mean())
    assert aging(plan.scenario, num_numbers) > 0.03
    assert np.mean(beyond) < 0.01  # it was 0.05, and signals arrived up to nine times as strong as designed
    assert np.mean(below) < 0.01


def test_the_probability_is_divided_among_all_errors_of_a_run():
    scenario = ad.load("quick", [*WAVE, "learning.rounds=10", "privacy.delta=1e-5"])
    assert error_probability(scenario) == pytest.approx(1e-6)
    # 20 devices and their sum on 612 tones of 3 symbols in 10 rounds.
    assert log_inverse_tail(scenario, 2500) == pytest.approx(np.log(21 * 612 * 3 * 10 / 1e-6))
    for immune in (["waveform.csi=perfect"], ["privacy.trust=own_noise"]):
        assert error_probability(ad.load("quick", [*WAVE, *immune])) == 0


def test_a_device_that_knows_its_channel_badly_sends_less():
    link = a_link()
    limits = np.array([0.1, 0.2, 0.5, 1.0, 3.0])
    weaker = backed_off(link, limits, 0.5)
    np.testing.assert_allclose(np.abs(weaker.equaliser / link.equaliser)[:, 0], [1, 1, 1, 1.5 / 2, 1.5 / 4])
    np.testing.assert_allclose(weaker.gain, link.gain)  # its power would allow more
    assert backed_off(link, np.zeros(5), 0.0) is link


def test_a_plan_counts_what_is_certain_and_keeps_its_target():
    plan = planned()
    seen, factor = plan.uplink.observation, plan.uplink.observation.factor(trust_statement("fleet_noise"))
    assert seen.limit > 0
    assert 0 < seen.kept < 1
    perfect = planned("waveform.csi=perfect", "waveform.fade_floor_db=-300")
    required = plan.required_noise_var() / perfect.required_noise_var()
    assert 1 < np.nanmedian(required) < 1.1  # δ without the part for channel errors, nothing else
    channel = channel_source(plan.scenario).round_channel(1)
    design = plan.design(channel)
    arriving = (np.abs(channel[:, None] * design.noise_gain) ** 2).sum(axis=0) / design.rx_scale**2
    np.testing.assert_allclose(arriving, factor * plan.required_noise_var().max(axis=0), rtol=1e-9)
    counted = plan.uplink.noise_by_trust(design, channel)
    np.testing.assert_allclose(counted["fleet_noise"][0], arriving / factor, rtol=1e-9)
    np.testing.assert_allclose(
        counted["own_noise"], np.abs(channel[:, None] * design.noise_gain) ** 2 / design.rx_scale**2, rtol=1e-9
    )
    receiver = plan.uplink.channel_noise_var / design.rx_scale**2 / (1 + seen.limit) ** 2
    np.testing.assert_allclose(counted["receiver_noise"][0], arriving / factor + receiver, rtol=1e-9)


def test_a_round_with_less_noise_than_planned_is_counted_with_less():
    plan = planned()
    source = channel_source(plan.scenario)
    channel = source.round_channel(1)
    design = plan.design(channel)
    hopeful = replace(plan.uplink, observation=replace(plan.uplink.observation, kept=1.0))
    found = observed(plan.scenario, hopeful, source, design, channel, 1)
    assert found.observation.kept < 1
    alone = replace(design, noise_gain=np.where(np.arange(20)[:, None] == 3, design.noise_gain, 0))
    worse = observed(plan.scenario, hopeful, source, alone, channel, 1)
    assert worse.observation.kept < found.observation.kept  # one device's errors do not average out
    uneven = replace(design, noise_gain=design.noise_gain * np.where(np.arange(10) == 4, 0.5, 1.0))
    weak = observed(plan.scenario, hopeful, source, uneven, channel, 1)
    # Rows are spread over the same tones: the weakest row's noise, a quarter, is certain.
    assert weak.observation.kept == pytest.approx(found.observation.kept / 4, rel=0.05)


@pytest.mark.filterwarnings("error")
def test_rows_that_are_not_sent_reveal_nothing_where_no_noise_is_certain():
    plan = planned("data.partition=shards", "data.classes_per_device=1", "data.samples_per_device=40")
    channel = channel_source(plan.scenario).round_channel(1)
    design = plan.design(channel)
    design = replace(design, rx_scale=np.where(np.arange(10) == 3, 0.0, design.rx_scale))
    none = replace(plan.uplink, observation=Observation(limit=0.1, kept=0.0))
    counted = none.noise_by_trust(design, channel)["fleet_noise"]
    assert np.isinf(counted[:, 3]).all()
    assert (counted[:, np.arange(10) != 3] == 0).all()


def test_a_round_in_which_no_noise_is_certain_is_refused(monkeypatch):
    plan = planned()
    source = channel_source(plan.scenario)
    monkeypatch.setattr("airdistill.planning.waveform.kept_noise", lambda *_: 0.0)
    with pytest.raises(AirDistillError, match="round 1: nothing was sent: channel errors may remove all"):
        design_of_round(plan, source, source.round_channel(1), 1, None)


def test_own_noise_needs_no_margin():
    plan = planned("privacy.trust=own_noise", "waveform.observed=samples")
    assert plan.uplink.observation.factor(trust_statement("own_noise")) == 1
    assert plan.fleet.delta == pytest.approx(np.full(20, 1e-5))


def test_plans_are_restored_with_what_they_count():
    plan = planned()
    again = ad.Plan.from_dict(plan.to_dict())
    assert again.uplink.observation == plan.uplink.observation
    assert again.air_time == plan.air_time
    assert again.uplink_seconds == pytest.approx(plan.num_rounds * plan.air_time.total_s)


def test_misalignment_grows_with_the_square_of_the_speed_until_the_plan_warns():
    """Theory section 11: at 915 MHz and 1.4 m/s, −20 dB need τ ≤ 5.3 ms."""
    slow = ad.load("skewed", [*WAVE, "waveform.speed=1.4"])
    fast = ad.load("skewed", [*WAVE, "waveform.speed=2.8"])
    assert coherence_db(fast, 30_000) - coherence_db(slow, 30_000) == pytest.approx(20 * np.log10(2), abs=0.01)
    tau = ad.plan(slow, scheme="airdistill_proxy").air_time.total_s
    assert coherence_db(slow, 30_000) == pytest.approx(-20 + 20 * np.log10(tau / 5.3e-3), abs=0.1)
    assert not any("changes by" in each for each in planned().warnings)
    warned = planned("waveform.speed=60", "privacy.trust=own_noise", base="skewed", scheme="airdistill_proxy").warnings
    assert any("changes by" in each and "waveform.speed = 60 m/s" in each for each in warned)
    assert aging(slow, 30_000) < aging(fast, 30_000)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        (["radio.antennas=2"], "radio.antennas"),
        (["radio.noise=real"], "radio.noise"),
        (["radio.csi_error_db=-20"], "radio.csi_error_db"),
        (["privacy.noise=secure"], "privacy.noise"),
        (["air.medium=secure_sum"], "air.medium"),
        (["waveform.observed=samples"], "waveform.observed"),  # the devices move
        (["waveform.observed=samples", "waveform.speed=0", "radio.fading=tdl-a"], "waveform.observed"),
        (
            ["waveform.observed=samples", "radio.fading=tdl-a", "privacy.trust=receiver_noise"],
            "waveform.observed",
        ),
        (
            ["waveform.observed=samples", "privacy.trust=receiver_noise", "radio.noise_power=0 W"],
            "waveform.observed",
        ),
        (["waveform.axes=1"], "waveform.axes"),
        # Up to 57 times what the ledger is charged: a fade turns a part of a signal to the axis without noise.
        (["waveform.axes=1", "privacy.trust=receiver_noise", "radio.noise_power=0 W"], "waveform.axes"),
        (["waveform.cyclic_prefix=34 us"], "waveform.cyclic_prefix"),  # a symbol has 33.3 µs
        (["waveform.spacing=1 GHz"], "waveform.cyclic_prefix"),  # 24 million samples
        (["radio.fading=tdl-e", "radio.delay_spread=120 ns"], "radio.delay_spread"),  # its last path: 2.48 µs
        (["waveform.pilot_power=0 W"], "waveform.pilot_power"),
        (["waveform.amplifier=rapp"], "waveform.amplifier"),
        (["waveform.amplifier=clip", "privacy.trust=receiver_noise", "radio.fading=tdl-a"], "waveform.amplifier"),
        (["waveform.carrier_offset=10 Hz", "radio.fading=tdl-a"], "waveform.carrier_offset"),
        (["waveform.carrier_offset=10 Hz", *STATIC_SAMPLES], "waveform.carrier_offset"),
        (["waveform.phase_noise=1 Hz", "radio.fading=tdl-a"], "waveform.phase_noise"),
        (["waveform.phase_noise=1 Hz", *STATIC_SAMPLES], "waveform.phase_noise"),
        (["waveform.timing_error=1 us", *STATIC_SAMPLES], "waveform.timing_error"),
        (["waveform.kind=single_tone", "air.medium=waveform"], "air.medium"),
    ],
)
def test_what_a_waveform_does_not_carry_is_refused(changes, field):
    with pytest.raises(InputError) as refused:
        ad.load("quick", [*WAVE, *changes])
    assert refused.value.field == field


def test_a_late_device_beyond_the_prefix_is_refused():
    """72 samples of prefix, paths of 30: delays of 42 fit, of 43 do not."""
    one_sample = 1 / (1024 * 30e3)

    def late(num_samples, *changes):
        field = f"waveform.timing_error={num_samples * one_sample} s"
        scenario = ad.load("quick", [*WAVE, "radio.fading=tdl-a", "radio.delay_spread=100 ns", field, *changes])
        check_delays(scenario, replace(a_link(), taps=np.zeros((5, 31), dtype=np.complex128)))

    late(41.9)
    with pytest.raises(InputError, match="43 samples late, and paths of 30, do not fit a cyclic prefix of 72"):
        late(42.1)
    late(42.1, "privacy.trust=own_noise")
    late(42.1, "privacy.epsilon=inf")


def test_drift_is_that_of_the_drawn_phases():
    """E|1 − e^{jφ}|² over draws of offsets, of Wiener steps and of delays, where they are small."""
    fields = ["carrier_offset=20 Hz", "phase_noise=2 Hz", "timing_error=2 ns"]
    scenario = ad.load("quick", [*WAVE, "privacy.trust=own_noise", *(f"waveform.{field}" for field in fields)])
    found, rng, draws = drift_misalignment(scenario, 100), np.random.default_rng(0), 100_000
    end_s = air_time(scenario, 100).total_s
    steps = rng.standard_normal((draws, 50)) * np.sqrt(2 * np.pi * 2 * end_s / 50)
    tones = rng.choice(np.r_[-306:0, 1:307], draws) * 30e3
    phases = {
        "carrier_offset": 2 * np.pi * rng.uniform(-20, 20, draws) * end_s,
        "phase_noise": steps.sum(axis=1),
        "timing_error": 2 * np.pi * tones * rng.uniform(0, 2e-9, draws),
    }
    for field, phase in phases.items():
        squared = np.abs(1 - np.exp(1j * phase)) ** 2
        assert found[field] == pytest.approx(squared.mean(), rel=0.05)
    warned = ad.plan(
        changed(scenario, {"waveform": {"timing_error": 2e-8, "phase_noise": 300.0}}), scheme="ota_fd"
    ).warnings
    assert sum("misaligns signals by up to" in each for each in warned) == 2


def test_delays_need_a_prefix_and_not_a_long_slot():
    wide = ["radio.fading=tdl-a", "radio.delay_spread=1 us", "radio.slot=3.6 us"]
    assert ad.load("quick", [*WAVE, *wide, "waveform.cyclic_prefix=10 us"]).radio.delay_spread == 1e-6


def test_a_speed_at_which_nothing_is_certain_of_the_noise_is_refused():
    with pytest.raises(InputError, match="slower devices"):
        planned("waveform.speed=60", base="skewed", scheme="airdistill_proxy")


@pytest.mark.parametrize("scheme", ["ota_fl", "orthogonal_fd"])
def test_schemes_of_single_tones_are_refused(scheme):
    with pytest.raises(InputError, match="sent one number at a time"):
        ad.plan(ad.load("quick", [*WAVE, "radio.fading=none"]), scheme=scheme)


def test_other_scenarios_do_not_mention_a_waveform():
    assert "waveform" not in ad.load("quick").model_dump()
    assert ad.load("quick", WAVE).model_dump()["waveform"]["kind"] == "ofdm"
