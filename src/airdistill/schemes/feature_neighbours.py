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
    direction = rng.standard_normal(payload.dimensions)
    direction *= _BEYOND * payload.sample_bound / np.linalg.norm(direction)
    builder = _Builder(own, np.where(counts > 0, counts, counts.sum() + 1), direction, payload)
    return [*builder.of_one_record(), *builder.of_whole_device()]


@dataclass(frozen=True)
class _Builder:
    """Pairs of datasets with as many samples as the device has; `held` counts absent classes as the largest."""

    own: IntArray
    held: IntArray
    direction: FloatArray
    payload: FeatureMeans

    def of_one_record(self) -> Iterator[EmbeddedPair]:
        """All features but the record's are zero: others would be clipped together with it, and it would move less."""
        order = np.argsort(self.held, kind="stable")  # the rarest class first, absent ones last
        one = np.arange(len(self.own)) == int(np.flatnonzero(self.own == order[0])[0])
        yield self._pair("record", "the features of one record reversed", (one, -1.0 * one), (self.own, self.own))
        if len(order) < 2:
            return
        kept = (1.0 * one, 1.0 * one)
        moved = np.where(one, order[1], self.own)
        yield self._pair("record", "one record moved to the second rarest class", kept, (self.own, moved))
        most = int(np.bincount(self.own).argmax())
        empty, other = [*(klass for klass in order[::-1] if klass != most), most][:2]
        crowd = np.full(len(self.own), most)
        moved = np.where(one, empty, crowd)
        yield self._pair("record", "one record moved to a class without records", kept, (crowd, moved))
        if self.payload.has_private_counts:
            alone = np.where(one, empty, most)
            yield self._pair("record", "the only record of its class reversed", (one, -1.0 * one), (alone, alone))
            moved = np.where(one, other, most)
            yield self._pair("record", "the only record of its class moved", kept, (alone, moved))

    def of_whole_device(self) -> Iterator[EmbeddedPair]:
        """All features the same and reversed, under the device's labels or all of its rarest class."""
        every, rarest = np.ones(len(self.own)), np.full(len(self.own), int(self.held.argmin()))
        for labels, named in ((self.own, "its own labels"), (rarest, "one label")):
            yield self._pair("device", f"all features reversed, with {named}", (every, -every), (labels, labels))
        if self.payload.has_private_counts and len(self.held) > 2:
            yield self._pair("device", "few features reversed, all other records of another class", *self._hidden())

    def _hidden(self) -> tuple[tuple[FloatArray, FloatArray], tuple[IntArray, IntArray]]:
        """As few records carry the features as reach the clip; the others' class is all that the weights show."""
        share = min(1.0, (self.payload.norm_bound / self.payload.sample_bound) ** 2)
        carry = np.arange(len(self.own)) < np.ceil(share * len(self.own))
        labels = (np.where(carry, 0, 1), np.where(carry, 0, 2))
        return (1.0 * carry, -1.0 * carry), labels

    def _pair(
        self,
        relation: Literal["record", "device"],
        description: str,
        factors: tuple[FloatArray, FloatArray],
        labels: tuple[IntArray, IntArray],
    ) -> EmbeddedPair:
        first, second = (np.outer(factor, self.direction) for factor in factors)
        return EmbeddedPair(relation, description, (first, second), labels)
