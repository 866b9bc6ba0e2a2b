"""Fleets that an outsider trains to learn what the broadcast looks like with a record in it, and without.

The attacker knows the broadcasts, the initial weights and how data falls to devices. Shadow fleets come in
complementary pairs: a random half of the pool is one fleet's data, the other half its partner's, so that every record
is in half of all fleets. As every shadow device learns from the true broadcasts, none of them needs to hear of the
others.
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
_USED_OF_A_HALF = 0.9  # where classes fall unevenly: a supply that is used up to the last sample cannot be shared out


@dataclass(frozen=True)
class Pool:
    """Records that the fleet trained on and records that it did not, `[record]`."""

    samples: NDArray[np.generic]
    labels: IntArray
    is_member: BoolArray


def pool_of(world: AuditContext, seed: int) -> Pool:
    """Members, at most 10,000, and non-members: test records, filled up from unused training records to 5,000.

    Non-members have the members' mix of classes: class counts are public, and must not pass for membership.
    """
    rng, dataset = stream(seed, "audit-pool"), world.dataset
    held = np.concatenate(world.indices)
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
    """The first records of every class, as many as give the classes these shares."""
    supply = np.bincount(labels, minlength=len(shares))
    held = shares > 0
    total = np.min(supply[held] / shares[held])
    places = [
        np.flatnonzero(labels == klass)[: int(np.floor(total * share + 1e-9))] for klass, share in enumerate(shares)
    ]
    return np.sort(np.concatenate(places))


@dataclass(frozen=True)
class ShadowKnowledge:
    """Who trained on which record `[record, shadow device]`, what they know `[shadow device, round, class, class]`.

    The devices of all shadow fleets stand one after the other, `num_devices` of each.
    """

    holds: BoolArray
    knowledge: FloatArray
    num_devices: int


def train_shadows(world: AuditContext, pool: Pool, options: AuditOptions, on_progress: OnProgress) -> ShadowKnowledge:
    """All devices of all shadow fleets along the world's own broadcasts."""
    num_devices = min(world.plan.fleet.num_devices, options.shadow_devices)
    shares = _shares(world, pool, options, num_devices)
    fleet, known = _fleet(world, pool, shares, num_devices), []
    for this, received in zip(world.rounds, world.broadcasts, strict=True):
        seed_torch(world.scenario, this.index)
        known.append(fleet.knowledge(for_full_batch=world.scenario.learning.local_epochs == 0))
        if this.index < len(world.rounds):  # what would be learned after the last broadcast nobody looks at
            learn(world.sharing, fleet, this.index, received, list(range(num_devices)) * options.shadows)
        on_progress("shadow fleets trained", this.index, len(world.rounds))
    holds = np.zeros((len(pool.labels), len(shares)), dtype=np.bool_)
    for place, held in enumerate(shares):
        holds[held, place] = True
    return ShadowKnowledge(holds, np.stack(known, axis=1), num_devices)


def _shares(world: AuditContext, pool: Pool, options: AuditOptions, num_devices: int) -> list[IntArray]:
    """Positions in the pool of every device of every shadow fleet, one fleet after the other."""
    shares = []
    for pair in range(options.shadows // 2):
        order = stream(options.seed, "audit-shadow-halves", pair).permutation(len(pool.labels))
        for side, half in enumerate(np.array_split(order, 2)):
            rng = stream(options.seed, "audit-shadow-shares", pair, side)
            shares += [half[held] for held in _split(world, pool.labels[half], num_devices, rng)]
    return shares


def _split(world: AuditContext, labels: IntArray, num_devices: int, rng: np.random.Generator) -> tuple[IntArray, ...]:
    """By the scenario's own rule, equally many samples to each device."""
    data = world.scenario.data
    used = len(labels) if data.partition == "iid" else int(_USED_OF_A_HALF * len(labels))
    sizes = np.full(num_devices, used // num_devices)
    if sizes[0] == 0:
        raise InputError("--shadow-devices", num_devices, f"more than the {len(labels)} records of a shadow fleet")
    if data.partition == "dirichlet":
        assert data.alpha is not None  # the scenario checked it
        return partition_dirichlet(labels, sizes, data.alpha, rng).indices
    if data.partition == "shards":
        assert data.classes_per_device is not None  # the scenario checked it
        return partition_shards(labels, sizes, data.classes_per_device, rng).indices
    return partition_iid(labels, sizes, rng).indices


def _fleet(world: AuditContext, pool: Pool, shares: list[IntArray], num_devices: int) -> LearningFleet:
    """A learner for each share; within a shadow fleet, device d has the model and initial weights of the fleet's."""
    engine, dataset, scenario = world.engine, world.dataset, world.scenario
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
