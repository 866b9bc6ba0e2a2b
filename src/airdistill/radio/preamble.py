"""The frame of a recorded round, and how a receiver finds it: preamble, pilot, data symbols, pilot.

1. Preamble: an OFDM symbol on every second tone, and so of two equal halves (Schmidl and Cox). It gives the coarse
   timing and the carrier offset modulo two tones, whatever the channel is.
2. Pilot: a Zadoff-Chu sequence on all tones. Its correlation gives the fine timing, the tones by which the carrier is
   off, the gain, and the noise.
3. The pilot again, after the data: the phase between both gives the carrier offset over the length of the round, up to
   whole turns, among which the phase between preamble and pilot decides. Where noise leaves several, none is certain.

Devices send all three as they send their data: at the same time, and equalised. They arrive as one sum over a flat
channel, and contain nothing of a device's data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import oaconvolve

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.channel.waveform import Grid
from airdistill.errors import AirDistillError
from airdistill.radio.iq import demodulate, modulate

BEFORE, AFTER = 2, 1  # known symbols before and after the data
_MOST_TONES_OFF = 8  # carrier offsets that are found, in tones
_CANDIDATES = 8
_SIGNIFICANT = 4.0  # standard deviations: a smaller correction would add more noise than it removes
_STRONG, _LEAST_CORRELATION = 0.5, 0.02
_FINE = 0.25  # tones between carrier offsets that are tried: the correlation keeps 95 % at half of it
_FALSE_ALARM = 20.0  # e^-20 is the chance that noise of one place exceeds this over the number of samples
_ROUNDING = 1e-7  # relative, of samples in single precision
_STEPS = 3
_MOST_LATE, _FINE_DELAY = 2.0, 0.25  # samples: around the peak of the correlation


class NotSynchronised(AirDistillError):  # noqa: N818 - the name says what happened
    """A recording in which no preamble was found."""


def known_elements(grid: Grid) -> ComplexArray:
    """Preamble and pilot, `[symbol, tone]`: of mean power 1 on the tones."""
    place = np.arange(grid.tones)
    chirp = np.exp(-1j * np.pi * place * (place + 1) / grid.tones)
    even = grid.offsets % 2 == 0
    halves = np.where(even, chirp * np.sqrt(grid.tones / np.count_nonzero(even)), 0.0)
    # Another root for the pilot: the correlation must not peak at the preamble.
    return np.stack([halves, np.exp(-1j * np.pi * _other_root(grid.tones) * place * (place + 1) / grid.tones)])


def _other_root(tones: int) -> int:
    """The smallest root of a Zadoff-Chu sequence above 1 that has no factor in common with its length."""
    return next(root for root in range(2, tones + 2) if np.gcd(root, tones) == 1)


def framed(grid: Grid, elements: ComplexArray, amplitude: complex = 1.0) -> ComplexArray:
    """Put preamble and pilot of an amplitude before data `[symbol, tone]`, and the pilot behind it."""
    known = amplitude * known_elements(grid)
    return np.concatenate([known, elements, known[1:]])


@dataclass(frozen=True)
class Synchronised:
    """Where a frame begins and what the receiver corrects, each with its standard deviation by the noise.

    `start` is the first sample of the preamble, `delay` a fraction of a sample more; `offset_hz` the carrier offset, or
    another one that is a multiple of `offset_period_hz` away, if that is not 0; `gain` the amplitude and phase of the
    pilots, the phase in the middle between both; `noise_power` that of an element, from the difference of the two.
    `correlation` is 1 for a frame without noise over a flat channel; `ripple` is the relative rms deviation of the
    pilots' tones from a flat channel that noise does not explain.
    """

    start: int
    delay: float
    delay_std: float
    offset_hz: float
    offset_std_hz: float
    gain: complex
    gain_std: float
    noise_power: float
    correlation: float
    ripple: float
    offset_period_hz: float = 0.0


def synchronise(grid: Grid, samples: ComplexArray, num_symbols: int) -> Synchronised:
    """Find the frame of so many data symbols in samples `[sample]`. Raise `NotSynchronised` if there is none."""
    last = len(samples) - (BEFORE + num_symbols + AFTER) * grid.symbol_samples
    correlation, start, coarse_hz = _found(grid, samples, last)
    apart_s = (1 + num_symbols) * grid.symbol_s
    pilots = _pilots_at(grid, samples, start, num_symbols, coarse_hz)
    offset_hz = coarse_hz + float(np.angle(np.vdot(pilots[0], pilots[1])) / (2 * np.pi * apart_s))
    pilots = _pilots_at(grid, samples, start, num_symbols, offset_hz)
    measured = _measured(grid, pilots, start, offset_hz, correlation, apart_s)
    coarse_std_hz = measured.offset_std_hz * apart_s / grid.symbol_s  # as much energy, one symbol apart
    offset_hz, period_hz = _of_several(offset_hz, 1 / apart_s, coarse_hz, coarse_std_hz)
    for _ in range(_STEPS):
        pilots = _pilots_at(grid, samples, start, num_symbols, offset_hz)
        first, second = _on_time(grid, pilots, measured.delay).sum(axis=1)
        offset_hz += float(np.angle(second * first.conj()) / (2 * np.pi * apart_s))
    pilots = _pilots_at(grid, samples, start, num_symbols, offset_hz)
    measured = _measured(grid, pilots, start, offset_hz, correlation, apart_s)
    return replace(measured, offset_period_hz=period_hz)


def _of_several(offset_hz: float, period_hz: float, coarse_hz: float, coarse_std_hz: float) -> tuple[float, float]:
    """One of the offsets that explain both pilots, `period_hz` apart, and the period, or 0 if the others do not.

    `offset_hz` is the one nearest to the coarse estimate. Where several agree with that within its error, and no offset
    does, too, it is the one nearest to none: most receptions are by clocks that are alike, and a whole turn between the
    pilots where there was none would spoil the round.
    """
    reach = _SIGNIFICANT * coarse_std_hz
    if abs(coarse_hz) <= reach:
        lowest, highest = (
            np.ceil((coarse_hz - reach - offset_hz) / period_hz),
            (coarse_hz + reach - offset_hz) // period_hz,
        )
        if lowest <= highest:
            offset_hz += period_hz * float(np.clip(np.round(-offset_hz / period_hz), lowest, highest))
    return offset_hz, period_hz if 2 * reach > period_hz else 0.0


def at_start(grid: Grid, samples: ComplexArray, num_symbols: int, start: int) -> Synchronised:
    """The same for a frame that is known to begin at `start`, with the carrier at its nominal frequency."""
    known = modulate(grid, known_elements(grid))
    window = samples[start : start + len(known)]
    correlation = float(_normalised(window, known, _energy(window, len(known)))[0])
    pilots = _pilots_at(grid, samples, start, num_symbols, 0.0)
    return _measured(grid, pilots, start, 0.0, correlation, (1 + num_symbols) * grid.symbol_s)


def _found(grid: Grid, samples: ComplexArray, last: int) -> tuple[float, int, float]:
    """The correlation, the start and the carrier offset of the most likely frame that begins at `last` at most.

    If the two halves of the preamble do not stand out of the noise, all places and offsets are tried.
    """
    best, reach = (0.0, 0, 0.0), BEFORE * grid.symbol_samples
    for place, fraction in _coarse(grid, samples, last):
        first, end = max(0, place - grid.symbol_samples), place + grid.symbol_samples + reach
        offsets = fraction + np.arange(-_MOST_TONES_OFF, _MOST_TONES_OFF + 1, 2)
        best = max(best, _best_of(grid, samples[first:end], offsets, first, last))
    if best[0] < _STRONG:
        offsets = np.arange(-_MOST_TONES_OFF, _MOST_TONES_OFF + _FINE, _FINE)
        best = max(best, _best_of(grid, samples, offsets, 0, last))
    if best[0] < max(_LEAST_CORRELATION, _FALSE_ALARM / reach):
        rule = f"the best correlation is {best[0]:.3f}; is it a recording of this grid, and of this round?"
        raise NotSynchronised(f"no preamble was found in it: {rule}")
    return best[0], best[1], _refined(grid, samples, best[1], best[2])


def _best_of(
    grid: Grid, samples: ComplexArray, offsets: NDArray[Any], first: int, last: int
) -> tuple[float, int, float]:
    """The same among offsets in tones, for samples that begin at `first`."""
    known, best = modulate(grid, known_elements(grid)), (0.0, 0, 0.0)
    energy = _energy(samples, len(known))
    for offset_hz in (offsets * grid.spacing_hz).tolist():
        turned = _turned(known, offset_hz / grid.sample_rate_hz)
        alike = _normalised(samples, turned, energy)[: last - first + 1]
        place = int(np.argmax(alike))
        best = max(best, (float(alike[place]), first + place, offset_hz))
    return best


def _coarse(grid: Grid, samples: ComplexArray, last: int) -> list[tuple[int, float]]:
    """Places where two halves of a symbol are alike, with the carrier offset in tones, from -1 to 1."""
    half, prefix = grid.fft_size // 2, grid.prefix_samples
    products = samples[:-half].conj() * samples[half:]
    energy = np.abs(samples[:-half]) ** 2 + np.abs(samples[half:]) ** 2
    alike, total = _running(products, half), _running(energy, half).real / 2
    least = 1e-12 * max(float(total.max()), np.finfo(np.float64).tiny)
    metric = np.where(total > least, np.abs(alike) / np.maximum(total, least), 0.0)[: last + prefix + 1]
    found: list[tuple[int, float]] = []
    for _ in range(_CANDIDATES):
        place = int(np.argmax(metric))
        if metric[place] <= 0:
            break
        found.append((max(place - prefix, 0), float(np.angle(alike[place]) / np.pi)))
        metric[max(0, place - grid.symbol_samples) : place + grid.symbol_samples] = 0.0
    return found


def _running(values: ComplexArray | FloatArray, length: int) -> ComplexArray:
    """The sums of so many neighbours, `[place]`, block by block: one running sum would lose small signals."""
    return np.asarray(oaconvolve(values, np.ones(length), mode="valid").astype(np.complex128))


def _energy(window: ComplexArray, length: int) -> FloatArray:
    """The energy of so many samples from each place on, `[place]`, and never 0."""
    energy = oaconvolve(np.abs(window) ** 2, np.ones(length), mode="valid")
    return np.asarray(np.maximum(energy, 1e-9 * max(float(energy.max()), np.finfo(np.float64).tiny)))


def _normalised(window: ComplexArray, known: ComplexArray, energy: FloatArray) -> FloatArray:
    """|Σ conj(known) samples|² over both energies, `[place]`: at most 1."""
    matched = oaconvolve(window, known[::-1].conj(), mode="valid")
    return np.asarray(np.abs(matched) ** 2 / (np.sum(np.abs(known) ** 2) * energy))


def _refined(grid: Grid, samples: ComplexArray, start: int, offset_hz: float) -> float:
    """The carrier offset from the phase between preamble and pilot, over twice the lag of the coarse one."""
    length = grid.symbol_samples
    received = _turned(samples[start : start + BEFORE * length], -offset_hz / grid.sample_rate_hz)
    elements = demodulate(grid, received) * known_elements(grid).conj()
    return float(offset_hz + np.angle(elements[1].sum() * elements[0].sum().conj()) / (2 * np.pi * grid.symbol_s))


def _turned(samples: ComplexArray, cycles_per_sample: float, first: int = 0) -> ComplexArray:
    """The samples `[sample]` on another carrier; `first` is the place at which the phase is not changed."""
    return np.asarray(samples * np.exp(2j * np.pi * cycles_per_sample * (np.arange(len(samples)) - first)))


def _pilots_at(grid: Grid, samples: ComplexArray, start: int, num_symbols: int, offset_hz: float) -> ComplexArray:
    """Both pilots over what was sent, `[pilot, tone]`, without the carrier offset; the middle keeps its phase."""
    length, middle, pilots = grid.symbol_samples, _middle(grid, num_symbols), []
    for symbol in (1, BEFORE + num_symbols):
        first = start + symbol * length
        turned_from = middle - symbol * length
        received = _turned(samples[first : first + length], -offset_hz / grid.sample_rate_hz, turned_from)
        pilots.append(demodulate(grid, received)[0])
    return np.asarray(np.stack(pilots) * known_elements(grid)[1].conj())


def _middle(grid: Grid, num_symbols: int) -> int:
    """The sample of a frame that is as far from one pilot as from the other: there the phase is known best."""
    return (BEFORE + BEFORE + num_symbols + AFTER - 1) * grid.symbol_samples // 2 + grid.prefix_samples // 2


def _measured(
    grid: Grid, pilots: ComplexArray, start: int, offset_hz: float, correlation: float, apart_s: float
) -> Synchronised:
    """Gain, fraction of a delay and noise from both pilots `[pilot, tone]`, which noise and a flat channel explain."""
    difference = float(np.mean(np.abs(pilots[0] - pilots[1]) ** 2)) / 2
    noise = max(difference, float(_ROUNDING * np.abs(pilots).max()) ** 2)
    mean, tones = pilots.mean(axis=0), grid.offsets
    delay = _late_by(grid, mean)
    flat = _on_time(grid, mean, delay)
    gain = complex(flat.mean())
    of_mean = noise / (2 * len(tones))  # of a complex mean over both pilots
    relative = float(np.sqrt(of_mean / 2) / max(abs(gain), np.finfo(np.float64).tiny))  # of phase, and of amplitude
    spread = float(np.sqrt(np.mean((tones - tones.mean()) ** 2)))
    unexplained = float(np.mean(np.abs(flat - gain) ** 2)) - noise / 2
    return Synchronised(
        start,
        delay,
        delay_std=relative * grid.fft_size / (2 * np.pi * spread),
        offset_hz=offset_hz,
        offset_std_hz=2 * relative / (2 * np.pi * apart_s),
        gain=gain,
        gain_std=relative,
        noise_power=noise,
        correlation=correlation,
        ripple=float(np.sqrt(max(unexplained, 0.0)) / abs(gain)),
    )


def _on_time(grid: Grid, elements: ComplexArray, delay: float) -> ComplexArray:
    """Elements `[..., tone]` as if they were not late by so many samples."""
    return np.asarray(elements * np.exp(2j * np.pi * grid.offsets * delay / grid.fft_size))


def _late_by(grid: Grid, level: ComplexArray) -> float:
    """The samples by which a pilot `[tone]` is late: its correlation with such a pilot is the largest.

    Phases of single tones are not used: below the noise they are those of the noise.
    """
    turns = grid.offsets / grid.fft_size
    tried = np.arange(-_MOST_LATE, _MOST_LATE + _FINE_DELAY, _FINE_DELAY)
    delay = float(tried[np.argmax(np.abs(np.exp(2j * np.pi * np.outer(tried, turns)) @ level))])
    from_mean = 2 * np.pi * (turns - turns.mean())
    for _ in range(_STEPS):  # least squares of the part in quadrature to the sum
        flat = _on_time(grid, level, delay)
        total = max(abs(flat.sum()), np.finfo(np.float64).tiny)
        quadrature = (flat * (flat.sum() / total).conj()).imag
        delay -= float(quadrature @ from_mean / (total * np.mean(from_mean**2)))
    return delay


def aligned(grid: Grid, samples: ComplexArray, num_symbols: int, found: Synchronised, amplitude: float) -> ComplexArray:
    """The samples from the preamble on, as if the carrier were exact and pilots had that real amplitude.

    A correction below four standard deviations of its own estimate is left out: it would add noise, and a recording
    whose oscillator and level are right is decoded as it is.
    """
    received, factor, turn = samples[found.start :], 1.0 + 0.0j, np.angle(found.gain)
    if abs(turn) > _SIGNIFICANT * found.gain_std:
        factor *= np.exp(-1j * turn)
    if abs(abs(found.gain) / amplitude - 1) > _SIGNIFICANT * found.gain_std:
        factor *= amplitude / abs(found.gain)
    if abs(found.offset_hz) > _SIGNIFICANT * found.offset_std_hz:
        received = _turned(received, -found.offset_hz / grid.sample_rate_hz, _middle(grid, num_symbols))
    return np.asarray(received if factor == 1 else received * factor)


def elements_in(grid: Grid, received: ComplexArray, found: Synchronised) -> ComplexArray:
    """The elements of aligned samples, `[symbol, tone]`, without the fraction of a sample by which they are late.

    A fraction mixes neighbouring samples, of the next symbol too: the window then begins a little earlier, in the
    prefix. Without one it stays where it is, because paths may fill the prefix.
    """
    if abs(found.delay) <= _SIGNIFICANT * found.delay_std:
        return demodulate(grid, received)
    early = grid.prefix_samples // 4
    elements = demodulate(grid, np.concatenate([np.zeros(early), received])[: len(received)])
    return _on_time(grid, elements, found.delay + early)
