"""Assumptions and warnings of a plan, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.channel.csi import ChannelError
from airdistill.channel.waveform import Grid
from airdistill.planning.convergence.rounds import RoundsChoice
from airdistill.planning.fleet import (
    RealisedFleet,
    channel_excess_delta,
    channel_noise_var,
    reserved_delta,
    unheld_classes,
)
from airdistill.planning.forecast import RoundForecast
from airdistill.planning.noise_factors import has_impairments, keeps_samples
from airdistill.planning.slips import slips_of
from airdistill.planning.uplink import Uplink
from airdistill.planning.waveform import coherence_db, drift_misalignment, waveform_facts
from airdistill.privacy.assumptions import (
    ANTENNAS,
    NOISE,
    PILOT,
    RESAMPLED,
    channels_statement,
    public_facts,
    votes_statement,
    waveform_assumptions,
)
from airdistill.privacy.correlation import correlation_statement
from airdistill.privacy.neighbours import RELABEL
from airdistill.privacy.targets import target_mu
from airdistill.privacy.trust import is_built_in, trust_statement
from airdistill.scenario.cells import CELLS
from airdistill.scenario.model import Scenario
from airdistill.units import rounded_up

_COHERENT_DB = -20.0  # of misalignment at the end of a round
_MUCH_NOISE, _MUCH_MISALIGNED, _CLIPPING_DB, _FEWEST_BITS = 3.0, 0.1, 6.0, 4
_MANY_MISSING = 0.3  # of the classes, on average


def assumptions_of(scenario: Scenario, uplink: Uplink, num_rounds: int) -> tuple[str, ...]:
    """What the plan's guarantees rest on."""
    privacy, payload, trust = scenario.privacy, uplink.payload, trust_statement(scenario.privacy.trust)
    neighbours = payload.neighbours
    lines = [f"{neighbours.relation_for(privacy.sensitivity)} {neighbours.basis_for(privacy.sensitivity)}"]
    if privacy.relabel and neighbours.is_class_mean:
        lines.append(RELABEL)
    if neighbours.declared is not None:
        lines.append(neighbours.declared.sentence)
    if scenario.radio.trace is not None:
        lines.append("Channels repeat the recorded trace, from its first round again after its last.")
    elif scenario.radio.gains is None and scenario.radio.fading in CELLS:
        cell = CELLS[scenario.radio.fading]
        lines.append(
            f"Channels are 3GPP TR 38.901 {cell.name}, {'indoors' if cell.indoors else 'outdoors'} and at the carrier, "
            "with its own path loss and shadowing; radio.path_loss_exponent is not used."
        )
    if scenario.data.resample:
        lines.append(RESAMPLED)
    lines.append(trust.statement(uplink.uses_tdma))
    lines += uplink.participation.statements
    if uplink.correlation is not None:
        lines += correlation_statement({"correlation": uplink.correlation.to_dict()})
        lines.append("The gap is that of independent noise of the same variance; for correlated noise it is no bound.")
    if scenario.radio.antennas > 1 and not trust.counts_own_only:
        lines.append(ANTENNAS.format(count=scenario.radio.antennas))
    limit, excess = ChannelError.of(scenario).limit, channel_excess_delta(scenario, num_rounds)
    lines += [public_facts(uplink.payload.header()), PILOT[scenario.constants.source]]
    if scenario.waveform.kind == "ofdm":
        facts = waveform_facts(scenario, uplink)
        lines += [each.sentence for each in waveform_assumptions(facts, trust.counts_own_only)]
    elif uplink.uses_radio:
        lines.append(channels_statement(limit, trust.counts_own_only, excess))
    lines += [NOISE[privacy.noise], *votes_statement(payload.header())]
    if not uplink.uses_radio:
        lines.append("Air time is an estimate: every device sends its votes in slots of its own, one bit a slot.")
    elif payload.most_noise is not None:
        bound = f"at most {payload.most_noise:g} times as long as the longest vector"
        lines.append(f"The optimal T is the largest one at which the noise of a round is {bound}.")
    elif not payload.has_gap:
        lines.append(f"The gap is that of class means; for {payload.words} it only ranks rounds and thresholds.")
    elif scenario.learning.local_epochs > 0 and payload.is_knowledge:
        lines.append("The gap bounds one full-batch step a round; with local epochs it is a proxy.")
    learning = scenario.learning
    if payload.has_gap and (learning.optimizer, learning.schedule) != ("sgd", "inverse_sqrt"):
        how = f'optimizer "{learning.optimizer}" and schedule "{learning.schedule}"'
        lines.append(f"The gap is that of plain gradient steps of size η0/√t; with {how} it only ranks rounds.")
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
        *slips_of(scenario, fleet, uplink),
        *_about_privacy(scenario, fleet, uplink, epsilon_by_model),
        *_about_pilot(scenario, uplink),
        *_about_payload(fleet, uplink, forecast),
        *_about_channel(scenario, uplink, forecast),
        *_about_channel_errors(scenario, fleet, rounds),
        *_about_waveform(scenario, uplink),
        *_about_rounds(scenario, uplink, rounds),
    )


def _about_privacy(
    scenario: Scenario, fleet: RealisedFleet, uplink: Uplink, epsilon_by_model: dict[str, FloatArray]
) -> Iterator[str]:
    targeted = np.isfinite(fleet.epsilon)
    if not targeted.all():
        yield f"{np.count_nonzero(~targeted)} of {fleet.num_devices} devices have no privacy target (epsilon = inf)."
    model = scenario.privacy.sensitivity
    if targeted.any() and model != "device":
        worst = float(epsilon_by_model["device"][targeted].max())
        if not uplink.payload.is_knowledge:
            grounds = "protects single records"
        else:
            grounds = "holds only under its assumptions" if model == "trajectory" else "does not hold in general"
        target = float(fleet.epsilon[targeted].max())
        compared = f"above the target {_number(target)}" if worst > target else "within the target"
        yield (
            f'Sensitivity "{model}" {grounds}; for whole devices this plan gives up to ε = {_number(worst)}, '
            f"{compared}."
        )
    secret = uplink.participation.is_secret
    if scenario.privacy.accountant == "paper" and secret and (epsilon_by_model["device"] > fleet.epsilon).any():
        yield (
            "The published form amplifies all rounds at once, and gives some devices less noise than their (ε, δ) "
            'requires; use accountant = "exact". A run stops when they have spent their budget.'
        )
    elif scenario.privacy.accountant == "paper" and not secret:
        short = targeted & (fleet.mu > target_mu(fleet.epsilon, fleet.delta, "exact", scenario.privacy.noise))
        if short.any():
            yield (
                f"The paper's accountant gives {np.count_nonzero(short)} devices less noise than (ε, δ) requires; "
                'use accountant = "exact". A run stops when they have spent their budget.'
            )
    if scenario.privacy.accountant == "paper" and uplink.participation.changes_weights:
        yield (
            "The paper's accountant counts the expected number of rounds that a device joins. A device that is drawn "
            "more often gets less noise than its (ε, δ) requires, and a run stops when it has spent its budget."
        )
    if trust_statement(scenario.privacy.trust).counts_receiver and channel_noise_var(scenario) == 0:
        if scenario.radio.transceiver == "paper":
            yield "The receiver is noiseless, and the paper's transceiver adds no noise: it cannot send privately."
        else:
            yield "The receiver is noiseless, and none of its noise can be counted: planned as fleet_noise."


def _about_pilot(scenario: Scenario, uplink: Uplink) -> Iterator[str]:
    source = scenario.constants.source
    if source == "private":
        yield (
            "The pilot was not private: it measured the learning constants on the devices' own data, and no noise of "
            "this plan protects what they and the number of rounds reveal. Run the pilot on synthetic or public data."
        )
    if (
        source != "declared"
        and scenario.privacy.sensitivity == "trajectory"
        and uplink.payload.neighbours.is_class_mean
    ):
        yield (
            'Sensitivity "trajectory" needs bounds, and a pilot\'s L1, L2 and S are only the largest it observed: '
            "declare larger ones that are known to hold."
        )


def _about_payload(fleet: RealisedFleet, uplink: Uplink, forecast: RoundForecast) -> Iterator[str]:
    unheld, payload = unheld_classes(fleet), uplink.payload
    if unheld and payload.neighbours.is_class_mean:
        yield f"No device holds class {', '.join(map(str, unheld))}: it has no class mean and no distillation term."
    missing = float((fleet.class_counts == 0).mean())
    if missing > _MANY_MISSING and payload.neighbours.is_class_mean:
        yield (
            f"Devices lack {missing:.0%} of the classes, and class means cannot teach a class to a device that does "
            "not hold it. With public samples feature means can (--scheme airdistill_features), without them clipped "
            "updates (--scheme ota_fedavg)."
        )
    if forecast.channel_snr_db < 0:
        yield (
            f"Channel noise exceeds the {payload.words} by {-forecast.channel_snr_db:.0f} dB even with all power on "
            f"the signal (the weakest device has {forecast.worst_snr_db:.0f} dB). Nothing can be learned from it: more "
            "power, less noise, shorter distances or fewer weak devices are needed."
        )
    elif payload.has_gap and uplink.largest_norm**2 < forecast.effective_noise < np.inf:
        yield (
            f"The noise of the received {payload.words} exceeds their size: squared error "
            f"{_number(forecast.effective_noise)} for vectors of norm {uplink.largest_norm:g} at most. Fewer rounds, "
            "more devices or a larger ε would help."
        )


def _about_channel(scenario: Scenario, uplink: Uplink, forecast: RoundForecast) -> Iterator[str]:
    if not np.isfinite(forecast.effective_noise) and forecast.silent_share > 0:
        remedy = uplink.participation.advice or "lower radio.truncation"
        yield f"A class has no active device in more rounds than the outage allows: {remedy}."
    elif not np.isfinite(forecast.effective_noise) and channel_noise_var(scenario) > 0:
        yield "A class cannot be received in more rounds than the outage allows: a holder has no channel."
    elif np.isfinite(forecast.effective_noise) and forecast.outage_noise_share > 0.5:
        carried = f"{forecast.outage_noise_share:.0%} of the noise"
        remedy = ': use truncated channel inversion (radio.truncation = "optimal")'
        can_truncate = forecast.silent_share == 0 and is_built_in(scenario.privacy.trust)
        advice = remedy if can_truncate else ""  # the design of a user's own trust model may rely on some devices
        yield f"The worst {scenario.radio.outage:.0%} of rounds carry {carried}{advice}."
    if forecast.power_holds_share < 1:
        yield f"The power limit (9) is violated in {1 - forecast.power_holds_share:.0%} of rounds."
    if forecast.privacy_holds_share < 1:
        yield (
            f"The privacy constraint (17) is violated in {1 - forecast.privacy_holds_share:.0%} of rounds: "
            "the paper's case distinction chose wrongly."
        )


def _about_waveform(scenario: Scenario, uplink: Uplink) -> Iterator[str]:
    wave = scenario.waveform
    if wave.kind == "single_tone":
        return
    aged = coherence_db(scenario, uplink.num_slots)
    if aged > _COHERENT_DB and wave.csi == "pilot":
        fastest = wave.speed * 10 ** ((_COHERENT_DB - aged) / 20)
        yield (
            f"The channel changes by {aged:.1f} dB between the pilot and the end of a round at waveform.speed = "
            f"{wave.speed:g} m/s; signals stay aligned to {_COHERENT_DB:g} dB up to {fastest:.2g} m/s, or with fewer "
            "numbers or more tones."
        )
    seen, trust = uplink.observation, trust_statement(scenario.privacy.trust)
    if keeps_samples(scenario) and seen.factor(trust) > _MUCH_NOISE:
        yield (
            f"A server that keeps every sample, cyclic prefixes included, costs {seen.factor(trust):.2g} times the "
            "noise that privacy needs for demodulated elements: own_noise needs none for it, and waveform.observed = "
            '"elements" assumes a receiver that keeps nothing else.'
        )
    elif seen.factor(trust) > _MUCH_NOISE:
        named = "Channel errors and impairments" if has_impairments(scenario) else "Channel errors"
        yield (
            f"{named} cost {seen.factor(trust):.2g} times the noise that privacy needs with known channels: "
            "stronger or more pilot symbols, fewer tones, slower devices or a higher waveform.fade_floor_db help, and "
            "own_noise needs none."
        )
    lost = seen.misalignment
    if lost > _MUCH_MISALIGNED:
        yield (
            f"On average {lost:.0%} of a signal's energy is not received where it belongs: for errors of the pilot, "
            "deep fades (waveform.fade_floor_db), and devices that send less because they know their channel badly."
        )
    yield from _about_oscillators(scenario, uplink)
    if wave.adc_bits is not None and wave.adc_bits < _FEWEST_BITS:
        yield f"A converter of {wave.adc_bits} bits adds more than 1 % of the received power as quantisation noise."
    if wave.amplifier != "linear" and wave.backoff_db < _CLIPPING_DB:
        yield (
            f"waveform.backoff_db = {wave.backoff_db:g}: OFDM has peaks of 8 dB and more over its mean, which the "
            "amplifier cuts off."
        )


def _about_oscillators(scenario: Scenario, uplink: Uplink) -> Iterator[str]:
    """Misalignment by clocks and oscillators, which a plan takes to be ideal."""
    for field, misaligned in drift_misalignment(scenario, uplink.num_slots).items():
        level = 10 * np.log10(misaligned) if misaligned > 0 else -np.inf
        if level > _COHERENT_DB:
            yield (
                f"waveform.{field} = {getattr(scenario.waveform, field):g} misaligns signals by up to "
                f"{min(level, 3.0):.1f} dB, and the plan takes clocks and oscillators to be ideal: choose a smaller "
                f"value for {_COHERENT_DB:g} dB, or send fewer numbers in a round."
            )
    grid, wave = Grid.of(scenario), scenario.waveform
    if grid is not None and wave.timing_error > 0.5 * grid.prefix_s:
        yield (
            f"Devices may be {wave.timing_error * 1e6:.3g} us late: with the channel's delays this may exceed the "
            f"cyclic prefix of {grid.prefix_s * 1e6:.3g} us, and symbols interfere."
        )


def _about_channel_errors(scenario: Scenario, fleet: RealisedFleet, rounds: RoundsChoice) -> Iterator[str]:
    excess = 0.0 if scenario.waveform.kind == "ofdm" else channel_excess_delta(scenario, rounds.chosen)
    if excess == 0 or reserved_delta(scenario) > 0 or not np.isfinite(fleet.epsilon).any():
        return
    enough = 0.1 * float(fleet.delta.min()) / (fleet.num_devices * rounds.largest)
    yield (
        f"Channel errors beyond their {scenario.radio.csi_quantile:g} quantile have a probability of up to "
        f"{rounded_up(excess)} over all devices and rounds. It adds to δ = {rounded_up(float(fleet.delta.min()))}, and "
        f"so the certificate will not hold; set radio.csi_quantile = {1 - enough:.12g} or more."
    )


def _about_rounds(scenario: Scenario, uplink: Uplink, rounds: RoundsChoice) -> Iterator[str]:
    if rounds.rule == "optimal" and rounds.chosen == rounds.largest:
        yield f"The optimum is at the limit of {rounds.largest} rounds (learning.max_rounds), or beyond it."
    if rounds.rule == "paper" and rounds.paper > rounds.largest:
        wanted = f"{rounds.paper:.3g} rounds" if np.isfinite(rounds.paper) else "an unlimited number of rounds"
        yield f"The paper's formula gives {wanted}; limited to {rounds.largest} (learning.max_rounds)."
    if uplink.participation.is_secret or not uplink.participation.everyone:
        yield "The gap does not include the variance of the sampled devices' mean about the mean of all devices."
    limit = 1 / scenario.constants.grad_lipschitz
    if scenario.learning.initial_lr > limit and uplink.payload.has_gap and scenario.learning.optimizer == "sgd":
        yield (
            f"The step size η0 = {scenario.learning.initial_lr:g} exceeds 1/L1 = {limit:.3g}: the convergence bound "
            "does not cover it, and the planned number of rounds is a rough guide."
        )


def _number(value: float) -> str:
    return f"{value:.3g}"
