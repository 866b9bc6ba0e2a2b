"""Attacks on received samples: exact on small systems, no violation where the factors are counted, caught where not."""

import numpy as np
import pytest
from privacy.test_waveform import GRID, channels, dense_fleet_factor, dense_maps, shares_of

from airdistill.audit.iq import PrefixAttack, attack_on, exceeds, worst_shift
from airdistill.privacy.impairments import (
    deviation_factor,
    limiter_factor,
    offset_turns,
    receiver_deviation_factor,
    rotation_deviation,
)
from airdistill.privacy.waveform import FleetChannels, element_factor, prefix_factor, receiver_factor
from airdistill.radio.iq import demodulate, elements_of, modulate, spread
from airdistill.radio.waveform_link import WaveformRound, superpose_waveform
from airdistill.scenario.sections import Waveform

LEVEL = 1e-3  # family-wise: all worlds of a test share it
DEVICE, NOISE_VAR, MU = 0, 0.7, 2.0


def complex_normal(rng, shape, var_of_axis=1.0):
    drawn = rng.standard_normal((2, *shape)) * np.sqrt(var_of_axis)
    return drawn[0] + 1j * drawn[1]


def fleet_noise(rng, shares, num_trials, num_symbols=1):
    drawn = complex_normal(rng, (num_trials, len(shares), num_symbols, GRID.tones), NOISE_VAR)
    return drawn * np.sqrt(shares)[:, None, None]


def received(given, elements, distort=lambda samples: samples):
    """Samples at the server, `[trial, sample]`, of elements `[trial, device, symbol, tone]`; no receiver noise."""
    sent = distort(modulate(GRID, elements * given.equalizer[:, None, :]))
    size = sent.shape[-1] + given.memory
    spectrum = np.fft.fft(sent, size) * np.fft.fft(given.taps, size)
    return np.fft.ifft(spectrum.sum(axis=-2), axis=-1)


def both_scores(attack, noise, shift):
    """Scores of as many transcripts of the first vector as of the other."""
    half = len(noise) // 2
    return attack.scores(noise[:half]), attack.scores(noise[half:] + shift)


@pytest.mark.parametrize("floor_db", [-300.0, -3.0])
def test_the_structured_attack_is_the_dense_likelihood_ratio(floor_db):
    given, shares, rng = channels(5, 4, floor_db), shares_of(5), np.random.default_rng(0)
    shift = complex_normal(rng, (3, GRID.tones))
    maps = dense_maps(given, 3)
    noise = np.concatenate([np.sqrt(share) * one for share, one in zip(shares, maps, strict=True)], axis=1)
    dense = attack_on(maps[DEVICE] @ shift.ravel(), noise, NOISE_VAR)
    found = PrefixAttack.on(given, shares, NOISE_VAR, DEVICE, shift)
    assert found.mu == pytest.approx(dense.mu, rel=1e-6)
    samples = received(given, fleet_noise(rng, shares, 20, 3))
    assert np.allclose(found.scores(samples), dense.scores(samples), atol=1e-5)
    assert np.allclose(samples, (samples @ np.linalg.pinv(noise).T) @ noise.T)  # the noise is of the modelled kind


def test_the_worst_shift_reaches_the_factor():
    given, shares = channels(6, 4, -3.0), shares_of(6)
    factor = prefix_factor(given, shares, tolerance=1e-10)
    for device in range(6):
        attack = PrefixAttack.on(given, shares, NOISE_VAR, device, worst_shift(given, shares, device)[None])
        assert attack.mu**2 * NOISE_VAR == pytest.approx(factor[device], rel=1e-6)


def test_scores_are_gaussian_with_the_attacks_mu():
    given, shares, rng = channels(6, 4, -3.0), shares_of(6), np.random.default_rng(1)
    shift = worst_shift(given, shares, DEVICE)[None]
    attack = PrefixAttack.on(given, shares, NOISE_VAR, DEVICE, shift)
    scores = attack.scores(received(given, fleet_noise(rng, shares, 20_000)))
    assert scores.mean() == pytest.approx(-(attack.mu**2) / 2, abs=5 * attack.mu / np.sqrt(20_000))
    assert scores.std() == pytest.approx(attack.mu, rel=0.03)


def test_samples_of_the_radio_itself_leak_the_certified_mu():
    """Numbers with noise through `superpose_waveform`, as a run sends them: scrambled, spread, equalised, received."""
    given, shares, rng, num_numbers = channels(6, 4, -3.0), shares_of(6), np.random.default_rng(7), 2 * 16
    known = np.fft.fft(given.taps, GRID.fft_size, axis=1)[:, GRID.bins]
    wave = Waveform(kind="ofdm", tones=8, spacing=1.0, cyclic_prefix=6 / 16, fade_floor_db=-3.0, csi="perfect")
    gains = rng.uniform(0.5, 2.0, 6)
    link = WaveformRound(GRID, wave, given.taps[:, None], known, gains, np.ones(6), 0.0, 3, 0, 0)
    moved = np.zeros((6, num_numbers))
    moved[DEVICE, :3] = [1.0, -0.5, 2.0]
    shift = spread(elements_of(GRID, moved[DEVICE] * gains[DEVICE]), link.phases(num_numbers))
    attack = PrefixAttack.on(given, shares, NOISE_VAR, DEVICE, shift)
    deviation = (np.sqrt(NOISE_VAR * shares) / gains)[:, None]
    trials = [deviation * rng.standard_normal(moved.shape) for _ in range(1000)]
    first = attack.scores(np.stack([superpose_waveform(link, noise).samples for noise in trials[:500]]))
    other = attack.scores(np.stack([superpose_waveform(link, noise + moved).samples for noise in trials[500:]]))
    assert (other.mean() - first.mean()) / attack.mu**2 == pytest.approx(1.0, abs=5 * np.sqrt(2 / 500) / attack.mu)
    assert np.concatenate([first - first.mean(), other - other.mean()]).std() == pytest.approx(attack.mu, rel=0.12)
    bound = np.linalg.norm(shift) * np.sqrt(prefix_factor(given, shares)[DEVICE] / NOISE_VAR)
    assert attack.mu <= bound
    assert not exceeds(first, other, bound, LEVEL)


def clip(backoff_db, power):
    """A limiter of that back-off from a mean power per sample, `[device]`."""
    level = np.sqrt(power * 10 ** (backoff_db / 10))[:, None]
    return lambda samples: samples / np.maximum(np.abs(samples) / level, 1)


def sample_power(given, shares):
    """The mean power of a device's noise in a sample, `[device]`."""
    return 2 * NOISE_VAR * shares * (np.abs(given.equalizer) ** 2).sum(axis=1) / GRID.fft_size


def worlds():
    """Every trust model, with what the server keeps and impairments: `name, noise, shift, attack, certified μ`."""
    given, shares = channels(6, 4, -3.0), shares_of(6)
    unit, rng = worst_shift(given, shares, DEVICE), np.random.default_rng(2)
    stays = MU * np.sqrt(NOISE_VAR)  # ‖δ‖ that has μ = 2 if all noise counts on elements alone
    shift = stays * unit[None, None]
    padded = np.concatenate([shift, np.zeros((5, 1, GRID.tones))])[None]
    moved = received(given, padded)[0]

    def at(factor):
        return MU * np.sqrt(factor[DEVICE])

    def dense(maps):
        return np.concatenate([np.sqrt(share) * one for share, one in zip(shares, maps, strict=True)], axis=1)

    noise = received(given, fleet_noise(rng, shares, 1000))
    attack = PrefixAttack.on(given, shares, NOISE_VAR, DEVICE, shift[0])
    yield "fleet, samples", noise, moved, attack, at(prefix_factor(given, shares))

    on_elements = dense(np.stack([np.diag(row) for row in given.gain]))
    shifted = given.gain[DEVICE] * shift[0, 0]
    kept = demodulate(GRID, noise[:, : GRID.symbol_samples])[:, 0]
    yield (
        "fleet, elements",
        kept,
        shifted,
        attack_on(shifted, on_elements, NOISE_VAR),
        at(element_factor(given.gain, shares)),
    )

    offset, time = 0.02, np.arange(GRID.symbol_samples) / GRID.fft_size
    turns = np.exp(2j * np.pi * np.array([1, -1, 1, -1, 1, 1])[:, None] * offset * time)

    def turned(elements):
        samples = received(given, elements, lambda sent: sent * turns)
        return demodulate(GRID, samples[..., : GRID.symbol_samples])[..., 0, :]

    units = np.zeros((6 * GRID.tones, 6, 1, GRID.tones), complex)
    for place in range(6 * GRID.tones):
        units[place, place // GRID.tones, 0, place % GRID.tones] = np.sqrt(shares[place // GRID.tones])
    eta = rotation_deviation(given, offset_turns(given, offset * GRID.spacing_hz))
    yield (
        "fleet, elements, carrier offset",
        turned(fleet_noise(rng, shares, 1000)),
        turned(padded)[0],
        attack_on(turned(padded)[0], turned(units).T, NOISE_VAR),
        at(deviation_factor(given.gain, shares, mixing=eta)),
    )

    identity = np.eye(len(moved))
    thermal = complex_normal(rng, (1000, len(moved)), NOISE_VAR)
    yield "receiver, samples", thermal, moved, attack_on(moved, identity, NOISE_VAR), at(receiver_factor(given))

    power = np.ones(6)
    base = 3 * complex_normal(rng, (1, 6, 1, GRID.tones))
    clipped = received(given, base + padded, clip(0, power)) - received(given, base, clip(0, power))
    yield (
        "receiver, samples, limiter at 0 dB",
        thermal,
        clipped[0],
        attack_on(clipped[0], identity, NOISE_VAR),
        at(limiter_factor(given, "samples")),
    )

    late = received(given, padded, lambda sent: sent * turns)[0]
    yield (
        "receiver, samples, carrier offset",
        thermal,
        late,
        attack_on(late, identity, NOISE_VAR),
        at(
            receiver_deviation_factor(receiver_factor(given), given, 0.0, offset_turns(given, offset * GRID.spacing_hz))
        ),
    )

    alone = FleetChannels(GRID, given.taps[:1], given.equalizer[:1])
    own = received(alone, fleet_noise(rng, np.ones(1), 1000))
    arrived = received(alone, shift[None])[0]
    yield "own, samples", own, arrived, attack_on(arrived, dense_maps(alone, 1)[0], NOISE_VAR), MU


def test_no_transcript_of_any_trust_model_exceeds_what_is_certified():
    """1,000 transcripts in each of seven worlds; all tests together raise a false alarm with probability 1e-3."""
    violations, names = [], []
    for name, noise, shift, attack, certified in worlds():
        names.append(name)
        assert attack.mu <= certified * (1 + 1e-9), name
        first, other = both_scores(attack, noise, shift)
        if exceeds(first, other, certified, LEVEL / 7):
            violations.append(name)
        assert exceeds(first, other, 0.6 * attack.mu, LEVEL / 7), f"{name}: the attack does not work"
    assert len(names) == 7
    assert violations == []


def test_counting_elements_only_is_caught_where_the_server_keeps_samples():
    given, shares, rng = channels(6, 4), shares_of(6), np.random.default_rng(3)
    shift = MU * np.sqrt(NOISE_VAR) * worst_shift(given, shares, DEVICE)[None]
    attack = PrefixAttack.on(given, shares, NOISE_VAR, DEVICE, shift)
    noise = received(given, fleet_noise(rng, shares, 1000))
    moved = received(given, np.concatenate([shift[None], np.zeros((5, 1, GRID.tones))])[None])[0]
    first, other = both_scores(attack, noise, moved)
    assert exceeds(first, other, MU, LEVEL)


@pytest.mark.parametrize(("backoff_db", "caught"), [(0.0, True), (3.0, True), (14.0, False)])
def test_counting_clipped_noise_in_full_is_caught(backoff_db, caught):
    """The attacked device backs off, the others' amplifiers clip: less of their noise is left than is counted."""
    given, rng = channels(12, 1), np.random.default_rng(4)
    shares = np.array([0.001, *[0.999 / 11] * 11])
    level = sample_power(given, shares) * np.array([1e3, *[1.0] * 11])
    noise = received(given, fleet_noise(rng, shares, 16_000), clip(backoff_db, level))
    shift = np.zeros((1, 1, GRID.tones), complex)
    shift[..., 3] = 3 * np.sqrt(NOISE_VAR)
    moved = received(given, np.concatenate([shift, np.zeros((11, 1, GRID.tones))])[None])[0]
    attack = PrefixAttack.on(given, shares, NOISE_VAR, DEVICE, shift[0])
    assert attack.mu == pytest.approx(3.0, rel=1e-6)
    first, other = both_scores(attack, noise, moved)
    assert exceeds(first, other, attack.mu, LEVEL / 3) == caught


def test_the_level_of_the_test_is_kept():
    """At the true μ, Gaussian scores are reported with at most the stated probability, and 10 % more μ is found."""
    rng, mu, reports = np.random.default_rng(5), 2.0, 0
    for _ in range(300):
        scores = mu * rng.standard_normal((2, 500)) + np.array([[-(mu**2) / 2], [mu**2 / 2]])
        reports += exceeds(*scores, mu, 0.05)
    assert reports <= 0.05 * 300 + 3 * np.sqrt(0.05 * 300)
    scores = mu * rng.standard_normal((2, 20_000)) + np.array([[-(mu**2) / 2], [mu**2 / 2]])
    assert exceeds(*scores, mu / 1.1, 1e-3)
    assert not exceeds(*scores, mu / 1.1, 1e-3, delta=0.2)


def test_dense_attack_has_the_factor_of_the_dense_reference():
    given, shares = channels(4, 3), shares_of(4)
    maps = dense_maps(given, 1)
    noise = np.concatenate([np.sqrt(share) * one for share, one in zip(shares, maps, strict=True)], axis=1)
    attack = attack_on(maps[1] @ worst_shift(given, shares, 1), noise, NOISE_VAR)
    assert attack.mu**2 * NOISE_VAR == pytest.approx(dense_fleet_factor(maps, shares)[1], rel=1e-6)
