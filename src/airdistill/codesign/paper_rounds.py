"""How many rounds, by the paper."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from airdistill.codesign.constants import LearningConstants
from airdistill.codesign.paper_transceiver import privacy_stringency
from airdistill.privacy.sensitivity import aggregation_weights


def paper_rounds(class_counts: ArrayLike, epsilon: ArrayLike, delta: ArrayLike, constants: Any) -> int | float:
    """Eq. (21) with i inside the maximum, to the nearest whole number and at least 1; inf if nothing limits it.

    It is the optimum of a balanced, privacy-limited fleet with the paper's sensitivity and accountant.
    """
    constants = LearningConstants.of(constants)
    weights = aggregation_weights(class_counts)
    stringency = privacy_stringency(class_counts, epsilon, delta)
    strictest = float(np.max(stringency * (weights**2).sum(axis=1)))
    # 24 η0² γ² L2² L1 = 4 η0 A2
    growth = 4 * constants.initial_lr * constants.noise_factor * strictest
    if growth == 0:
        return float("inf")
    mean_loss = constants.total_loss_bound(len(weights)) / len(weights)
    return max(1, int(np.floor(3 * mean_loss / growth + 0.5)))
