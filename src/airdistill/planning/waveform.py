"""What an OFDM waveform leaves of a design's guarantee, and what it adds to its error.

On a tone a device's signal arrives |r| times as strong as designed, r = He, and so does its own noise. Channel errors
are Gaussian, and independent of the noise: each is below its quantile but for a probability that is charged to δ.

* **Signal.** A device whose tones may arrive up to 1 + q times as strong, q beyond the planned limit, sends less in
  proportion. No signal arrives more than 1 + limit times as strong.
* **Noise of the others** (fleet_noise). On a tone V = Σ_j s_j|r_j|² of the designed noise arrives, s_j device j's share
  of it. With r_j = a_j(1 + e_j) at least Σ_j s_j a_j² + 2Σ_j s_j a_j² Re e_j, whose last term is Gaussian.
* **Receiver noise** does not depend on the channels. A device's **own noise** arrives as strong as its signal.

The noise of one row may be stronger than that of another in the same symbol, over whose tones all of them are spread:
what is certain is that of the weakest row. Numbers that fill up the last symbol carry noise, too.

So 1/c grows by the factor (1 + limit)²/V, by (1 + limit)², and not at all.

A server that keeps every sample also has the cyclic prefixes. The fleet's noise then counts 1/χ of its variance, with
the largest factor χ of any device, exact for the round's channels (`privacy.waveform`), and receiver noise by a factor
of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import j0

from airdistill.arrays import BoolArray, ComplexArray, FloatArray
from airdistill.channel.selective import WideChannel, WideLink, aging, doppler_hz, mean_loss
from airdistill.channel.waveform import Grid, air_time
from airdistill.errors import AirDistillError, InputError
from airdistill.planning.noise_factors import LinkFactors, check_delays, has_impairments, keeps_samples
from airdistill.privacy.trust import ReceiverNoise, TrustStatement, trust_statement
from airdistill.scenario.model import Scenario

if TYPE_CHECKING:
    from airdistill.channel.sources import ChannelSource
    from airdistill.planning.plan import Plan
    from airdistill.planning.transceiver.design import RoundDesign
    from airdistill.planning.uplink import Uplink

_RESERVED = 0.1  # share of δ that is kept for channel errors
_PLANNING_LINKS = 8
_PLANNED_DEVICES = 0.5  # quantile of the devices' error limits that the plan allows without a weaker signal
_REDESIGNS = 4  # of a round at most, until the noise that its last design counts on is there
_ROOM = 0.98  # of V, for rounds that are worse than those planned with
_NOTHING_CERTAIN = (
    "channel errors may remove all of the other devices' noise from a tone: more pilot_symbols or pilot_power, "
    'fewer tones, slower devices or fewer numbers help; or use privacy.trust = "own_noise"'
)


@dataclass(frozen=True)
class Observation:
    """How much of the designed noise a server sees the signals through, by what is certain of the waveform.

    `limit` bounds |r| − 1 of every signal; `kept` is V of the planned rounds; `misalignment` is the squared error of a
    received number over its squared size, mean over devices. `common_loss` is the part of its amplitude that all
    devices lose alike: it adds up over them. All are zero, and V one, without a waveform.
    The noise of the fleet and of the receiver are divided by `fleet_factor` and `receiver_factor`, if the server has
    more than numbers on elements.
    """

    limit: float = 0.0
    kept: float = 1.0
    misalignment: float = 0.0
    common_loss: float = 0.0
    fleet_factor: float = 1.0
    receiver_factor: float = 1.0

    @cached_property
    def is_partial(self) -> bool:
        """Whether less is certain than was designed."""
        return self.limit > 0 or self.kept < 1 or max(self.fleet_factor, self.receiver_factor) > 1

    def factor(self, trust: TrustStatement) -> float:
        """By how much less noise is counted than the design has."""
        if trust.counts_own_only:
            return 1.0
        stronger = (1 + self.limit) ** 2
        if trust.name == ReceiverNoise.name:  # whose design adds no noise
            return stronger * self.receiver_factor
        return stronger * self.fleet_factor / self.kept if self.kept > 0 else np.inf

    def worse_of(self, other: Observation) -> Observation:
        """The least noise of both."""
        kept, fleet = min(self.kept, other.kept), max(self.fleet_factor, other.fleet_factor)
        return replace(
            self, kept=kept, fleet_factor=fleet, receiver_factor=max(self.receiver_factor, other.receiver_factor)
        )


def error_probability(scenario: Scenario) -> float:
    """The probability that any error of a channel or an oscillator exceeds its quantile in a run; 0 if none matters."""
    if not _chances(scenario):
        return 0.0
    return _RESERVED * float(min(scenario.privacy.delta.numbers))


def _chances(scenario: Scenario) -> int:
    """How many kinds of errors may exceed what is counted for them; they share the probability."""
    wave, trust = scenario.waveform, trust_statement(scenario.privacy.trust)
    if wave.kind == "single_tone" or trust.counts_own_only:
        return 0
    return (wave.csi == "pilot") + (wave.phase_noise > 0)


def most_rounds(scenario: Scenario) -> int:
    """The number of rounds over which the probability of a channel error is divided."""
    rounds = scenario.learning.rounds
    return rounds if isinstance(rounds, int) else scenario.learning.max_rounds


def log_inverse_tail(scenario: Scenario, num_numbers: int) -> float:
    """ln(1/p) for one error: the probability for a run is divided among devices, tones, symbols and rounds.

    Each tone of a symbol has one more error: that of the sum of the devices' noise.
    """
    grid = Grid.of(scenario)
    if scenario.waveform.csi == "perfect" or not _chances(scenario) or grid is None:
        return 0.0
    probability = error_probability(scenario) / _chances(scenario)
    events = (scenario.num_devices + 1) * grid.tones * grid.num_symbols(num_numbers) * most_rounds(scenario)
    return float(np.log(events / probability))


def error_limits(scenario: Scenario, link: WideLink, num_numbers: int) -> FloatArray:
    """q of every device: |r| − 1 of none of its tones is larger, but for the probability charged to δ, `[device]`.

    |e|² of a Gaussian error is exponential; r = a(1 + e) with a ≤ 1.
    """
    tail = log_inverse_tail(scenario, num_numbers)
    error = np.sqrt(tail * link.relative_error(aging(scenario, num_numbers)))
    return np.asarray((link.attenuation - 1 + error).max(axis=1, initial=0.0))


def kept_noise(scenario: Scenario, link: WideLink, num_numbers: int, shares: FloatArray) -> float:
    """V: the least share of the designed noise that arrives on any tone, for devices' `shares` `[device]` of it.

    Re(a² e) has variance a⁴E|e|²/2 = a² E|ae|²/2; the quantile of a standard Gaussian is below √(2 ln(1/p)). What is
    left of a channel at the end is J0 of it.
    """
    amplitude, change = link.attenuation, aging(scenario, num_numbers)
    error = amplitude**2 * link.relative_error(change)
    mean, deviation = (1 - change) * (shares @ amplitude**2), 2 * np.sqrt((shares**2) @ (0.5 * error))
    least = mean - np.sqrt(2 * log_inverse_tail(scenario, num_numbers)) * deviation
    return float(max(least.min(), 0.0))


def planned_observation(scenario: Scenario, source: WideChannel, sent: Uplink) -> Observation:
    """What to plan with, over planning links. Raise `InputError` if the waveform leaves nothing of a guarantee.

    `sent` is the uplink as it is designed for channels that are known exactly.
    """
    num_numbers = sent.num_slots
    links = [source.planning_link(draw) for draw in range(_PLANNING_LINKS)]
    limits = np.stack([error_limits(scenario, link, num_numbers) for link in links])
    trust = trust_statement(scenario.privacy.trust)
    limit = 0.0 if trust.counts_own_only else float(np.quantile(limits, _PLANNED_DEVICES))
    weaker = [backed_off(link, error_limits(scenario, link, num_numbers), limit) for link in links]
    seen = _least(seen_through(scenario, link, num_numbers, limit, *_designed(scenario, link, sent)) for link in weaker)
    kept = _ROOM * seen.kept
    if kept <= 0 and trust.counts_others and not trust.counts_receiver:
        raise InputError("waveform.csi", "pilot", _NOTHING_CERTAIN)
    change = aging(scenario, num_numbers)
    misaligned = float(np.mean([link.misalignment(change) for link in weaker]))
    lost = mean_loss(scenario, num_numbers, weaker)
    return replace(seen, limit=limit, kept=min(kept, 1.0), misalignment=misaligned, common_loss=lost)


def coherence_db(scenario: Scenario, num_numbers: int) -> float:
    """The squared misalignment 2(1 − J0(2πf_Dτ)) at the end of a round, relative to the channel, dB; −∞ if at rest."""
    phase = 2 * np.pi * doppler_hz(scenario) * air_time(scenario, num_numbers).total_s
    with np.errstate(divide="ignore"):
        return float(10 * np.log10(2 * (1 - j0(phase))))


def drift_misalignment(scenario: Scenario, num_numbers: int) -> dict[str, float]:
    """E|1 − e^{jφ}|² ≈ E φ² when a round ends, by the field that causes it: of a uniform offset ±f, 2πft from the pilot
    on; of Wiener phase noise, 2πβt; of a delay of 0 to τ, 2πντ over the band's tones ν.
    """
    wave, grid = scenario.waveform, Grid.of(scenario)
    if grid is None:
        return {}
    timing = air_time(scenario, num_numbers)
    tones_hz = grid.offsets * grid.spacing_hz
    return {
        "carrier_offset": (2 * np.pi * wave.carrier_offset * timing.total_s) ** 2 / 3,
        "phase_noise": 2 * np.pi * wave.phase_noise * timing.total_s,
        "timing_error": (2 * np.pi * wave.timing_error) ** 2 / 3 * float(np.mean(tones_hz**2)),
    }


def waveform_facts(scenario: Scenario, uplink: Uplink) -> dict[str, Any]:
    """What certificates and plans state of a waveform: `limit` is that of a signal's strength, 1 and more."""
    wave, seen = scenario.waveform, uplink.observation
    stated: dict[str, Any] = {"observed": wave.observed, "csi": wave.csi, "limit": 1 + seen.limit, "kept": seen.kept}
    if has_impairments(scenario) and not trust_statement(scenario.privacy.trust).counts_own_only:
        fields = ("carrier_offset", "phase_noise", "timing_error")
        stated["impairments"] = {field: getattr(wave, field) for field in fields if getattr(wave, field) > 0}
        if wave.amplifier != "linear":
            stated["impairments"]["amplifier"] = wave.amplifier
    if keeps_samples(scenario) or "impairments" in stated:
        by_receiver = uplink.trust_model.name == ReceiverNoise.name
        stated["factor"] = seen.receiver_factor if by_receiver else seen.fleet_factor
    return {**stated, "excess": error_probability(scenario), "rounds": most_rounds(scenario)}


def round_link(scenario: Scenario, uplink: Uplink, source: WideChannel, round_index: int) -> WideLink:
    """The links of a round, with weaker signals of the devices that the plan asks for them."""
    link = source.link(round_index)
    if trust_statement(scenario.privacy.trust).counts_own_only:
        return link
    return backed_off(link, error_limits(scenario, link, uplink.num_slots), uplink.observation.limit)


def design_of_round(
    plan: Plan, source: ChannelSource, known: ComplexArray, round_index: int, spent: FloatArray | None
) -> tuple[RoundDesign, Uplink]:
    """The gains of a round, and the uplink by which they are counted.

    If less of the noise arrives in this round than was planned for, more of it is sent.
    """
    if not isinstance(source, WideChannel):
        return plan.design(known, round_index, spent), plan.uplink
    uplink = plan.uplink
    for _ in range(_REDESIGNS):
        design = uplink.design(known, plan.num_rounds, round_index, spent)
        found = observed(plan.scenario, uplink, source, design, known, round_index)
        if found is uplink:
            break
        uplink = found  # another design shares the noise among devices in another way
        if np.isinf(uplink.observation.factor(uplink.trust_model)):
            raise AirDistillError(f"round {round_index}: nothing was sent: {_NOTHING_CERTAIN}")
    return design, uplink


def observed(
    scenario: Scenario, uplink: Any, source: ChannelSource, design: RoundDesign, known: ComplexArray, round_index: int
) -> Any:
    """The uplink by which a round's noise is counted: the planned one, or one that counts less if less arrives."""
    if not isinstance(source, WideChannel) or trust_statement(scenario.privacy.trust).counts_own_only:
        return uplink
    link, planned = round_link(scenario, uplink, source, round_index), uplink.observation
    found = planned.worse_of(seen_through(scenario, link, uplink.num_slots, planned.limit, known, design))
    return uplink if found == planned else replace(uplink, observation=found)


def _designed(scenario: Scenario, link: WideLink, sent: Uplink) -> tuple[ComplexArray, RoundDesign]:
    rounds = scenario.learning.rounds
    known = link.gain.astype(np.complex128)
    return known, sent.design(known, rounds if isinstance(rounds, int) else 1, 1)


def seen_through(
    scenario: Scenario, link: WideLink, num_numbers: int, limit: float, known: ComplexArray, design: RoundDesign
) -> Observation:
    """How much of a design's noise is certain through these links.

    V is the least noise on any tone over the designed noise of the noisiest row; one if devices add none. A symbol's
    noise is at least as strong as if every device had that of its weakest row in all numbers.
    """
    rows = design.noise_gain[:, design.rx_scale > 0]
    own = np.abs(known[:, None] * rows) ** 2
    factors = _factors(scenario, link, num_numbers, limit, (design.signal_gain != 0).any(axis=1))
    receiver = factors.of_receiver()
    if not own.any():
        return Observation(receiver_factor=receiver)
    weakest = own.min(axis=1)
    if not weakest.any():
        return Observation(kept=0.0, receiver_factor=receiver)
    shares = weakest / weakest.sum()
    on_tones = kept_noise(scenario, link, num_numbers, shares)
    fleet = factors.of_fleet(shares, on_tones)
    kept = float(weakest.sum() / own.sum(axis=0).max()) * on_tones
    return Observation(limit=limit, kept=kept, fleet_factor=fleet, receiver_factor=receiver)


def _factors(scenario: Scenario, link: WideLink, num_numbers: int, limit: float, sending: BoolArray) -> LinkFactors:
    check_delays(scenario, link)
    chances, symbols = max(_chances(scenario), 1), link.grid.num_symbols(num_numbers)
    all_symbols = scenario.num_devices * symbols * most_rounds(scenario)
    return LinkFactors(scenario, link, sending, limit, all_symbols, error_probability(scenario) / chances)


def _least(found: Iterable[Observation]) -> Observation:
    return reduce(Observation.worse_of, found)


def backed_off(link: WideLink, limits: FloatArray, limit: float) -> WideLink:
    """The link with weaker signals and noise of devices whose error limit `[device]` is beyond the planned one."""
    scale = np.minimum(1.0, (1 + limit) / (1 + limits))
    return link if (scale == 1).all() else replace(link, scale=scale)
