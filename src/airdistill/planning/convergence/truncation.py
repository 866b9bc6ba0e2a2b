"""The truncation threshold that minimises the convergence gap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.planning.convergence.rounds import GapObjective
from airdistill.planning.transceiver.superposed import SuperposedUplink

# Shares of devices and rounds that a threshold makes inactive, in ascending order.
_INACTIVE_SHARES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.35, 0.55, 0.8)
_FINER = 4  # shares tried between the best of them and its neighbour, on either side
_MOST_NUMBERS = 10**6  # draws × devices × classes of a search: large fleets need fewer draws


def best_truncation(
    channels: ComplexArray,
    objective_at: Callable[[float, ComplexArray], GapObjective],
    num_classes: int,
    rounds: int | None,
    max_rounds: int,
) -> float:
    """The threshold on |h|² with the smallest gap, at a given T or at the best T of each threshold.

    Thresholds are quantiles of the draws `[draw, device]`: a coarse grid, then a finer one around its best point.
    `objective_at(threshold, channels)` is the gap. The lowest of equally good thresholds is taken.
    """
    num_draws = int(np.clip(_MOST_NUMBERS // (channels.shape[1] * num_classes), 10, len(channels)))
    searched = channels[:num_draws]
    gains = np.abs(searched) ** 2

    def least_gap(share: float) -> tuple[float, float]:
        threshold = float(np.quantile(gains, share)) if share > 0 else 0.0
        objective = objective_at(threshold, searched)
        gap = objective.gap(objective.best_rounds(max_rounds) if rounds is None else rounds)
        return gap, threshold

    found = [least_gap(share) for share in _INACTIVE_SHARES]
    best = min(range(len(found)), key=lambda place: found[place])
    low, high = _INACTIVE_SHARES[max(0, best - 1)], _INACTIVE_SHARES[min(best + 1, len(found) - 1)]
    finer = {*np.linspace(low, _INACTIVE_SHARES[best], _FINER), *np.linspace(_INACTIVE_SHARES[best], high, _FINER)}
    if best > 0:
        found += [least_gap(float(share)) for share in finer - set(_INACTIVE_SHARES)]
    return min(found)[1]


def typical_floor(uplink: SuperposedUplink, channels: ComplexArray) -> FloatArray:
    """σ_n²/cap_k at nominal weights, median over the draws in which the class can be sent, `[class]`; 0 if none can."""
    without_floor = replace(uplink, floor=None)
    # √(bias²/2) is the weight of the inactive devices of a class.
    active_weight = 1 - np.sqrt(without_floor.squared_bias(channels) / 2)
    floors = without_floor.channel_floor(channels) * active_weight**2
    sendable = [column[np.isfinite(column) & (column > 0)] for column in floors.T]
    return np.array([np.median(column) if len(column) else 0.0 for column in sendable])
