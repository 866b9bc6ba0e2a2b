"""How far a public set would carry with more or fewer devices, samples and rounds, at the same guarantee.

What the server can read off the noisy sums is a matter of evidence. Of a sample of class k a share s_k of the devices
can know the class; the sum has that much at the right place, and noise of variance v everywhere. Over T rounds
together a single row stands out by s/√(v/T) deviations, and all N/K rows of a class together, which a receiver that
pools alike samples can use, by √(N/K) times that. As v grows with N and with T, that last number hardly depends on
either: it is M that decides, and ε.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.payloads import PublicPredictions
from airdistill.planning.plan import Plan, planning_draws
from airdistill.planning.transceiver.superposed import KnowledgeUplink, public_predictions_of

# What was measured on MNIST (docs/results.md): above the first devices learned nearly all that there was to learn,
# below the second about half of it.
_PLENTY, _TOO_LITTLE = 8.0, 4.0
_FEW_MISSING = 0.05  # of the classes: who holds nearly all of them has little to learn from others' votes


@dataclass(frozen=True)
class PublicForecast:
    """A fleet of so many devices, public samples in a round, and rounds; noise per entry of what is received.

    `row_evidence` and `class_evidence` are in deviations of the noise, over all rounds together.
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
    """The plan's own forecast first, then others; and which kind of knowledge suits the fleet, in a sentence."""

    forecasts: tuple[PublicForecast, ...]
    affordable_rounds: int
    advice: str


def public_set_what_if(plan: Plan) -> PublicSetWhatIf | None:
    """Of a plan for a public set; None of any other."""
    shared, uplink = public_predictions_of(plan.uplink), plan.uplink
    if shared is None or plan.forecast.effective_noise == 0:  # who makes no noise needs no forecast of it
        return None
    assert isinstance(uplink, KnowledgeUplink)  # only these share anything
    channels = planning_draws(plan.scenario)
    forecasts = tuple(_forecast(plan, uplink, shared, channels, *size) for size in _sizes(plan, shared))
    return PublicSetWhatIf(forecasts, affordable_rounds(forecasts[0]), advice_for(plan.fleet, forecasts[0]))


def affordable_rounds(forecast: PublicForecast) -> int:
    """The most rounds in which a single one still gives evidence enough to read the classes off it.

    Evidence of one round falls as 1/√T; rounds beyond that only split it.
    """
    alone = forecast.class_evidence / np.sqrt(forecast.rounds)  # of one of T rounds
    if not np.isfinite(alone):
        return 10**9
    return int(max(1, forecast.rounds * (alone / _TOO_LITTLE) ** 2))


def advice_for(fleet: RealisedFleet, forecast: PublicForecast) -> str:
    missing = float((fleet.class_counts == 0).mean())
    if missing < _FEW_MISSING:
        return (
            f"Devices lack {missing:.0%} of the classes: class means (airdistill) serve such a fleet with "
            f"{fleet.num_classes**2} slots a round in place of {forecast.slots}, and a public set has little to add."
        )
    if forecast.class_evidence < _TOO_LITTLE:
        return (
            f"Devices lack {missing:.0%} of the classes, which class means cannot teach them. A public set can, but "
            f"the votes of {forecast.devices} devices stand out of the noise by only {forecast.class_evidence:.2g} "
            "deviations: many labels will be wrong, and more devices or a larger ε would help most."
        )
    return (
        f"Devices lack {missing:.0%} of the classes. Class means cannot teach a class to who does not hold it; a "
        "public set can."
    )


def _sizes(plan: Plan, shared: PublicPredictions) -> Iterator[tuple[int, int, int]]:
    """Devices, samples and rounds: the plan's own, and each of them varied by itself."""
    devices, samples, rounds = plan.fleet.num_devices, shared.num_samples, plan.num_rounds
    yield devices, samples, rounds
    yield from ((max(1, round(devices * factor)), samples, rounds) for factor in (0.25, 0.5, 2, 4))
    yield from ((devices, max(1, round(samples * factor)), rounds) for factor in (1 / 3, 3))
    yield from ((devices, samples, several) for several in (1, 3, 10) if several != rounds)


def _forecast(
    plan: Plan,
    uplink: KnowledgeUplink,
    shared: PublicPredictions,
    channels: ComplexArray,
    devices: int,
    samples: int,
    rounds: int,
) -> PublicForecast:
    fleet, drawn = _resized(plan.fleet, channels, devices)
    answers = max(1, round(shared.most_answers * samples / shared.num_samples))
    varied = replace(uplink, fleet=fleet, shared=PublicPredictions(fleet, samples, answers))
    noise_var = float(np.median(varied.noise_over(drawn)(rounds)))
    known = float((plan.fleet.class_counts > 0).mean())
    row = known / np.sqrt(noise_var / rounds) if noise_var > 0 else np.inf
    return PublicForecast(
        devices,
        samples,
        rounds,
        answers,
        varied.num_slots * rounds,
        varied.num_slots * rounds * plan.scenario.radio.slot,
        noise_var,
        float(row),
        float(row * np.sqrt(samples / plan.fleet.num_classes)),
    )


def _resized(fleet: RealisedFleet, channels: ComplexArray, devices: int) -> tuple[RealisedFleet, ComplexArray]:
    """The fleet's devices over and over, or the first of them; a device's second place has the next draw's channel."""
    place = np.arange(devices) % fleet.num_devices
    repeats = np.arange(devices) // fleet.num_devices
    draws = (np.arange(len(channels))[:, None] + repeats) % len(channels)

    def of(values: FloatArray) -> FloatArray:
        return values[place]

    resized = RealisedFleet(
        fleet.class_counts[place], of(fleet.peak_power_w), of(fleet.epsilon), of(fleet.delta), of(fleet.mu)
    )
    return resized, np.asarray(channels[draws, place])
