"""Forecast of the planned rounds over channel draws: noise, power, energy and privacy."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np

from airdistill.arrays import BoolArray, ComplexArray, FloatArray, divide_or
from airdistill.planning.convergence.rounds import below_outage
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.transceiver.design import TOLERANCE
from airdistill.planning.uplink import Uplink
from airdistill.stages import report_stage

LIMITING_FACTORS = {"privacy": "privacy", "channel": "channel", "mixed": "privacy and channel"}


@dataclass(frozen=True)
class RoundForecast:
    """One round of the plan over `num_draws` channel draws. Arrays `[row]` are medians over draws.

    `effective_noise` is the mean over devices and over the draws below the outage, `effective_noise_median` the median
    over all draws, `effective_noise_quantile` the largest below the outage, and `outage_noise_share` the part of all
    noise in the draws above it.

    `worst_snr_db` is the received signal-to-noise ratio of the weakest device at full power; `channel_snr_db` is that
    of the largest vector in the noisiest row without any noise for privacy. Powers `[device]` are means over rows and
    draws. `silent_share` is the share of devices and rounds that are inactive, which biases the received rows by
    `squared_bias` at most.
    """

    num_draws: int
    regime: Literal["privacy", "channel", "mixed"]
    privacy_binds_share: float
    required_noise_var: FloatArray
    effective_noise_var: FloatArray
    effective_noise: float
    effective_noise_median: float
    effective_noise_quantile: float
    outage_noise_share: float
    signal_power_w: FloatArray
    noise_power_w: FloatArray
    round_joules: float
    worst_snr_db: float
    channel_snr_db: float
    inverse_counted_noise: FloatArray
    power_holds_share: float
    privacy_holds_share: float
    squared_bias: float = 0.0  # plans stored before truncation was supported do not have it
    silent_share: float = 0.0


def forecast_round(
    uplink: Uplink,
    fleet: RealisedFleet,
    channels: ComplexArray,
    num_rounds: int,
    channel_noise_var: float,
    outage: float,
    slot_s: float,
) -> RoundForecast:
    """Design a round for every draw `[draw, device]` of T rounds, and summarise the designs."""
    tally = _tally(uplink, fleet, channels, num_rounds)
    noise = uplink.fleet_noise(tally.noise_var) / fleet.num_devices
    kept = below_outage(noise, outage)
    held = tally.held
    channel_floor = uplink.channel_floor(channels)[:, held]
    again = np.arange(len(tally.required_noise_var)) % len(channels)
    bias = uplink.over_fleet(uplink.squared_bias(channels)) / fleet.num_devices
    limited = float((tally.required_noise_var[:, held] > channel_floor[again]).mean())
    gains = np.abs(channels) ** 2
    # With several antennas: the power after a combiner matched to one device, ‖h‖².
    strongest = (gains if gains.ndim == 2 else gains.sum(axis=-1)) * fleet.peak_power_w
    numbers_sent = uplink.num_rows * uplink.vector_length
    return RoundForecast(
        num_draws=len(channels),
        regime="privacy" if limited >= 0.99 else "channel" if limited <= 0.01 else "mixed",
        privacy_binds_share=limited,
        required_noise_var=np.median(tally.required_noise_var, axis=0),
        effective_noise_var=np.median(tally.noise_var, axis=0),
        effective_noise=float(noise[kept].mean()),
        effective_noise_median=float(np.median(noise)),
        effective_noise_quantile=float(noise[kept].max()),
        outage_noise_share=_share(float(noise[~kept].sum()), float(noise.sum())),
        signal_power_w=tally.signal_power_w,
        noise_power_w=tally.noise_power_w,
        round_joules=slot_s * numbers_sent * float((tally.signal_power_w + tally.noise_power_w).sum()),
        worst_snr_db=_decibel(float(np.median(strongest.min(axis=-1))), channel_noise_var),
        channel_snr_db=_decibel(
            uplink.largest_norm**2, uplink.vector_length * float(np.median(channel_floor, axis=0).max())
        ),
        inverse_counted_noise=tally.inverse_counted_noise,
        power_holds_share=tally.power_holds_share,
        privacy_holds_share=tally.privacy_holds_share,
        squared_bias=float(bias.mean()),
        silent_share=tally.inactive_share,
    )


@dataclass(frozen=True)
class _Tally:
    """Over the draws: v and required noise `[draw, row]`; the means of |P1|², |P2|² `[device]` and 1/c `[device, row]`.

    `held` marks the rows that any device sends, `[row]`. `inactive_share` is the share of devices and rounds without a
    signal.
    """

    noise_var: FloatArray
    required_noise_var: FloatArray
    held: BoolArray
    signal_power_w: FloatArray
    noise_power_w: FloatArray
    inverse_counted_noise: FloatArray
    power_holds_share: float
    privacy_holds_share: float
    inactive_share: float


def _tally(uplink: Uplink, fleet: RealisedFleet, channels: ComplexArray, num_rounds: int) -> _Tally:
    """Design the rounds in turn, repeated if draws outnumber them; with carry-over, track what they spend."""
    num_draws = uplink.num_planned(len(channels), num_rounds)
    rounds = _rounds_to_design(num_draws, num_rounds)
    shift, nothing = uplink.shift(uplink.model), np.zeros((fleet.num_devices, uplink.num_rows))
    spent = nothing if uplink.carry_over else None
    noise_var, required_noise_var = np.empty((2, num_draws, uplink.num_rows))
    signal_power_w, noise_power_w = np.zeros(fleet.num_devices), np.zeros(fleet.num_devices)
    inverse_counted = nothing.copy()
    power_holds = privacy_holds = inactive = 0
    for draw, (round_index, represents) in enumerate(rounds):
        report_stage("rounds planned", draw + 1, num_draws)
        if spent is not None and round_index == 1:
            spent = nothing
        required = uplink.required_at(num_rounds, round_index, spent)
        drawn = uplink.design(channels[draw % len(channels)], num_rounds, round_index, spent)
        noise_var[draw], required_noise_var[draw] = drawn.effective_noise_var, drawn.required_noise_var
        signal_w, noise_w = np.abs(drawn.signal_gain) ** 2, drawn.noise_power_w()
        signal_power_w += drawn.signal_probability * signal_w.mean(axis=1) / num_draws
        noise_power_w += noise_w.mean(axis=1) / num_draws
        inverse = _inverse(drawn.counted_noise_var)
        inverse_counted += inverse / num_draws
        if spent is not None:
            spent = spent + represents * _cost(shift.at(round_index), inverse)
        inactive += int(np.count_nonzero(~drawn.weights.any(axis=1)))
        signal_w += noise_w
        power_holds += bool((1.0 - signal_w / fleet.peak_power_w[:, None] >= -TOLERANCE).all())
        privacy_holds += bool((drawn.privacy_slack(required) >= -TOLERANCE).all())
    return _Tally(
        noise_var,
        required_noise_var,
        np.asarray(uplink.shift("device").after(1).any(axis=0)),
        signal_power_w,
        noise_power_w,
        inverse_counted,
        power_holds / num_draws,
        privacy_holds / num_draws,
        inactive / (num_draws * fleet.num_devices),
    )


def _rounds_to_design(num_draws: int, num_rounds: int) -> list[tuple[int, int]]:
    """For each draw a round from 1 to T and the number of rounds that it represents: repeated, or in even steps."""
    if num_rounds <= num_draws:
        return [(draw % num_rounds + 1, 1) for draw in range(num_draws)]
    starts = np.linspace(0, num_rounds, num_draws + 1).astype(np.int64)
    return [(int(start) + 1, int(end - start)) for start, end in itertools.pairwise(starts)]


def _inverse(noise_var: FloatArray) -> FloatArray:
    """1/c, infinite without noise; computed once if it is the same for all devices."""
    each = noise_var[:1] if noise_var.strides[0] == 0 else noise_var
    return np.broadcast_to(divide_or(np.ones(()), each, np.inf), noise_var.shape)


def _cost(squared_shift: FloatArray, inverse_noise: FloatArray) -> FloatArray:
    """(w s)²/c; zero if there is no shift."""
    return np.where(squared_shift > 0, squared_shift * np.where(squared_shift > 0, inverse_noise, 0.0), 0.0)


def _share(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if np.isfinite(whole) else 1.0


def _decibel(signal: float, noise: float) -> float:
    if noise == 0:
        return float("inf")
    return float(10 * np.log10(max(signal / noise, 1e-100)))
