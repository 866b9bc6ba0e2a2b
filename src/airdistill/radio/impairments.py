"""What real radios do to samples: oscillators, late clocks, amplifiers and converters. NumPy and SciPy only.

Each function states its model. Random ones draw from a stream of their own for every device and round, and draw nothing
if the impairment is absent. Units are those of `radio.iq`: of a device that transmits p watts, the samples of a symbol
without its prefix have p in the sum of their squares, and so `fft_size` · |sample|² is the envelope's power in watts.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.optimize import minimize_scalar

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.channel.waveform import Grid
from airdistill.scenario.sections import Waveform
from airdistill.streams import Seed, stream

_RAPP_SMOOTHNESS = 2


def carrier_offset_hz(wave: Waveform, seed: Seed, round_index: int, device: int) -> float:
    """The carrier offset of a device in a round, uniform within ± `carrier_offset`."""
    if wave.carrier_offset == 0:
        return 0.0
    return float(wave.carrier_offset * stream(seed, "carrier-offset", round_index, device).uniform(-1, 1))


def oscillator_phase(
    grid: Grid, wave: Waveform, seed: Seed, round_index: int, device: int, num_samples: int, age_s: float = 0.0
) -> FloatArray:
    """The phase of a device's oscillator against the receiver's at each of its samples, rad, `[sample]`.

    It is zero at the pilot, `age_s` before the first sample: equalisation removes what was there then. The carrier
    offset f turns it by 2πf a second. Phase noise is a Wiener process: its variance grows by 2πβ a second, with β the
    full linewidth at half of the Lorentzian spectrum's maximum (Pollet, van Bladel and Moeneclaey, IEEE Trans. Commun.
    43, 1995, whose β is half of it).
    """
    sample_s = 1 / grid.sample_rate_hz
    offset = carrier_offset_hz(wave, seed, round_index, device)
    phase = 2 * np.pi * offset * (age_s + sample_s * np.arange(num_samples))
    if wave.phase_noise == 0:
        return np.asarray(phase)
    steps = stream(seed, "phase-noise", round_index, device).standard_normal(num_samples)
    elapsed_s = np.full(num_samples, sample_s)
    elapsed_s[0] = age_s
    return np.asarray(phase + np.cumsum(np.sqrt(2 * np.pi * wave.phase_noise * elapsed_s) * steps))


def largest_delay(grid: Grid, wave: Waveform) -> int:
    """The largest timing error in whole samples."""
    return round(wave.timing_error * grid.sample_rate_hz)


def delay_samples(grid: Grid, wave: Waveform, seed: Seed, round_index: int, device: int) -> int:
    """How many samples late a device transmits in a round: uniform from 0 to the largest timing error, both included.

    Within what the channel leaves of the prefix a delay turns each tone by a fixed phase; beyond it, the receiver's
    window also has a part of the symbol before.
    """
    largest = largest_delay(grid, wave)
    if largest == 0:
        return 0
    return int(stream(seed, "timing-error", round_index, device).integers(largest + 1))


def saturation_amplitude(grid: Grid, wave: Waveform, peak_power: FloatArray) -> FloatArray:
    """The largest magnitude of a sample that each device's amplifier can emit, `[device]`.

    The saturation power is `backoff_db` over `peak_power`, the limit of a device's mean power: the amplifier is built
    once, for the device at its limit, and a device that sends less is further from saturation.
    """
    return np.asarray(np.sqrt(peak_power * 10 ** (wave.backoff_db / 10) / grid.fft_size))


def amplify(wave: Waveform, samples: ComplexArray, saturation: FloatArray) -> ComplexArray:
    """Samples `[device, ...]` behind the devices' amplifiers, which change magnitudes and keep phases.

    The gain at small signals is 1. "clip" is an ideal limiter (soft limiter, with predistortion); "rapp" is the model
    of solid-state amplifiers of Rapp (ESA SP-332, 1991) with smoothness p = 2, r / (1 + (r/A)^(2p))^(1/(2p)). Both act
    at the sample rate: what they add outside the sampled band folds back into it.
    """
    if wave.amplifier == "linear":
        return samples
    drive = np.abs(samples) / saturation.reshape(-1, *[1] * (samples.ndim - 1))
    if wave.amplifier == "clip":
        return np.asarray(samples / np.maximum(drive, 1))
    order = 2 * _RAPP_SMOOTHNESS
    return np.asarray(samples / (1 + drive**order) ** (1 / order))


def quantise(wave: Waveform, samples: ComplexArray) -> ComplexArray:
    """Samples `[sample]` behind the receiver's analogue-to-digital converters, one on each axis.

    They are uniform mid-rise quantisers of 2^`adc_bits` levels that clip. An ideal automatic gain control sets their
    full scale to `load_factor` times the rms of one axis over these samples.
    """
    rms = float(np.sqrt((np.abs(samples) ** 2).mean() / 2))
    if wave.adc_bits is None or rms == 0:
        return samples
    half = 2 ** (wave.adc_bits - 1)
    step = rms * load_factor(wave.adc_bits) / half

    def converted(axis: FloatArray) -> FloatArray:
        return np.asarray((np.clip(np.floor(axis / step), -half, half - 1) + 0.5) * step)

    return converted(samples.real) + 1j * converted(samples.imag)


@lru_cache
def load_factor(bits: int) -> float:
    """The full scale of a uniform quantiser over the rms of a Gaussian signal, for the least squared error.

    Max (IRE Trans. Inf. Theory 6, 1960) tabulates it. The error is a twelfth of the squared step in scale, and the
    distance to the outermost level out of scale.
    """

    from scipy.stats import norm  # imported here because it takes a third of a second, and planning does not need it

    def error(scale: float) -> float:
        step = 2 * scale / 2**bits
        beyond, outermost = norm.sf(scale), scale - step / 2
        clipped = (1 + outermost**2) * beyond + (scale - 2 * outermost) * norm.pdf(scale)
        return float(step**2 / 12 * (1 - 2 * beyond) + 2 * clipped)

    return float(minimize_scalar(error, bounds=(0.5, 12), method="bounded", options={"xatol": 1e-9}).x)
