"""A round of OFDM sample by sample: time and peak memory, without impairments, with each of them, and with all.

    OMP_NUM_THREADS=1 python benchmarks/iq_round.py

Seconds are of processor time, the least of three rounds. Memory is what a round allocates beyond the devices' signals
and taps. The channel has 24 taps and changes from symbol to symbol.
"""

import time
import tracemalloc
from dataclasses import replace

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.channel.selective import WideLink
from airdistill.channel.waveform import Grid
from airdistill.radio.pilots import estimate_channel, pilot_error_var
from airdistill.radio.waveform_link import WaveformRound, superpose_waveform
from airdistill.scenario.sections import Waveform

REPEATS = 3
NUM_TAPS = 24
NOISE_W = 5e-16  # in a tone
IMPAIRMENTS: dict[str, dict[str, object]] = {
    "carrier offset": {"carrier_offset": 100.0},
    "phase noise": {"phase_noise": 10.0},
    "timing": {"timing_error": 3e-7},
    "amplifier, clip": {"amplifier": "clip", "backoff_db": 6.0},
    "amplifier, rapp": {"amplifier": "rapp", "backoff_db": 6.0},
    "converter": {"adc_bits": 8},
}
ALL = {name: value for given in IMPAIRMENTS.values() for name, value in given.items()}


def a_round(num_devices: int, num_numbers: int) -> tuple[WaveformRound, FloatArray]:
    """A round whose devices know their channels from the server's pilot, and signals at full power."""
    wave, power = Waveform(kind="ofdm"), np.full(num_devices, 1e-3)
    grid = Grid(wave.tones, wave.spacing, wave.cyclic_prefix, wave.axes)
    rng = np.random.default_rng(0)
    profile = 1e-6 * np.exp(-np.arange(NUM_TAPS) / 6)
    taps = rng.standard_normal((num_devices, grid.num_symbols(num_numbers), NUM_TAPS, 2)) @ [1, 1j] * profile
    links = [(1, device) for device in range(num_devices)]
    known = [estimate_channel(grid, wave, taps[link[1], 0], NOISE_W, wave.pilot_power, 0, link) for link in links]
    error_var = np.tile(pilot_error_var(grid, wave, NOISE_W, wave.pilot_power), (num_devices, 1))
    link = WideLink(grid, wave, taps[:, 0], np.stack(known), error_var, np.full(num_devices, (profile**2).sum() * 2))
    this = WaveformRound(grid, wave, taps, link.known, link.gain, power, NOISE_W, 1, 0, 0)
    return this, np.sqrt(1e-3) * rng.standard_normal((num_devices, num_numbers))


def measure(this: WaveformRound, signals: FloatArray) -> tuple[float, int]:
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        superpose_waveform(this, signals)
        seconds.append(time.process_time() - start)
    tracemalloc.start()
    superpose_waveform(replace(this), signals)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return min(seconds), peak


def main() -> None:
    print(f"{'devices':>7} {'numbers':>8}  {'impairment':<16} {'seconds':>8} {'MB':>7}")
    for num_devices, num_numbers in ((20, 100), (200, 30_000)):
        this, signals = a_round(num_devices, num_numbers)
        for name, given in {"none": {}, **IMPAIRMENTS, "all": ALL}.items():
            wave = this.wave.model_copy(update=given)
            seconds, peak = measure(replace(this, wave=wave), signals)
            print(f"{num_devices:>7} {num_numbers:>8}  {name:<16} {seconds:>8.4f} {peak / 1e6:>7.1f}")


if __name__ == "__main__":
    main()
