"""The noise of a recorded round, drawn again from the seed and superposed by arithmetic of its own.

Seeded noise is a function of the scenario's seed and the ledger entry. An auditor who has the run's folder can draw it
again and compare: noise that was weakened, left out, reused or put on another axis differs. How an entry becomes a key
(`privacy.ledger`) and a key a generator (`streams`) is written here a second time.
"""

from __future__ import annotations

import hashlib

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.audit.released import Released
from airdistill.channel.link_budget import noise_power_w
from airdistill.privacy.ledger import Ledger
from airdistill.radio.charged_round import filled_symbols, waveform_round
from airdistill.radio.waveform_link import superpose_waveform

_ARTIFICIAL, _IMAGINARY, _RECEIVER = "artificial-noise", "imaginary-noise", "receiver-noise"


def entry_keys(ledger: Ledger) -> list[str]:
    """The key of every entry of this run, in order: empty in ledgers of versions before 0.2.

    It covers what distinguishes the run, and the number of entries and keys of every run that its ledger continues.
    """
    assert ledger.chain is not None
    origin, entries = "", 0
    for body in ledger.chain.bodies():
        if body["kind"] == "opening":
            own = body["terms"].get("noise_key")
            origin = "" if own is None else hashlib.sha256(f"{origin}/{entries}/{own}".encode()).hexdigest()
            entries = 0
        entries += body["kind"] == "release"
    return [f"{origin}-{entry}" if origin else "" for entry in range(1, entries + 1)]


class RedrawnNoise:
    """The noise of recorded rounds, in order: correlated noise depends on that of the rounds before."""

    def __init__(self) -> None:
        self._of_devices: dict[int, FloatArray] = {}  # by round, in units of the estimate

    def can_follow(self, this: Released) -> bool:
        """Whether the noise that a round repeats was drawn again."""
        return this.repeats is None or all(index in self._of_devices for index in range(1, this.index))

    def of(self, this: Released) -> FloatArray:
        """The noise of the estimate, r̂ − q', `[row, entry]`: NaN for a row that was not sent."""
        if this.waveform_link is not None:
            return _through_samples(this)
        if this.repeats is None:
            return redrawn_noise(this)
        shape = (this.design.noise_gain.shape[1], this.plan.uplink.vector_length)
        total, scale = np.zeros(shape), this.design.rx_scale[:, None]
        unit = scale * np.sqrt(this.repeats.variances[this.index - 1])
        for device in np.flatnonzero(this.design.noise_gain.any(axis=1)).tolist():
            total += (
                this.arriving_gain()[device].real[:, None] / unit * standard_normal(this, _ARTIFICIAL, shape, device)
            )
        for index in range(1, this.index):
            total -= this.repeats.matrix[this.index - 1, index - 1] * self._of_devices[index]
        self._of_devices[this.index] = total
        return np.asarray(total + _receiver_noise(this, shape) / scale)


def redrawn_noise(this: Released) -> FloatArray:
    """The same of a round with independent noise."""
    parts = _received_noise(this)
    if not this.plan.uplink.uses_tdma:
        return np.where(this.sent[:, None], parts[0] / np.where(this.sent, this.design.rx_scale, 1.0)[:, None], np.nan)
    scale = np.where(this.sent, this.design.rx_scale, 1.0)
    weights = np.where(this.nominal > 0, this.nominal, 0.0)
    total = sum(weights[device][:, None] * part / scale[device][:, None] for device, part in enumerate(parts))
    complete = (this.sent | (this.nominal == 0)).all(axis=0) & (this.nominal > 0).any(axis=0)
    return np.where(complete[:, None], total, np.nan)


def _through_samples(this: Released) -> FloatArray:
    """The noise of a round that was carried sample by sample: its devices send nothing but their noise."""
    shape = (this.design.noise_gain.shape[1], this.plan.uplink.vector_length)
    signals = np.zeros((len(this.design.noise_gain), *shape))
    for device in np.flatnonzero(this.design.noise_gain.any(axis=1)).tolist():
        signals[device] = this.design.noise_gain[device].real[:, None] * standard_normal(
            this, _ARTIFICIAL, shape, device
        )
    seed = f"{this.plan.scenario.seed}/{this.entry_key}"
    air = waveform_round(this.plan, this.source, this.index, seed)
    received = superpose_waveform(air, filled_symbols(air, this.design, signals)).numbers
    received = received[: signals[0].size].reshape(shape)
    return np.where(this.sent[:, None], received / np.where(this.sent, this.design.rx_scale, 1.0)[:, None], np.nan)


def _received_noise(this: Released) -> list[FloatArray]:
    """The noise on the decision axis, `[row, entry]`: one array, or with TDMA one for each device."""
    plan, design = this.plan, this.design
    tdma = plan.uplink.uses_tdma
    num_devices, num_rows = design.noise_gain.shape
    shape = (num_rows, plan.uplink.vector_length)
    gain = this.arriving_gain()
    receiver = _receiver_noise(this, shape)
    parts = [receiver[device].copy() for device in range(num_devices)] if tdma else [receiver]
    for device in np.flatnonzero(design.noise_gain.any(axis=1)).tolist():
        into = parts[device if tdma else 0]
        into += gain[device].real[:, None] * standard_normal(this, _ARTIFICIAL, shape, device)
        if design.noise_axes == 2:
            into -= gain[device].imag[:, None] * standard_normal(this, _IMAGINARY, shape, device)
    return parts


def _receiver_noise(this: Released, shape: tuple[int, int]) -> FloatArray:
    """The receiver noise on the decision axis, `[row, entry]`, or `[device, row, entry]` with TDMA."""
    radio, combiner = this.plan.scenario.radio, this.design.combiner
    copies: tuple[int, ...] = ()
    if this.plan.uplink.uses_tdma:
        copies = (len(this.design.noise_gain),)
    elif combiner is not None:
        copies = (combiner.shape[1],)
    real, imaginary = standard_normal(this, _RECEIVER, (2, *copies, *shape))
    thermal = (real + 1j * imaginary) / np.sqrt(2) if radio.noise == "complex" else real + 0j
    if combiner is not None:
        thermal = (combiner.conj().T[:, :, None] * thermal).sum(axis=0)
    return np.asarray(np.sqrt(noise_power_w(this.plan.scenario)) * thermal.real)


def standard_normal(this: Released, name: str, shape: tuple[int, ...], device: int = 0) -> FloatArray:
    """Draws of one purpose for the ledger entry of a round."""
    seed = this.plan.scenario.seed
    of_entry = f"{seed}/{this.entry_key}/{name}" if this.entry_key else f"{seed}/{name}"
    return _generator(of_entry, this.index, device).standard_normal(shape)


def _generator(name: str, round_index: int, device: int) -> np.random.Generator:
    """Philox with a digest of the name as key, and device and round as the upper half of its counter."""
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(counter=(round_index << 192) + (device << 128), key=key))
