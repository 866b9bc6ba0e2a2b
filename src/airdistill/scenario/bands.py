"""Transmit limits of licence-exempt bands, and the rules for a scenario's link budget.

The numbers are those of the regulations named in each band. They are a planning aid: whoever transmits is responsible
for the rules of the country.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airdistill.errors import Described, InputError
from airdistill.units import with_prefix

if TYPE_CHECKING:
    from airdistill.scenario.model import Scenario
    from airdistill.scenario.radio import Radio

# 5 fW in a tone of 312.5 kHz: −168 dBm/Hz, thermal noise with a noise figure of 6.0 dB.
DEFAULT_TONE_HZ, DEFAULT_NOISE_W = 312.5e3, 5e-15
DUTY_CYCLE_PERIOD_S = 3600.0  # EN 300 220-1: the share of any hour
_HALF_WAVE_DIPOLE = 10**0.215  # ERP refers to a dipole of 2.15 dBi, EIRP to an isotropic antenna


@dataclass(frozen=True)
class Band:
    """Limits of one band: frequencies in Hz, EIRP in W and W/Hz, and power into the antenna in W.

    A signal narrower than `wide_hz` has the limit `narrow_eirp_w`. `utilisation_w` is the largest mean EIRP over time
    of devices whose EIRP exceeds it, which do not listen before they talk.
    """

    lowest_hz: float
    highest_hz: float
    eirp_w: float
    source: str
    density_w_hz: float = math.inf
    power_w: float = math.inf
    wide_hz: float = 0.0
    narrow_eirp_w: float = math.inf
    duty_cycle: float = 1.0
    utilisation_w: float = math.inf

    def largest_eirp_w(self, bandwidth_hz: float) -> float:
        """The EIRP limit of a signal of this bandwidth."""
        limit = self.narrow_eirp_w if bandwidth_hz < self.wide_hz else self.eirp_w
        return min(limit, self.density_w_hz * bandwidth_hz)

    def largest_duty_cycle(self, eirp_w: float) -> float:
        """The largest share of the time on the air at this EIRP."""
        return min(self.duty_cycle, self.utilisation_w / eirp_w)


BANDS = {
    "868": Band(
        868e6, 868.6e6, 25e-3 * _HALF_WAVE_DIPOLE, duty_cycle=0.01,
        source="ERC Recommendation 70-03, annex 1, 868.0-868.6 MHz: 25 mW ERP, 1 % of any hour without listening first",
    ),
    # 15.249: a field of 50 mV/m at 3 m, and EIRP = (field · distance)²/30 Ω. The density of 15.247(e), 8 dBm in 3 kHz,
    # does not bind: a flat spectrum of at least 500 kHz has less with 1 W.
    "915": Band(
        902e6, 928e6, 10**0.6, power_w=1.0, wide_hz=500e3, narrow_eirp_w=(50e-3 * 3) ** 2 / 30,
        source="47 CFR 15.247: 1 W into an antenna of up to 6 dBi, from 500 kHz; 15.249: 50 mV/m at 3 m, below",
    ),
    # Medium utilisation (EIRP/100 mW · duty cycle) of at most 10 %: a mean of 10 mW over time.
    "2400": Band(
        2400e6, 2483.5e6, 0.1, density_w_hz=10e-3 / 1e6, utilisation_w=10e-3,
        source="ETSI EN 300 328, wide-band modulation: 100 mW EIRP, 10 mW/MHz, 10 % medium utilisation",
    ),
}  # fmt: skip


def occupied_bandwidth_hz(scenario: Scenario) -> float:
    """The bandwidth of everything that a device sends at once: one tone, or all tones and the one left out."""
    wave = scenario.waveform
    if wave.kind == "ofdm":
        return (wave.tones + 1) * wave.spacing
    return tone_bandwidth_hz(scenario)


def tone_bandwidth_hz(scenario: Scenario) -> float:
    """The bandwidth in which one number is received."""
    if scenario.waveform.kind == "ofdm":
        return scenario.waveform.spacing
    return scenario.radio.bandwidth or DEFAULT_TONE_HZ


def check_link_budget(scenario: Scenario) -> None:
    """Reject a link budget whose fields contradict each other, and a signal outside its band."""
    radio, wave = scenario.radio, scenario.waveform
    if radio.noise_figure_db is not None and radio.noise_density is not None:
        rule = "radio.noise_density includes the noise figure of the receiver; leave one of them out"
        raise InputError("radio.noise_figure_db", radio.noise_figure_db, rule)
    if radio.bandwidth is not None:
        if wave.kind == "ofdm" and radio.bandwidth != wave.spacing:
            rule = f"an OFDM tone is as wide as waveform.spacing, {wave.spacing:g} Hz; leave radio.bandwidth out"
            raise InputError("radio.bandwidth", radio.bandwidth, rule)
        if wave.kind != "ofdm" and radio.bandwidth * radio.slot < 1:
            rule = f"one number in every radio.slot of {with_prefix(radio.slot, 's')} needs at least "
            raise InputError("radio.bandwidth", radio.bandwidth, f"{rule}{with_prefix(1 / radio.slot, 'Hz')}")
    if radio.band is not None:
        _check_band(scenario, radio.band)


def _check_band(scenario: Scenario, name: str) -> None:
    radio, band = scenario.radio, BANDS[name]
    given: list[tuple[str, Any]] = [("max_eirp", radio.max_eirp), ("duty_cycle", radio.duty_cycle)]
    for field, value in given:
        if value is not None:
            raise InputError(f"radio.{field}", value, f'radio.band = "{name}" sets it; leave one of them out')
    width, whole = occupied_bandwidth_hz(scenario), band.highest_hz - band.lowest_hz
    limits = f"{band.lowest_hz / 1e6:g} to {band.highest_hz / 1e6:g} MHz"
    if width > whole:
        rule = f"the band is {limits}, and the signal is {width / 1e3:g} kHz wide; use {_narrower(scenario)}"
        raise InputError("radio.band", name, rule)
    if not band.lowest_hz <= radio.carrier - width / 2 <= radio.carrier + width / 2 <= band.highest_hz:
        rule = f"a signal of {width / 1e3:g} kHz around it must lie in {limits}, the band {name}"
        raise InputError("radio.carrier", Described(f"{radio.carrier / 1e6:g} MHz"), rule)


def _narrower(scenario: Scenario) -> str:
    return "fewer waveform.tones" if scenario.waveform.kind == "ofdm" else "a smaller radio.bandwidth, or another band"


def has_given_channels(radio: Radio) -> bool:
    """Whether gains or a trace replace path loss and fading; they include antennas and losses."""
    return radio.gains is not None or radio.trace is not None
