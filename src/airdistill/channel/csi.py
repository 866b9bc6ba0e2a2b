"""Imperfect channel state information: ĥ = h(1 + e).

e is circularly symmetric complex Gaussian of a given power, truncated at a given quantile of its magnitude, and so
|e| ≤ e_q always. The noise of a round is designed for this bound. Errors of real channels are not truncated: the
probability that one is larger, over all devices and rounds, is part of the δ that a certificate states.
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
    """The relative error of channel estimates: its power σ² before truncation, and the quantile of the truncation."""

    power: float = 0.0
    quantile: float = 0.999

    @classmethod
    def of(cls, scenario: Scenario) -> ChannelError:
        """The channel error that a scenario declares."""
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
        """Whether the channel state information is perfect."""
        return self.power == 0

    @property
    def limit(self) -> float:
        """e_q: |e|² is exponential, and so its quantile is σ² ln(1/(1 − quantile))."""
        return float(np.sqrt(-self.power * np.log1p(-self.quantile)))

    def excess_probability(self, num_draws: int) -> float:
        """The probability that any of so many errors is beyond the limit, by the union bound; 0 if there are none."""
        return 0.0 if self.exact else min(1.0, num_draws * (1.0 - self.quantile))

    @property
    def misalignment(self) -> float:
        """E|1/(1+e) − 1|² = E[|e|²/(1 − |e|²)]: the residual misalignment of a signal that was inverted by ĥ.

        1/(1+e) is analytic in e, and e is circularly symmetric: the mean is 1, and each axis has half of the variance.
        """
        if self.exact:
            return 0.0
        # |e|² = −σ² ln(1 − quantile·u), u uniform on (0, 1).
        squared = self._squared_magnitude(0.5 * (_NODES + 1))
        return float(0.5 * np.sum(_NODE_WEIGHTS * squared / (1 - squared)))

    def _squared_magnitude(self, uniform: FloatArray) -> FloatArray:
        return np.asarray(-self.power * np.log1p(-self.quantile * uniform))

    def draw(self, num_devices: int, rng: np.random.Generator) -> ComplexArray:
        """Draw e of every device, `[device]`."""
        magnitude = np.sqrt(self._squared_magnitude(rng.random(num_devices)))
        return np.asarray(magnitude * np.exp(2j * np.pi * rng.random(num_devices)))

    def estimate(self, channel: ComplexArray, seed: int, purpose: str, index: int) -> ComplexArray:
        """Draw ĥ of one round or draw, `[device]`; h itself with perfect channel state information."""
        if self.exact:
            return channel
        return np.asarray(channel * (1 + self.draw(len(channel), stream(seed, purpose, index))))


def round_estimate(scenario: Scenario, channel: ComplexArray, round_index: int) -> ComplexArray:
    """The estimate of a round's channel `[device]`, which devices and server share."""
    return ChannelError.of(scenario).estimate(channel, scenario.seed, "csi-error", round_index)


def planning_estimates(scenario: Scenario, channels: ComplexArray) -> ComplexArray:
    """Estimates of the planner's channel draws, `[draw, device]`."""
    error = ChannelError.of(scenario)
    if error.exact:
        return channels
    drawn = [error.estimate(row, scenario.seed, "planning-csi-error", index) for index, row in enumerate(channels)]
    return np.stack(drawn)
