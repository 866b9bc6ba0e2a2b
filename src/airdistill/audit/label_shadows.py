"""Devices with chosen class shares, which an attacker trains to learn how answers depend on a device's labels.

All of them have the audited device's model, initial weights, order of batches and number of samples, and learn from the
same broadcasts. Their records were not used by the fleet. Half of these records make the dataset D' that the device is
compared with, the other half the shadow devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airdistill.arrays import FloatArray, IntArray
from airdistill.audit.context import AuditContext
from airdistill.audit.exact import transcript_seed
from airdistill.audit.neighbours import Neighbour, follow
from airdistill.audit.options import AuditOptions
from airdistill.errors import InputError
from airdistill.streams import stream

_CONCENTRATION = 0.3  # of the Dirichlet distribution of shadow devices with any shares: a few classes each
# Shadow devices of every kind, in multiples of the shadow fleets.
_KINDS = {"own": 1, "other": 1, "any": 4, "fleet": 4}


@dataclass(frozen=True)
class LabelShadows:
    """Class shares of D and of D' `[class]`, and what devices with these and with other shares answer.

    `pair` are the answers of D and D', `[2, round, entry]`. `answers[kind]` is `[shadow device, round, entry]`: "own"
    has the shares of D, "other" those of D', "any" random ones, `any_shares` `[shadow device, class]`, and "fleet"
    those of the other devices.
    """

    shares: tuple[FloatArray, FloatArray]
    any_shares: FloatArray
    pair: FloatArray
    answers: dict[str, FloatArray]

    @property
    def num_shadows(self) -> int:
        return sum(map(len, self.answers.values()))


def train_label_shadows(context: AuditContext, options: AuditOptions) -> LabelShadows:
    """Choose D', draw the data of all shadow devices, and train them along one fresh transcript of the device."""
    samples, labels = _unused(context, options.seed)
    first, second = np.arange(len(labels)) % 2 == 0, np.arange(len(labels)) % 2 == 1
    known = np.intersect1d(labels[first], labels[second])
    size, num_classes = len(context.own_labels), context.dataset.num_classes
    own = np.bincount(context.own_labels, minlength=num_classes) / size
    other = other_shares(own, known)
    rng = stream(options.seed, "audit-label-shadows")
    wanted = {kind: _wanted(context, kind, count * options.shadows, own, other, rng) for kind, count in _KINDS.items()}
    counts = {kind: [_counts(shares, known, size) for shares in rows] for kind, rows in wanted.items()}

    def drawn(pool: NDArray[np.bool_], each: IntArray) -> Neighbour:
        chosen = _draw(labels, np.flatnonzero(pool), each, rng)
        return Neighbour("device", "all samples replaced, labels included", samples[chosen], labels[chosen])

    datasets = [drawn(first, _counts(other, known, size))]
    datasets += [drawn(second, each) for rows in counts.values() for each in rows]
    seed = transcript_seed(options, "audit-label-transcript", 0)
    vectors = follow(context, datasets, seed, context.link.seeded_noise, keep_vectors=True).vectors
    answers = np.stack(vectors, axis=1).reshape(len(datasets) + 1, len(context.rounds), -1)
    places = np.split(np.arange(2, len(answers)), np.cumsum([len(rows) for rows in counts.values()])[:-1])
    return LabelShadows(
        (own, other),
        np.stack(counts["any"]) / size,
        answers[:2],
        {kind: answers[place] for kind, place in zip(counts, places, strict=True)},
    )


def other_shares(own: FloatArray, known: IntArray) -> FloatArray:
    """The class shares of D', `[class]`, chosen from the public shares of D alone.

    The shares in reverse order: the most frequent class becomes the rarest. If that changes less, half of the classes,
    the rarest ones of D, in equal parts.
    """
    ranked = known[np.argsort(own[known], kind="stable")]
    reversed_, half = np.zeros_like(own), np.zeros_like(own)
    reversed_[ranked] = np.sort(own[known])[::-1]
    half[ranked[: max(1, len(ranked) // 2)]] = 1
    candidates = [each / each.sum() for each in (reversed_, half) if each.sum() > 0]
    return max(candidates, key=lambda each: total_variation(each, own))


def total_variation(shares: FloatArray, others: FloatArray) -> float:
    """½Σ|p − q|, between 0 and 1."""
    return float(np.abs(shares - others).sum() / 2)


def _unused(context: AuditContext, seed: int) -> tuple[NDArray[np.generic], IntArray]:
    """Records that no device trained on, in random order: unused training records and the test set."""
    dataset = context.dataset
    unused = np.setdiff1d(np.arange(len(dataset.y_train)), np.concatenate(context.indices))
    samples = np.concatenate([dataset.x_train[unused], dataset.x_test])
    labels = np.concatenate([dataset.y_train[unused], dataset.y_test])
    order = stream(seed, "audit-label-records").permutation(len(labels))
    samples, labels = samples[order], labels[order]
    by_class = np.argsort(labels, kind="stable")  # neighbours in a class go to different halves
    samples, labels = samples[by_class], labels[by_class]
    if len(np.unique(np.intersect1d(labels[::2], labels[1::2]))) < 2:
        rule = "label inference needs records of at least two classes that no device trained on"
        raise InputError("data.dataset", context.scenario.data.dataset, rule)
    return samples, labels


def _wanted(
    context: AuditContext, kind: str, count: int, own: FloatArray, other: FloatArray, rng: np.random.Generator
) -> list[FloatArray]:
    """The class shares of `count` shadow devices of a kind."""
    if kind in ("own", "other"):
        return [own if kind == "own" else other] * count
    if kind == "any":
        return list(rng.dirichlet(np.full(len(own), _CONCENTRATION), count))
    fleet = np.delete(context.plan.fleet.class_counts, context.device, axis=0)
    chosen = fleet[rng.integers(len(fleet), size=count)] if len(fleet) else np.tile(own, (count, 1))
    return list(chosen / chosen.sum(axis=1, keepdims=True))


def _counts(shares: FloatArray, known: IntArray, size: int) -> IntArray:
    """`size` samples of the known classes with these shares, by largest remainders, `[class]`."""
    wanted = np.zeros(len(shares))
    wanted[known] = shares[known] if shares[known].sum() > 0 else 1.0
    wanted *= size / wanted.sum()
    counts = np.floor(wanted + 1e-9).astype(np.int64)
    rest = np.argsort(-(wanted - counts), kind="stable")[: size - int(counts.sum())]
    counts[rest] += 1
    return counts


def _draw(labels: IntArray, places: IntArray, counts: IntArray, rng: np.random.Generator) -> IntArray:
    """Places of so many records of every class; a record comes more than once only if there are too few."""
    found = []
    for klass in np.flatnonzero(counts):
        pool = places[labels[places] == klass]
        found.append(rng.choice(pool, int(counts[klass]), replace=len(pool) < counts[klass]))
    return rng.permutation(np.concatenate(found))
