"""The link budget: path loss, receiver noise, antennas and losses, and the power and air time that limits leave.

    SNR = peak power + antenna gains − implementation loss − path loss − noise power        (all in dB)

Everything that needs the receiver noise asks `noise_power_w`; `radio.noise_power` is only one way to give it.
"""

from __future__ import annotations

import math

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.scenario.bands import BANDS, DEFAULT_NOISE_W, DEFAULT_TONE_HZ, occupied_bandwidth_hz, tone_bandwidth_hz
from airdistill.scenario.model import Scenario
from airdistill.scenario.radio import Radio

SPEED_OF_LIGHT_M_S = 3e8  # the paper's value
BOLTZMANN_J_K = 1.380649e-23
REFERENCE_K = 290.0  # the temperature at which noise figures are defined


def power_ratio(decibels: float) -> float:
    """Return a level in dB as a ratio of powers."""
    return float(10.0 ** (decibels / 10.0))


def level_db(ratio: float) -> float:
    """Return a ratio of powers in dB; −∞ for 0."""
    return 10 * math.log10(ratio) if ratio > 0 else -math.inf


def thermal_noise_w(bandwidth_hz: float, noise_figure_db: float = 0.0) -> float:
    """k·T·B·F: thermal noise at 290 K, both axes together, after a receiver of this noise figure."""
    return BOLTZMANN_J_K * REFERENCE_K * bandwidth_hz * power_ratio(noise_figure_db)


def noise_power_w(scenario: Scenario) -> float:
    """The receiver's noise power in one tone, both axes together."""
    radio = scenario.radio
    return _thermal_power_w(scenario) if radio.noise_power is None else radio.noise_power


def _thermal_power_w(scenario: Scenario) -> float:
    """The noise power that follows from the bandwidth of a tone."""
    radio, bandwidth_hz = scenario.radio, tone_bandwidth_hz(scenario)
    if radio.noise_density is not None:
        return radio.noise_density * bandwidth_hz
    if radio.noise_figure_db is not None:
        return thermal_noise_w(bandwidth_hz, radio.noise_figure_db)
    return DEFAULT_NOISE_W * (bandwidth_hz / DEFAULT_TONE_HZ)


def device_noise_power_w(scenario: Scenario) -> float:
    """The noise power of a device's receiver in one tone, for what the server sends."""
    figure_db = scenario.radio.device_noise_figure_db
    if figure_db is None:
        return noise_power_w(scenario)
    return thermal_noise_w(tone_bandwidth_hz(scenario), figure_db)


def noise_figure_db(scenario: Scenario) -> float:
    """The noise figure that a noise power comes to; below 0 the receiver would be quieter than a resistor at 290 K."""
    return level_db(noise_power_w(scenario) / thermal_noise_w(tone_bandwidth_hz(scenario)))


def path_gain(distance_m: FloatArray, carrier_hz: float, exponent: float) -> FloatArray:
    """(c / (4π f d))^exponent, `[device]`.

    The paper multiplies "the small-scale fading coefficient on the path loss" and does not say whether the path loss is
    an amplitude. Here it is a power, and so h = √path_gain · fading.
    """
    return (SPEED_OF_LIGHT_M_S / (4 * np.pi * carrier_hz * np.asarray(distance_m, dtype=np.float64))) ** exponent


def antenna_gain(radio: Radio) -> float:
    """The factor of both antennas and the implementation loss in a link's power gain, for either direction.

    Gains that are given or recorded include it.
    """
    return power_ratio(radio.device_antenna_dbi + radio.server_antenna_dbi - radio.implementation_loss_db)


def largest_power_w(scenario: Scenario, antenna_dbi: float) -> float:
    """The largest transmit power of a station with this antenna gain; infinite without a limit.

    Losses between the transmitter and its antenna do not raise it, because they have not been measured for it.
    """
    radio, gain = scenario.radio, power_ratio(antenna_dbi)
    if radio.band is not None:
        band = BANDS[radio.band]
        return min(band.power_w, band.largest_eirp_w(occupied_bandwidth_hz(scenario)) / gain)
    return math.inf if radio.max_eirp is None else radio.max_eirp / gain


def pilot_power_w(scenario: Scenario) -> float:
    """The power of the server's pilot, within the transmit limit."""
    return min(scenario.waveform.pilot_power, largest_power_w(scenario, scenario.radio.server_antenna_dbi))


def duty_cycle(scenario: Scenario, largest_peak_power_w: float) -> float:
    """The largest share of the time that devices of this peak power may be on the air."""
    radio = scenario.radio
    if radio.band is None:
        return 1.0 if radio.duty_cycle is None else radio.duty_cycle
    return BANDS[radio.band].largest_duty_cycle(largest_peak_power_w * power_ratio(radio.device_antenna_dbi))
