"""Numbers as baseband samples and back: resource elements, spreading, OFDM symbols. NumPy only; no channel, no noise.

Arrays: numbers `[..., number]` are real, in the order of a payload's rows and entries; elements
`[..., symbol, tone]` and samples `[..., sample]` are complex. All transforms are unitary on what they carry: the energy
of numbers, of elements and of a symbol's samples without its prefix is the same.
"""

from __future__ import annotations

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.channel.waveform import Grid
from airdistill.streams import stream

# Anyone may know the phases, and recordings name their seed: it must not be the scenario's, which seeds noise.
SCRAMBLING_SEED = 0


def elements_of(grid: Grid, numbers: FloatArray) -> ComplexArray:
    """Lay numbers `[..., number]` on elements, `[..., symbol, tone]`: one or two in each, and zeros at the end."""
    num_symbols = grid.num_symbols(numbers.shape[-1])
    missing = num_symbols * grid.numbers_per_symbol - numbers.shape[-1]
    filled = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, missing)])
    laid = filled.reshape(*numbers.shape[:-1], num_symbols, grid.tones, grid.axes)
    if grid.axes == 1:
        return laid[..., 0].astype(np.complex128)
    return np.asarray(laid[..., 0] + 1j * laid[..., 1])


def numbers_of(grid: Grid, elements: ComplexArray, num_numbers: int) -> FloatArray:
    """The first numbers that elements `[..., symbol, tone]` carry, `[..., number]`."""
    parts = [elements.real] if grid.axes == 1 else [elements.real, elements.imag]
    laid = np.stack(parts, axis=-1)
    return np.asarray(laid.reshape(*elements.shape[:-2], -1)[..., :num_numbers])


def scrambling(grid: Grid, num_symbols: int, seed: int, round_index: int) -> ComplexArray:
    """Public random phases of all elements, `[symbol, tone]`: no payload concentrates its energy on one tone."""
    turns = stream(seed, "waveform-scrambling", round_index).random((num_symbols, grid.tones))
    return np.asarray(np.exp(2j * np.pi * turns))


def spread(elements: ComplexArray, phases: ComplexArray) -> ComplexArray:
    """Scramble elements `[..., symbol, tone]`, and spread each over all tones of its symbol."""
    return np.asarray(np.fft.fft(elements * phases, axis=-1, norm="ortho"))


def despread(elements: ComplexArray, phases: ComplexArray) -> ComplexArray:
    """The inverse of `spread`."""
    return np.asarray(np.fft.ifft(elements, axis=-1, norm="ortho") * phases.conj())


def modulate(grid: Grid, elements: ComplexArray) -> ComplexArray:
    """OFDM symbols with their prefixes, one after another, `[..., sample]`, from elements `[..., symbol, tone]`."""
    spectrum = np.zeros((*elements.shape[:-1], grid.fft_size), dtype=np.complex128)
    spectrum[..., grid.bins] = elements
    useful = np.fft.ifft(spectrum, axis=-1, norm="ortho")
    with_prefix = np.concatenate([useful[..., grid.fft_size - grid.prefix_samples :], useful], axis=-1)
    return with_prefix.reshape(*elements.shape[:-2], -1)


def demodulate(grid: Grid, samples: ComplexArray) -> ComplexArray:
    """Elements `[..., symbol, tone]` of whole symbols that begin at the first of the samples `[..., sample]`."""
    num_symbols = samples.shape[-1] // grid.symbol_samples
    cut = samples[..., : num_symbols * grid.symbol_samples]
    symbols = cut.reshape(*samples.shape[:-1], num_symbols, grid.symbol_samples)
    return np.asarray(np.fft.fft(symbols[..., grid.prefix_samples :], axis=-1, norm="ortho")[..., grid.bins])
