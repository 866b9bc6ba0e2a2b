"""What a server that keeps all samples learns beyond elements, for fleets in several kinds of places.

    python benchmarks/prefix_factors.py [DRAWS]

612 of 1,024 tones at 30 kHz, a prefix of 72 samples, an exponential power-delay profile, equalisers with a floor of
-10 dB, and equal shares of the noise. A share of the devices has a line of sight: a Rician first tap, 10 dB over all
other paths. Prefix noise is as long as the channel's memory and some times as strong as a device's noise in an ordinary
sample. Means over draws of the largest factor of all devices, and of the median one.
"""

import sys

import numpy as np

from airdistill.channel.waveform import Grid
from airdistill.privacy.impairments import (
    deviation_factor,
    least_backoff_db,
    limiter_factor,
    offset_turns,
    phase_noise_turns,
    rotation_deviation,
)
from airdistill.privacy.waveform import FleetChannels, PrefixNoise, element_factor, prefix_factor, receiver_factor

GRID = Grid(tones=612, spacing_hz=30e3, prefix_s=72 / (1024 * 30e3), axes=2)
FLOOR_DB, RICE_DB = -10.0, 10.0
TIMES = (1.0, 3.0, 10.0, 30.0)
# Devices, delay spread (ns), taps, share of the devices with a line of sight.
FLEETS = ((200, 30, 12, 0.0), (200, 100, 24, 0.0), (200, 100, 24, 0.1), (200, 100, 24, 0.5), (50, 100, 24, 0.0))


def drawn(num_devices: int, spread_ns: float, num_taps: int, sighted: float, seed: int) -> FleetChannels:
    rng = np.random.default_rng(seed)
    profile = np.exp(-np.arange(num_taps) / (spread_ns * 1e-9 * GRID.sample_rate_hz))
    parts = rng.standard_normal((2, num_devices, num_taps)) * np.sqrt(profile / profile.sum() / 2)
    taps, line = parts[0] + 1j * parts[1], rng.random(num_devices) < sighted
    rice = 10 ** (RICE_DB / 10)
    taps[line] /= np.sqrt(rice + 1)
    taps[line, 0] += np.sqrt(rice / (rice + 1)) * np.exp(2j * np.pi * rng.random(line.sum()))
    response = np.fft.fft(taps, GRID.fft_size, axis=1)[:, GRID.bins]
    power = np.abs(response) ** 2
    floor = 10 ** (FLOOR_DB / 10) * power.mean(axis=1, keepdims=True)
    return FleetChannels(GRID, taps, response.conj() / np.maximum(power, floor))


def fleet_factors(fleet: tuple[int, float, int, float], draws: int) -> None:
    rows = []
    for seed in range(draws):
        channels, shares = drawn(*fleet, seed), np.full(fleet[0], 1 / fleet[0])
        found = prefix_factor(channels, shares)
        covered = [prefix_factor(channels, shares, PrefixNoise.relative(channels, shares, times)) for times in TIMES]
        largest = [factor.max() for factor in (element_factor(channels.gain, shares), found, *covered)]
        rows.append([*largest, np.median(found)])
    elements, samples, *noisy, median = np.mean(rows, axis=0)
    words = ", ".join(f"{times:g} times {factor:.2f}" for times, factor in zip(TIMES, noisy, strict=True))
    print(
        f"{fleet[0]} devices, {fleet[1]} ns, {fleet[3]:.0%} in line of sight: elements {elements:.2f}; samples "
        f"{samples:.1f} (median {median:.1f}); with prefix noise {words}",
        flush=True,
    )


def other_factors() -> None:
    """Receiver noise, limiters and oscillators, for the second fleet's first draw."""
    channels = drawn(*FLEETS[1], 0)
    num_devices = len(channels.taps)
    shares = np.full(num_devices, 1 / num_devices)
    for name, factor in [
        ("receiver noise, samples", receiver_factor(channels)),
        ("receiver noise, samples of one symbol", receiver_factor(channels, 1)),
        ("receiver noise behind a limiter, samples", limiter_factor(channels, "samples")),
        ("receiver noise behind a limiter, elements", limiter_factor(channels, "elements")),
    ]:
        print(f"{name}: median {np.median(factor):.2f}, largest {factor.max():.2f}")
    for offset_hz in (10, 100, 300):
        eta = rotation_deviation(channels, offset_turns(channels, offset_hz))
        print(f"offset {offset_hz} Hz, elements: {deviation_factor(channels.gain, shares, mixing=eta).max():.2f}")
    for linewidth in (0.1, 1.0, 10.0):
        turns = phase_noise_turns(channels, linewidth, num_devices * 25 * 400, 1e-7)
        eta = rotation_deviation(channels, turns)
        print(
            f"linewidth {linewidth} Hz, elements, 200 × 25 × 400 symbols, δ 1e-7: "
            f"{deviation_factor(channels.gain, shares, mixing=eta).max():.2f}"
        )
    for share, crest in ((1.0, 1.0), (0.5, 1.0), (0.5, 10.0)):
        backoff = least_backoff_db(200 * 40_000, 8.0, 1e-6, share, crest)
        print(f"back-off for 8e6 samples, ε = 8, δ 1e-6, noise share {share:g}, crest {crest:g}: {backoff:.2f} dB")


def main(draws: int = 3) -> None:
    other_factors()
    for fleet in FLEETS:
        fleet_factors(fleet, draws)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
