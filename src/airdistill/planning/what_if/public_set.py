"""What-if for a public set: more or fewer devices, samples and rounds, at the same guarantee.

A share s_k of the devices knows class k. For a sample of that class the sum has s_k in the right entry, and noise of
variance v in every entry. Over T rounds a single row exceeds the noise by s/√(v/T) standard deviations. All N/K rows of
a class together, which a receiver that pools similar samples can use, exceed it by √(N/K) times that. v grows with N
and with T, and so the last number hardly depends on either: it depends on M and ε.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.channel.waveform import air_time
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.payloads import PublicPredictions
from airdistill.planning.plan import Plan, planning_draws
from airdistill.planning.transceiver.superposed import SuperposedUplink

# Measured on MNIST (docs/results.md): above the first value devices learned nearly everything, below the second about
# half of it.
_PLENTY, _TOO_LITTLE = 8.0, 4.0
_FEW_MISSING = 0.05  # of the classes: devices that hold nearly all of them learn little from other devices' votes


@dataclass(frozen=True)
class PublicForecast:
    """The forecast for a number of devices, public samples in a round, and rounds; received noise per entry.

    `row_evidence` and `class_evidence` are in standard deviations of the noise, over all rounds together.
    """

    devices: int
    samples: int
    rounds: int
    answers: int
    slots: int
    seconds: float
    noise_var: float
    row_evidence: float
    class_evidence: float

    @property
    def verdict(self) -> str:
        if self.class_evidence >= _PLENTY:
            return "enough"
        return "faint" if self.class_evidence < _TOO_LITTLE else "scarce"


@dataclass(frozen=True)
class PublicSetWhatIf:
    """The plan's own forecast first, then others; and a sentence on which payload suits the fleet."""

    forecasts: tuple[PublicForecast, ...]
    affordable_rounds: int
    advice: str


def public_set_what_if(plan: Plan) -> PublicSetWhatIf | None:
    """The what-if of a plan for public predictions; None for other plans, and for plans without noise."""
    payload, uplink = plan.uplink.payload, plan.uplink
    if not isinstance(payload, PublicPredictions) or plan.forecast.effective_noise == 0:
        return None
    assert isinstance(uplink, SuperposedUplink)
    channels = planning_draws(plan.scenario)
    forecasts = tuple(_forecast(plan, uplink, payload, channels, *size) for size in _sizes(plan, payload))
    return PublicSetWhatIf(forecasts, affordable_rounds(forecasts[0]), advice_for(plan.fleet, forecasts[0]))


def affordable_rounds(forecast: PublicForecast) -> int:
    """The largest number of rounds at which one round alone still distinguishes the classes.

    The evidence of one round falls as 1/√T; further rounds only split it.
    """
    of_one = forecast.class_evidence / np.sqrt(forecast.rounds)
    if not np.isfinite(of_one):
        return 10**9
    return int(max(1, forecast.rounds * (of_one / _TOO_LITTLE) ** 2))


def advice_for(fleet: RealisedFleet, forecast: PublicForecast) -> str:
    missing = float((fleet.class_counts == 0).mean())
    if missing < _FEW_MISSING:
        return (
            f"Devices lack {missing:.0%} of the classes: class means (airdistill) serve such a fleet with "
            f"{fleet.num_classes**2} slots a round instead of {forecast.slots}, and a public set adds little."
        )
    if forecast.class_evidence < _TOO_LITTLE:
        return (
            f"Devices lack {missing:.0%} of the classes, which class means cannot teach them. A public set can, but "
            f"the votes of {forecast.devices} devices exceed the noise by only {forecast.class_evidence:.2g} standard "
            "deviations: many labels will be wrong. More devices or a larger ε would help most."
        )
    return (
        f"Devices lack {missing:.0%} of the classes. Class means cannot teach a class to a device that does not hold "
        "it; a public set can."
    )


def _sizes(plan: Plan, payload: PublicPredictions) -> Iterator[tuple[int, int, int]]:
    """Devices, samples and rounds: the plan's own, and each of them varied separately."""
    devices, samples, rounds = plan.fleet.num_devices, payload.num_samples, plan.num_rounds
    yield devices, samples, rounds
    yield from ((max(1, round(devices * factor)), samples, rounds) for factor in (0.25, 0.5, 2, 4))
    yield from ((devices, max(1, round(samples * factor)), rounds) for factor in (1 / 3, 3))
    yield from ((devices, samples, several) for several in (1, 3, 10) if several != rounds)


def _forecast(
    plan: Plan,
    uplink: SuperposedUplink,
    payload: PublicPredictions,
    channels: ComplexArray,
    devices: int,
    samples: int,
    rounds: int,
) -> PublicForecast:
    fleet, drawn = _resized(plan.fleet, channels, devices)
    answers = max(1, round(payload.most_answers * samples / payload.num_samples))
    joins = uplink.participation.for_devices(devices)
    varied = replace(uplink, fleet=fleet, payload=PublicPredictions(fleet, samples, answers), participation=joins)
    noise_var = float(np.median(varied.noise_over(drawn)(rounds)))
    known = float((plan.fleet.class_counts > 0).mean())
    row = known / np.sqrt(noise_var / rounds) if noise_var > 0 else np.inf
    return PublicForecast(
        devices,
        samples,
        rounds,
        answers,
        varied.num_slots * rounds,
        rounds * air_time(plan.scenario, varied.num_slots).total_s,
        noise_var,
        float(row),
        float(row * np.sqrt(samples / plan.fleet.num_classes)),
    )


def _resized(fleet: RealisedFleet, channels: ComplexArray, devices: int) -> tuple[RealisedFleet, ComplexArray]:
    """The fleet's devices repeated, or the first of them; a repeated device has the next draw's channel."""
    place = np.arange(devices) % fleet.num_devices
    repeats = np.arange(devices) // fleet.num_devices
    draws = (np.arange(len(channels))[:, None] + repeats) % len(channels)

    def of(values: FloatArray) -> FloatArray:
        return values[place]

    resized = RealisedFleet(
        fleet.class_counts[place], of(fleet.peak_power_w), of(fleet.epsilon), of(fleet.delta), of(fleet.mu)
    )
    return resized, np.asarray(channels[draws, place])
