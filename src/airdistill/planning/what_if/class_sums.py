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
    ClusterMeans,
    FeatureMeans,
    LaterFeatureMeans,
    held_classes,
)
from airdistill.planning.plan import Plan

# Measured, 12 runs each with 3000 public samples of ten classes (docs/feature-reading.md): evidence, and the share of
# public labels read rightly, mean, least and most. Beyond the first value hardly any classes are confused; below the
# second whole classes are, and which ones is chance.
_PLENTY, _TOO_LITTLE = 5.0, 2.5
_MEASURED = (0.92, 1.7, 2.47, 3.17, 5.58, 6.42, 19.8)
_HARD = ((0.28, 0.08, 0.44), (0.45, 0.27, 0.62), (0.63, 0.48, 0.74), (0.71, 0.52, 0.78), (0.81, 0.77, 0.84),
         (0.82, 0.79, 0.84), (0.85, 0.84, 0.86))  # fmt: skip
_EASY = ((0.36, 0.24, 0.61), (0.66, 0.42, 0.95), (0.91, 0.68, 0.97), (0.94, 0.87, 0.97), (0.95, 0.92, 0.97),
         (0.95, 0.94, 0.96), (0.97, 0.96, 0.97))  # fmt: skip
# The same with clusters: 16 runs at 2.3 with seven public sets of MNIST, otherwise 6 runs with one.
_MEASURED_CLUSTERS = (2.3, 3.7)
_HARD_CLUSTERS = ((0.47, 0.33, 0.65), (0.66, 0.58, 0.7))
_EASY_CLUSTERS = ((0.78, 0.38, 0.97), (0.96, 0.95, 0.97))


@dataclass(frozen=True)
class Foreseen:
    """h_k‖m_k‖ of the median class over the received noise per entry, of all rounds whose sums are pooled.

    `right`, `least` and `most` are the shares of right public labels that were measured at this evidence on `like`.
    """

    evidence: float
    like: str
    right: float
    least: float
    most: float


@dataclass(frozen=True)
class FeatureEvidence:
    """The evidence of data whose classes are a quarter of the greatest distance apart, and two thirds of it."""

    hard: Foreseen
    easy: Foreseen
    verdict: str  # "enough", "scarce" or "faint"


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
    lengths = (np.sqrt(payload.squared_length(between, held)) for between in (LEAST_BETWEEN, MOST_BETWEEN))
    hard, easy = (float(weight * length / deviation) for length in lengths)
    verdict = "enough" if hard >= _PLENTY else "faint" if easy < _TOO_LITTLE else "scarce"
    if isinstance(payload, ClusterMeans):
        # Hard data have clusters of several classes: their sums are as long, and lie closer together.
        of_hard = _foreseen(easy, "Fashion-MNIST", _MEASURED_CLUSTERS, _HARD_CLUSTERS)
        return FeatureEvidence(of_hard, _foreseen(easy, "MNIST", _MEASURED_CLUSTERS, _EASY_CLUSTERS), verdict)
    of_hard = _foreseen(hard, "Fashion-MNIST", _MEASURED, _HARD)
    return FeatureEvidence(of_hard, _foreseen(easy, "MNIST", _MEASURED, _EASY), verdict)


def _foreseen(
    evidence: float, like: str, measured: tuple[float, ...], shares: tuple[tuple[float, float, float], ...]
) -> Foreseen:
    # Between measured values shares are interpolated, and beyond them they are those of the nearest.
    right, least, most = (float(np.interp(np.log(evidence), np.log(measured), each)) for each in np.transpose(shares))
    return Foreseen(evidence, like, right, least, most)
