"""Receiver noise, antenna gains, and what transmit limits leave: against numbers computed by hand."""

import numpy as np
import pytest

import airdistill as ad
from airdistill.channel import channel_source
from airdistill.channel.link_budget import device_noise_power_w, noise_figure_db, noise_power_w, pilot_power_w
from airdistill.errors import InputError
from airdistill.planning.fleet import channel_noise_var
from airdistill.scenario import load
from airdistill.scenario.bands import BANDS
from airdistill.scenario.loading import changed, validated

THERMAL = "radio.noise_power=thermal"
OFDM = ("waveform.kind=ofdm", "waveform.observed=elements", "waveform.spacing=30 kHz")


@pytest.mark.parametrize(
    ("changes", "watts"),
    [
        ([], 5e-15),
        ([THERMAL], 5e-15),
        # 1.380649e-23 J/K · 290 K · 312.5 kHz = 1.251213e-15 W, and 6 dB is a factor of 3.981072.
        ([THERMAL, "radio.noise_figure_db=6"], 4.981169e-15),
        ([THERMAL, "radio.noise_figure_db=6 dB", "radio.bandwidth=1 MHz"], 1.593974e-14),
        # −174 dBm in 1 Hz is 3.981072e-21 W.
        ([THERMAL, "radio.noise_density=-174 dBm/Hz", "radio.bandwidth=1 MHz"], 3.981072e-15),
        ([THERMAL, "radio.bandwidth=625 kHz"], 1e-14),
        ([THERMAL, *OFDM], 4.8e-16),
        ([THERMAL, *OFDM, "radio.noise_figure_db=0"], 1.201164e-16),
        (["radio.noise_power=2e-15 W", *OFDM], 2e-15),
        (["radio.noise_power=2e-15 W", "radio.noise_figure_db=6"], 2e-15),
    ],
)
def test_the_noise_power_of_a_tone_by_hand(changes, watts):
    scenario = load("quick", changes)
    assert noise_power_w(scenario) == pytest.approx(watts, rel=1e-6)
    assert channel_noise_var(scenario) == pytest.approx(watts / 2, rel=1e-6)
    # Written and read again, also with another field changed, it is the same.
    assert noise_power_w(validated(scenario.model_dump(mode="json"))) == noise_power_w(scenario)
    assert noise_power_w(changed(scenario, {"seed": 3})) == noise_power_w(scenario)


def test_a_noise_figure_added_to_a_scenario_without_noise_power_counts():
    given = {"fleet": {"devices": 2}, "privacy": {"epsilon": 8, "delta": 1e-5}}
    scenario = validated(given)
    assert noise_figure_db(scenario) == pytest.approx(6.0164, abs=1e-4)  # 10 log10(5/1.251213)
    quieter = changed(scenario, {"radio": {"noise_figure_db": 3.0}})
    assert noise_figure_db(quieter) == pytest.approx(3)


def test_the_receiver_noise_of_a_charged_round_has_the_power_of_the_noise_figure(tmp_path):
    from radio.test_charged_round import Setting

    setting = Setting(tmp_path, "ota_fd", THERMAL, "radio.noise_figure_db=20")
    drawn = np.concatenate([setting.charge(index).noise.receiver.ravel() for index in range(1, 7)])
    power = np.abs(drawn) ** 2
    # k·290 K·312.5 kHz·100; the power of circular noise is exponential.
    assert power.mean() == pytest.approx(1.251213e-13, rel=5 / np.sqrt(len(drawn)))


def test_a_device_has_its_own_noise_figure_for_the_downlink():
    scenario = load("quick", [THERMAL, *OFDM, "radio.noise_figure_db=3", "radio.device_noise_figure_db=9"])
    assert device_noise_power_w(scenario) / noise_power_w(scenario) == pytest.approx(10**0.6)
    same = load("quick", [THERMAL, *OFDM, "radio.noise_figure_db=3"])
    assert device_noise_power_w(same) == noise_power_w(same)


BUDGET = ("radio.device_antenna_dbi=2 dBi", "radio.server_antenna_dbi=8", "radio.implementation_loss_db=3 dB")


@pytest.mark.parametrize("fading", ["rayleigh", "tdl-a", "umi", "inf-dh"])
def test_antennas_and_losses_scale_the_power_gain(fading):
    if fading != "rayleigh":
        pytest.importorskip("sionna", reason="needs the extra `channels`")
    changes = [f"radio.fading={fading}", "fleet.devices=3", "radio.distance=[50, 100]"]
    plain, with_antennas = (channel_source(load("quick", [*changes, *more])) for more in ((), BUDGET))
    ratio = with_antennas.round_channel(1) / plain.round_channel(1)
    assert np.abs(ratio) ** 2 == pytest.approx(np.full(3, 10**0.7))  # 2 + 8 − 3 dB


def test_given_gains_include_antennas():
    gains = ["fleet.devices=2", "radio.gains=[[1e-6, 0], [0, 2e-6]]"]
    given = channel_source(load("quick", [*gains, *BUDGET])).round_channel(1)
    assert given.tolist() == [1e-6, 2e-6j]


@pytest.mark.parametrize(
    ("changes", "limit_w"),
    [
        (["radio.max_eirp=100 mW"], 0.1),
        (["radio.max_eirp=20 dBm", "radio.device_antenna_dbi=3"], 50.11872e-3),
        # 25 mW ERP is 41.015 mW EIRP: a dipole has 2.15 dBi.
        (["radio.band=868", "radio.carrier=868.3 MHz"], 41.01472e-3),
        (["radio.band=868", "radio.carrier=868.3 MHz", "radio.device_antenna_dbi=5"], 12.96999e-3),
        # 15.249: (0.05 V/m · 3 m)²/30 Ω.
        (["radio.band=915"], 0.75e-3),
        # 15.247: 1 W into up to 6 dBi, 4 W EIRP (36 dBm) above.
        (["radio.band=915", "radio.bandwidth=500 kHz", "radio.device_antenna_dbi=2"], 1.0),
        (["radio.band=915", "radio.bandwidth=500 kHz", "radio.device_antenna_dbi=9"], 0.5011872),
        # EN 300 328: 10 mW/MHz, and 100 mW.
        (["radio.band=2400", "radio.carrier=2.44 GHz"], 3.125e-3),
        (["radio.band=2400", "radio.carrier=2.44 GHz", "radio.bandwidth=20 MHz"], 0.1),
    ],
)
def test_the_transmit_limit_caps_the_peak_power(changes, limit_w):
    planned = ad.plan(load("quick", ["radio.peak_power=10 W", "fleet.devices=2", *changes]), "ota_fd", rounds=1)
    assert planned.fleet.peak_power_w == pytest.approx(np.full(2, limit_w), rel=1e-6)
    assert any(line.startswith("The transmit limit leaves 2 of 2 devices") for line in planned.warnings)
    weaker = load("quick", ["radio.peak_power=0.1 mW", "fleet.devices=2", *changes])
    assert ad.plan(weaker, "ota_fd", rounds=1).fleet.peak_power_w.tolist() == [1e-4, 1e-4]


def test_the_servers_pilot_keeps_the_limit_too():
    changes = [*OFDM, "radio.max_eirp=100 mW", "radio.server_antenna_dbi=10", "waveform.pilot_power=1 W"]
    assert pilot_power_w(load("quick", changes)) == pytest.approx(10e-3)


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        (["radio.duty_cycle=0.1"], 0.1),
        (["radio.band=868", "radio.carrier=868.3 MHz"], 0.01),
        (["radio.band=915"], 1.0),
        # 10 % medium utilisation at 100 mW; any duty cycle up to 10 mW.
        (["radio.band=2400", "radio.carrier=2.44 GHz", "radio.bandwidth=20 MHz", "radio.peak_power=1 W"], 0.1),
        (["radio.band=2400", "radio.carrier=2.44 GHz", "radio.bandwidth=20 MHz", "radio.peak_power=10 mW"], 1.0),
    ],
)
def test_the_duty_cycle_sets_the_least_time_of_a_run(changes, share):
    planned = ad.plan(load("quick", ["fleet.devices=2", *changes]), "ota_fd", rounds=50)
    assert planned.duty_cycle == pytest.approx(share)
    assert planned.least_seconds == pytest.approx(50 * 100 * 3.6e-6 / share)  # K² slots a round
    written = planned.to_dict()
    assert written.get("least_seconds") == (None if share == 1 else planned.least_seconds)


def test_with_tdma_a_device_is_on_the_air_in_its_own_slots_only():
    planned = ad.plan(load("quick", ["fleet.devices=4", "radio.duty_cycle=0.5"]), "orthogonal_fd", rounds=10)
    # Each device has a quarter of the slots, and so the uplink itself is the limit.
    assert planned.on_air_seconds == pytest.approx(100 * 3.6e-6)
    assert planned.least_seconds == planned.uplink_seconds


def test_a_round_longer_than_the_air_time_of_an_hour_is_refused():
    with pytest.raises(InputError, match=r"360 µs in one round, and may be for 324 µs in any hour") as caught:
        ad.plan(load("quick", ["radio.duty_cycle=9e-8"]), "ota_fd", rounds=1)
    assert caught.value.field == "radio.duty_cycle"
    assert ad.plan(load("quick", ["radio.duty_cycle=1.1e-7"]), "ota_fd", rounds=1).num_rounds == 1


@pytest.mark.parametrize(
    ("changes", "field", "rule"),
    [
        (["radio.noise_figure_db=6", "radio.noise_density=-168 dBm/Hz"], "radio.noise_figure_db", "leave one of them"),
        (["radio.bandwidth=200 kHz"], "radio.bandwidth", "3.6 µs needs at least 278 kHz"),
        ([*OFDM, "radio.bandwidth=60 kHz"], "radio.bandwidth", "as wide as waveform.spacing, 30000 Hz"),
        (["radio.band=868"], "radio.carrier", "must lie in 868 to 868.6 MHz"),
        (["radio.band=868", "radio.carrier=868.5 MHz"], "radio.carrier", "must lie in 868 to 868.6 MHz"),
        (
            ["radio.band=868", "radio.carrier=868.3 MHz", *OFDM],
            "radio.band",
            "18390 kHz wide; use fewer wave",
        ),
        (["radio.band=915", "radio.max_eirp=1 W"], "radio.max_eirp", 'radio.band = "915" sets it'),
        (["radio.band=915", "radio.duty_cycle=0.1"], "radio.duty_cycle", 'radio.band = "915" sets it'),
        (["radio.band=433"], "radio.band", "must be '868', '915' or '2400'"),
        (["radio.noise_density=-174"], "radio.noise_density", "decibels need their unit"),
        (["radio.noise_density=3 kHz/Hz"], "radio.noise_density", 'such as "-168 dBm/Hz"'),
        (["radio.noise_figure_db=6 dBm"], "radio.noise_figure_db", 'must be a level in dB such as "6 dB"'),
        (["radio.device_antenna_dbi=3 dB"], "radio.device_antenna_dbi", 'must be an antenna gain such as "3 dBi"'),
    ],
)
def test_a_link_budget_that_contradicts_itself_is_rejected(changes, field, rule):
    with pytest.raises(InputError, match=rule) as caught:
        load("quick", changes)
    assert caught.value.field == field


def test_bands_contain_the_carriers_that_they_are_named_after():
    for name, band in BANDS.items():
        assert band.lowest_hz <= float(name) * 1e6 <= band.highest_hz


def test_scenarios_without_a_link_budget_are_written_as_before():
    smallest = {"fleet": {"devices": 2}, "privacy": {"epsilon": 8, "delta": 1e-5}}
    for scenario in (load("quick"), load("quick", [THERMAL]), validated(smallest)):
        written = scenario.model_dump(mode="json")["radio"]
        assert written["noise_power"] == 5e-15
        assert list(written) == [
            "peak_power", "noise_power", "noise", "carrier", "distance", "path_loss_exponent", "fading", "rician_k_db",
            "server_height", "device_height", "line_of_sight", "delay_spread", "gains", "trace", "antennas",
            "combining", "slot", "outage", "transceiver", "truncation", "csi_error_db", "csi_quantile",
        ]  # fmt: skip


def test_runs_of_different_noise_power_have_different_noise_and_others_the_same_as_before():
    """Keys of noise are made of the fields that do not have their default."""

    def kept(*changes):
        return load("quick", changes).model_dump(mode="json", exclude_defaults=True).get("radio", {})

    assert kept() == kept(THERMAL) == {}
    assert kept("radio.noise_power=6e-15") == {"noise_power": 6e-15}
    assert kept(*OFDM) == {"noise_power": 5e-15}  # of one tone of 30 kHz; the default is 0.48 fW
    assert kept(*OFDM, THERMAL) == {}
