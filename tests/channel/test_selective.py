"""Channels of an OFDM waveform against sums written out, closed forms and statistics with their error bars."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import j0

import airdistill as ad
from airdistill.channel.link_budget import noise_power_w
from airdistill.channel.selective import WideChannel, aging, delays_basis, sampled_taps, tone_gains
from airdistill.channel.sources import channel_source
from airdistill.channel.waveform import Grid, air_time

WAVE = ["waveform.kind=ofdm", "waveform.observed=elements"]


def scenario_of(*changes, devices=8):
    return ad.load("quick", [f"fleet.devices={devices}", *WAVE, *changes])


def source_of(*changes, devices=8) -> WideChannel:
    made = channel_source(scenario_of(*changes, devices=devices))
    assert isinstance(made, WideChannel)
    return made


def test_the_grid_of_lte_and_of_a_wireless_lan():
    lte = Grid(612, 30e3, 72 / 30.72e6, 2)
    assert (lte.fft_size, lte.prefix_samples, lte.sample_rate_hz) == (1024, 72, 30.72e6)
    assert lte.symbol_s == pytest.approx(1 / 30e3 + 72 / 30.72e6)
    lan = Grid(48, 312.5e3, 0.4e-6, 1)
    assert (lan.fft_size, lan.prefix_samples, lan.symbol_samples) == (64, 8, 72)
    assert lan.symbol_s == pytest.approx(3.6e-6)
    assert sorted(lan.offsets) == [*range(-24, 0), *range(1, 25)]
    assert len(set(lan.bins.tolist())) == 48


@pytest.mark.parametrize(("axes", "symbols"), [(2, 25), (1, 50)])
def test_air_time_of_votes_and_of_pilots(axes, symbols):
    """Theory section 11: 30,000 numbers in 20 MHz take 1.79 ms on one axis, and 200 uplink pilots 7.1 ms alone."""
    given = ad.load("skewed", [*WAVE, f"waveform.axes={axes}", "privacy.trust=own_noise"])
    found = air_time(given, 30_000)
    symbol_s = 1 / 30e3 + 72 / 30.72e6
    assert found.data_s == pytest.approx(symbols * symbol_s)
    assert found.data_s == pytest.approx({1: 1.79e-3, 2: 0.89e-3}[axes], rel=0.01)
    # Four pilots; 200 reports of 8 bits with QPSK on 612 tones, and the scale; three changes of direction.
    assert found.total_s == pytest.approx((symbols + 4 + 2 + 1) * symbol_s + 3 * 10e-6)
    uplink = air_time(ad.load("skewed", [*WAVE, "waveform.pilot=uplink", "waveform.pilot_symbols=1"]), 30_000)
    assert uplink.pilot_s == pytest.approx(7.1e-3, rel=0.01)


def test_noise_keeps_its_density_unless_it_is_given():
    assert noise_power_w(ad.load("quick")) == 5e-15
    without = {"fleet": {"devices": 2}, "privacy": {"epsilon": 8, "delta": 1e-5}, "waveform": {"kind": "ofdm"}}
    without["waveform"]["observed"] = "elements"
    assert noise_power_w(ad.as_scenario(without)) == pytest.approx(5e-15 * 30e3 / 312.5e3)
    assert noise_power_w(ad.as_scenario({**without, "radio": {"noise_power": "1e-15 W"}})) == 1e-15


def test_tone_gains_are_the_response_of_the_paths():
    """H on a tone is Σ a exp(−j2πfτ), and paths that fall into one tap are added."""
    grid, rng = Grid(12, 30e3, 20e-6, 2), np.random.default_rng(0)
    samples = np.array([[0, 0, 3, 5], [1, 2, 2, 7]])
    paths = rng.standard_normal((2, 3, 4)) + 1j * rng.standard_normal((2, 3, 4))
    taps = sampled_taps(grid, paths, samples / grid.sample_rate_hz)
    tones = np.concatenate([np.arange(-6, 0), np.arange(1, 7)]) * 30e3
    phases = np.exp(-2j * np.pi * tones[None, None] * (samples / grid.sample_rate_hz)[..., None])
    expected = np.einsum("itp,ipn->itn", paths, phases)
    np.testing.assert_allclose(tone_gains(grid, taps), expected, rtol=1e-12)


def test_paths_beyond_the_prefix_are_shortened_and_logged(caplog):
    grid = Grid(12, 30e3, 2e-6, 2)
    with caplog.at_level("INFO", logger="airdistill.channel.selective"):
        taps = sampled_taps(grid, np.ones((1, 1, 2), dtype=complex), np.array([[0.0, 9e-6]]))
    assert taps.shape[2] == grid.prefix_samples + 1
    assert taps[0, 0, -1] == 1
    assert "0.5 of the received power is later than the cyclic prefix" in caplog.text


@pytest.mark.parametrize("fading", ["rayleigh", "rician", "none", "tdl-a", "umi"])
def test_a_round_begins_with_the_channel_that_its_devices_know(fading):
    source = source_of(f"radio.fading={fading}", "waveform.csi=perfect", "waveform.speed=30")
    link = source.link(3)
    assert (source.taps_of_symbols(3, 100) == link.taps[:, None]).all()
    np.testing.assert_allclose(tone_gains(source.grid, link.taps), link.known, rtol=1e-12)
    again = source._taps("channel", 3, 40)  # of more symbols: the first is the same
    np.testing.assert_allclose(again[:, 0], link.taps, rtol=1e-9)
    other = source.link(4).taps
    assert (other[:, 0] != link.taps[:, 0]).any() or fading == "none"


def test_the_gain_of_a_flat_channel_is_that_of_the_tone_shared_by_all_numbers():
    """A device's power is shared by 612 tones with two numbers each: √(|h|²/1224)."""
    source = source_of("waveform.csi=perfect", "radio.fading=rayleigh")
    link = source.link(1)
    np.testing.assert_allclose(link.gain, np.abs(link.taps[:, 0]) / np.sqrt(1224), rtol=1e-12)
    np.testing.assert_allclose(link.attenuation, 1.0, rtol=1e-12)
    np.testing.assert_allclose(source.round_channel(1), link.gain)


@pytest.mark.parametrize("spreading", ["dft", "none"])
def test_the_gain_is_what_the_equaliser_costs(spreading):
    """Sending a number of power p costs g²p·Σ|e|² over a symbol's tones, which spreading averages."""
    source = source_of("waveform.csi=perfect", "radio.fading=tdl-a", f"waveform.spreading={spreading}")
    link = source.link(1)
    gains = np.abs(link.known) ** 2
    floor = gains.mean(axis=1) / 10
    inverse = gains / np.maximum(gains, floor[:, None]) ** 2
    cost = inverse.mean(axis=1) if spreading == "dft" else inverse.max(axis=1)
    np.testing.assert_allclose(link.gain**2, 1 / (1224 * cost), rtol=1e-12)
    assert (link.attenuation <= 1 + 1e-12).all()
    assert link.attenuation.min() < 0.9  # the floor acts somewhere


def test_channels_change_as_jakes_model_says():
    """The correlation of taps over a round's symbols is J0(2πf_Dτ), with error bars of 4000 devices."""
    source = source_of("radio.fading=rayleigh", "waveform.speed=300", "waveform.pilot_symbols=1", devices=4000)
    first, later = source.link(1).taps[:, 0], source.taps_of_symbols(1, 1224 * 60)[:, -1, 0]
    timing = air_time(source._scenario, 1224 * 60)
    age_s = round((timing.total_s - timing.data_s) / source.grid.symbol_s + 59) * source.grid.symbol_s
    gain = np.abs(first) ** 2
    relative = np.median(np.abs(later) ** 2) / np.median(gain)
    assert relative == pytest.approx(1, abs=0.1)
    correlation = (later * first.conj() / gain.mean()).mean() / (gain / gain.mean()).mean()
    assert correlation.real == pytest.approx(j0(2 * np.pi * 300 * 915e6 / 3e8 * age_s), abs=0.08)
    # J0 has passed its first zero: halfway through the round nothing was left of the channel at the pilot.
    assert aging(source._scenario, 1224 * 60) == pytest.approx(1, abs=1e-12)
    slower = scenario_of("waveform.speed=30")
    age_s = air_time(slower, 1224 * 60).total_s
    assert aging(slower, 1224 * 60) == pytest.approx(1 - j0(2 * np.pi * 30 * 915e6 / 3e8 * age_s) ** 2, rel=1e-9)


def test_the_pilot_error_has_the_stated_variance():
    """Ĥ − H over many rounds, tone by tone: projected on the delays within the prefix, P_tt σ²N/(P·symbols) is left."""
    source = source_of("radio.fading=none", "radio.distance=100 m", "waveform.pilot_symbols=2", devices=40)
    links = [source.link(index) for index in range(1, 31)]
    errors = np.stack([link.known - tone_gains(source.grid, link.taps) for link in links])
    measured = (np.abs(errors) ** 2).mean(axis=(0, 1))
    noise = noise_power_w(source._scenario)
    tones, basis = source.grid.tones, delays_basis(source.grid)
    projection = basis @ basis.conj().T
    np.testing.assert_allclose(projection @ projection, projection, atol=1e-9)
    expected = np.real(np.diag(projection)) * noise * tones / (source._wave.pilot_power * 2)
    np.testing.assert_allclose(links[0].pilot_var, np.broadcast_to(expected, (40, tones)), rtol=1e-12)
    assert measured.mean() == pytest.approx(expected.mean(), rel=0.03)
    # 1200 draws of an exponential variable: 3 % standard deviation a tone.
    assert (np.abs(measured / expected - 1) < 0.2).all()
    assert expected.mean() < 0.2 * noise * tones / (source._wave.pilot_power * 2)  # far fewer dimensions than tones


@pytest.mark.parametrize("fading", ["rayleigh", "rician", "tdl-d", "umi"])
def test_the_mean_gain_is_that_of_the_drawn_channels(fading):
    """Mean |H|² over 150 draws of 16 tones, each device's within five standard errors."""
    source = source_of(f"radio.fading={fading}", "waveform.tones=16", "waveform.csi=perfect")
    links = [source.planning_link(draw) for draw in range(150)]
    drawn = np.array([(np.abs(link.known) ** 2).mean(axis=1) for link in links])
    error = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - links[0].mean_gain) < 5 * error).all()
    assert (error < 0.12 * links[0].mean_gain).all()
