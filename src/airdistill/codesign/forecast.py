"""What the planned rounds will be like, measured over channel draws: noise, power, time, privacy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray, divide_or
from airdistill.codesign.convergence import fleet_effective_noise
from airdistill.codesign.fleet import RealisedFleet
from airdistill.codesign.links import Links
from airdistill.codesign.rounds import below_outage
from airdistill.codesign.transceiver import TOLERANCE, RoundDesign


@dataclass(frozen=True)
class RoundForecast:
    """One round of the plan over `num_draws` channel draws. Lists by class are medians.

    `effective_noise` is the mean over devices and over the draws below the outage; the median is over all draws, the
    quantile the largest of those below.

    `outage_noise_share` is the part of all noise that falls in the rounds left out. `worst_snr_db` is the received
    signal-to-noise ratio of the weakest device at full power; `channel_snr_db` that of the knowledge (norm 1 at
    most) in the noisiest class if privacy asked for nothing. Powers `[device]` are means over classes and draws.
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


def forecast_round(
    fleet: RealisedFleet,
    links: Links,
    channels: ComplexArray,
    required: FloatArray,
    design: Callable[[ComplexArray], RoundDesign],
    outage: float,
    slot_s: float,
) -> RoundForecast:
    """Designs every draw `[draw, device]` and sums up what comes out."""
    tally = _tally(fleet, channels, required, design)
    noise = fleet_effective_noise(fleet.class_counts, tally.noise_var) / fleet.num_devices
    kept = below_outage(noise, outage)
    held = fleet.class_counts.sum(axis=0) > 0
    channel_floor = links.channel_floor[:, held]
    binds = float((required.max(axis=0)[held] > channel_floor).mean())
    return RoundForecast(
        num_draws=len(channels),
        regime="privacy" if binds >= 0.99 else "channel" if binds <= 0.01 else "mixed",
        privacy_binds_share=binds,
        required_noise_var=required.max(axis=0),
        effective_noise_var=np.median(tally.noise_var, axis=0),
        effective_noise=float(noise[kept].mean()),
        effective_noise_median=float(np.median(noise)),
        effective_noise_quantile=float(noise[kept].max()),
        outage_noise_share=_share(float(noise[~kept].sum()), float(noise.sum())),
        signal_power_w=tally.signal_power_w,
        noise_power_w=tally.noise_power_w,
        round_joules=slot_s * fleet.num_classes**2 * float((tally.signal_power_w + tally.noise_power_w).sum()),
        worst_snr_db=_decibel(float(np.median(links.power_w.min(axis=-1))), links.channel_noise_var),
        channel_snr_db=_decibel(1.0, fleet.num_classes * float(np.median(channel_floor, axis=0).max())),
        inverse_counted_noise=tally.inverse_counted_noise,
        power_holds_share=tally.power_holds_share,
        privacy_holds_share=tally.privacy_holds_share,
    )


@dataclass(frozen=True)
class _Tally:
    """Over the draws: v `[draw, class]`; mean |P1|² and |P2|² `[device]`; mean 1/c `[device, class]`."""

    noise_var: FloatArray
    signal_power_w: FloatArray
    noise_power_w: FloatArray
    inverse_counted_noise: FloatArray
    power_holds_share: float
    privacy_holds_share: float


def _tally(
    fleet: RealisedFleet,
    channels: ComplexArray,
    required: FloatArray,
    design: Callable[[ComplexArray], RoundDesign],
) -> _Tally:
    num_draws = len(channels)
    noise_var = np.empty((num_draws, fleet.num_classes))
    signal_power_w, noise_power_w = np.zeros(fleet.num_devices), np.zeros(fleet.num_devices)
    inverse_counted = np.zeros(required.shape)
    power_holds = privacy_holds = 0
    for draw, channel in enumerate(channels):
        drawn = design(channel)
        noise_var[draw] = drawn.effective_noise_var
        signal_power_w += (np.abs(drawn.signal_gain) ** 2).mean(axis=1) / num_draws
        noise_power_w += (np.abs(drawn.noise_gain) ** 2).mean(axis=1) / num_draws
        inverse_counted += divide_or(np.ones(()), drawn.counted_noise_var, np.inf) / num_draws
        power_holds += bool((drawn.power_slack(fleet.peak_power_w) >= -TOLERANCE).all())
        privacy_holds += bool((drawn.privacy_slack(required) >= -TOLERANCE).all())
    return _Tally(
        noise_var,
        signal_power_w,
        noise_power_w,
        inverse_counted,
        power_holds / num_draws,
        privacy_holds / num_draws,
    )


def _share(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if np.isfinite(whole) else 1.0


def _decibel(signal: float, noise: float) -> float:
    if noise == 0:
        return float("inf")
    return float(10 * np.log10(max(signal / noise, 1e-100)))
