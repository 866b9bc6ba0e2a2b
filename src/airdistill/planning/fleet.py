"""A scenario's fleet in numbers: class counts, power limits and privacy targets of every device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from airdistill.arrays import FloatArray, IntArray
from airdistill.channel.csi import ChannelError
from airdistill.channel.link_budget import largest_power_w, noise_power_w
from airdistill.data.partition import class_counts
from airdistill.planning.waveform import error_probability
from airdistill.privacy.ledger import BudgetExceeded
from airdistill.privacy.sensitivity import TrajectoryDynamics
from airdistill.privacy.spending import EarlierRuns
from airdistill.privacy.targets import ROUNDING, target_mu
from airdistill.privacy.trust import trust_statement
from airdistill.scenario.model import Scenario
from airdistill.streams import stream

LARGE_FLEET = (
    10_000  # devices from which on a plan takes less time at the price of other last digits, or of fewer draws
)


@dataclass(frozen=True)
class RealisedFleet:
    """Counts `[device, class]`, and per device `[device]`: power limit, target (ε, δ) and the μ to plan with.

    δ is that of the noise: the scenario's, less `reserved_delta` for channel errors, less `earlier_excess` for those of
    earlier runs of the same devices.
    """

    class_counts: IntArray
    peak_power_w: FloatArray
    epsilon: FloatArray
    delta: FloatArray
    mu: FloatArray
    earlier_excess: float = 0.0

    @cached_property
    def num_devices(self) -> int:
        return int(self.class_counts.shape[0])

    @property
    def num_classes(self) -> int:
        return int(self.class_counts.shape[1])


def realise_fleet(scenario: Scenario, earlier: EarlierRuns | None = None) -> RealisedFleet:
    """Draw the fleet that a scenario describes; the same seed gives the same fleet.

    `earlier` is what earlier runs of the same devices have spent. Raise `BudgetExceeded` if a device has no budget
    left.
    """
    num_devices, seed = scenario.num_devices, scenario.seed
    epsilon = scenario.privacy.epsilon.draw(num_devices, stream(seed, "privacy.epsilon"))
    past = 0.0 if earlier is None else earlier.excess_delta
    delta = _delta_for_noise(scenario, past)
    return RealisedFleet(
        class_counts=class_counts(scenario),
        peak_power_w=np.minimum(drawn_peak_power_w(scenario), peak_power_limit_w(scenario)),
        epsilon=epsilon,
        delta=delta,
        mu=_mu_to_plan_with(scenario, epsilon, delta, earlier),
        earlier_excess=past,
    )


def _delta_for_noise(scenario: Scenario, earlier_excess: float) -> FloatArray:
    """What channel errors of this run and of earlier ones leave of δ, `[device]`."""
    asked, own = _drawn_delta(scenario), reserved_delta(scenario)
    if (asked <= own + earlier_excess).any():
        rule = (
            f"channel errors of earlier runs in the ledger have taken {earlier_excess:.3g} of it, and those of this "
            f"run may take {own:.3g}: nothing is left for the noise; raise it"
        )
        raise BudgetExceeded(f"privacy.delta = {asked.min():g}: {rule}")
    return np.asarray(asked - own - earlier_excess)


def drawn_peak_power_w(scenario: Scenario) -> FloatArray:
    """`radio.peak_power` of every device, `[device]`, before the transmit limit."""
    return scenario.radio.peak_power.draw(scenario.num_devices, stream(scenario.seed, "radio.peak_power"))


def peak_power_limit_w(scenario: Scenario) -> float:
    """The power that the transmit limit leaves a device; infinite without one."""
    return largest_power_w(scenario, scenario.radio.device_antenna_dbi)


def channel_excess_delta(scenario: Scenario, num_rounds: int) -> float:
    """The probability that a channel error of any device exceeds its limit in so many rounds; 0 if it reveals nothing.

    Such errors are independent of the noise, and so this much of δ covers them.
    """
    if scenario.waveform.kind == "ofdm":
        return error_probability(scenario)
    if not trust_statement(scenario.privacy.trust).needs_aligned_channels(tdma=False):
        return 0.0  # TDMA is planned for exact channels only
    return ChannelError.of(scenario).excess_probability(scenario.num_devices * num_rounds)


def reserved_delta(scenario: Scenario) -> float:
    """The part of every device's δ that is kept for channel errors; 0 if the smallest δ is not enough for them."""
    rounds, delta = scenario.learning.rounds, _drawn_delta(scenario)
    most_rounds = rounds if isinstance(rounds, int) else scenario.learning.max_rounds
    excess = channel_excess_delta(scenario, most_rounds)
    return excess if excess < delta.min() else 0.0


def _drawn_delta(scenario: Scenario) -> FloatArray:
    return scenario.privacy.delta.draw(scenario.num_devices, stream(scenario.seed, "privacy.delta"))


def _mu_to_plan_with(
    scenario: Scenario, epsilon: FloatArray, delta: FloatArray, earlier: EarlierRuns | None
) -> FloatArray:
    """The μ that the target grants, less earlier spending and less what rounding to a grid may add.

    A secure sum is planned with the noise of all devices, but the noise of devices that may drop out is not counted.
    """
    privacy = scenario.privacy
    granted = target_mu(epsilon, delta, privacy.accountant, privacy.noise)
    spent = np.zeros(len(granted)) if earlier is None else earlier.squared_mu
    left = np.where(np.isinf(granted), np.inf, granted**2 - np.where(np.isinf(granted), 0.0, spent))
    if not (left > 0).all():
        device = int(np.argmin(left))
        raise BudgetExceeded(f"device {device} has spent its ε = {epsilon[device]:g}: no further round is possible")
    on_grid = privacy.noise == "secure" or scenario.air.medium == "secure_sum"
    return np.asarray(np.sqrt(left * counted_share(scenario)) / (1 + (ROUNDING if on_grid else 0.0)))


def counted_share(scenario: Scenario) -> float:
    """The share of the fleet's noise that is in a sum even if the expected number of devices drops out."""
    return 1 - scenario.fleet.expected_dropouts / scenario.num_devices


def channel_noise_var(scenario: Scenario) -> float:
    """Variance of the receiver noise on the decision axis: half the power of complex noise, all of real noise."""
    return noise_power_w(scenario) * (0.5 if scenario.radio.noise == "complex" else 1.0)


def training_dynamics(scenario: Scenario) -> TrajectoryDynamics:
    """The dynamics of local training that the `trajectory` model bounds."""
    return TrajectoryDynamics.of(scenario.learning_numbers())


def unheld_classes(fleet: RealisedFleet) -> list[int]:
    """The classes that no device holds."""
    return [int(klass) for klass in np.flatnonzero(fleet.class_counts.sum(axis=0) == 0)]
