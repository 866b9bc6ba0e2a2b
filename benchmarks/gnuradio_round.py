"""A round through GNU Radio's own channel blocks: its error against the prediction.

1. The flow graph starts: a fading channel for every device, an adder, and the receiver's noise.
2. Every device hears a pilot through its channel, with noise, and estimates its tones.
3. The round is designed for these estimates; devices equalise, add noise, and send at once.
4. The server finds the frame by its preamble and decodes it: `airdistill radio decode` without the file.
The prediction is that of the design, v = (Σ|h P2|² + noise)/λ², plus what errors of the estimates add to the signals.

    python benchmarks/gnuradio_round.py [--devices 20] [--rounds 8] [--seed 0]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from airdistill.channel.selective import WideLink
from airdistill.channel.waveform import Grid
from airdistill.planning.transceiver.design import design_round
from airdistill.radio.decoding import decode
from airdistill.radio.gnu_radio import FlowGraph, FlowGraphOptions
from airdistill.radio.iq import demodulate, elements_of, modulate, scrambling, spread
from airdistill.radio.preamble import framed, known_elements
from airdistill.radio.recordings import Contents, Recording
from airdistill.radio.superposition import transmit, weighted_sum
from airdistill.scenario.sections import Waveform

WAVE = Waveform(kind="ofdm")
GRID = Grid(WAVE.tones, WAVE.spacing, WAVE.cyclic_prefix, WAVE.axes)
CLASSES, PEAK_POWER_W, NOISE_POWER_W = 40, 1e-3, 5e-16  # noise: a tone of 30 kHz at a noise figure of 6 dB
REQUIRED_NOISE_VAR = 0.02
EARLY = GRID.prefix_samples // 4  # the window begins in the prefix: GNU Radio's filters look ahead
KINDS = ("channel_model", "fading_model", "selective_fading_model")


@dataclass(frozen=True)
class Measured:
    """Mean squared errors of the estimate, `[round]`, with the parts of the prediction."""

    error: np.ndarray
    device_noise: np.ndarray
    receiver_noise: np.ndarray
    channel_errors: np.ndarray

    @property
    def predicted(self) -> np.ndarray:
        return self.device_noise + self.receiver_noise + self.channel_errors

    @property
    def difference_db(self) -> float:
        """All rounds together."""
        return float(10 * np.log10(self.error.mean() / self.predicted.mean()))


def options_of(kind: str, num_devices: int, rng: np.random.Generator) -> FlowGraphOptions:
    """Devices from 100 to 500 m away; amplitudes at 915 MHz with a path-loss exponent of 3."""
    amplitude = 0.0261 * rng.uniform(100, 500, num_devices) ** -1.5
    noise = {"noise": float(np.sqrt(NOISE_POWER_W)), "noise_seed": int(rng.integers(1, 2**31))}
    seeds = rng.integers(1, 2**31, num_devices)
    if kind == "channel_model":
        profile = np.sqrt(0.5 ** np.arange(1, 7))
        drawn = rng.standard_normal((num_devices, 6)) + 1j * rng.standard_normal((num_devices, 6))
        taps = amplitude[:, None] * profile * drawn / np.sqrt(2)
        devices = [{"taps": [[tap.real, tap.imag] for tap in own], "offset": 0.0} for own in taps]
        return FlowGraphOptions(kind, devices, **noise)
    devices = [{"amplitude": float(a), "seed": int(s)} for a, s in zip(amplitude, seeds, strict=True)]
    if kind == "selective_fading_model":
        paths = {"delays": [0.0, 2.5, 6.0, 11.3], "magnitudes": [0.7, 0.5, 0.4, 0.3]}
        devices = [device | paths for device in devices]
    # 1.4 m/s at 915 MHz is a Doppler shift of 4.3 Hz.
    return FlowGraphOptions(kind, devices, fading={"doppler": 4.3 / GRID.sample_rate_hz, "taps": 24}, **noise)


def sounded(graph: FlowGraph, num_devices: int, rng: np.random.Generator) -> WideLink:
    """What devices know of their channels from a downlink pilot of 0.1 W in all tones, over a reciprocal channel."""
    amplitude = np.sqrt(WAVE.pilot_power / GRID.tones)
    pilot = modulate(GRID, amplitude * known_elements(GRID)[1:])
    received, _ = graph.carry(np.broadcast_to(pilot, (num_devices, len(pilot))))
    window = received[:, 64 - EARLY :][:, : GRID.symbol_samples]
    shape = window.shape
    noise = np.sqrt(NOISE_POWER_W / 2) * (rng.standard_normal(shape) + 1j * rng.standard_normal(shape))
    known = demodulate(GRID, window + noise)[:, 0] / (amplitude * known_elements(GRID)[1])
    variance = np.full(known.shape, NOISE_POWER_W / amplitude**2)
    return WideLink(GRID, WAVE, np.zeros((num_devices, 1), np.complex128), known, variance, np.ones(num_devices))


def played(
    graph: FlowGraph, num_devices: int, index: int, rng: np.random.Generator
) -> tuple[float, float, float, float]:
    """One round: its squared error, and the three parts of the prediction."""
    link = sounded(graph, num_devices, rng)
    counts = rng.integers(20, 100, (num_devices, CLASSES))
    vectors = rng.dirichlet(np.full(CLASSES, 0.3), (num_devices, CLASSES))
    required = np.full(counts.shape, REQUIRED_NOISE_VAR)
    design = design_round(counts, link.gain, PEAK_POWER_W, NOISE_POWER_W / 2, required, "fleet_noise")
    sent = transmit(design, vectors, rng.standard_normal(vectors.shape), CLASSES).real.reshape(num_devices, -1)
    pilot_amplitude = float(np.sqrt(GRID.axes * PEAK_POWER_W) * link.gain.sum())
    contents = Contents(
        GRID, "dft", 0, index, CLASSES, CLASSES, design.rx_scale, pilot_amplitude, NOISE_POWER_W,
        design.effective_noise_var,
    )  # fmt: skip
    phases = scrambling(GRID, contents.num_symbols, 0, index)
    own = np.sqrt(GRID.axes * PEAK_POWER_W)
    frames = [
        modulate(GRID, framed(GRID, spread(elements_of(GRID, x), phases), own) * gain * equaliser)
        for x, gain, equaliser in zip(sent, link.gain, link.equaliser, strict=True)
    ]
    _, received = graph.carry(np.stack(frames))
    decoded = decode(Recording(received, contents, 915e6, {}))
    error = np.mean((decoded.knowledge - weighted_sum(design.weights, vectors)) ** 2)
    scale_sq = design.rx_scale**2
    noise_gain = (link.gain[:, None] * np.abs(design.noise_gain)) ** 2
    misaligned = link.misalignment(0.0)[:, None] * (design.weights**2 * (vectors**2).mean(axis=2))
    parts = (noise_gain.sum(axis=0) / scale_sq, NOISE_POWER_W / 2 / scale_sq, misaligned.sum(axis=0))
    return (float(error), *(float(part.mean()) for part in parts))


def measure(kind: str, num_devices: int, num_rounds: int, seed: int) -> Measured:
    rng = np.random.default_rng(seed)
    with FlowGraph(options_of(kind, num_devices, rng)) as graph:
        rounds = [played(graph, num_devices, index, rng) for index in range(1, num_rounds + 1)]
    return Measured(*np.array(rounds).T)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print("| GNU Radio's block | error | predicted | devices' noise | receiver noise | channel errors | difference |")
    print("|---|---|---|---|---|---|---|")
    for kind in KINDS:
        found = measure(kind, given.devices, given.rounds, given.seed)
        parts = (found.error, found.predicted, found.device_noise, found.receiver_noise, found.channel_errors)
        numbers = " | ".join(f"{part.mean():.3e}" for part in parts)
        print(f"| `{kind}` | {numbers} | {found.difference_db:+.2f} dB |")


if __name__ == "__main__":
    main()
