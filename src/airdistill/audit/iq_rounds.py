"""A planned round as its server receives it: what it leaks exactly, and transcripts of the radio itself to attack.

Every number of every device is transmitted alone through `superpose_waveform`, with the impairments of the scenario.
That makes a dense matrix, and the exact μ² of each row follows from linear algebra that knows none of the factors by
which the planner counts noise. It is for small plans: a matrix of all samples by all numbers of all devices.

Amplifiers are not linear. Behind one, the difference of two signals is transmitted beside a signal of full size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.audit.iq import attack_on
from airdistill.channel.link_budget import noise_power_w
from airdistill.channel.selective import WideChannel
from airdistill.channel.sources import channel_source
from airdistill.errors import AirDistillError
from airdistill.planning.plan import Plan
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.planning.uplink import Uplink
from airdistill.planning.waveform import design_of_round
from airdistill.radio.charged_round import filled_symbols, waveform_round
from airdistill.radio.waveform_link import WaveformRound, superpose_waveform

_NOTHING = 1e-11  # relative amplitude: directions with less noise are rounding error
_SEED = 5


@dataclass(frozen=True)
class RoundOnAir:
    """A round of a plan, the uplink by which the ledger counts it, and the samples of it without receiver noise."""

    plan: Plan
    uplink: Uplink
    design: RoundDesign
    air: WaveformRound
    charged: FloatArray  # μ² of every row for which two vectors are a unit apart, `[device, row]`

    @classmethod
    def of(cls, plan: Plan, round_index: int) -> RoundOnAir:
        source = channel_source(plan.scenario)
        if not isinstance(source, WideChannel):
            raise AirDistillError("waveform.kind = 'single_tone': there are no samples to attack; set it to ofdm")
        known = source.round_channel(round_index)
        design, uplink = design_of_round(plan, source, known, round_index, None)
        air = replace(waveform_round(plan, source, round_index, _SEED), noise_power=0.0)
        counted = uplink.noise_by_trust(design, known)[uplink.trust]
        return cls(plan, uplink, design, air, np.asarray(design.weights**2 / counted))

    def observed(self, numbers: FloatArray) -> FloatArray:
        """What the server keeps of signals `[device, number]`, real parts and imaginary parts `[observation]`."""
        received = superpose_waveform(self.air, numbers)
        kept = received.samples if self.plan.scenario.waveform.observed == "samples" else received.elements.ravel()
        return np.concatenate([kept.real, kept.imag])

    @cached_property
    def rows(self) -> FloatArray:
        """The row that every number carries, `[number]`."""
        return np.repeat(np.arange(self.uplink.num_rows), self.uplink.vector_length)

    @cached_property
    def deviation(self) -> FloatArray:
        """Of every number's noise, `[device, number]`: also of those that fill up symbols, wherever a round has any."""
        silent = np.zeros((len(self.charged), self.uplink.num_rows, self.uplink.vector_length))
        filling = filled_symbols(self.air, self.design, silent) != 0
        last = np.flatnonzero(self.design.rx_scale > 0)[-1]
        found = np.where(filling, np.abs(self.design.noise_gain)[:, last, None], 0.0)
        found[:, : len(self.rows)] += np.abs(self.design.noise_gain)[:, self.rows]
        return found

    @cached_property
    def amplitude(self) -> FloatArray:
        """A row's numbers over its vector's entries, `[device, row]`."""
        return np.asarray(np.abs(self.design.signal_gain) * np.sqrt(self.uplink.energy_slots))

    @cached_property
    def maps(self) -> FloatArray:
        """What every number of every device becomes at the server, `[device, observation, number]`; no amplifiers."""
        linear = replace(self, air=replace(self.air, wave=self.air.wave.model_copy(update={"amplifier": "linear"})))
        num_devices, num_numbers = self.deviation.shape
        units = np.eye(num_devices * num_numbers).reshape(-1, num_devices, num_numbers)
        kept = np.stack([linear.observed(unit) for unit in units])
        return kept.reshape(num_devices, num_numbers, -1).transpose(0, 2, 1)

    @cached_property
    def noise(self) -> FloatArray:
        """A factor of the noise's covariance that counts, `[observation, source]`."""
        parts = [part * each for part, each in zip(self.maps, self.deviation, strict=True)]
        if self.uplink.trust_model.counts_receiver:
            parts.append(np.sqrt(noise_power_w(self.plan.scenario) / 2) * np.eye(self.maps.shape[1]))
        return np.concatenate(parts, axis=1)

    @cached_property
    def _white(self) -> FloatArray:
        left, values, _ = np.linalg.svd(self.noise, full_matrices=False)
        kept = values > _NOTHING * values[0]
        return np.asarray(left[:, kept].T / values[kept, None])

    def exact(self) -> FloatArray:
        """μ² of every row for which two vectors are a unit apart, `[device, row]`, without amplifiers."""
        each = [np.linalg.norm(self._white @ self._carried(row), 2, axis=(1, 2)) for row in range(self.uplink.num_rows)]
        return np.asarray((np.stack(each, axis=1) * self.amplitude) ** 2)

    def _carried(self, row: int) -> FloatArray:
        return self.maps[:, :, np.flatnonzero(self.rows == row)]

    def attacked(self, num_transcripts: int, certified: float, seed: int = 0) -> tuple[float, FloatArray, FloatArray]:
        """The attack's μ, and its scores on half as many transcripts of either of two vectors.

        They differ where the round leaks most of what it is charged for, by a unit. All noise is scaled so that the
        charge comes to the `certified` μ: that a thousand transcripts can refute it.
        """
        ratio = np.where(self.charged > 0, self.exact() / np.where(self.charged > 0, self.charged, 1.0), 0.0)
        device, row = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        rng, scale = np.random.default_rng(seed), float(np.sqrt(self.charged[device, row])) / certified
        moved = np.zeros(self.deviation.shape)
        direction = np.linalg.svd(self._white @ self._carried(int(row))[device])[2][0]
        moved[device, np.flatnonzero(self.rows == row)] = direction * self.amplitude[device, row]
        base = self._payload(rng) if self.plan.scenario.waveform.amplifier != "linear" else np.zeros_like(moved)
        known = self.observed(base)
        attack = attack_on(self.observed(base + moved) - known, self.noise, scale**2)
        receiver = self.uplink.trust_model.counts_receiver * np.sqrt(noise_power_w(self.plan.scenario) / 2)
        found = np.empty(num_transcripts)
        for trial in range(num_transcripts):
            sent = base + scale * self.deviation * rng.standard_normal(moved.shape) + moved * (trial % 2)
            thermal = scale * receiver * rng.standard_normal(len(known))
            found[trial] = attack.scores(self.observed(sent) + thermal - known)
        return attack.mu, found[::2], found[1::2]

    def _payload(self, rng: np.random.Generator) -> FloatArray:
        """Signals of random vectors of full norm, `[device, number]`."""
        drawn = rng.random((len(self.charged), self.uplink.num_rows, self.uplink.vector_length))
        vectors = drawn * (self.uplink.largest_norm / np.linalg.norm(drawn, axis=2, keepdims=True))
        found = np.zeros(self.deviation.shape)
        found[:, : len(self.rows)] = (self.amplitude[..., None] * vectors).reshape(len(found), -1)
        return found
