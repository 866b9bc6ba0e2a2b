"""The link of every device in a plan: where it is, how well it is received, and whether it limits the scale λ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airdistill.arrays import BoolArray, ComplexArray, FloatArray, divide_or
from airdistill.channel.link_budget import antenna_gain, device_noise_power_w, pilot_power_w
from airdistill.channel.sources import drawn_distances_m, large_scale_gains
from airdistill.channel.threegpp import cell_bearings
from airdistill.planning.fleet import channel_noise_var
from airdistill.planning.plan import Plan, planning_draws
from airdistill.planning.transceiver.design import TOLERANCE, RoundDesign
from airdistill.privacy.trust import trust_statement
from airdistill.scenario.bands import has_given_channels
from airdistill.scenario.cells import CELLS
from airdistill.scenario.model import Scenario
from airdistill.streams import stream

_MOST_DESIGNS = 50
_MOST_DESIGNS_OF_ANTENNAS = 6  # a combiner takes a good part of a second


@dataclass(frozen=True)
class DeviceLinks:
    """The links of a plan, `[device]`.

    `distance_m` and `bearing_rad` are None if gains are given or recorded. `bearings_matter`: channels were drawn for
    these bearings; otherwise they are drawn for a map only. `path_loss_db` is the mean loss from antenna to antenna,
    shadowing included. `snr_db` is that of a number at full power over the mean channel, against the receiver noise on
    the decision axis. `power_used` is the mean transmit power over the limit. `noise_share` is the part of the noise of
    all devices, as received, that a device sends; None if they send none, or each in slots of its own. `channel_limits`
    and `privacy_limits` are the shares of rows and rounds in which the device limits λ, as the only one or with its
    equals: by its channel and power, or by its privacy target. `pilot_snr_db` is that of the server's pilot on one
    tone, for OFDM.
    """

    distance_m: FloatArray | None
    bearing_rad: FloatArray | None
    bearings_matter: bool
    path_loss_db: FloatArray
    snr_db: FloatArray
    peak_power_w: FloatArray
    power_used: FloatArray
    noise_share: FloatArray | None
    channel_limits: FloatArray
    privacy_limits: FloatArray
    pilot_snr_db: FloatArray | None

    @property
    def limiting(self) -> FloatArray:
        """The share of rows and rounds in which a device limits λ."""
        return self.channel_limits + self.privacy_limits


def device_links(plan: Plan) -> DeviceLinks | None:
    """The links of a plan's devices; None if nothing of it goes over a radio."""
    scenario, forecast, fleet = plan.scenario, plan.forecast, plan.fleet
    if not plan.uplink.uses_radio or scenario.air.medium == "secure_sum":
        return None
    gains, draws = large_scale_gains(scenario), planning_draws(scenario)
    antennas = 1.0 if has_given_channels(scenario.radio) else antenna_gain(scenario.radio)
    limits, noise_var = _Limits.over(plan, draws), np.array(channel_noise_var(scenario))
    at_distance = not has_given_channels(scenario.radio)
    return DeviceLinks(
        distance_m=drawn_distances_m(scenario) if at_distance else None,
        bearing_rad=_bearings(scenario) if at_distance else None,
        bearings_matter=scenario.radio.fading in CELLS,
        path_loss_db=-_decibels(gains / antennas),
        snr_db=_decibels(divide_or(fleet.peak_power_w * _received_gain(scenario, gains, draws), noise_var, np.inf)),
        peak_power_w=fleet.peak_power_w,
        power_used=(forecast.signal_power_w + forecast.noise_power_w) / fleet.peak_power_w,
        noise_share=limits.noise_share,
        channel_limits=limits.channel,
        privacy_limits=limits.privacy,
        pilot_snr_db=_pilot_snr_db(scenario, gains),
    )


def _received_gain(scenario: Scenario, gains: FloatArray, draws: ComplexArray) -> FloatArray:
    """The power gain from a device to one number, `[device]`.

    Several antennas: after a combiner matched to the device. OFDM: the mean effective gain over its tones.
    """
    if scenario.waveform.kind != "single_tone":
        return np.asarray((np.abs(draws) ** 2).mean(axis=0))
    return gains * scenario.radio.antennas


def _pilot_snr_db(scenario: Scenario, gains: FloatArray) -> FloatArray | None:
    wave = scenario.waveform
    if wave.kind == "single_tone" or wave.csi != "pilot" or wave.pilot != "downlink":
        return None
    return _decibels(pilot_power_w(scenario) / wave.tones * gains / device_noise_power_w(scenario))


def _bearings(scenario: Scenario) -> FloatArray:
    """The direction from the server to each device, rad."""
    if scenario.radio.fading in CELLS:
        return cell_bearings(scenario)
    return stream(scenario.seed, "map-bearing").uniform(0, 2 * np.pi, scenario.num_devices)


def _decibels(ratio: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):  # a device without a channel
        return np.asarray(10 * np.log10(ratio))


@dataclass(frozen=True)
class _Limits:
    """Shares of rows and draws in which a device limits λ, and its share of the received noise, `[device]`."""

    channel: FloatArray
    privacy: FloatArray
    noise_share: FloatArray | None

    @classmethod
    def over(cls, plan: Plan, draws: ComplexArray) -> _Limits:
        """Design a round for some of the planner's draws `[draw, device]`, and count."""
        most = _MOST_DESIGNS if draws.ndim == 2 else _MOST_DESIGNS_OF_ANTENNAS
        chosen = draws[:most]
        channel, privacy, noise = np.zeros((3, plan.fleet.num_devices))
        rows = 0
        for index, drawn in enumerate(chosen):
            round_index = index % plan.num_rounds + 1
            design = plan.design(drawn, round_index)
            sent = _rows_sent(design)
            rows += int(np.count_nonzero(sent))
            by_channel, by_privacy = _limiting(plan, design, round_index)
            channel += (by_channel & sent).sum(axis=1)
            privacy += (by_privacy & sent).sum(axis=1)
            own = np.where(sent, plan.uplink.noise_by_trust(design, drawn)["own_noise"], 0.0)
            noise += divide_or(own, np.broadcast_to(own.sum(axis=0), own.shape), 0.0).sum(axis=1)
        counted = max(rows, 1)
        shared = None if plan.uplink.uses_tdma or not noise.any() else noise / noise.sum()
        return cls(channel / counted, privacy / counted, shared)


def _rows_sent(design: RoundDesign) -> BoolArray:
    """The rows that any device sends, `[row]`."""
    scale = design.rx_scale.max(axis=0) if design.uses_tdma else design.rx_scale
    return np.asarray((scale > 0) & (np.abs(design.signal_gain) > 0).any(axis=0))


def _limiting(plan: Plan, design: RoundDesign, round_index: int) -> tuple[BoolArray, BoolArray]:
    """The devices that limit λ in each row by their channel, and by their privacy target, `[device, row]`.

    1. A device that sends its signal alone at its power limit is limited by its channel: a larger λ would exceed it.
    2. If only a device's own noise counts, the one that uses most of its power decides; by its channel if its signal
       takes more of the power than its noise.
    3. Otherwise the device whose privacy requires the most noise of the sum decides.
    Devices that are equal decide together.
    """
    limit_w = plan.fleet.peak_power_w[:, None]
    signal, noise = np.abs(design.signal_gain) ** 2 / limit_w, design.noise_power_w() / limit_w
    at_limit = signal >= 1 - TOLERANCE
    by_channel = at_limit.any(axis=0)
    if trust_statement(plan.scenario.privacy.trust).counts_own_only or plan.uplink.uses_tdma:
        used = signal + noise
        deciding = used >= used.max(axis=0) * (1 - TOLERANCE)
        mostly_signal = deciding & (signal > noise)
        return np.where(by_channel, at_limit, mostly_signal), deciding & ~mostly_signal & ~by_channel
    required = plan.uplink.required_at(plan.num_rounds, round_index)
    slack = np.where(required > 0, design.privacy_slack(required), np.inf)
    least = slack.min(axis=0)
    strictest = np.isfinite(slack) & (1 + slack <= (1 + least) * (1 + TOLERANCE))
    return at_limit, strictest & ~by_channel
