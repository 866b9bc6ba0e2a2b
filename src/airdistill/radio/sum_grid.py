"""The whole numbers that devices hand to a secure sum, in place of signals to the air.

A secure sum has no channel and no receiver: the devices' noise is all there is. Every device adds the same share of
what the round's design asks of the fleet. It was planned for drop-outs: what any `least_devices` add is enough.
Values lie on a common grid, as those of secure noise do (`grid`), and the sum of as many of them as there are devices
must not wrap: `largest` says how large a device's number may be.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray, IntArray, divide_or
from airdistill.planning.plan import Plan
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.privacy.release import TRUST_MODELS, Release
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.radio.discrete_noise import LEAST_UNITS, SecureGrid, discrete_gaussian, rounded_on_grid, secure_grid
from airdistill.radio.superposition import seeded_noise

# Standard deviations of noise that a number has room for: one in 10^55 draws would leave it.
_ROOM = 16.0


@dataclass(frozen=True)
class SumGrid:
    """One round's. `grid` has every device's weights and noise, the same noise for all."""

    grid: SecureGrid
    least_devices: int
    plan: Plan
    design: RoundDesign
    round_index: int

    @classmethod
    def of(cls, plan: Plan, design: RoundDesign, channel: ComplexArray, round_index: int) -> SumGrid:
        """For the noise that a design asks of the fleet together, whatever channel it was made for."""
        num_devices = plan.fleet.num_devices
        least = num_devices - plan.scenario.fleet.expected_dropouts
        air = secure_grid(plan, design, channel, round_index)
        wanted = plan.uplink.noise_by_trust(design, channel)["fleet_noise"][0]
        each = np.sqrt(np.where(np.isfinite(wanted), wanted, 0.0) / num_devices)
        spacing = np.minimum(air.spacing, _spacing_for(each))
        deviation = np.broadcast_to(each, air.amplitude.shape)
        grid = SecureGrid(spacing, air.amplitude, deviation, np.ones_like(air.unit), air.vector_length)
        return cls(grid, least, plan, design, round_index)

    @property
    def digest(self) -> str:
        """Of all that everybody must have alike for the sum to mean anything: grid, weights and noise."""
        arrays = (self.grid.spacing, self.grid.amplitude, self.grid.deviation)
        return hashlib.sha256(b"".join(np.ascontiguousarray(array, "<f8").tobytes() for array in arrays)).hexdigest()

    @property
    def num_values(self) -> int:
        return len(self.grid.spacing) * self.grid.vector_length

    @property
    def largest(self) -> int:
        """The largest number that a device may send, in magnitude: its vector's, whose norm is bounded, and noise."""
        vector = self.grid.amplitude.max(axis=0) * self.plan.uplink.largest_norm
        return int(np.ceil((vector + _ROOM * self.grid.deviation[0]) / self.grid.spacing).max()) + 1

    def release(self) -> Release:
        """What a sum tells at most: that of the fewest devices which the others will unmask."""
        self.grid.closeness()  # raises unless the sum of all noise is one discrete Gaussian; of fewer it is nearer
        added = divide_or(self.grid.added_shift(), self.grid.amplitude, 0.0)
        uplink, own = self.plan.uplink, self.grid.noise_var()
        sent = self.grid.amplitude.any(axis=0)
        counted = {trust: np.where(sent, own * (1 if trust == "own_noise" else self.least_devices), np.inf)
                   for trust in TRUST_MODELS}  # fmt: skip
        return Release(
            self.round_index,
            self.design.weights,
            {model: uplink.sensitivity(model, self.round_index) + added for model in SENSITIVITY_MODELS},
            counted,
        )

    def values(self, device: int, vector: FloatArray) -> IntArray:
        """What a device sends, flat: its vector `[row, entry]` and its noise, on the grid."""
        scenario, own = self.plan.scenario, self.grid.only(device)
        if scenario.privacy.noise == "secure":
            units = own.deviation[0] / own.spacing
            noise = np.stack([discrete_gaussian(float(row), own.vector_length) for row in units])
            return np.asarray((rounded_on_grid(own, vector[None])[0] + noise).ravel())
        shape = (len(own.spacing), own.vector_length)
        drawn = seeded_noise(scenario.seed, self.round_index, device, shape) * own.deviation[0][:, None]
        share = own.amplitude[0][:, None] * np.where(own.amplitude[0][:, None] != 0, vector, 0.0)
        return np.asarray(np.rint((share + drawn) / own.spacing[:, None]).astype(np.int64).ravel())

    def received(self, total: IntArray, survivors: list[int]) -> tuple[FloatArray, FloatArray]:
        """The survivors' average `[row, entry]` and the variance of its noise `[row]`; NaN for a row without any."""
        summed = total.reshape(len(self.grid.spacing), -1) * self.grid.spacing[:, None]
        noise_var = len(survivors) * self.grid.noise_var()[0]
        share = divide_or(self.grid.amplitude[survivors].sum(axis=0), self.grid.amplitude.sum(axis=0), 0.0)
        heard = share > 0
        safe = np.where(heard, share, 1.0)
        return np.where(heard[:, None], summed / safe[:, None], np.nan), np.where(heard, noise_var / safe**2, np.inf)


def _spacing_for(each: FloatArray) -> FloatArray:
    """The largest power of two of which a device's noise has enough units, `[row]`; any where there is no noise."""
    _, exponent = np.frexp(np.where(each > 0, each / LEAST_UNITS, 1.0))
    return np.where(each > 0, np.ldexp(1.0, exponent - 1), np.inf)
