"""Shadow fleets, which an attacker trains to learn what devices send with a record and without it.

The attacker knows the broadcasts, the initial weights and the rule by which data is partitioned. Shadow fleets come in
complementary pairs: a random half of the pool is the data of one fleet, the other half that of its partner, and so
every record is in half of all fleets. Every shadow device learns from the true broadcasts, independently of the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from airdistill.arrays import BoolArray, FloatArray, IntArray
from airdistill.audit.context import AuditContext, learn
from airdistill.audit.options import AuditOptions, OnProgress
from airdistill.data.partition import partition_dirichlet, partition_iid, partition_shards
from airdistill.errors import InputError
from airdistill.learning.fleet import LearningFleet
from airdistill.learning.learner_maker import LearnerMaker
from airdistill.learning.models import build_model
from airdistill.learning.samples import input_shape, to_tensor
from airdistill.runs.simulation import seed_torch
from airdistill.streams import stream

_MOST_OF_A_KIND = 10_000
WANTED_NON_MEMBERS = 5_000
_USED_OF_A_HALF = 0.9  # if classes are uneven: a partition cannot use up the last sample of every class


@dataclass(frozen=True)
class Pool:
    """Records on which the fleet trained (members) and records on which it did not, `[record]`.

    `is_own` marks the records of the audited device.
    """

    samples: NDArray[np.generic]
    labels: IntArray
    is_member: BoolArray
    is_own: BoolArray


def pool_of(context: AuditContext, seed: int) -> Pool:
    """At most 10,000 members, and non-members: test records, topped up to 5,000 with unused training records.

    Non-members have the same class proportions as members: class counts are public and must not reveal membership.
    """
    rng, dataset = stream(seed, "audit-pool"), context.dataset
    held = np.concatenate(context.indices)
    members = rng.permutation(held)
    if context.plan.uplink.payload.answers_public_set:  # one attack concerns the audited device: all its records
        members = members[np.argsort(~np.isin(members, context.indices[context.device]), kind="stable")]
    members = members[:_MOST_OF_A_KIND]
    tests = rng.permutation(len(dataset.y_test))[:_MOST_OF_A_KIND]
    unused = rng.permutation(np.setdiff1d(np.arange(len(dataset.y_train)), held))
    unused = unused[: max(0, WANTED_NON_MEMBERS - len(tests))]
    if context.plan.uplink.payload.answers_public_set:  # else shadow devices would have more samples than devices have
        tests = tests[: len(members)]
        unused = unused[: max(0, len(members) - len(tests))]
    samples = np.concatenate([dataset.x_train[members], dataset.x_train[unused], dataset.x_test[tests]])
    labels = np.concatenate([dataset.y_train[members], dataset.y_train[unused], dataset.y_test[tests]])
    shares = np.bincount(labels[: len(members)], minlength=dataset.num_classes) / len(members)
    others = len(members) + with_shares(labels[len(members) :], shares)
    kept = np.concatenate([np.arange(len(members)), others])
    own = np.isin(members, context.indices[context.device])
    return Pool(samples[kept], labels[kept], kept < len(members), np.concatenate([own, np.zeros_like(others, bool)]))


def with_shares(labels: IntArray, shares: FloatArray) -> IntArray:
    """Indices of as many records as possible such that the classes have these shares."""
    supply = np.bincount(labels, minlength=len(shares))
    held = shares > 0
    total = np.min(supply[held] / shares[held])
    places = [
        np.flatnonzero(labels == klass)[: int(np.floor(total * share + 1e-9))] for klass, share in enumerate(shares)
    ]
    return np.sort(np.concatenate(places))


@dataclass(frozen=True)
class ShadowKnowledge:
    """Which shadow device trained on which record `[record, shadow device]`, and what each would send.

    `vectors` is `[shadow device, round, row, entry]`. Shadow devices are ordered by fleet, `num_devices` in each.
    """

    holds: BoolArray
    vectors: FloatArray
    num_devices: int


def train_shadows(context: AuditContext, pool: Pool, options: AuditOptions, on_progress: OnProgress) -> ShadowKnowledge:
    """Train all devices of all shadow fleets along the true broadcasts."""
    num_devices = min(context.plan.fleet.num_devices, options.shadow_devices)
    shares, devices = _shares(context, pool, options, num_devices), list(range(num_devices)) * options.shadows
    return _train(context, pool, shares, devices, num_devices, "shadow fleets trained", on_progress)


def own_pool(context: AuditContext, pool: Pool) -> Pool:
    """The audited device's records, and about as many others with its class proportions, which are public."""
    own, outside = np.flatnonzero(pool.is_own), np.flatnonzero(~pool.is_member)
    counts = np.bincount(pool.labels[own], minlength=context.dataset.num_classes)
    outside = outside[with_shares(pool.labels[outside], counts / len(own))]
    kept = [outside[pool.labels[outside] == klass][:count] for klass, count in enumerate(counts)]
    chosen = np.concatenate([own, *kept])
    return Pool(pool.samples[chosen], pool.labels[chosen], pool.is_member[chosen], pool.is_own[chosen])


def train_own_shadows(
    context: AuditContext, pool: Pool, options: AuditOptions, on_progress: OnProgress
) -> ShadowKnowledge:
    """Train copies of the audited device on halves of `own_pool`, as many as there are devices in the shadow fleets.

    They come in complementary pairs, have as many samples as the device, and so every record is in half of them.
    """
    num_devices = min(context.plan.fleet.num_devices, options.shadow_devices)
    shares: list[IntArray] = []
    for pair in range(options.shadows * num_devices // 2):
        order = stream(options.seed, "audit-own-halves", pair).permutation(len(pool.labels))
        shares += np.array_split(order, 2)
    devices = [context.device] * len(shares)
    return _train(context, pool, shares, devices, 1, "shadows of the device trained", on_progress)


def _train(
    context: AuditContext,
    pool: Pool,
    shares: list[IntArray],
    devices: list[int],
    num_devices: int,
    stage: str,
    on_progress: OnProgress,
) -> ShadowKnowledge:
    """Train learner n as device `devices[n]` on the records `shares[n]`."""
    fleet, sent = _fleet(context, pool, shares, devices), []
    for this, received in zip(context.rounds, context.broadcasts, strict=True):
        seed_torch(context.scenario, this.index)
        sent.append(context.protocol.vectors(fleet, this.index, devices))
        if this.index < len(context.rounds):  # learning after the last broadcast has no effect
            learn(context.protocol, fleet, this.index, received, devices)
        on_progress(stage, this.index, len(context.rounds))
    holds = np.zeros((len(pool.labels), len(shares)), dtype=np.bool_)
    for place, held in enumerate(shares):
        holds[held, place] = True
    return ShadowKnowledge(holds, np.stack(sent, axis=1), num_devices)


def _shares(context: AuditContext, pool: Pool, options: AuditOptions, num_devices: int) -> list[IntArray]:
    """Positions in the pool of every device's records, ordered by shadow fleet."""
    shares = []
    for pair in range(options.shadows // 2):
        order = stream(options.seed, "audit-shadow-halves", pair).permutation(len(pool.labels))
        for side, half in enumerate(np.array_split(order, 2)):
            rng = stream(options.seed, "audit-shadow-shares", pair, side)
            shares += [half[held] for held in _split(context, pool.labels[half], num_devices, rng)]
    return shares


def _split(context: AuditContext, labels: IntArray, num_devices: int, rng: np.random.Generator) -> tuple[IntArray, ...]:
    """Partition by the scenario's own rule, with the same number of samples for each device."""
    rule = context.scenario.data.partition
    used = len(labels) if rule == "iid" else int(_USED_OF_A_HALF * len(labels))
    while used >= num_devices:
        try:
            return _partition(context, labels, np.full(num_devices, used // num_devices), rng)
        except InputError:  # the classes are too uneven, or too many for so few devices, to use that much
            used = int(_USED_OF_A_HALF * used)
    raise InputError("--shadow-devices", num_devices, f"a shadow fleet has only {len(labels)} records for them")


def _partition(
    context: AuditContext, labels: IntArray, sizes: IntArray, rng: np.random.Generator
) -> tuple[IntArray, ...]:
    data = context.scenario.data
    if data.partition == "dirichlet":
        assert data.alpha is not None  # the scenario checked it
        return partition_dirichlet(labels, sizes, data.alpha, rng).indices
    if data.partition == "shards":
        assert data.classes_per_device is not None  # the scenario checked it
        return partition_shards(labels, sizes, data.classes_per_device, rng).indices
    return partition_iid(labels, sizes, rng).indices


def _fleet(context: AuditContext, pool: Pool, shares: list[IntArray], devices: list[int]) -> LearningFleet:
    """A learner for each share, with the model and initial weights of its device."""
    engine, dataset, scenario = context.engine, context.dataset, context.scenario
    samples, shape = to_tensor(pool.samples, engine.dtype, engine.device), input_shape(dataset.x_train)
    learners, maker = [], LearnerMaker(engine)
    for device, held in zip(devices, shares, strict=True):
        rng = stream(scenario.seed, "model-weights", 0, device)
        model = build_model(scenario.model_names[device], shape, dataset.num_classes, rng, engine.dtype)
        own = samples[torch.from_numpy(held).to(engine.device)]
        labels = pool.labels[held]
        learners.append(maker.learner(model.to(engine.device), own, labels, dataset.num_classes))
    public = None if context.public is None else to_tensor(context.public.samples, engine.dtype, engine.device)
    return LearningFleet(learners, engine, public=public)
