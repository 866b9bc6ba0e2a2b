"""Attacks on the samples that a server receives in one symbol of a waveform, against what is certified.

    python benchmarks/iq_audit.py [DEVICES] [TRANSCRIPTS]

612 of 1,024 tones at 30 kHz, a prefix of 72 samples, Rayleigh taps with an exponential profile of 100 ns, and
equalisers with a floor of -10 dB. "elements" certifies what demodulated elements leak, "samples" what all samples do;
both certificates are attacked on all samples. The last rows count clipped noise in full: two devices with flat channels
cover a third, which is far from saturation. The five tests together raise a false alarm with probability 1e-3.

Before these, rounds that `airdistill.plan` accepts are transmitted through the simulated radio with their impairments,
and attacked with all noise scaled so that the ledger's charge comes to μ = 3. Rows "without the factor" plan with the
planted mistake that noise counts in full; they must be VIOLATED. These tests together have a level of their own, 1e-3.
"""

import sys
from collections.abc import Callable

import numpy as np

import airdistill as ad
from airdistill.arrays import ComplexArray, FloatArray
from airdistill.audit.iq import PrefixAttack, exceeds, worst_shift
from airdistill.audit.iq_rounds import RoundOnAir
from airdistill.channel.waveform import Grid
from airdistill.planning.noise_factors import LinkFactors
from airdistill.privacy.waveform import FleetChannels, PrefixNoise, element_factor, prefix_factor
from airdistill.radio.iq import modulate

GRID = Grid(tones=612, spacing_hz=30e3, prefix_s=72 / (1024 * 30e3), axes=2)
MU, LEVEL, DELAY_SPREAD_S, FLOOR_DB = 2.0, 1e-3, 100e-9, -10.0
BACKOFFS_DB = (0.0, 3.0, 15.0)
SMALL = [
    *("waveform.kind=ofdm", "waveform.tones=16", "air.medium=waveform", "waveform.pilot_symbols=20"),
    *("fleet.devices=3", "radio.distance=100 m", "learning.rounds=3", "privacy.delta=1e-5"),
]
PATHS = [
    *("radio.fading=tdl-a", "radio.delay_spread=300 ns", "waveform.cyclic_prefix=5 us", "waveform.csi=perfect"),
]
ELEMENTS, RECEIVER = "waveform.observed=elements", "privacy.trust=receiver_noise"
OFFSET, PHASE, LATE = "waveform.carrier_offset=300 Hz", "waveform.phase_noise=0.2 Hz", "waveform.timing_error=1 us"
CLIP = ["waveform.amplifier=clip", "waveform.backoff_db=-20"]
RAPP = ["waveform.amplifier=rapp", "waveform.backoff_db=-20"]
WORLDS = {
    "fleet, samples, paths": PATHS,
    "fleet, samples, paths, floors of -3 dB": [*PATHS, "waveform.fade_floor_db=-3"],
    "fleet, samples, one path": ["waveform.speed=0"],
    "fleet, elements, paths, offset": [*PATHS, ELEMENTS, OFFSET],
    "fleet, elements, paths, phase noise": [*PATHS, ELEMENTS, PHASE],
    "fleet, elements, paths, late": [*PATHS, ELEMENTS, LATE],
    "fleet, elements, one path, all three": [ELEMENTS, OFFSET, PHASE, LATE],
    "receiver, samples, paths": [*PATHS, RECEIVER],
    "receiver, samples, one path": [RECEIVER],
    "receiver, samples, paths, offset": [*PATHS, RECEIVER, OFFSET],
    "receiver, samples, paths, phase noise": [*PATHS, RECEIVER, PHASE],
    "receiver, samples, paths, late": [*PATHS, RECEIVER, LATE],
    "receiver, samples, paths, limiter": [*PATHS, RECEIVER, *CLIP],
    "receiver, samples, paths, Rapp": [*PATHS, RECEIVER, *RAPP],
    "receiver, elements, paths, offset": [*PATHS, RECEIVER, ELEMENTS, OFFSET],
    "receiver, elements, paths, limiter": [*PATHS, RECEIVER, ELEMENTS, *CLIP],
    "receiver, elements, paths, Rapp and phase noise": [*PATHS, RECEIVER, ELEMENTS, *RAPP, PHASE],
    "receiver, elements, one path, Rapp, offset and late": [RECEIVER, ELEMENTS, *RAPP, OFFSET, LATE],
}
MISTAKES = {
    "fleet, samples, paths": PATHS,
    "fleet, elements, offset of 14 kHz": [*PATHS, ELEMENTS, "waveform.carrier_offset=14 kHz"],
    "fleet, elements, phase noise of 10 kHz": [*PATHS, ELEMENTS, "waveform.phase_noise=10 kHz"],
    "receiver, samples, paths": [*PATHS, RECEIVER],
    "receiver, samples, paths, limiter at 0 dB": [*PATHS, RECEIVER, "waveform.amplifier=clip", "waveform.backoff_db=0"],
}
TESTS = len(WORLDS) + len(MISTAKES)  # of planned rounds
Distort = Callable[[ComplexArray], ComplexArray]


def fleet(num_devices: int, num_taps: int, rng: np.random.Generator) -> FleetChannels:
    """Rayleigh taps of an exponential profile; equalisers whose floor is relative to the mean gain."""
    profile = np.exp(-np.arange(num_taps) / (DELAY_SPREAD_S * GRID.sample_rate_hz))
    taps = complex_normal(rng, (num_devices, num_taps)) * np.sqrt(profile / profile.sum() / 2)
    response = np.fft.fft(taps, GRID.fft_size, axis=1)[:, GRID.bins]
    power = np.abs(response) ** 2
    floor = 10 ** (FLOOR_DB / 10) * power.mean(axis=1, keepdims=True)
    return FleetChannels(GRID, taps, response.conj() / np.maximum(power, floor))


def complex_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> ComplexArray:
    drawn = rng.standard_normal((2, *shape))
    return drawn[0] + 1j * drawn[1]


def received(channels: FleetChannels, elements: ComplexArray, distort: Distort) -> ComplexArray:
    """Samples `[sample]` at the server, of elements `[device, tone]` of one symbol."""
    sent = distort(modulate(GRID, (elements * channels.equalizer)[:, None]))
    size = GRID.symbol_samples + channels.memory
    return np.fft.ifft((np.fft.fft(sent, size) * np.fft.fft(channels.taps, size)).sum(axis=0))


def limiter(channels: FleetChannels, shares: FloatArray, backoff_db: float, device: int) -> Distort:
    """Amplifiers that clip, with a back-off from the noise's mean power; the attacked device's has 30 dB more."""
    power = 2 * shares * (np.abs(channels.equalizer) ** 2).sum(axis=1) / GRID.fft_size * 10 ** (backoff_db / 10)
    power[device] *= 1e3
    return lambda samples: samples / np.maximum(np.abs(samples) / np.sqrt(power)[:, None], 1)


def scores(
    channels: FleetChannels, attack: PrefixAttack, moved: ComplexArray, shares: FloatArray, distort: Distort, count: int
) -> tuple[FloatArray, FloatArray]:
    """Scores of half the transcripts with the first vector, then of half with the other; noise is 1 on each axis."""
    rng, amplitude = np.random.default_rng(1), np.sqrt(shares)[:, None]
    found = np.empty(count)
    for trial in range(count):
        noise = received(channels, amplitude * complex_normal(rng, (len(shares), GRID.tones)), distort)
        found[trial] = attack.scores(noise if trial < count // 2 else noise + moved)
    return found[: count // 2], found[count // 2 :]


def attacked(
    channels: FleetChannels, shares: FloatArray, direction: ComplexArray, mu: float, distort: Distort, count: int
) -> tuple[float, tuple[FloatArray, FloatArray]]:
    """‖δ‖ and scores of the attack on device 0, with a shift in that direction of so much exact μ."""
    size = mu / PrefixAttack.on(channels, shares, 1.0, 0, direction[None]).mu
    elements = np.zeros((len(shares), GRID.tones), dtype=np.complex128)
    elements[0] = size * direction
    attack = PrefixAttack.on(channels, shares, 1.0, 0, elements[:1])
    return size, scores(channels, attack, received(channels, elements, linear), shares, distort, count)


def linear(samples: ComplexArray) -> ComplexArray:
    return samples


def verdict(scored: tuple[FloatArray, FloatArray], certified: float, num_tests: int) -> str:
    first, other = scored
    measured = (other.mean() - first.mean()) / np.sqrt((first.var() + other.var()) / 2)
    words = "VIOLATED" if exceeds(first, other, certified, LEVEL / num_tests) else "holds"
    return f"certified μ {certified:.3f}, measured {measured:.3f}: {words}"


def exposure(num_devices: int, transcripts: int) -> None:
    """What samples reveal beyond elements."""
    channels, shares = fleet(num_devices, 24, np.random.default_rng(0)), np.full(num_devices, 1 / num_devices)
    found = {
        "elements": element_factor(channels.gain, shares),
        "samples": prefix_factor(channels, shares),
        "samples, with 10 times the noise in prefixes": prefix_factor(
            channels, shares, PrefixNoise.relative(channels, shares, 10.0)
        ),
    }
    for name, factor in found.items():
        print(f"{num_devices} devices, factor on {name}: median {np.median(factor):.2f}, largest {factor.max():.2f}")
    worst = worst_shift(channels, shares, 0)
    size, scored = attacked(channels, shares, worst, MU, linear, transcripts)
    for name in ("elements", "samples"):
        certified = size * float(np.sqrt(found[name][0]))
        print(f"  device 0, {name} certified: exact μ {MU:.3f}, {verdict(scored, certified, 5)}")


def clipping(transcripts: int) -> None:
    """Clipped noise that is counted in full: two devices whose amplifiers clip cover a third, whose does not."""
    channels, shares = fleet(3, 1, np.random.default_rng(0)), np.array([0.001, 0.4995, 0.4995])
    one_number = np.fft.fft(np.eye(GRID.tones)[5], norm="ortho")
    for backoff_db in BACKOFFS_DB:
        distort = limiter(channels, shares, backoff_db, 0)
        _, scored = attacked(channels, shares, one_number, 3.0, distort, transcripts)
        print(f"  limiter at {backoff_db:g} dB, counted in full: {verdict(scored, 3.0, 5)}")


def planned_rounds(transcripts: int) -> None:
    """Every impairment that is planned for others' noise, under each trust model and for each server."""
    for name, changes in WORLDS.items():
        on_air = RoundOnAir.of(ad.plan(ad.load("quick", [*SMALL, *changes]), scheme="ota_fd"), 2)
        exact = 3 * float(np.sqrt((on_air.exact() / on_air.charged).max()))
        linear_exact = "" if "amplifier" in str(changes) else f"exact μ {exact:.3f}, "
        _, *scored = on_air.attacked(transcripts, 3.0)
        print(f"  {name}: {linear_exact}{verdict((scored[0], scored[1]), 3.0, TESTS)}")


def planted_mistakes(transcripts: int) -> None:
    """The same, if no factor divides the noise that counts."""
    counted = LinkFactors.of_fleet, LinkFactors.of_receiver
    LinkFactors.of_fleet = lambda *_: 1.0  # type: ignore[method-assign,assignment]
    LinkFactors.of_receiver = lambda *_: 1.0  # type: ignore[method-assign,assignment]
    for name, changes in MISTAKES.items():
        on_air = RoundOnAir.of(ad.plan(ad.load("quick", [*SMALL, *changes]), scheme="ota_fd"), 2)
        _, *scored = on_air.attacked(transcripts, 3.0)
        print(f"  {name}, without the factor: {verdict((scored[0], scored[1]), 3.0, TESTS)}")
    LinkFactors.of_fleet, LinkFactors.of_receiver = counted  # type: ignore[method-assign]


def main(num_devices: int = 200, transcripts: int = 1000) -> None:
    planned_rounds(transcripts)
    planted_mistakes(10 * transcripts)
    exposure(num_devices, transcripts)
    clipping(10 * transcripts)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
