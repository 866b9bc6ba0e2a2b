"""What the ceilings compute that no private scheme may: the mean of all devices' logits, and training on all data."""

from __future__ import annotations

import copy

import numpy as np
import torch
from scipy.special import softmax

from airdistill.arrays import FloatArray
from airdistill.learning.fleet import LearningFleet
from airdistill.learning.gradients import Target
from airdistill.learning.learner_maker import LearnerMaker
from airdistill.learning.mixed import passes_in_batches, rise_and_fall
from airdistill.learning.models import flat_weights
from airdistill.planning.payloads import declared_public
from airdistill.planning.plan import Plan
from airdistill.scenario.model import Scenario
from airdistill.schemes.protocol import PublicDistillation, learn_from
from airdistill.streams import stream

_BATCH, _WARM_UP = 50, 30
_LEAST_PROBABILITY = 1e-30


def mean_logits(fleet: LearningFleet, weights: FloatArray) -> FloatArray:
    """The softmax of the devices' mean logits on all public samples, `[sample, class]`.

    A log-probability is a logit less a number that is the same for all classes, and so the softmax is the same.
    """
    rows = np.arange(len(fleet.public_samples()))
    logits = np.log(np.maximum(fleet.public_predictions(rows), _LEAST_PROBABILITY))
    return np.asarray(softmax(np.tensordot(weights, logits, axes=1), axis=1))


def distil_mean_model(fleet: LearningFleet, plan: Plan, round_index: int, rows: FloatArray) -> None:
    """Teach the common model rows `[sample, class]` on the public samples, and give it to every device."""
    public, learning = declared_public(plan.scenario), plan.scenario.learning
    num_steps = public.distill_epochs * -(-public.samples // _BATCH)
    rng = stream(plan.scenario.seed, "server-distilling-order", round_index)
    batches = (
        np.zeros((num_steps, 0), dtype=np.int64),
        passes_in_batches(public.samples, num_steps, _BATCH, rng),
    )
    lr = learning.step_size(round_index, public.distill_lr) * rise_and_fall(num_steps, _WARM_UP)
    steps = PublicDistillation(plan).steps(batches, (0.0, 1.0), lr)
    target = Target.of(rows, fleet.engine.dtype, fleet.engine.device)
    server = fleet.learners[0]
    server.drop_cache()
    server.mixed_steps(steps, fleet.public_samples(), target)
    fleet.use_model(flat_weights(server.model))


def trained_on_all(fleet: LearningFleet, scenario: Scenario, round_index: int) -> FloatArray:
    """The weights of the common model after a round of training on the samples of all devices, `[parameter]`."""
    samples, labels = zip(*(learner.samples_and_labels() for learner in fleet.learners), strict=True)
    first, model = fleet.learners[0], copy.deepcopy(fleet.learners[0].model)
    together = torch.cat(labels).cpu().numpy()
    server = LearnerMaker(fleet.engine).learner(model, torch.cat(samples), together, first.num_classes)
    learn_from(LearningFleet([server], fleet.engine), scenario, round_index, None, [0])
    return flat_weights(server.model)
