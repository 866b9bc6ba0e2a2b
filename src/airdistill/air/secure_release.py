"""What a round with secure noise releases: rounding to the grid moves neighbours a little further apart."""

from __future__ import annotations

from dataclasses import replace

from airdistill.air.grid import SecureGrid
from airdistill.arrays import ComplexArray, divide_or
from airdistill.codesign.plan import Plan
from airdistill.codesign.release import release_of
from airdistill.codesign.transceiver import RoundDesign
from airdistill.codesign.uplink import Uplink
from airdistill.privacy.release import Release


def secure_grid(plan: Plan, design: RoundDesign, channel: ComplexArray, round_index: int) -> SecureGrid:
    """The grid of a round, fine enough for the sensitivity that the scenario declares."""
    uplink, privacy = plan.uplink, plan.scenario.privacy
    sensitivity = uplink.sensitivity(privacy.sensitivity, round_index)
    alone = privacy.trust == "own_noise" or uplink.kind == "orthogonal_knowledge"
    energy_slots = uplink.vector_length / uplink.largest_norm**2
    return SecureGrid.of(design, channel, sensitivity, uplink.vector_length, energy_slots, own=alone)


def release_on_grid(
    uplink: Uplink, grid: SecureGrid, design: RoundDesign, channel: ComplexArray, round_index: int
) -> Release:
    """With the noise that the grid really sends, and every sensitivity raised by what rounding can add."""
    grid.closeness()  # raises unless a sum of such noise is one discrete Gaussian to far below a float's last digit
    planned = release_of(uplink, replace(design, noise_gain=grid.deviation * grid.unit), channel, round_index)
    # In units of a device's own vector, whatever its weight.
    added = divide_or(grid.added_shift(), grid.amplitude, 0.0)
    return replace(planned, sensitivity={model: bound + added for model, bound in planned.sensitivity.items()})
