"""Shadow fleets, which an attacker trains to learn what the broadcasts look like with a record and without it.

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
from airdistill.learning.fleet import LearnerMaker, LearningFleet
from airdistill.learning.models import build_model
from airdistill.learning.samples import input_shape, to_tensor
from airdistill.runs.simulation import seed_torch
from airdistill.streams import stream

_MOST_OF_A_KIND = 10_000
WANTED_NON_MEMBERS = 5_000
_USED_OF_A_HALF = 0.9  # if classes are uneven: a partition cannot use up the last sample of every class


@dataclass(frozen=True)
class Pool:
    """Records on which the fleet trained (members) and records on which it did not, `[record]`."""

    samples: NDArray[np.generic]
    labels: IntArray
    is_member: BoolArray


def pool_of(context: AuditContext, seed: int) -> Pool:
    """At most 10,000 members, and non-members: test records, topped up to 5,000 with unused training records.

    Non-members have the same class proportions as members: class counts are public and must not reveal membership.
    """
    rng, dataset = stream(seed, "audit-pool"), context.dataset
    held = np.concatenate(context.indices)
    members = rng.permutation(held)[:_MOST_OF_A_KIND]
    tests = rng.permutation(len(dataset.y_test))[:_MOST_OF_A_KIND]
    unused = rng.permutation(np.setdiff1d(np.arange(len(dataset.y_train)), held))
    unused = unused[: max(0, WANTED_NON_MEMBERS - len(tests))]
    samples = np.concatenate([dataset.x_train[members], dataset.x_train[unused], dataset.x_test[tests]])
    labels = np.concatenate([dataset.y_train[members], dataset.y_train[unused], dataset.y_test[tests]])
    shares = np.bincount(labels[: len(members)], minlength=dataset.num_classes) / len(members)
    others = len(members) + _with_shares(labels[len(members) :], shares)
    kept = np.concatenate([np.arange(len(members)), others])
    return Pool(samples[kept], labels[kept], kept < len(members))


def _with_shares(labels: IntArray, shares: FloatArray) -> IntArray:
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
    """Which shadow device trained on which record `[record, shadow device]`, and the knowledge of each.

    `knowledge` is `[shadow device, round, class, class]`. Shadow devices are ordered by fleet, `num_devices` in each.
    """

    holds: BoolArray
    knowledge: FloatArray
    num_devices: int


def train_shadows(context: AuditContext, pool: Pool, options: AuditOptions, on_progress: OnProgress) -> ShadowKnowledge:
    """Train all devices of all shadow fleets along the true broadcasts."""
    num_devices = min(context.plan.fleet.num_devices, options.shadow_devices)
    shares = _shares(context, pool, options, num_devices)
    fleet, known = _fleet(context, pool, shares, num_devices), []
    for this, received in zip(context.rounds, context.broadcasts, strict=True):
        seed_torch(context.scenario, this.index)
        known.append(fleet.knowledge(for_full_batch=context.scenario.learning.local_epochs == 0))
        if this.index < len(context.rounds):  # learning after the last broadcast has no effect
            learn(context.protocol, fleet, this.index, received, list(range(num_devices)) * options.shadows)
        on_progress("shadow fleets trained", this.index, len(context.rounds))
    holds = np.zeros((len(pool.labels), len(shares)), dtype=np.bool_)
    for place, held in enumerate(shares):
        holds[held, place] = True
    return ShadowKnowledge(holds, np.stack(known, axis=1), num_devices)


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
    data = context.scenario.data
    used = len(labels) if data.partition == "iid" else int(_USED_OF_A_HALF * len(labels))
    sizes = np.full(num_devices, used // num_devices)
    if sizes[0] == 0:
        raise InputError("--shadow-devices", num_devices, f"a shadow fleet has only {len(labels)} records for them")
    if data.partition == "dirichlet":
        assert data.alpha is not None  # the scenario checked it
        return partition_dirichlet(labels, sizes, data.alpha, rng).indices
    if data.partition == "shards":
        assert data.classes_per_device is not None  # the scenario checked it
        return partition_shards(labels, sizes, data.classes_per_device, rng).indices
    return partition_iid(labels, sizes, rng).indices


def _fleet(context: AuditContext, pool: Pool, shares: list[IntArray], num_devices: int) -> LearningFleet:
    """A learner for each share; device d of a shadow fleet has the model and initial weights of device d."""
    engine, dataset, scenario = context.engine, context.dataset, context.scenario
    samples, shape = to_tensor(pool.samples, engine.dtype, engine.device), input_shape(dataset.x_train)
    learners, maker = [], LearnerMaker(engine)
    for place, held in enumerate(shares):
        device = place % num_devices
        rng = stream(scenario.seed, "model-weights", 0, device)
        model = build_model(scenario.model_names[device], shape, dataset.num_classes, rng, engine.dtype)
        own = samples[torch.from_numpy(held).to(engine.device)]
        labels = pool.labels[held]
        learners.append(maker.learner(model.to(engine.device), own, labels, dataset.num_classes))
    return LearningFleet(learners, engine)
