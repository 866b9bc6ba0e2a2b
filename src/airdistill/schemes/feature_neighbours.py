"""Neighbouring datasets of one device as embedded vectors, built to move feature means as far as their bound allows.

Images rarely have features that reach the norms to which they are clipped, let alone in opposite directions. A bound
must hold for any features, and so an attack may choose them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from airdistill.arrays import FloatArray, IntArray
from airdistill.planning.feature_means import FeatureMeans

_REVERSED, _ORTHOGONAL = "reversed", "in other clusters"
_TINY = 1e-12  # a single cluster leaves no other
_BEYOND = 10.0  # how far features exceed the norm to which a sample is clipped: the clip is attacked too


@dataclass(frozen=True)
class EmbeddedPair:
    """Features `[sample, feature]` and labels `[sample]` of D and of a neighbour D'."""

    relation: Literal["record", "device"]
    description: str
    features: tuple[FloatArray, FloatArray]
    labels: tuple[IntArray, IntArray]


def embedded_pairs(payload: FeatureMeans, device: int, rng: np.random.Generator) -> list[EmbeddedPair]:
    """The pairs that move most: one record replaced or relabelled, and all records replaced."""
    counts = payload.fleet.class_counts[device]
    own = np.repeat(np.arange(len(counts)), counts)
    direction, opposite = _far_apart(payload, rng)
    builder = _Builder(own, np.where(counts > 0, counts, counts.sum() + 1), direction, opposite, payload)
    return [*builder.of_one_record(), *builder.of_whole_device()]


def _far_apart(payload: FeatureMeans, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Two features beyond the clip, in the worst geometry of the payload: opposite, or at right angles."""
    direction, length = rng.standard_normal(payload.dimensions), _BEYOND * payload.sample_bound
    if not payload.neighbours.forbids_negative_entries:
        direction *= length / np.linalg.norm(direction)
        return direction, -direction
    first = np.arange(payload.dimensions) < max(payload.dimensions // 2, 1)
    one, other = np.where(first, np.abs(direction), 0.0), np.where(first, 0.0, np.abs(direction))
    return length * one / np.linalg.norm(one), length * other / max(float(np.linalg.norm(other)), _TINY)


@dataclass(frozen=True)
class _Builder:
    """Pairs of datasets with as many samples as the device has; `held` counts absent classes as the largest.

    `opposite` is as far from `direction` as the payload allows.
    """

    own: IntArray
    held: IntArray
    direction: FloatArray
    opposite: FloatArray
    payload: FeatureMeans

    @property
    def words(self) -> str:
        """How features are changed from one vector to the other."""
        return _ORTHOGONAL if self.payload.neighbours.forbids_negative_entries else _REVERSED

    def of_one_record(self) -> Iterator[EmbeddedPair]:
        """All features but the record's are zero: others would be clipped together with it, and it would move less."""
        order = np.argsort(self.held, kind="stable")  # the rarest class first, absent ones last
        one = np.arange(len(self.own)) == int(np.flatnonzero(self.own == order[0])[0])
        alike = (self.own, self.own)
        yield self._pair("record", f"the features of one record {self.words}", (one, one), alike, apart=True)
        if len(order) < 2:
            return
        kept = (one, one)
        moved = np.where(one, order[1], self.own)
        yield self._pair("record", "one record moved to the second rarest class", kept, (self.own, moved))
        most = int(np.bincount(self.own).argmax())
        empty, other = [*(klass for klass in order[::-1] if klass != most), most][:2]
        crowd = np.full(len(self.own), most)
        moved = np.where(one, empty, crowd)
        yield self._pair("record", "one record moved to a class without records", kept, (crowd, moved))
        if self.payload.has_private_counts:
            alone = np.where(one, empty, most)
            yield self._pair("record", f"the only record of its class {self.words}", kept, (alone, alone), apart=True)
            moved = np.where(one, other, most)
            yield self._pair("record", "the only record of its class moved", kept, (alone, moved))

    def of_whole_device(self) -> Iterator[EmbeddedPair]:
        """All features the same and reversed, under the device's labels or all of its rarest class."""
        every, rarest = np.ones(len(self.own)), np.full(len(self.own), int(self.held.argmin()))
        for labels, named in ((self.own, "its own labels"), (rarest, "one label")):
            named = f"all features {self.words}, with {named}"
            yield self._pair("device", named, (every, every), (labels, labels), apart=True)
        if self.payload.has_private_counts and len(self.held) > 2:
            named = f"few features {self.words}, all other records of another class"
            yield self._pair("device", named, *self._hidden(), apart=True)

    def _hidden(self) -> tuple[tuple[FloatArray, FloatArray], tuple[IntArray, IntArray]]:
        """As few records carry the features as reach the clip; the others' class is all that the weights show."""
        share = min(1.0, (self.payload.norm_bound / self.payload.sample_bound) ** 2)
        carry = np.arange(len(self.own)) < np.ceil(share * len(self.own))
        labels = (np.where(carry, 0, 1), np.where(carry, 0, 2))
        return (carry, carry), labels

    def _pair(
        self,
        relation: Literal["record", "device"],
        description: str,
        factors: tuple[FloatArray, FloatArray],
        labels: tuple[IntArray, IntArray],
        apart: bool = False,
    ) -> EmbeddedPair:
        first, second = (
            np.outer(factor, along)
            for factor, along in zip(factors, (self.direction, self.opposite if apart else self.direction), strict=True)
        )
        return EmbeddedPair(relation, description, (first, second), labels)
