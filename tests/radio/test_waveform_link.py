"""A round of OFDM against the scalar model, and against a convolution written out sample by sample."""

import dataclasses

import numpy as np
import pytest

from airdistill.channel.selective import WideLink, equaliser
from airdistill.channel.waveform import Grid
from airdistill.radio.impairments import carrier_offset_hz
from airdistill.radio.iq import demodulate, despread, modulate, numbers_of
from airdistill.radio.pilots import estimate_channel, pilot_error_var
from airdistill.radio.waveform_link import (
    WaveformRound,
    device_samples,
    propagate,
    receive_waveform,
    sample_noise,
    superpose_waveform,
)
from airdistill.scenario.sections import Waveform

NUM_DEVICES = 5
SMALL = {"kind": "ofdm", "tones": 20, "spacing": 30e3, "cyclic_prefix": 8 / (32 * 30e3), "fade_floor_db": -300.0}


def grid_of(wave):
    return Grid(wave.tones, wave.spacing, wave.cyclic_prefix, wave.axes)


def random_taps(rng, num_devices, num_taps, num_symbols=1):
    return rng.standard_normal((num_devices, num_symbols, num_taps, 2)) @ [1, 1j] * 1e-3


def effective_gain(wave, tone_gains):
    """g from its definition: the power that a device's tones have together, by a sum over them."""
    inverse = np.abs(equaliser(tone_gains, wave.fade_floor_db)) ** 2
    of_all = inverse.sum(axis=1) if wave.spreading == "dft" else wave.tones * inverse.max(axis=1)
    return 1 / np.sqrt(wave.axes * of_all)


def a_round(taps, noise_power=0.0, **changes):
    wave = Waveform(**SMALL | changes)
    grid = grid_of(wave)
    assert (grid.fft_size, grid.prefix_samples) == (32, 8)
    tone_gains = np.fft.fft(taps.mean(axis=1), grid.fft_size)[:, grid.bins]
    gains = effective_gain(wave, tone_gains)
    power = np.full(len(taps), 0.1)
    return WaveformRound(grid, wave, taps, tone_gains, gains, power, noise_power, 3, 7, "7/entry")


def test_propagation_is_a_convolution_with_the_taps_of_the_symbol_that_was_sent():
    rng = np.random.default_rng(0)
    grid = grid_of(Waveform(**SMALL))
    length, taps = 3 * grid.symbol_samples, random_taps(rng, 4, 6, num_symbols=3)
    samples = rng.standard_normal((4, length, 2)) @ [1, 1j]
    expected = np.zeros(length + 5, dtype=complex)
    for device in range(4):
        for sample in range(length):
            for tap in range(6):
                gain = taps[device, sample // grid.symbol_samples, tap]
                expected[sample + tap] += gain * samples[device, sample]
    received = propagate(grid, samples, taps)
    assert received.shape == (length + 5,)
    np.testing.assert_allclose(received, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


def test_a_device_is_late_by_its_own_delay():
    rng = np.random.default_rng(1)
    grid = grid_of(Waveform(**SMALL))
    taps = random_taps(rng, 3, 4)
    samples = rng.standard_normal((3, 2 * grid.symbol_samples, 2)) @ [1, 1j]
    delays = np.array([0, 9, 50])  # one is beyond the prefix, one beyond a symbol
    received = propagate(grid, samples, taps, delays)
    expected = np.zeros(samples.shape[1] + 3 + 50, dtype=complex)
    for device, delay in enumerate(delays):
        convolved = np.convolve(samples[device], taps[device, 0])
        expected[delay : delay + len(convolved)] += convolved
    np.testing.assert_allclose(received, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("spreading", ["dft", "none"])
@pytest.mark.parametrize("num_taps", [1, 8])
@pytest.mark.parametrize("num_numbers", [40, 67])
def test_the_ideal_waveform_is_the_scalar_model(num_taps, spreading, axes, num_numbers):
    """By linearity: Σ g_i x_i plus the demodulated noise. 67 numbers leave a part of the last symbol empty."""
    rng = np.random.default_rng(2)
    this = a_round(random_taps(rng, NUM_DEVICES, num_taps), 1e-9, spreading=spreading, axes=axes)
    signals = rng.standard_normal((NUM_DEVICES, num_numbers))
    found = superpose_waveform(this, signals)
    num_symbols = -(-num_numbers // (20 * axes))
    assert found.samples.shape == (num_symbols * 40 + num_taps - 1,)
    assert found.elements.shape == found.despread.shape == (num_symbols, 20)

    noise = sample_noise(this, len(found.samples))
    alone = demodulate(this.grid, noise[: num_symbols * 40])
    alone = despread(alone, this.phases(num_numbers)) if spreading == "dft" else alone / this.phases(num_numbers)
    expected = this.gains @ signals + numbers_of(this.grid, alone, num_numbers)
    assert np.abs(found.numbers - expected).max() < 1e-9 * np.abs(expected).max()
    assert np.abs(found.numbers - this.gains @ signals).max() > 1e-3 * np.abs(expected).max()


def test_devices_are_added_over_all_blocks(monkeypatch):
    rng = np.random.default_rng(3)
    this = a_round(random_taps(rng, 7, 3, num_symbols=2), 1e-9, timing_error=4e-6, amplifier="rapp", phase_noise=100.0)
    signals = rng.standard_normal((7, 80)) * 0.3
    at_once = superpose_waveform(this, signals)
    monkeypatch.setattr("airdistill.radio.waveform_link._BLOCK_SAMPLES", 3 * 80)
    by_blocks = superpose_waveform(this, signals)
    np.testing.assert_allclose(by_blocks.samples, at_once.samples, rtol=0, atol=1e-14 * np.abs(at_once.samples).max())


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("payload", ["random", "one number", "constant"])
def test_the_mean_power_of_a_symbol_is_the_mean_square_of_its_numbers(payload, axes):
    """Without its prefix, over scramblings: by the effective gain, power in watts is that of the scalar model."""
    rng = np.random.default_rng(4)
    this = a_round(random_taps(rng, 1, 8), axes=axes)
    count = 20 * axes
    payloads = {"random": rng.standard_normal(count), "one number": 5 * np.eye(count)[3], "constant": np.ones(count)}
    signal = payloads[payload]
    powers = []
    for round_index in range(1000):
        sent = device_samples(dataclasses.replace(this, round_index=round_index), signal, 0)
        powers.append((np.abs(sent[8:]) ** 2).sum())
    error = np.std(powers) / np.sqrt(len(powers))
    expected = (signal**2).mean()
    assert error < 0.03 * expected
    assert abs(np.mean(powers) - expected) < 4 * error + 1e-9 * expected


def test_without_spreading_no_payload_has_more_power_than_its_mean_square():
    rng = np.random.default_rng(5)
    this = a_round(random_taps(rng, 1, 8), spreading="none")
    powers = [(np.abs(device_samples(this, one, 0)[8:]) ** 2).sum() * 40 for one in np.eye(40)]
    assert max(powers) == pytest.approx(1)
    assert min(powers) < 0.5


@pytest.mark.parametrize("axes", [1, 2])
def test_half_of_the_receiver_noise_is_on_each_axis(axes):
    this = a_round(np.ones((1, 1, 1), dtype=complex), 4e-3, axes=axes)
    found = superpose_waveform(this, np.zeros((1, 40_000)))
    error = np.sqrt(2 / 40_000)
    for axis in (found.numbers, found.samples.real, found.samples.imag, found.despread.imag):
        assert abs(axis.var() / 2e-3 - 1) < 5 * error
    correlation = np.mean(found.despread.real * found.despread.imag) / 2e-3
    assert abs(correlation) < 5 / np.sqrt(found.despread.size)


def test_noise_has_the_seed_of_its_ledger_entry():
    this = a_round(np.ones((1, 1, 1), dtype=complex), 1.0)
    other, later = dataclasses.replace(this, noise_seed="7/other"), dataclasses.replace(this, round_index=4)
    drawn = [sample_noise(given, 50) for given in (this, this, other, later)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).all()
    assert (drawn[0] != drawn[3]).all()


def test_the_samples_of_all_devices_through_their_channels_are_what_is_received():
    """`device_samples` is what a file or another channel model starts from, with delays, phases and clipping."""
    rng = np.random.default_rng(6)
    impaired = {"timing_error": 6e-6, "amplifier": "clip", "backoff_db": 0.0, "phase_noise": 300.0}
    this = a_round(random_taps(rng, 4, 5), 0.0, **impaired, carrier_offset=800.0)
    signals = rng.standard_normal((4, 100))
    sent = [device_samples(this, signal, device) for device, signal in enumerate(signals)]
    expected = sum(np.convolve(one, taps[0]) for one, taps in zip(sent, this.taps, strict=True))
    found = superpose_waveform(this, signals)
    assert this.delays.max() > this.delays.min()
    assert found.samples.shape == expected.shape == (3 * 40 + 4 + this.largest_delay,)
    np.testing.assert_allclose(found.samples, expected, rtol=0, atol=1e-13 * np.abs(expected).max())
    again = receive_waveform(this, found.samples, 100)
    np.testing.assert_array_equal(again.numbers, found.numbers)


@pytest.mark.parametrize("axes", [1, 2])
def test_what_oscillators_drift_between_pilot_and_data_turns_every_slot(axes):
    """1 Hz over 0.1 s is up to 36°, and changes little during three symbols. One axis keeps the cosine."""
    rng = np.random.default_rng(9)
    drifting = a_round(random_taps(rng, 1, 4), axes=axes, carrier_offset=1.0)
    this = dataclasses.replace(drifting, pilot_age_s=0.1)
    signals = rng.standard_normal((1, 60 * axes))
    angle = 2 * np.pi * 0.1 * carrier_offset_hz(this.wave, this.seed, this.round_index, 0)
    assert abs(angle) > 0.05
    paired = signals[0] if axes == 1 else signals[0, ::2] + 1j * signals[0, 1::2]
    expected = this.gains[0] * paired * np.exp(1j * angle)
    found = superpose_waveform(this, signals)
    np.testing.assert_allclose(found.despread.ravel(), expected, rtol=0, atol=2e-3 * this.gains[0])
    np.testing.assert_allclose(found.numbers[::axes], expected.real, rtol=0, atol=2e-3 * this.gains[0])


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("spreading", ["dft", "none"])
@pytest.mark.parametrize("floor_db", [-300.0, -3.0])
def test_the_error_through_pilots_and_a_floor_is_the_planned_one(floor_db, spreading, axes):
    """Samples of a pilot, an estimate from them, and samples of data: the squared error of numbers, over 800 rounds."""
    rng = np.random.default_rng(11)
    taps = np.array([[[1.2, 0.3j, 0.2, -0.1j]]])
    given = {"axes": axes, "spreading": spreading, "fade_floor_db": floor_db, "pilot_symbols": 2}
    ideal = a_round(taps, **given)
    grid, wave, measured, planned = ideal.grid, ideal.wave, [], []
    for round_index in range(800):
        known = estimate_channel(grid, wave, taps[0, 0], 1e-4, 1.0, 0, (round_index, 0))[None]
        link = WideLink(grid, wave, taps[0], known, pilot_error_var(grid, wave, 1e-4, 1.0)[None], np.ones(1))
        this = dataclasses.replace(ideal, tone_gains=known, gains=link.gain, round_index=round_index)
        signals = rng.choice([-1.0, 1.0], (1, 20 * axes))
        measured.append(((superpose_waveform(this, signals).numbers / link.gain[0] - signals[0]) ** 2).mean())
        planned.append(link.misalignment(0.0)[0])
    assert 1e-4 < np.mean(planned) < 0.1
    assert np.mean(measured) == pytest.approx(np.mean(planned), rel=0.09)  # 4 standard errors


def test_no_device_emits_more_than_its_own_amplifier_can():
    rng = np.random.default_rng(10)
    limits = np.array([1e-3, 0.1, 10.0])
    this = a_round(random_taps(rng, 3, 4), amplifier="clip", backoff_db=2.0)
    this = dataclasses.replace(this, peak_power=limits)
    signals = np.sqrt(limits)[:, None] * rng.standard_normal((3, 800))
    sent = np.stack([device_samples(this, signal, device) for device, signal in enumerate(signals)])
    largest = 32 * (np.abs(sent) ** 2).max(axis=1)
    np.testing.assert_allclose(largest, limits * 10**0.2)
    arrived = sum(np.convolve(one, taps[0]) for one, taps in zip(sent, this.taps, strict=True))
    np.testing.assert_allclose(superpose_waveform(this, signals).samples, arrived, atol=1e-12 * np.abs(arrived).max())


def test_the_floor_bounds_what_a_faded_tone_costs():
    tone_gains = np.array([[1.0, 1j, 0.01]])
    floor = 0.1 * (2 + 1e-4) / 3
    np.testing.assert_allclose(equaliser(tone_gains, -10.0), [[1, -1j, 0.01 / floor]])
    np.testing.assert_allclose(equaliser(tone_gains, -300.0), [[1, -1j, 100]])
    assert (equaliser(0 * tone_gains, -10.0) == 0).all()  # a device in outage


@pytest.mark.parametrize("tones", [20, 21])
def test_modulation_is_that_of_sionna(tones):
    """Sionna's spectrum is centred: the carrier is at entry fft_size / 2. Its transforms are unitary, too."""
    pytest.importorskip("sionna", reason="needs the extra `channels`")
    torch = pytest.importorskip("torch")
    from sionna.phy.ofdm import OFDMDemodulator, OFDMModulator

    grid = grid_of(Waveform(**SMALL | {"tones": tones}))
    rng = np.random.default_rng(8)
    elements = rng.standard_normal((4, 3, tones, 2)) @ [1, 1j]
    centred = np.zeros((4, 3, 32), dtype=complex)
    centred[..., 16 + grid.offsets] = elements
    theirs = OFDMModulator(8, precision="double")(torch.tensor(centred))
    ours = modulate(grid, elements)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-12)
    back = OFDMDemodulator(32, 0, 8, precision="double")(torch.tensor(ours)).numpy()[..., 16 + grid.offsets]
    np.testing.assert_allclose(demodulate(grid, ours), back, rtol=0, atol=1e-12)
    np.testing.assert_allclose(back, elements, rtol=0, atol=1e-12)
