"""Warnings of values that are probably slips: a missing unit, decibels in place of gains, a target beyond sense.

None of them makes a plan wrong. Each names the field, its value, and the likely slip.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from airdistill.arrays import ComplexArray
from airdistill.channel.link_budget import antenna_gain, level_db, noise_figure_db, path_gain
from airdistill.channel.sources import drawn_distances_m, given_gains
from airdistill.data.datasets import dataset_summary
from airdistill.errors import InputError
from airdistill.planning.fleet import RealisedFleet, drawn_peak_power_w, peak_power_limit_w
from airdistill.planning.uplink import Uplink
from airdistill.scenario.bands import DUTY_CYCLE_PERIOD_S, has_given_channels, tone_bandwidth_hz
from airdistill.scenario.cells import CELLS
from airdistill.scenario.model import Scenario
from airdistill.units import rounded_up, with_prefix

LOWEST_USUAL_CARRIER_HZ = 1e6
LARGEST_USUAL_EPSILON = 100.0
_DECIBELS = (20.0, 200.0)  # path gains and losses of links, in dB
LARGEST_USUAL_SAMPLE = 100.0  # of numbers that are used as they are; bytes are scaled
_LABELS_SHOWN = 5
_USUAL_NOISE_FIGURES_DB = (0.0, 15.0)


def slips_of(scenario: Scenario, fleet: RealisedFleet, uplink: Uplink) -> tuple[str, ...]:
    """Return the warnings of a scenario's values."""
    radio = _about_radio(scenario, fleet) if uplink.uses_radio and scenario.air.medium != "secure_sum" else ()
    return (*radio, *_about_data(scenario), *_about_targets(scenario, fleet))


def _about_radio(scenario: Scenario, fleet: RealisedFleet) -> Iterator[str]:
    yield from _about_carrier(scenario.radio.carrier)
    if has_given_channels(scenario.radio):
        yield from _about_given_gains(scenario)
    else:
        yield from _about_distances(scenario)
    yield from _about_noise(scenario)
    yield from _about_transmit_limit(scenario, fleet)


def _about_carrier(carrier_hz: float) -> Iterator[str]:
    if carrier_hz >= LOWEST_USUAL_CARRIER_HZ:
        return
    # 2.4 was meant in GHz, 868 in MHz, and 868000 in kHz.
    meant = f"{carrier_hz:g} GHz" if carrier_hz < 100 else f"{carrier_hz / (1 if carrier_hz < 1e5 else 1e3):g} MHz"
    yield f"radio.carrier = {carrier_hz:g}: {with_prefix(carrier_hz, 'Hz')} is below 1 MHz; did you mean {meant}?"


def _about_given_gains(scenario: Scenario) -> Iterator[str]:
    radio, gains = scenario.radio, given_gains(scenario)
    field = "radio.gains" if radio.trace is None else "radio.trace"
    power = (np.abs(gains) ** 2).mean(axis=0)
    if _look_like_decibels(gains):
        example = gains.ravel()[0].real
        yield (
            f"{field}: every gain is a real number between {gains.real.min():g} and "
            f"{gains.real.max():g}, which looks like decibels; give complex amplitudes h instead: "
            f"{-abs(example):g} dB is |h| = {10 ** (-abs(example) / 20):.3g}."
        )
    elif (power > 1).any():
        yield (
            f"{field}: device {int(power.argmax())} is received {level_db(power.max()):.1f} dB stronger than it sends; "
            "gains must include the path loss, as amplitudes h with |h|² the power gain."
        )
    if antenna_gain(radio) != 1:
        yield (
            f"radio.device_antenna_dbi, radio.server_antenna_dbi and radio.implementation_loss_db are not used: the "
            f"gains of {field} are taken to include antennas and losses."
        )


def _look_like_decibels(gains: ComplexArray) -> bool:
    """Whether all gains are real, of one sign, and of the size of a path loss in dB."""
    size, (least, most) = np.abs(gains.real), _DECIBELS
    one_sign = bool((gains.real < 0).all() or (gains.real > 0).all())
    return one_sign and not gains.imag.any() and bool(((size >= least) & (size <= most)).all())


def _about_distances(scenario: Scenario) -> Iterator[str]:
    """Cells have no path gain above 0 dB at the distances that they allow, and a carrier in Hz is the slip itself."""
    radio = scenario.radio
    if radio.fading in CELLS or radio.carrier < LOWEST_USUAL_CARRIER_HZ:
        return
    distance_m = drawn_distances_m(scenario)
    gain = path_gain(distance_m, radio.carrier, radio.path_loss_exponent) * antenna_gain(radio)
    if not (gain > 1).any():
        return
    device = int(gain.argmax())
    given, carrier = f"{distance_m[device]:g}", with_prefix(radio.carrier, "Hz")
    yield (
        f"radio.distance = {given}: device {device} is received {level_db(gain[device]):.1f} dB stronger than it sends "
        f"at {with_prefix(distance_m[device], 'm')} and {carrier}; did you mean {given} km, or another carrier?"
    )


def _about_noise(scenario: Scenario) -> Iterator[str]:
    radio = scenario.radio
    if radio.noise_power is None:
        return
    given = [name for name in ("noise_figure_db", "noise_density") if getattr(radio, name) is not None]
    if given:
        yield (
            f"radio.noise_power = {radio.noise_power:g} W overrides radio.{given[0]} = {getattr(radio, given[0]):g}; "
            'leave it out, or set radio.noise_power = "thermal".'
        )
    known = scenario.waveform.kind == "ofdm" or radio.bandwidth is not None
    if not known or radio.noise_power == 0:
        return
    figure_db, (least, most) = noise_figure_db(scenario), _USUAL_NOISE_FIGURES_DB
    if not least <= figure_db <= most:
        yield (
            f"radio.noise_power = {radio.noise_power:g} W in a tone of {tone_bandwidth_hz(scenario) / 1e3:g} kHz is a "
            f'noise figure of {figure_db:.1f} dB; with radio.noise_power = "thermal" it follows from the bandwidth.'
        )


def _about_transmit_limit(scenario: Scenario, fleet: RealisedFleet) -> Iterator[str]:
    limit_w = peak_power_limit_w(scenario)
    capped = int(np.count_nonzero(drawn_peak_power_w(scenario) > limit_w))
    if capped:
        yield (
            f"The transmit limit leaves {capped} of {fleet.num_devices} devices {with_prefix(limit_w, 'W')}, less than "
            "their radio.peak_power: the plan uses what it leaves."
        )


def _about_data(scenario: Scenario) -> Iterator[str]:
    """Labels that are not 0, 1, 2, … may lack a class, and models learn nothing from numbers far above 1."""
    data = scenario.data
    if data.class_counts is not None:
        return
    found = dataset_summary(data.dataset)
    if found.class_labels is not None and isinstance(found.class_labels[0], int):
        shown = ", ".join(map(str, found.class_labels[:_LABELS_SHOWN]))
        more = ", …" if len(found.class_labels) > _LABELS_SHOWN else ""
        count = len(found.class_labels)
        yield f"data.dataset: its labels {shown}{more} are the classes 0 to {count - 1}, in this order."
    if scale_hint(scenario):
        yield (
            f"data.dataset: samples are {found.dtype} up to {found.largest:.3g} and are used as they are, and models "
            "learn best from numbers of about 1; store pixels as uint8, scale the samples, or set "
            'data.normalization = "public".'
        )


def scale_hint(scenario: Scenario) -> str:
    """A way out of divergence if numbers far above 1 are used as they are; empty otherwise."""
    found = dataset_summary(scenario.data.dataset)
    is_scaled = found.dtype == np.uint8 or scenario.data.normalization == "public"
    if is_scaled or found.largest <= LARGEST_USUAL_SAMPLE:
        return ""
    return f"samples reach {found.largest:.3g}: scale them to about 1, or "


def _about_targets(scenario: Scenario, fleet: RealisedFleet) -> Iterator[str]:
    targeted = np.isfinite(fleet.epsilon)
    weak = targeted & (fleet.epsilon >= LARGEST_USUAL_EPSILON)
    if weak.any():
        device = int(np.argmax(np.where(weak, fleet.epsilon, 0.0)))
        yield (
            f"privacy.epsilon = {fleet.epsilon[device]:g} (device {device}{_others(weak)}) promises almost nothing: an "
            f"observer may become e^{fleet.epsilon[device]:g} times as sure of a guess; did you mean a value below 10?"
        )
    samples = fleet.class_counts.sum(axis=1)
    likely = targeted & (fleet.delta >= 1 / samples)
    if likely.any():
        device = int(np.argmax(np.where(likely, fleet.delta * samples, 0.0)))
        whole = scenario.privacy.sensitivity == "device"
        allowed = "that all of them are published, with this probability" if whole else "that one of them is published"
        yield (
            f"privacy.delta = {rounded_up(float(fleet.delta[device]))} (device {device}{_others(likely)}) is not below "
            f"1/{samples[device]}, and the device has {samples[device]} samples: such a δ allows {allowed}; choose a δ "
            "far below 1 in the number of samples."
        )


def _others(found: np.ndarray) -> str:
    count = int(np.count_nonzero(found)) - 1
    return "" if count == 0 else f" and {count} other{'s' if count > 1 else ''}"


def check_duty_cycle(on_air_s: float, largest_share: float) -> None:
    """Raise if one round alone is longer than the air time of an hour."""
    most_s = largest_share * DUTY_CYCLE_PERIOD_S
    if on_air_s > most_s:
        rule = (
            f"a device is on the air for {with_prefix(on_air_s, 's')} in one round, and may be for "
            f"{with_prefix(most_s, 's')} in any hour; send fewer numbers, or use another band"
        )
        raise InputError("radio.duty_cycle", largest_share, rule)
