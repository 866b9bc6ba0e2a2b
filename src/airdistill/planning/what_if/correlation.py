"""Correlated noise against independent noise: the error of the model that both predict, receiver noise included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from airdistill.planning.forecast import RoundForecast
from airdistill.planning.transceiver.correlated import CorrelatedUplink, prefix_variance
from airdistill.planning.uplink import Uplink
from airdistill.planning.uplinks import uplink_for
from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario

_WORTH_IT = 1.005


@dataclass(frozen=True)
class CorrelationComparison:
    """The variance per entry of the model's error Σ_{s≤t} (η_s/η_1) n_s: its mean over t, and at t = T (`last`).

    The devices' part, and that of the `receiver`, which is white: the mean over t. Each also for independent noise with
    the same participation, trust and (ε, δ); `mean_of_all` is the whole mean with independent noise and all devices in
    every round.
    """

    mean: float
    last: float
    receiver: float
    mean_if_independent: float
    last_if_independent: float
    receiver_if_independent: float
    mean_of_all: float

    @property
    def devices_gain(self) -> float:
        """How many times smaller the mean error is that the devices' noise makes."""
        return _ratio(self.mean_if_independent, self.mean)

    @property
    def last_gain(self) -> float:
        """The same after the last round."""
        return _ratio(self.last_if_independent, self.last)

    @property
    def gain(self) -> float:
        """How many times smaller the whole mean error is; below 1 correlation loses."""
        return _ratio(self.mean_if_independent + self.receiver_if_independent, self.mean + self.receiver)

    @property
    def loss_to_all(self) -> float:
        """How many times larger it is than with independent noise and all devices in every round."""
        return _ratio(self.mean + self.receiver, self.mean_of_all)


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else 1.0


def correlation_comparison(
    scenario: Scenario,
    uplink: Uplink,
    num_rounds: int,
    forecast: RoundForecast,
    forecast_of: Callable[[Uplink], RoundForecast],
) -> CorrelationComparison | None:
    """Compare the plan's rounds with the same rounds of independent noise; None for a plan of independent noise."""
    if not isinstance(uplink, CorrelatedUplink):
        return None
    step_sizes = scenario.learning.step_sizes(num_rounds)
    squares = np.cumsum((step_sizes / step_sizes[0]) ** 2)
    variance = uplink.correlation.noise_variance(num_rounds)
    new = uplink.new_noise_var(num_rounds)
    error = new * prefix_variance(uplink.correlation, step_sizes)

    def of_receiver(found: RoundForecast, of_devices: float) -> float:
        return max(0.0, found.effective_noise / uplink.vector_length - of_devices) * float(squares.mean())

    without = changed(scenario, {"privacy": {"correlation": "none"}})
    in_all = changed(without, {"fleet": {"sampling": "none", "cycle": None}})
    of_payload = (uplink.fleet, uplink.vector_length)
    independent, everyone = (uplink_for(uplink.kind, each, *of_payload) for each in (without, in_all))
    alone, of_all = uplink.independent_noise_var(num_rounds), everyone.required(num_rounds)
    noise_of_all = float(of_all.sum() if uplink.counts_own_only else of_all.max())
    return CorrelationComparison(
        mean=float(error.mean()),
        last=float(error[-1]),
        receiver=of_receiver(forecast, float(new * variance.mean())),
        mean_if_independent=float(alone * squares.mean()),
        last_if_independent=float(alone * squares[-1]),
        receiver_if_independent=of_receiver(forecast_of(independent), alone),
        mean_of_all=noise_of_all * float(squares.mean()) + of_receiver(forecast_of(everyone), noise_of_all),
    )


def correlation_warnings(found: CorrelationComparison | None) -> Iterator[str]:
    """What a reader of a plan with correlated noise must not miss."""
    if found is None:
        return
    if found.devices_gain < _WORTH_IT:
        yield (
            "Correlated noise gains nothing with all devices in every round: no matrix of this kind has less error "
            "than independent noise there. It gains with cyclic participation."
        )
    elif found.gain < _WORTH_IT:
        yield (
            f"Correlated noise loses here: the devices' part of the error is {found.devices_gain:.3g} times smaller, "
            f"but constant shares of it take so much power in weak channels that the receiver noise makes the whole "
            f"{1 / found.gain:.3g} times larger."
        )
    if found.loss_to_all > 1 / _WORTH_IT and found.devices_gain >= _WORTH_IT:
        yield (
            f"With independent noise and all devices in every round the model's error would be {found.loss_to_all:.3g} "
            "times smaller. Devices send noise in every round anyway: cyclic participation saves them training, not "
            "transmissions."
        )
