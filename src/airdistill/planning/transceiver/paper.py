"""Proposition 1 as printed, eqs. (18)–(20) with their two cases, for comparison with the optimal design.

The case rule compares T with σ_n²/(4K min_i|h_i|²P_i max_i ρ_i), a product of extremes of different devices, and
ignores the class counts: it can choose Case I although the privacy constraint (17) is violated. In Case II "any
solution of (20)" may exceed the power limit; this implementation takes P2 = 0 and clips λ² to the power cap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import ComplexArray, FloatArray, divide_or
from airdistill.planning.transceiver.design import TOLERANCE, Links, RoundDesign, aligned_signal_gain, inverse_of


@dataclass(frozen=True, kw_only=True)
class PaperRoundDesign(RoundDesign):
    """A design with the case of the paper's rule, and whether its power and privacy constraints hold."""

    case: int
    power_holds: bool
    privacy_holds: bool


def privacy_stringency(class_counts: ArrayLike, epsilon: ArrayLike, delta: ArrayLike) -> FloatArray:
    """ρ_i = ln(1/δ_i)/(B_i²ε_i²) of Theorem 2, `[device]`."""
    samples = np.asarray(class_counts, dtype=np.float64).sum(axis=1)
    return np.asarray(np.log(1 / np.asarray(delta)) / (samples * np.asarray(epsilon)) ** 2)


def design_round_paper(
    class_counts: ArrayLike,
    channel: ComplexArray,
    peak_power_w: ArrayLike,
    channel_noise_var: float,
    stringency: FloatArray,
    num_rounds: int,
) -> PaperRoundDesign:
    """The paper's gains for one round's channel `[device]`, stringencies ρ `[device]` and T rounds in total."""
    links = Links.of(class_counts, channel, peak_power_w, channel_noise_var)
    required = 4 * num_rounds * links.weights**2 * stringency[:, None]
    cap = divide_or(np.ones(()), links.inverse_cap, 0.0)
    # The test above eq. (19), T ≤ T_0, multiplied out to allow ρ = 0.
    threshold = 4 * num_rounds * links.num_classes * links.power_w.min() * stringency.max()
    case = 1 if channel_noise_var >= threshold else 2
    # Eq. (19), or eq. (20) with P2 = 0.
    scale_sq = (
        cap if case == 1 else np.minimum(cap, divide_or(np.array(channel_noise_var), required.max(axis=0), np.inf))
    )
    effective = divide_or(np.full(cap.shape, channel_noise_var), scale_sq, np.inf)
    design = RoundDesign(
        weights=links.weights,
        signal_gain=aligned_signal_gain(links, inverse_of(np.asarray(channel)), scale_sq),
        noise_gain=np.broadcast_to(np.complex128(0), required.shape),
        rx_scale=np.sqrt(scale_sq),
        effective_noise_var=effective,
        counted_noise_var=np.broadcast_to(effective, required.shape),
        required_noise_var=required.max(axis=0),
    )
    return PaperRoundDesign(
        **vars(design),
        case=case,
        power_holds=bool((design.power_slack(peak_power_w) >= -TOLERANCE).all()),
        privacy_holds=bool((design.privacy_slack(required) >= -TOLERANCE).all()),
    )
