"""Which threshold of silence makes the convergence gap least."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.planning.convergence.rounds import GapObjective
from airdistill.planning.transceiver.superposed import SuperposedUplink

# Shares of devices and rounds that a threshold would silence, least first.
_SILENT_SHARES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.35, 0.55, 0.8)
_FINER = 4  # shares that are tried between the best of them and its neighbours, on either side
_MOST_NUMBERS = 10**6  # draws × devices × classes of a search: large fleets average themselves


def best_truncation(
    channels: ComplexArray,
    objective_at: Callable[[float, ComplexArray], GapObjective],
    num_classes: int,
    rounds: int | None,
    max_rounds: int,
) -> float:
    """The |h|² of least gap among quantiles of the draws `[draw, device]`, with the best T for each or at a given T.

    `objective_at(threshold, channels)` is the gap; of thresholds that do as well the lowest is taken. A coarse grid of
    quantiles, and a finer one around the best of it.
    """
    num_draws = int(np.clip(_MOST_NUMBERS // (channels.shape[1] * num_classes), 10, len(channels)))
    searched = channels[:num_draws]
    gains = np.abs(searched) ** 2

    def least_gap(share: float) -> tuple[float, float]:
        threshold = float(np.quantile(gains, share)) if share > 0 else 0.0
        objective = objective_at(threshold, searched)
        gap = objective.gap(objective.best_rounds(max_rounds) if rounds is None else rounds)
        return gap, threshold

    found = [least_gap(share) for share in _SILENT_SHARES]
    best = min(range(len(found)), key=lambda place: found[place])
    low, high = _SILENT_SHARES[max(0, best - 1)], _SILENT_SHARES[min(best + 1, len(found) - 1)]
    finer = {*np.linspace(low, _SILENT_SHARES[best], _FINER), *np.linspace(_SILENT_SHARES[best], high, _FINER)}
    if best > 0:
        found += [least_gap(float(share)) for share in finer - set(_SILENT_SHARES)]
    return min(found)[1]


def typical_floor(uplink: SuperposedUplink, channels: ComplexArray) -> FloatArray:
    """σ_n²/cap_k of a median draw in which the class can be sent, at usual weights, `[class]`; 0 if it never can."""
    spoken = replace(uplink, floor=None)
    kept = 1 - np.sqrt(spoken.squared_bias(channels) / 2)
    floors = spoken.channel_floor(channels) * kept**2
    sendable = [column[np.isfinite(column) & (column > 0)] for column in floors.T]
    return np.array([np.median(column) if len(column) else 0.0 for column in sendable])
