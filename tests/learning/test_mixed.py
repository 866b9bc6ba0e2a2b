"""Steps on own and public samples: against PyTorch's optimiser, and stacked against single devices."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from airdistill.learning.fleet import Engine, LearningFleet
from airdistill.learning.gradients import Target
from airdistill.learning.learner import Learner
from airdistill.learning.mixed import MixedSteps, passes_in_batches
from airdistill.learning.models import build_model
from airdistill.learning.samples import random_affine, shifted

CLASSES, PUBLIC = 4, 30
CPU = torch.device("cpu")


def learners_of(count, dtype=torch.float64, sizes=None, name="mlp"):
    rng = np.random.default_rng(0)
    made = []
    for device in range(count):
        size = 24 if sizes is None else sizes[device]
        model = build_model(name, (6,), CLASSES, np.random.default_rng(device), dtype)
        samples = torch.from_numpy(rng.standard_normal((size, 6))).to(dtype)
        made.append(Learner(model, samples, rng.integers(0, CLASSES, size), CLASSES, 10))
    return made


def public_samples(dtype=torch.float64):
    return torch.from_numpy(np.random.default_rng(1).standard_normal((PUBLIC, 6))).to(dtype)


def target(dtype=torch.float64):
    rows = np.random.default_rng(2).dirichlet(np.ones(CLASSES), PUBLIC)
    rows[::7] = np.nan  # these rows were not received
    return Target.of(rows, dtype, CPU)


def steps_of(seed, num_steps=5, size=24, own=8, public=6, momentum=0.9):
    rng = np.random.default_rng(seed)
    return MixedSteps(
        passes_in_batches(size, num_steps, own, rng),
        passes_in_batches(PUBLIC, num_steps, public, rng),
        0.7, 1.3, np.linspace(0.2, 0.05, num_steps), momentum,
    )  # fmt: skip


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_steps_equal_those_of_pytorchs_sgd(momentum):
    """Against torch.optim.SGD and PyTorch's cross-entropy with soft targets."""
    (learner,), (reference,), public = learners_of(1), learners_of(1), public_samples()
    steps, goal = steps_of(3, momentum=momentum), target()
    learner.mixed_steps(steps, public, goal)
    optimiser = torch.optim.SGD(reference.model.parameters(), lr=1.0, momentum=momentum)
    samples, labels = reference.samples_and_labels()
    for own, shared, lr in zip(steps.own, steps.public, steps.lr, strict=True):
        optimiser.param_groups[0]["lr"] = lr
        known = goal.known[shared] > 0
        soft = cross_entropy(reference.model(public[shared][known]), goal.rows[shared][known], reduction="sum") / len(
            shared
        )
        loss = 0.7 * cross_entropy(reference.model(samples[own]), labels[own]) + 1.3 * soft
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for mine, theirs in zip(learner.model.parameters(), reference.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def test_stacked_devices_learn_the_same_as_single_ones():
    engine = Engine(dtype=torch.float64)
    one_by_one = LearningFleet(learners_of(3), engine, public=public_samples())
    stacked = LearningFleet(learners_of(3), Engine(dtype=torch.float64, stacked=True), public=public_samples())
    steps = [steps_of(seed) for seed in range(3)]
    assert stacked.stacked is not None
    found = [fleet.mixed_steps(steps, target(), "steps") for fleet in (one_by_one, stacked)]
    for one, other in zip(*found, strict=True):
        assert one.training == pytest.approx(other.training)
        assert one.distillation == pytest.approx(other.distillation)
    rows = np.arange(3, 20)
    one, other = (fleet.public_predictions(rows) for fleet in (one_by_one, stacked))
    np.testing.assert_allclose(one, other, rtol=1e-9)
    assert one.shape == (3, 17, CLASSES)
    np.testing.assert_allclose(one.sum(axis=2), 1)


def test_gradients_are_clipped():
    """One step without momentum changes the weights by η·min(‖g‖, C); stacked devices are clipped separately."""
    plain, clipped = (learners_of(2) for _ in range(2))
    together = LearningFleet(learners_of(2), Engine(dtype=torch.float64, stacked=True), public=public_samples())
    before = [torch.cat([p.detach().flatten() for p in learner.model.parameters()]) for learner in plain]
    steps = [steps_of(seed, num_steps=1, momentum=0.0) for seed in range(2)]
    short = [replace(each, clip_norm=0.5) for each in steps]
    for learners, made in ((plain, steps), (clipped, short)):
        for learner, each in zip(learners, made, strict=True):
            learner.mixed_steps(each, public_samples(), target())
    together.mixed_steps(short, target(), "steps")
    for device, start in enumerate(before):
        full, shortened, stacked = (
            torch.cat([p.detach().flatten() for p in learner.model.parameters()]) - start
            for learner in (plain[device], clipped[device], together.learners[device])
        )
        norm = float(full.norm()) / 0.2
        assert norm > 0.5
        torch.testing.assert_close(shortened, full * (0.5 / norm))
        torch.testing.assert_close(stacked, shortened)


def test_unequal_devices_are_trained_one_by_one():
    fleet = LearningFleet(
        learners_of(2, sizes=[5, 24]), Engine(dtype=torch.float64, stacked=True), public=public_samples()
    )
    steps = [steps_of(0, num_steps=2, size=5), steps_of(1, num_steps=4)]
    assert steps[0].own.shape == (2, 5)  # a batch is at most as large as the device's data
    losses = fleet.mixed_steps(steps, target(), "steps")
    assert all(loss.training > 0 and loss.distillation > 0 for loss in losses)


def test_without_public_samples_the_steps_are_ordinary_training():
    (learner,), (reference,) = learners_of(1), learners_of(1)
    order = np.random.default_rng(5).permutation(24)
    empty = np.zeros((3, 0), dtype=np.int64)
    mixed = learner.mixed_steps(
        MixedSteps(order.reshape(3, 8), empty, 1.0, 0.0, np.full(3, 0.1)), public_samples(), target()
    )
    plain = reference.local_epochs(None, 0.1, 0.0, [order], 8)
    assert mixed.training == pytest.approx(plain.training)
    for mine, theirs in zip(learner.model.parameters(), reference.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


def test_an_epoch_contains_every_sample_once():
    batches = passes_in_batches(7, 5, 3, np.random.default_rng(0))
    assert batches.shape == (5, 3)
    in_order = batches.ravel()
    assert sorted(in_order[:7]) == sorted(in_order[7:14]) == list(range(7))
    assert passes_in_batches(7, 2, 0, np.random.default_rng(0)).shape == (2, 0)
    assert passes_in_batches(7, 0, 3, np.random.default_rng(0)).shape == (0, 3)


def test_stacked_devices_learn_the_same_from_shifted_images():
    rng, dtype = np.random.default_rng(4), torch.float64
    fleets = []
    for stacked in (False, True):
        draws = np.random.default_rng(7)
        learners = [
            Learner(
                build_model("paper_cnn", (1, 16, 16), CLASSES, np.random.default_rng(device), dtype),
                torch.from_numpy(draws.standard_normal((12, 1, 16, 16))), draws.integers(0, CLASSES, 12), CLASSES, 10,
            )
            for device in range(2)
        ]  # fmt: skip
        public = torch.from_numpy(draws.standard_normal((PUBLIC, 1, 16, 16)))
        fleets.append(LearningFleet(learners, Engine(dtype=dtype, stacked=stacked), public=public))
    assert fleets[1].stacked is not None
    steps = [
        replace(steps_of(device, 3, 12, 4, 5), offsets=rng.integers(0, 5, (3, 9, 2)), most_moved=2)
        for device in range(2)
    ]
    one_by_one, together = (fleet.mixed_steps(steps, target(), "steps") for fleet in fleets)
    assert [loss.training for loss in one_by_one] == pytest.approx([loss.training for loss in together])
    rows = np.arange(PUBLIC)
    np.testing.assert_allclose(*(fleet.public_predictions(rows) for fleet in fleets), rtol=1e-8)


def test_an_image_is_shifted_by_its_offset_with_replicated_edges():
    image = torch.arange(20.0).reshape(1, 1, 4, 5)
    offsets = torch.tensor([[2, 2], [0, 2], [2, 3]])
    same, down, left = shifted(image.expand(3, 1, 4, 5), offsets, 2)
    assert torch.equal(same, image[0])
    assert torch.equal(down[0, 2:], image[0, 0, :2])
    assert torch.equal(down[0, 0], image[0, 0, 0])
    assert torch.equal(left[0, :, :4], image[0, 0, :, 1:])
    assert torch.equal(left[0, :, 4], image[0, 0, :, 4])


def test_random_affine_is_reproducible_and_leaves_other_samples_unchanged():
    images = torch.rand(6, 1, 20, 20)
    one, other = (random_affine(images, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, other)
    assert not torch.equal(one, images)
    assert abs(float(one.mean() / images.mean()) - 1) < 0.1
    flat = torch.rand(6, 9)
    assert random_affine(flat, torch.Generator()) is flat
