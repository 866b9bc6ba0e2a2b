"""The integers that devices submit to a secure sum instead of transmitting signals.

A secure sum has no channel and no receiver: the devices' noise is the only noise. Every device adds the same share of
the noise that the round's design requires of the fleet. The plan allows for drop-outs: the noise of any `least_devices`
suffices. Values lie on a common grid, like those of secure noise (`SecureGrid`). The sum over all devices must not wrap
around, and so `largest` bounds the values of a device.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray, IntArray, divide_or
from airdistill.errors import AirDistillError
from airdistill.planning.plan import Plan
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.privacy.release import Release
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.privacy.trust import counted_by_trust
from airdistill.radio.discrete_noise import (
    LEAST_UNITS,
    SecureGrid,
    check_noise_sources,
    discrete_gaussian,
    rounded_on_grid,
    secure_grid,
)
from airdistill.radio.superposition import Permission, seeded_noise
from airdistill.streams import Seed

# Standard deviations of noise that a value can hold: one in 10^55 draws would exceed it.
_NOISE_RANGE = 16.0


@dataclass(frozen=True)
class SumGrid:
    """The grid of one round. `grid` has the weights and the noise of every device, the same strength for all.

    `noise_seed` is that of the ledger entry, and `permission` that of its charge; before the round is charged there are
    none, and no values.
    """

    grid: SecureGrid
    least_devices: int
    plan: Plan
    design: RoundDesign
    round_index: int
    noise_seed: Seed | None = None
    permission: Permission | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, plan: Plan, design: RoundDesign, channel: ComplexArray, round_index: int) -> SumGrid:
        """The grid for the noise that a design requires of the whole fleet, for any channel."""
        num_devices = plan.fleet.num_devices
        least = num_devices - plan.scenario.fleet.expected_dropouts
        air = secure_grid(plan, design, channel, round_index)
        required = plan.uplink.noise_by_trust(design, channel)["fleet_noise"][0]
        each = np.sqrt(np.where(np.isfinite(required), required, 0.0) / num_devices)
        spacing = np.minimum(air.spacing, _spacing_for(each))
        deviation = np.broadcast_to(each, air.amplitude.shape)
        grid = SecureGrid(spacing, air.amplitude, deviation, np.ones_like(air.unit), air.vector_length)
        return cls(grid, least, plan, design, round_index)

    @property
    def digest(self) -> str:
        """The digest of what all devices must agree on: grid, weights and noise."""
        arrays = (self.grid.spacing, self.grid.amplitude, self.grid.deviation)
        return hashlib.sha256(b"".join(np.ascontiguousarray(array, "<f8").tobytes() for array in arrays)).hexdigest()

    @property
    def num_values(self) -> int:
        return len(self.grid.spacing) * self.grid.vector_length

    @property
    def largest(self) -> int:
        """The largest magnitude of a value: that of the vector, whose norm is bounded, plus that of the noise."""
        vector = self.grid.amplitude.max(axis=0) * self.plan.uplink.largest_norm
        return int(np.ceil((vector + _NOISE_RANGE * self.grid.deviation[0]) / self.grid.spacing).max()) + 1

    def release(self) -> Release:
        """The release of the sum over the fewest devices that the fleet unmasks."""
        self.grid.closeness()  # raises unless all noise sums to a discrete Gaussian; that of fewer devices is closer
        added = divide_or(self.grid.added_shift(), self.grid.amplitude, 0.0)
        uplink, own = self.plan.uplink, self.grid.noise_var()
        sent = self.grid.amplitude.any(axis=0)
        counted = counted_by_trust(own, own * self.least_devices, 0.0, self.plan.scenario.privacy.trust)
        return Release(
            self.round_index,
            self.design.weights,
            {model: uplink.sensitivity(model, self.round_index) + added for model in SENSITIVITY_MODELS},
            {trust: np.where(sent, noise, np.inf) for trust, noise in counted.items()},
        )

    def values(self, device: int, vector: FloatArray) -> IntArray:
        """The flat values that a device submits: its vector `[row, entry]` plus its noise, on the grid."""
        if self.noise_seed is None or self.permission is None:
            raise AirDistillError(f"round {self.round_index}: was not charged, and so it has no noise to submit with")
        self.permission.use()
        own = self.grid.only(device)
        if self.plan.scenario.privacy.noise == "secure":
            units = own.deviation[0] / own.spacing
            noise = np.stack([discrete_gaussian(float(row), own.vector_length) for row in units])
            check_noise_sources(units[None], noise[None])
            return np.asarray((rounded_on_grid(own, vector[None])[0] + noise).ravel())
        shape = (len(own.spacing), own.vector_length)
        drawn = seeded_noise(self.noise_seed, self.round_index, device, shape) * own.deviation[0][:, None]
        share = own.amplitude[0][:, None] * np.where(own.amplitude[0][:, None] != 0, vector, 0.0)
        return np.asarray(np.rint((share + drawn) / own.spacing[:, None]).astype(np.int64).ravel())

    def received(self, total: IntArray, survivors: list[int]) -> tuple[FloatArray, FloatArray]:
        """The survivors' average `[row, entry]` and its noise variance `[row]`; NaN for a row that no survivor sent."""
        summed = total.reshape(len(self.grid.spacing), -1) * self.grid.spacing[:, None]
        noise_var = len(survivors) * self.grid.noise_var()[0]
        share = divide_or(self.grid.amplitude[survivors].sum(axis=0), self.grid.amplitude.sum(axis=0), 0.0)
        sent = share > 0
        safe = np.where(sent, share, 1.0)
        return np.where(sent[:, None], summed / safe[:, None], np.nan), np.where(sent, noise_var / safe**2, np.inf)


def _spacing_for(each: FloatArray) -> FloatArray:
    """The largest power of two that makes a device's noise `LEAST_UNITS` strong, `[row]`; infinite without noise."""
    _, exponent = np.frexp(np.where(each > 0, each / LEAST_UNITS, 1.0))
    return np.where(each > 0, np.ldexp(1.0, exponent - 1), np.inf)
