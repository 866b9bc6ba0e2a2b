"""Draw docs/images/waveform.png: the spectrum of a device and of the sum, and the numbers that the server receives.

One charged round of 60 devices through tapped delay lines, at full strength and without training: random votes. Run it
with `python docs/making/waveform_picture.py`.
"""

from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.signal import welch

import airdistill as ad
from airdistill.channel.sources import channel_source
from airdistill.files import write_whole
from airdistill.privacy.ledger import Ledger
from airdistill.radio.charged_round import charge_round, waveform_round
from airdistill.radio.waveform_link import device_samples, superpose_waveform
from airdistill.report.drawing import rendered
from airdistill.runs.accounts import Inputs, ledger_header

PICTURE = Path(__file__).parents[1] / "images" / "waveform.png"
CHANGES = [
    "fleet.devices=60", "waveform.kind=ofdm", "waveform.observed=elements", "air.medium=waveform", "radio.fading=tdl-a",
    "radio.distance=100 m", "radio.peak_power=100 mW", "waveform.pilot_symbols=20", "public.samples=600",
]  # fmt: skip


def main() -> None:
    plan = ad.plan(ad.load("skewed", CHANGES), scheme="airdistill_proxy")
    source = channel_source(plan.scenario)
    ledger = Ledger(replace(ledger_header(plan, "airdistill_proxy", "private", Inputs("drawn")), enforced=False))
    charged = charge_round(plan, ledger, source, 1)
    votes = np.eye(10)[np.random.default_rng(0).integers(10, size=(60, 600))]
    vectors = votes.reshape(60, 1, -1) * plan.uplink.largest_norm / np.sqrt(600)
    sent = replace(charged.on_air, permission=None).transmit(charged.design, vectors, plan.uplink.energy_slots)
    air = waveform_round(plan, source, 1, "drawn")
    numbers = sent.real.reshape(60, -1)
    received = superpose_waveform(air, numbers)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), width_ratios=(3, 2))
    _spectra(left, air, device_samples(air, numbers[0], 0), received.samples)
    _constellation(right, charged, received.numbers, vectors)
    figure.tight_layout()
    write_whole(PICTURE, rendered(figure, "png"))


def _spectra(axes: plt.Axes, air, transmitted, received) -> None:
    rate = air.grid.sample_rate_hz
    for samples, label in ((transmitted, "one device transmits"), (received, "the server receives")):
        frequency, density = welch(samples, rate, nperseg=1024, return_onesided=False)
        order = np.argsort(frequency)
        axes.plot(frequency[order] / 1e6, 10 * np.log10(density[order] / density.max()), linewidth=0.8, label=label)
    axes.set(xlabel="MHz from the carrier", ylabel="dB relative to the peak of each", ylim=(-45, 3))
    axes.legend(loc="lower center")


def _constellation(axes: plt.Axes, charged, numbers, vectors) -> None:
    estimate = numbers / charged.design.rx_scale[0]
    ideal = np.einsum("i,ik->k", charged.design.weights[:, 0], vectors[:, 0])
    for values, label, size in ((estimate, "received", 3), (ideal, "without noise", 6)):
        pairs = values[: 2 * (len(values) // 2)].reshape(-1, 2)[:1200]
        axes.scatter(pairs[:, 0], pairs[:, 1], s=size, label=label, alpha=0.6)
    axes.set(xlabel="real axis: a number", ylabel="imaginary axis: the next", aspect="equal")
    axes.legend(loc="upper right")


if __name__ == "__main__":
    main()
