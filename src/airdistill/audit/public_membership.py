"""Membership inference from answers on a public set: LiRA (Carlini et al., 2022) on what the server receives.

A model's answers on the public samples that resemble a record change if it was trained on the record. The score is
fixed in advance: the log-likelihood ratio of the received answers on the record's nearest public samples, over all
rounds, between two Gaussians whose means are those of shadow devices that trained on the record and that did not. There
are two attackers. One has the sum of all devices' answers, as the server receives it. The other also knows the other
devices' answers, as differential privacy assumes, and so has one device's answers with the noise that protects it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from airdistill.arrays import BoolArray, FloatArray, IntArray
from airdistill.audit.context import AuditContext
from airdistill.audit.shadows import Pool, ShadowKnowledge
from airdistill.planning.payloads import declared_public, rows_of_round

NEAREST = 10  # public samples that a record is scored on
_CHUNK = 1024  # records whose distances to all public samples are computed at once


def sum_scores(context: AuditContext, pool: Pool, shadows: ShadowKnowledge) -> FloatArray:
    """Λ of every record, from the sum that the server receives, `[record]`."""
    received = np.stack(context.received)
    noise_var = np.stack([this.design.effective_noise_var for this in context.rounds])
    return _scores(context, pool, shadows, received, noise_var, 1 / context.plan.fleet.num_devices)


def device_scores(context: AuditContext, pool: Pool, shadows: ShadowKnowledge) -> FloatArray:
    """Λ of every record, from the audited device's own answers and the counted noise, `[record]`."""
    seen, noise_var = own_answers(context)
    return _scores(context, pool, shadows, seen, noise_var, 1.0)


def own_answers(context: AuditContext) -> tuple[FloatArray, FloatArray]:
    """The device's answers with the counted noise `[round, row, entry]`, and its variance `[round, row]`.

    In the units of the answers. Rounds in which the device does not send have an infinite variance.
    """
    gain = np.stack([context.link.gain(this) for this in context.rounds])
    sent = gain > 0
    seen = np.where(sent[..., None], np.stack(context.seen) / np.where(sent, gain, 1.0)[..., None], 0.0)
    return seen, np.where(sent, answer_noise_var(context), np.inf)


def answer_noise_var(context: AuditContext) -> FloatArray:
    """Counted noise in the units of the device's answers, `[round, row]`."""
    return np.asarray(context.counted_noise_var() / context.link.nominal_weights()[context.device] ** 2)


def _scores(
    context: AuditContext,
    pool: Pool,
    shadows: ShadowKnowledge,
    received: FloatArray,
    noise_var: FloatArray,
    share: float,
) -> FloatArray:
    """Λ from received answers `[round, row, entry]`; every entry of a round has the same noise."""
    num_classes, num_shadows = context.plan.fleet.num_classes, len(shadows.vectors)
    answers = shadows.vectors.reshape(num_shadows, -1, num_classes)
    slots = received.reshape(-1, num_classes)
    of_slot = np.repeat(noise_var.reshape(-1), len(slots) // noise_var.size)
    return answer_scores(pool.labels, shadows.holds, answers, slots, of_slot, share, _near(context, pool.samples))


def answer_scores(
    labels: IntArray,
    holds: BoolArray,
    answers: FloatArray,
    received: FloatArray,
    noise_var: FloatArray,
    share: float,
    near: IntArray,
) -> FloatArray:
    """Λ of every record, `[record]`; zero if no shadow device of the record's class held it, or all of them did.

    A slot is a public sample in a round: `answers` are `[shadow device, slot, class]`, `received` `[slot, class]`,
    `noise_var` `[slot]`, and `near` `[record, slot of the record]`. What is received is the mean of 1/`share` devices,
    one of which may hold the record. Its variance is that of shadow devices, halfway between an entry's own and the
    mean over entries, because few devices hold a record, plus the noise.
    """
    anyone, scores = answers.mean(axis=0), np.zeros(len(labels))
    of_class = {klass: holds[labels == klass].any(axis=0) for klass in np.unique(labels).tolist()}
    for record, klass in enumerate(labels.tolist()):
        slots, own = near[record], holds[record]
        others = of_class[klass] & ~own
        if not own.any() or not others.any():
            continue
        known, now = answers[:, slots], received[slots]
        mean = known[others].mean(axis=0)
        without = (1 - share) * anyone[slots] + share * mean
        with_it = without + share * (known[own].mean(axis=0) - mean)
        spread = known[of_class[klass]].var(axis=0)
        variance = share * (spread + spread.mean()) / 2 + noise_var[slots, None]
        usable = np.isfinite(now) & np.isfinite(variance) & (variance > 0)
        distance = ((now - without) ** 2 - (now - with_it) ** 2)[usable] / variance[usable]
        scores[record] = distance.sum() / 2
    return scores


def _near(context: AuditContext, samples: NDArray[np.generic]) -> IntArray:
    """The slots of every record's nearest public samples in each round, `[record, slot of the record]`."""
    assert context.public is not None  # the payload has answers to a public set
    declared, found, known = declared_public(context.scenario), [], {}
    for place, this in enumerate(context.rounds):
        asked = rows_of_round(declared, this.index)
        key = asked.tobytes()
        if key not in known:
            known[key] = nearest(samples, context.public.samples[asked], NEAREST)
        found.append(place * len(asked) + known[key])
    return np.concatenate(found, axis=1)


def nearest(samples: NDArray[np.generic], public: NDArray[np.generic], most: int) -> IntArray:
    """Positions of the `most` public samples at the smallest Euclidean distance, `[sample, position]`."""
    flat, others = (each.reshape(len(each), -1).astype(np.float32) for each in (samples, public))
    size, squares = min(most, len(others)), (others**2).sum(axis=1)
    found = [
        np.argsort(squares - 2 * flat[start : start + _CHUNK] @ others.T, axis=1, kind="stable")[:, :size]
        for start in range(0, len(flat), _CHUNK)
    ]
    return np.concatenate(found)
