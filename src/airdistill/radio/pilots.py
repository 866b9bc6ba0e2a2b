"""Pilots sample by sample: what is sent, and the channel that what is received shows.

A pilot symbol has a known number of constant magnitude on every used tone, and its power is shared by the tones. What
is received, divided by what was sent, is the channel plus noise: the least-squares estimate. It is projected on the
channels whose delays are within the prefix (`channel.selective.delays_basis`): noise that none of them can produce is
removed. Unused tones leave some of these channels almost invisible, and the basis is without them: 73 taps have 51
dimensions on 612 of 1024 tones. A projection never amplifies: also at the band's edges, where a fit of taps would
extrapolate, the error is at most that of the estimate before it.

Oscillators are at rest during a pilot: later phases are relative to it.
"""

from __future__ import annotations

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.channel.selective import delays_basis
from airdistill.channel.waveform import Grid
from airdistill.radio.iq import demodulate, modulate
from airdistill.radio.waveform_link import propagate
from airdistill.scenario.sections import Waveform
from airdistill.streams import Seed, stream


def pilot_samples(grid: Grid, wave: Waveform, power: float) -> ComplexArray:
    """The samples of a pilot of that power, `[sample]`: the same symbol `pilot_symbols` times."""
    return modulate(grid, np.tile(_pilot_elements(grid, power), (wave.pilot_symbols, 1)))


def channel_estimate(grid: Grid, samples: ComplexArray, power: float) -> ComplexArray:
    """The channel on the used tones, `[..., tone]`, from the samples `[..., sample]` of a received pilot."""
    each = demodulate(grid, samples) / _pilot_elements(grid, power)
    basis = delays_basis(grid)
    return np.asarray(each.mean(axis=-2) @ basis.conj() @ basis.T)


def pilot_error_var(grid: Grid, wave: Waveform, noise_power: float, power: float) -> FloatArray:
    """E|ĥ − h|² of an estimate, `[tone]`: n·N·κ / (P·S), whatever the channel is.

    n is the noise power in an element. An element of the pilot has P/N of its power P, and there are S symbols. κ, the
    share of a tone's noise that the projection keeps, has the mean r/N over tones with r dimensions of N: the mean
    squared error over tones is n·r / (P·S).
    """
    kept = (np.abs(delays_basis(grid)) ** 2).sum(axis=1)
    return np.asarray(noise_power * grid.tones * kept / (power * wave.pilot_symbols))


def estimate_channel(
    grid: Grid, wave: Waveform, taps: ComplexArray, noise_power: float, power: float, seed: Seed, link: tuple[int, int]
) -> ComplexArray:
    """The estimate `[tone]` of a channel of given taps `[tap]`, from a pilot of that power; `link` is (round, device).

    With a downlink pilot each device receives the server's through its own channel, and knows the uplink by
    reciprocity: radios are calibrated. With uplink pilots the server receives one device after another, and sends each
    what it found. `noise_power` is that of whoever receives the pilot.
    """
    arrived = propagate(grid, pilot_samples(grid, wave, power)[None], taps[None, None])
    whole = arrived[: wave.pilot_symbols * grid.symbol_samples]
    draws = stream(seed, "pilot-samples", *link).standard_normal((2, len(whole)))
    return channel_estimate(grid, whole + np.sqrt(noise_power / 2) * (draws[0] + 1j * draws[1]), power)


def _pilot_elements(grid: Grid, power: float) -> ComplexArray:
    """One symbol of a pilot, `[tone]`: equal magnitudes, and a quadratic phase that keeps the envelope flat."""
    turned = np.exp(-1j * np.pi * np.arange(grid.tones) ** 2 / grid.tones)
    return np.asarray(np.sqrt(power / grid.tones) * turned)
