"""What-if for feature means: how sure the reading of the class sums can be, before anything is transmitted.

The server receives R_k = h_k m_k + noise, and unlabelled public samples show which means are possible. Whether the
right one is recognised depends on ‖h_k m_k‖ over the noise per entry, and hardly on the number of entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airdistill.planning.feature_means import (
    LEAST_BETWEEN,
    MOST_BETWEEN,
    FeatureMeans,
    LaterFeatureMeans,
    held_classes,
)
from airdistill.planning.plan import Plan

# Measured on MNIST and Fashion-MNIST (docs/feature-means.md): above the first value labels were as right as they get,
# within 6 in 100; below the second whole classes were confused.
_PLENTY, _TOO_LITTLE = 5.0, 2.5
_MEANINGS = {
    "enough": "the noise confuses no classes: labels are about as right as without noise",
    "scarce": "most classes are recognised; on hard data some are confused",
    "faint": "whole classes are confused, and which ones is chance: seeds differ by tens of per cent",
}


@dataclass(frozen=True)
class FeatureEvidence:
    """h_k‖m_k‖ of the median class over the received noise per entry, of all rounds whose sums are pooled.

    `hard` and `easy` are of data whose classes are a quarter and two thirds of the greatest distance apart.
    """

    hard: float
    easy: float
    verdict: str  # "enough", "scarce" or "faint"
    meaning: str


def feature_evidence(plan: Plan) -> FeatureEvidence | None:
    """The evidence of a plan for feature means; None for other plans, and for plans without noise."""
    payload, fleet = plan.uplink.payload, plan.fleet
    noise_var = float(np.median(plan.forecast.effective_noise_var))
    if not isinstance(payload, FeatureMeans) or noise_var == 0:
        return None
    pooled = 1 if isinstance(payload, LaterFeatureMeans) else plan.num_rounds
    deviation = fleet.num_devices * np.sqrt(noise_var / pooled)
    held = held_classes(plan.scenario, fleet)
    weights = payload.class_weights.sum(axis=0)
    # If counts are private, classes are taken to be spread evenly: nothing follows from the true ones.
    even = fleet.num_devices * np.sqrt(np.median(held)) / fleet.num_classes
    weight = even if payload.has_private_counts else np.median(weights[weights > 0])
    hard, easy = (
        float(weight * np.sqrt(payload.squared_length(between, held)) / deviation)
        for between in (LEAST_BETWEEN, MOST_BETWEEN)
    )
    verdict = "enough" if hard >= _PLENTY else "faint" if easy < _TOO_LITTLE else "scarce"
    return FeatureEvidence(hard, easy, verdict, _MEANINGS[verdict])
