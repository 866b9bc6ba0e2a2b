"""Receptions of known knowledge, as a recorder would have them."""

import numpy as np

from airdistill.channel.waveform import Grid
from airdistill.radio.iq import elements_of, modulate, scrambling, spread
from airdistill.radio.preamble import framed
from airdistill.radio.recordings import Contents

WIDE = Grid(612, 30e3, 2.34375e-6, 2)
NARROW = Grid(48, 312.5e3, 0.8e-6, 1)
AMPLITUDE = 3e-7  # √W: what is received is small
SEED = 5


def contents_of(grid, rows=10, entries=130, spreading="dft", noise_power=0.0):
    scale = np.linspace(1e-7, 4e-7, rows)
    counts = {"round_index": 3, "rows": rows, "entries": entries, "scrambling_seed": SEED}
    planned = {"rx_scale": scale, "noise_power": noise_power, "noise_var": np.full(rows, 0.5)}
    return Contents(grid=grid, spreading=spreading, pilot_amplitude=AMPLITUDE, **counts, **planned, scheme="ota_fd")


def reception(contents, rng, noise_power=0.0):
    """The knowledge that is sent, and the samples of an ideal channel."""
    grid, knowledge = contents.grid, rng.random((contents.rows, contents.entries))
    numbers = elements_of(grid, (knowledge * contents.rx_scale[:, None]).reshape(-1))
    phases = scrambling(grid, contents.num_symbols, SEED, contents.round_index)
    elements = spread(numbers, phases) if contents.spreading == "dft" else numbers * phases
    samples = modulate(grid, framed(grid, elements, contents.pilot_amplitude))
    return knowledge, samples + noise_of(rng, len(samples), noise_power)


def noise_of(rng, length, power):
    return np.sqrt(power / 2) * (rng.standard_normal(length) + 1j * rng.standard_normal(length))
