"""By which factor χ less noise counts in a round of a waveform, for what the server keeps and what radios do.

The theorems are in `privacy.waveform` and `privacy.impairments`; this file applies them to the links of a round. They
hold for channels that are known exactly, or for one path, of which pilots tell the size on every tone. The scenario's
rules refuse the rest.

* **Every sample kept, fleet noise**: the exact factor of the cyclic prefix. One path repeats in the prefix what
  elements show. Impairments are refused.
* **Oscillators, fleet noise on elements**: the theorem of deviations. Carrier offsets are bounded, and phase noise but
  for a probability that is charged to δ.
* **Receiver noise**: the energy that a signal delivers, with what late paths turn differently. Amplifiers leave a
  signal's difference its energy at the antenna: the factor is the dynamic range of the channel.
* **Late devices**: nothing, as long as their delays and those of the channel fit the cyclic prefix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from airdistill.arrays import BoolArray, FloatArray
from airdistill.channel.selective import WideLink
from airdistill.channel.waveform import Grid
from airdistill.errors import InputError
from airdistill.privacy.impairments import (
    Turns,
    limiter_factor,
    offset_turns,
    phase_noise_turns,
    receiver_deviation_factor,
    rotation_deviation,
)
from airdistill.privacy.trust import ReceiverNoise, trust_statement
from airdistill.privacy.waveform import FleetChannels, prefix_factor, receiver_factor
from airdistill.scenario.model import Scenario


@dataclass(frozen=True)
class LinkFactors:
    """The factors of a round's links for the `sending` devices, a mask; |r| of every signal is at most 1 + `limit`.

    Phase noise turns none of the run's `num_symbols`, of all devices, further than counted, but for `probability`.
    """

    scenario: Scenario
    link: WideLink
    sending: BoolArray
    limit: float
    num_symbols: int
    probability: float

    def of_fleet(self, shares: FloatArray, on_tones: float) -> float:
        """χ of the fleet's noise, over the (1 + limit)²/V that elements cost; at least 1.

        `shares` `[device]` is each device's part of the noise, `on_tones` is V, the least that arrives on a tone.
        """
        if self._own_only:
            return 1.0
        if keeps_samples(self.scenario):
            if self._one_path:
                return 1.0
            return max(1.0, on_tones * self._largest(prefix_factor(self._channels, shares)) / (1 + self.limit) ** 2)
        if not self._turning:
            return 1.0
        # The signal may be as strong as the limit allows.
        room = 1 + self.limit - np.abs(self._channels.gain)
        mixing = rotation_deviation(self._channels, self._turns, room)
        covered = math.sqrt(on_tones) - math.sqrt(float(shares @ mixing**2))
        if covered <= 0:
            return np.inf
        return (1 + self._largest(mixing) / (1 + self.limit)) ** 2 * on_tones / covered**2

    def of_receiver(self) -> float:
        """χ of the receiver noise, over (1 + limit)². None is known where it does not count and samples are kept."""
        if self._own_only:
            return 1.0
        wave, kept = self.scenario.waveform, keeps_samples(self.scenario)
        if trust_statement(self.scenario.privacy.trust).name != ReceiverNoise.name:
            return np.inf if kept or has_impairments(self.scenario) else 1.0
        if self._one_path:
            # A prefix repeats a part of its symbol; turns and amplifiers add no energy to a difference of samples.
            return 2.0 if kept and self.link.grid.prefix_samples else 1.0
        if wave.amplifier != "linear":
            whole = kept or self._turning  # a symbol whose samples turn does not repeat its end
            return max(1.0, self._largest(limiter_factor(self._channels, "samples" if whole else "elements")))
        if not kept and not self._turning:
            return 1.0
        factor = receiver_factor(self._channels) if kept else (np.abs(self._channels.gain) ** 2).max(axis=1)
        if self._turning:
            factor = receiver_deviation_factor(factor, self._channels, turns=self._turns)
        return max(1.0, self._largest(factor))

    def _largest(self, factor: FloatArray) -> float:
        """Of the devices that send; the others reveal nothing, and may have no noise."""
        return float(factor.max(initial=0.0, where=self.sending))

    @property
    def _own_only(self) -> bool:
        return trust_statement(self.scenario.privacy.trust).counts_own_only

    @property
    def _one_path(self) -> bool:
        return int(self.link.taps.shape[1]) == 1

    @property
    def _turning(self) -> bool:
        wave = self.scenario.waveform
        return wave.carrier_offset > 0 or wave.phase_noise > 0

    @property
    def _channels(self) -> FleetChannels:
        return FleetChannels(self.link.grid, self.link.taps, self.link.equaliser)

    @property
    def _turns(self) -> Turns:
        """Of carrier offset and phase noise together."""
        wave, channels = self.scenario.waveform, self._channels
        turns = offset_turns(channels, wave.carrier_offset)
        if wave.phase_noise == 0:
            return turns
        more = phase_noise_turns(channels, wave.phase_noise, self.num_symbols, self.probability)
        return Turns(turns.within_symbol + more.within_symbol, turns.over_delay + more.over_delay)


def keeps_samples(scenario: Scenario) -> bool:
    """Whether noise of others must be counted for a server that keeps every sample, cyclic prefixes included."""
    trust = trust_statement(scenario.privacy.trust)
    return scenario.waveform.observed == "samples" and not trust.counts_own_only


def has_impairments(scenario: Scenario) -> bool:
    """Whether oscillators, clocks or amplifiers of the devices are not ideal."""
    wave = scenario.waveform
    return wave.amplifier != "linear" or max(wave.carrier_offset, wave.phase_noise, wave.timing_error) > 0


def check_delays(scenario: Scenario, link: WideLink) -> None:
    """Raise if a late device's signal may reach beyond the cyclic prefix: no factor is proven for it."""
    grid = Grid.of(scenario)
    privacy = scenario.privacy
    unused = trust_statement(privacy.trust).counts_own_only or math.isinf(min(privacy.epsilon.numbers))
    if grid is None or scenario.waveform.timing_error == 0 or unused:
        return
    late = math.ceil(scenario.waveform.timing_error * grid.sample_rate_hz)
    paths = link.taps.shape[1] - 1
    if paths + late > grid.prefix_samples:
        rule = (
            f"{late} samples late, and paths of {paths}, do not fit a cyclic prefix of {grid.prefix_samples}: no noise "
            "of others is proven to count beyond it; lengthen waveform.cyclic_prefix, or use own_noise"
        )
        raise InputError("waveform.timing_error", scenario.waveform.timing_error, rule)
