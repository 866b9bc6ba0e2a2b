"""Channels that are known only nearly: ĥ = h(1 + e).

e is circular complex Gaussian of a stated power, cut off at a stated quantile of its size, so that |e| ≤ e_q always:
what privacy promises is promised up to there, and the certificate says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.errors import Described, InputError
from airdistill.scenario.model import Scenario
from airdistill.streams import stream

_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(200)


@dataclass(frozen=True)
class ChannelError:
    """The relative error of channel estimates: its power σ² before the cut, and the quantile of the cut."""

    power: float = 0.0
    quantile: float = 0.999

    @classmethod
    def of(cls, scenario: Scenario) -> ChannelError:
        radio = scenario.radio
        if radio.csi_error_db is None:
            return cls()
        error = cls(10.0 ** (radio.csi_error_db / 10.0), radio.csi_quantile)
        if error.limit >= 1:
            rule = f"at its {error.quantile:g} quantile the error is {error.limit:.3g} of the channel: must be below 1"
            raise InputError("radio.csi_error_db", Described(f"{radio.csi_error_db:g} dB"), rule)
        return error

    @property
    def exact(self) -> bool:
        """Whether channels are known as they are."""
        return self.power == 0

    @property
    def limit(self) -> float:
        """e_q: |e|² is exponential, so that its quantile is σ² ln(1/(1 − quantile))."""
        return float(np.sqrt(-self.power * np.log1p(-self.quantile)))

    @property
    def slip(self) -> float:
        """E|1/(1+e) − 1|² = E[|e|²/(1 − |e|²)]: how far a signal inverted by ĥ arrives from where it should.

        1/(1+e) is analytic in e, and e is circular: its mean is 1, and half of its variance lies on either axis.
        """
        if self.exact:
            return 0.0
        # |e|² = −σ² ln(1 − quantile·u), u uniform on (0, 1).
        squared = self._squared_size(0.5 * (_NODES + 1))
        return float(0.5 * np.sum(_NODE_WEIGHTS * squared / (1 - squared)))

    def _squared_size(self, uniform: FloatArray) -> FloatArray:
        return np.asarray(-self.power * np.log1p(-self.quantile * uniform))

    def draw(self, num_devices: int, rng: np.random.Generator) -> ComplexArray:
        """e of every device, `[device]`."""
        size = np.sqrt(self._squared_size(rng.random(num_devices)))
        return np.asarray(size * np.exp(2j * np.pi * rng.random(num_devices)))

    def estimate(self, channel: ComplexArray, seed: int, purpose: str, index: int) -> ComplexArray:
        """ĥ of one round or draw, `[device]`; h itself where channels are known exactly."""
        if self.exact:
            return channel
        return np.asarray(channel * (1 + self.draw(len(channel), stream(seed, purpose, index))))


def round_estimate(scenario: Scenario, channel: ComplexArray, round_index: int) -> ComplexArray:
    """What devices and server know of a round's channel `[device]`."""
    return ChannelError.of(scenario).estimate(channel, scenario.seed, "csi-error", round_index)


def planning_estimates(scenario: Scenario, channels: ComplexArray) -> ComplexArray:
    """The same for the planner's draws, `[draw, device]`."""
    error = ChannelError.of(scenario)
    if error.exact:
        return channels
    drawn = [error.estimate(row, scenario.seed, "planning-csi-error", index) for index, row in enumerate(channels)]
    return np.stack(drawn)
