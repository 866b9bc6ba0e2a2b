"""What a plan assumes, and what its reader should beware of, in words."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.channel.csi import ChannelError
from airdistill.planning.convergence.rounds import RoundsChoice
from airdistill.planning.fleet import RealisedFleet, channel_noise_var, unheld_classes
from airdistill.planning.forecast import RoundForecast
from airdistill.planning.uplink import Uplink
from airdistill.privacy.assumptions import (
    ANTENNAS,
    NOISE,
    PILOT,
    PUBLIC,
    PUBLIC_KNOWLEDGE,
    PUBLIC_SET,
    RELABEL,
    basis,
    channels_in_words,
    neighbours,
    taking_part_in_words,
    trust_in_words,
)
from airdistill.privacy.targets import target_mu
from airdistill.scenario.model import Scenario
from airdistill.scenario.rules import CELLS

_MANY_MISSING = 0.3  # of the classes, on average


def assumptions_of(scenario: Scenario, uplink: Uplink) -> tuple[str, ...]:
    """What the plan's promises rest on."""
    privacy, gradient = scenario.privacy, uplink.payload == "gradient"
    lines = [f"{neighbours(privacy.sensitivity, uplink.payload)} {basis(privacy.sensitivity, uplink.payload)}"]
    if privacy.relabel and uplink.payload == "knowledge":
        lines.append(RELABEL)
    if uplink.payload == PUBLIC_KNOWLEDGE:
        lines.append(PUBLIC_SET)
    if scenario.radio.trace is not None:
        lines.append("Channels repeat the recorded trace, from its first round again after its last.")
    elif scenario.radio.gains is None and scenario.radio.fading in CELLS:
        lines.append(
            f"Channels are 3GPP TR 38.901 {CELLS[scenario.radio.fading].name}, outdoors and at the carrier, with "
            "its own path loss and shadowing; radio.path_loss_exponent is not used."
        )
    lines.append(trust_in_words(privacy.trust, uplink.kind))
    taken_part = scenario.fleet
    lines += taking_part_in_words(taken_part.sampling, taken_part.participation, taken_part.participation_hidden)
    if scenario.radio.antennas > 1 and privacy.trust != "own_noise":
        lines.append(ANTENNAS.format(count=scenario.radio.antennas))
    error = ChannelError.of(scenario)
    lines += [PUBLIC, PILOT[scenario.constants.source]]
    lines += [channels_in_words(error.limit, privacy.trust), NOISE[privacy.noise]]
    if uplink.payload == PUBLIC_KNOWLEDGE:
        lines.append("The gap is of class means; on a public set it only ranks rounds and thresholds of silence.")
    elif scenario.learning.local_epochs > 0 and not gradient:
        lines.append("The gap bounds one full-batch step a round; with local epochs it is a proxy.")
    return tuple(lines)


def warnings_of(
    scenario: Scenario,
    fleet: RealisedFleet,
    uplink: Uplink,
    rounds: RoundsChoice,
    forecast: RoundForecast,
    epsilon_by_model: dict[str, FloatArray],
) -> tuple[str, ...]:
    """What a reader of the plan must not miss."""
    return (
        *_about_privacy(scenario, fleet, uplink, epsilon_by_model),
        *_about_pilot(scenario, uplink),
        *_about_payload(fleet, uplink, forecast),
        *_about_channel(scenario, forecast),
        *_about_rounds(scenario, uplink, rounds),
    )


def _about_privacy(
    scenario: Scenario, fleet: RealisedFleet, uplink: Uplink, epsilon_by_model: dict[str, FloatArray]
) -> Iterator[str]:
    asked = np.isfinite(fleet.epsilon)
    if not asked.all():
        yield f"{np.count_nonzero(~asked)} of {fleet.num_devices} devices ask for no privacy (epsilon = inf)."
    model = scenario.privacy.sensitivity
    if asked.any() and model != "device":
        worst = float(epsilon_by_model["device"][asked].max())
        if uplink.payload == "gradient":
            grounds = "protects single records"
        else:
            grounds = "holds only under its assumptions" if model == "trajectory" else "does not hold in general"
        most_asked = float(fleet.epsilon[asked].max())
        beside = f"where at most {_number(most_asked)} was asked" if worst > most_asked else "no more than was asked"
        yield (
            f'Sensitivity "{model}" {grounds}; for whole devices this plan gives up to ε = {_number(worst)}, {beside}.'
        )
    hidden = scenario.fleet.participation_hidden
    if scenario.privacy.accountant == "paper" and hidden and (epsilon_by_model["device"] > fleet.epsilon).any():
        yield (
            "The published form amplifies all rounds at once, and gives some devices less noise than their (ε, δ) "
            'needs; use accountant = "exact". A run stops when they have spent it.'
        )
    elif scenario.privacy.accountant == "paper" and not hidden:
        short = asked & (fleet.mu > target_mu(fleet.epsilon, fleet.delta, "exact", scenario.privacy.noise))
        if short.any():
            yield (
                f"The paper's accountant gives {np.count_nonzero(short)} devices less noise than their (ε, δ) needs; "
                'use accountant = "exact". A run stops when they have spent it.'
            )
    if scenario.privacy.accountant == "paper" and scenario.fleet.sampling != "none":
        yield (
            "The paper's accountant counts the expected number of rounds in which a device takes part; who is drawn "
            "more often gets less noise than its (ε, δ) needs, and a run stops when it has spent that."
        )
    if scenario.privacy.trust == "receiver_noise" and channel_noise_var(scenario) == 0:
        if scenario.radio.transceiver == "paper":
            yield "The receiver is noiseless, and the paper's transceiver adds no noise: it can send nothing privately."
        else:
            yield "The receiver is noiseless, so that none of its noise can be counted: planned as fleet_noise."


def _about_pilot(scenario: Scenario, uplink: Uplink) -> Iterator[str]:
    source = scenario.constants.source
    if source == "private":
        yield (
            "The pilot was not private: it measured the learning constants on the devices' own data, and no noise of "
            "this plan hides what they and the number of rounds tell of it. Pilot on synthetic or public data."
        )
    if source != "declared" and scenario.privacy.sensitivity == "trajectory" and uplink.payload == "knowledge":
        yield (
            'Sensitivity "trajectory" needs bounds, and a pilot\'s L1, L2 and S are only the largest that it saw: '
            "declare larger ones that are known to hold."
        )


def _about_payload(fleet: RealisedFleet, uplink: Uplink, forecast: RoundForecast) -> Iterator[str]:
    unheld = unheld_classes(fleet)
    if unheld and uplink.payload == "knowledge":
        yield f"Nobody holds class {', '.join(map(str, unheld))}: it has no knowledge and no distillation term."
    missing = float((fleet.class_counts == 0).mean())
    if missing > _MANY_MISSING and uplink.payload == "knowledge":
        yield (
            f"Devices lack {missing:.0%} of the classes, and class means cannot teach a class to who does not hold it; "
            "votes on a public set can (--scheme airdistill_proxy)."
        )
    if forecast.channel_snr_db < 0:
        yield (
            f"The {uplink.payload} drowns in channel noise: it arrives {-forecast.channel_snr_db:.0f} dB below it even "
            f"with all power on the signal (the weakest device at {forecast.worst_snr_db:.0f} dB). Nothing can be "
            "learned from it: more power, less noise, shorter distances or fewer weak devices are needed."
        )
    elif uplink.payload != PUBLIC_KNOWLEDGE and uplink.largest_norm**2 < forecast.effective_noise < np.inf:
        yield (
            f"The received {uplink.payload} is noisier than it is large: squared error "
            f"{_number(forecast.effective_noise)} for vectors of norm {uplink.largest_norm:g} at most. Fewer rounds, "
            "more devices or a looser target would help."
        )


def _about_channel(scenario: Scenario, forecast: RoundForecast) -> Iterator[str]:
    if not np.isfinite(forecast.effective_noise) and forecast.silent_share > 0:
        seen_coins = scenario.fleet.participation < 1 and not scenario.fleet.participation_hidden
        cause = "raise fleet.participation" if seen_coins else "lower radio.truncation"
        yield f"In more rounds than the outage leaves out nobody speaks for some class: {cause}."
    elif not np.isfinite(forecast.effective_noise) and channel_noise_var(scenario) > 0:
        yield "In more rounds than the outage leaves out a class cannot be received at all: a holder has no channel."
    elif np.isfinite(forecast.effective_noise) and forecast.outage_noise_share > 0.5:
        carried = f"{forecast.outage_noise_share:.0%} of the noise"
        remedy = ': let devices in a deep fade stay silent (radio.truncation = "optimal")'
        advice = "" if forecast.silent_share > 0 else remedy
        yield f"The worst {scenario.radio.outage:.0%} of rounds carry {carried}{advice}."
    if forecast.power_holds_share < 1:
        yield f"The power limit (9) breaks in {1 - forecast.power_holds_share:.0%} of rounds."
    if forecast.privacy_holds_share < 1:
        yield (
            f"The privacy constraint (17) breaks in {1 - forecast.privacy_holds_share:.0%} of rounds: "
            "the paper's case rule chose wrongly there."
        )


def _about_rounds(scenario: Scenario, uplink: Uplink, rounds: RoundsChoice) -> Iterator[str]:
    if rounds.rule == "optimal" and rounds.chosen == rounds.largest:
        yield f"The optimum lies at the limit of {rounds.largest} rounds (learning.max_rounds), or beyond it."
    if rounds.rule == "paper" and rounds.paper > rounds.largest:
        wanted = f"{rounds.paper:.3g} rounds" if np.isfinite(rounds.paper) else "ever more rounds"
        yield f"The paper's formula asks for {wanted}; held to {rounds.largest} (learning.max_rounds)."
    if scenario.fleet.sampling != "none":
        yield "The gap leaves out how much a sampled mean gradient scatters about that of all devices."
    if scenario.fleet.participation < 1:
        yield "The gap leaves out how much the mean of those who take part scatters about that of all devices."
    limit = 1 / scenario.constants.grad_lipschitz
    if scenario.learning.initial_lr > limit and uplink.payload != PUBLIC_KNOWLEDGE:
        yield (
            f"The step size η0 = {scenario.learning.initial_lr:g} exceeds 1/L1 = {limit:.3g}: the convergence bound "
            "does not cover it, and the rounds that it advises are a rough guide."
        )


def _number(value: float) -> str:
    return f"{value:.3g}"
