"""Neighbours of one device's feature means: how far they move what the device sends, relative to the certified bound.

    python benchmarks/feature_neighbours.py [PAIRS]

Every pair is a dataset of embedded vectors and a neighbour of it, both sent through the devices' own code. Class
counts, norms and features are drawn anew for every pair; of four pairs, one is built against the bound
(`schemes/feature_neighbours.py`) and three are random. The bound is written out here by the formulas of theory
section 10, and compared with the package's.
"""

import sys
import time
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from airdistill.planning.feature_means import FeatureMeans
from airdistill.schemes.feature_means import device_vector
from airdistill.schemes.feature_neighbours import embedded_pairs


@dataclass(frozen=True)
class Fleet:
    """All that the payload needs of a fleet: one device."""

    class_counts: np.ndarray

    @property
    def num_devices(self) -> int:
        return len(self.class_counts)

    @property
    def num_classes(self) -> int:
        return int(self.class_counts.shape[1])


def drawn_payload(rng: np.random.Generator, private: bool) -> FeatureMeans:
    """A device with some classes, few or many samples, and norms that clip little or much."""
    num_classes, dimensions = int(rng.integers(2, 6)), int(rng.integers(1, 9))
    counts = rng.integers(1, rng.choice([3, 12]), num_classes) * (rng.random(num_classes) < 0.7)
    counts[rng.integers(num_classes)] += 1
    norm_bound, sample_bound = rng.uniform(0.1, 4), rng.uniform(0.1, 4)
    tau = norm_bound * rng.uniform(0.1, 1) if private else 0.0
    return FeatureMeans(Fleet(counts[None]), dimensions, norm_bound, sample_bound, tau)


def bound_of(payload: FeatureMeans, relation: str) -> float:
    """Theory section 10: whole devices, and one record with declared or with private counts."""
    counts, rho, rho_s, tau = (
        payload.fleet.class_counts[0],
        payload.norm_bound,
        payload.sample_bound,
        payload.count_norm,
    )
    n = counts.sum()
    if relation == "device":
        return float(np.sqrt(4 * rho**2 + 2 * tau**2))
    if tau == 0:
        return float(min(2 * rho, 2 * rho_s / np.sqrt(counts[counts > 0].min() * n)))
    moved = min(4 * rho**2, 2 * rho_s**2 / n) + 2 * tau**2 / n
    return float(np.sqrt(max(min(4 * rho**2, 4 * rho_s**2 / n), moved)))


def drawn_pair(payload: FeatureMeans, kind: str, rng: np.random.Generator):
    """Two random datasets `(features, labels)`: another sample, another label, or everything else."""
    counts = payload.fleet.class_counts[0]
    labels, n = np.repeat(np.arange(len(counts)), counts), counts.sum()
    features = rng.standard_normal((n, payload.dimensions)) * payload.sample_bound * rng.choice([0.2, 1, 3])
    if rng.random() < 0.3:  # all alike
        features[:] = features[0]
    if kind == "device":
        other = -features if rng.random() < 0.5 else rng.standard_normal(features.shape) * payload.sample_bound
        return (features, labels), (other, rng.integers(len(counts), size=n))
    record, other, moved = int(rng.integers(n)), features.copy(), labels.copy()
    other[record] *= -1 if rng.random() < 0.5 else rng.uniform(0, 3)
    if kind == "label change":
        moved[record] = rng.integers(len(counts))
    return (features, labels), (other, moved)


def attacked(payload: FeatureMeans, kind: str, rng: np.random.Generator, adversarial: bool) -> float:
    """The largest ratio of a shift to its bound, of one random pair or of all built ones of this kind."""
    relation, counts = "device" if kind == "device" else "record", payload.fleet.class_counts[0]
    if adversarial:
        built = [pair for pair in embedded_pairs(payload, 0, rng) if _kind_of(pair) == kind]
        pairs = [tuple(zip(pair.features, pair.labels, strict=True)) for pair in built]
    else:
        pairs = [drawn_pair(payload, kind, rng)]
    sent = [[device_vector(payload, features, labels, counts) for features, labels in pair] for pair in pairs]
    return max(float(np.linalg.norm(one - other)) for one, other in sent) / bound_of(payload, relation)


def _kind_of(pair) -> str:
    if pair.relation == "device":
        return "device"
    changed = any((one != other).any() for one, other in [pair.labels])
    return "label change" if changed else "same class"


def measure(num_pairs: int, seed: int = 0) -> dict[tuple[str, str], np.ndarray]:
    """Ratios of shift to bound `[pair]`, by counts and kind of neighbours."""
    rng, ratios = np.random.default_rng(seed), defaultdict(list)
    cases = [(counts, kind) for counts in ("public", "private") for kind in ("same class", "label change", "device")]
    for number in range(num_pairs):
        counts, kind = cases[number % len(cases)]
        payload = drawn_payload(rng, counts == "private")
        relation = "device" if kind == "device" else "class_mean"
        assert np.isclose(
            payload.sensitivity(relation)[0], bound_of(payload, "device" if kind == "device" else "record")
        )
        ratios[counts, kind].append(attacked(payload, kind, rng, adversarial=number // len(cases) % 4 == 0))
    return {case: np.array(found) for case, found in ratios.items()}


if __name__ == "__main__":
    started, asked = time.perf_counter(), int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    for (counts, kind), found in measure(asked).items():
        print(f"{counts:>7} counts, {kind:>12}: {len(found):>6} pairs, largest shift {found.max():.6f} of the bound")
    print(f"{time.perf_counter() - started:.0f} s")
