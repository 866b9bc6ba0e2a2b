"""Which threshold of silence makes the convergence gap least."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.codesign.knowledge_uplink import KnowledgeUplink
from airdistill.codesign.rounds import GapObjective

# Shares of devices and rounds that a threshold would silence, least first.
_SILENT_SHARES = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
_MOST_NUMBERS = 10**6  # draws × devices × classes of a search: large fleets average themselves


def best_truncation(
    channels: ComplexArray,
    objective_at: Callable[[float, ComplexArray], GapObjective],
    num_classes: int,
    rounds: int | None,
    max_rounds: int,
) -> float:
    """The |h|² of least gap among quantiles of the draws `[draw, device]`, with the best T for each or at a given T.

    `objective_at(threshold, channels)` is the gap; of thresholds that do as well the lowest is taken.
    """
    num_draws = int(np.clip(_MOST_NUMBERS // (channels.shape[1] * num_classes), 10, len(channels)))
    searched = channels[:num_draws]
    thresholds = [0.0, *np.quantile(np.abs(searched) ** 2, _SILENT_SHARES[1:])]

    def least_gap(threshold: float) -> float:
        objective = objective_at(threshold, searched)
        return objective.gap(objective.best_rounds(max_rounds) if rounds is None else rounds)

    return float(min(thresholds, key=lambda threshold: (least_gap(threshold), threshold)))


def typical_floor(uplink: KnowledgeUplink, channels: ComplexArray) -> FloatArray:
    """σ_n²/cap_k of a median draw, at usual weights, `[class]`."""
    spoken = replace(uplink, floor=None)
    kept = 1 - np.sqrt(spoken.squared_bias(channels) / 2)
    return np.asarray(np.median(spoken.channel_floor(channels) * kept**2, axis=0))
