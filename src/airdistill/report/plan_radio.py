"""The radio's part of a plan, as rows: waveform, energy, receiver noise, and the limits of a band."""

from __future__ import annotations

import numpy as np

from airdistill.channel.link_budget import level_db, noise_figure_db, noise_power_w
from airdistill.channel.waveform import Grid
from airdistill.planning.fleet import peak_power_limit_w
from airdistill.planning.plan import Plan
from airdistill.planning.waveform import coherence_db
from airdistill.privacy.trust import trust_statement
from airdistill.scenario.bands import BANDS, tone_bandwidth_hz
from airdistill.scenario.model import Scenario
from airdistill.units import with_prefix


def waveform_rows(plan: Plan) -> list[tuple[str, str]]:
    """Bandwidth, the parts of a round's air time, and what channel errors cost; nothing for single tones."""
    grid, scenario = Grid.of(plan.scenario), plan.scenario
    if grid is None:
        return []
    timing, seen = plan.air_time, plan.uplink.observation
    parts = {"data": timing.data_s, "pilots": timing.pilot_s, "feedback": timing.feedback_s, "guards": timing.guard_s}
    each = ", ".join(f"{name} {with_prefix(seconds, 's')}" for name, seconds in parts.items() if seconds > 0)
    tones = f"{grid.tones} tones of {with_prefix(grid.spacing_hz, 'Hz')} in {with_prefix(grid.bandwidth_hz, 'Hz')}"
    factor = seen.factor(trust_statement(scenario.privacy.trust))
    known = f"{factor:.3g} times the noise for privacy; {seen.misalignment:.2%} of a signal's energy is misaligned"
    aged = coherence_db(scenario, plan.uplink.num_slots)
    moving = f"changed by {aged:.1f} dB when a round ends" if np.isfinite(aged) else "at rest"
    symbols = f"{grid.num_symbols(plan.uplink.num_slots)} symbols of {grid.numbers_per_symbol} numbers"
    return [
        ("  of which", each),
        ("Waveform", f"OFDM, {tones}, {symbols}"),
        (
            "  channels",
            f"known from pilots: {known}; {moving}"
            if scenario.waveform.csi == "pilot"
            else "known exactly" + (f": {known}" if max(seen.fleet_factor, seen.receiver_factor) > 1 else ""),
        ),
    ]


def energy_rows(plan: Plan) -> list[tuple[str, str]]:
    """Energy, and how weak the weakest device is on the air."""
    return [
        ("Uplink energy", f"{with_prefix(plan.uplink_joules, 'J')} in all, for the whole fleet"),
        ("Weakest device", f"{plan.forecast.worst_snr_db:.1f} dB SNR at full power (median round)"),
        ("Receiver noise", _receiver_noise(plan.scenario)),
    ]


def _receiver_noise(scenario: Scenario) -> str:
    """The receiver noise of a tone, and the noise figure that it comes to if the bandwidth is known."""
    power_w, radio = noise_power_w(scenario), scenario.radio
    level = f"{level_db(power_w / 1e-3):.1f} dBm" if power_w > 0 else "none"
    if power_w == 0 or (radio.noise_power is not None and radio.bandwidth is None and scenario.waveform.kind != "ofdm"):
        return level
    return f"{level} in {tone_bandwidth_hz(scenario) / 1e3:g} kHz, a noise figure of {noise_figure_db(scenario):.1f} dB"


def transmit_limit_rows(plan: Plan) -> list[tuple[str, str]]:
    """The limits of a band, or those that the scenario gives; nothing without any."""
    rows, radio, limit_w = [], plan.scenario.radio, peak_power_limit_w(plan.scenario)
    if np.isfinite(limit_w):
        eirp = level_db(limit_w / 1e-3) + radio.device_antenna_dbi
        source = f", {BANDS[radio.band].source}" if radio.band is not None else ""
        rows.append(("Transmit limit", f"{with_prefix(limit_w, 'W')} a device, {eirp:.1f} dBm EIRP{source}"))
    if plan.duty_cycle < 1:
        pace = with_prefix(plan.least_seconds / plan.num_rounds, "s")
        whole = with_prefix(plan.least_seconds, "s")
        share = f"{100 * plan.duty_cycle:.3g} % of the time"
        rows.append(("Duty cycle", f"{share}: at least {whole} for the run, a round every {pace}"))
    return rows
