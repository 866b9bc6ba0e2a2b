"""Winograd's algorithm: the transforms in exact fractions, and whole networks against float64."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from block_networks import CLASSES, network

from airdistill.data.datasets import load_dataset
from airdistill.learning.evaluation import TestSet as EvaluationSet
from airdistill.learning.fleet import Engine, LearningFleet
from airdistill.learning.fused import winograd
from airdistill.learning.fused.form import ConvBlock, form_of
from airdistill.learning.fused.layout import TILE_ROWS, tilings_of
from airdistill.learning.fused.learner import FusedLearner
from airdistill.learning.fused.winograd import OUTPUTS, SIZES, input_transform, kernel_rows, output_transform, tiling_of
from airdistill.learning.learner import Learner
from airdistill.learning.learner_maker import LearnerMaker
from airdistill.learning.models import build_model

F32, F64 = torch.float32, torch.float64
BOUND = 1e-5  # of the largest logit; a device's weights and samples are float32 themselves


def unit(size, position):
    return [Fraction(number == position) for number in range(size)]


@pytest.mark.parametrize("size", SIZES)
def test_the_transforms_compute_an_exact_correlation(size):
    """Both sides are linear in input and kernel, and so pairs of unit vectors suffice."""
    num_inputs = OUTPUTS + size - 1
    for number, term in product(range(num_inputs), range(size)):
        x, kernel = unit(num_inputs, number), unit(size, term)
        values = [sum(a * b for a, b in zip(row, kernel, strict=True)) for row in kernel_rows(size)]
        products = [a * b for a, b in zip(input_transform(size)(x), values, strict=True)]
        expected = [sum(x[position + at] * kernel[at] for at in range(size)) for position in range(OUTPUTS)]
        assert output_transform(size)(products) == expected


@pytest.mark.parametrize("size", SIZES)
def test_the_factors_of_the_transforms_are_exact_in_float32(size):
    for transform in (input_transform(size), output_transform(size)):
        factors = [factor for terms in transform.sums for factor, _ in terms]
        assert all(Fraction(float(np.float32(float(factor)))) == factor for factor in factors)


PAPERS_FIRST = ConvBlock("w", "b", 1, 28, 28, 10, 3, 3)
PAPERS_SECOND = ConvBlock("w", "b", 10, 13, 13, 20, 5, 5)


def test_tiles_are_used_if_they_take_fewer_operations():
    assert tiling_of(PAPERS_FIRST) is None
    tiling = tiling_of(PAPERS_SECOND)
    assert (tiling.rows, tiling.columns, tiling.strip_rows) == (2, 2, 2)
    # 64 products, not 400, for each of 4 tiles and 200 pairs of channels; transforms take less than 1.5 times that.
    assert winograd.direct_operations(PAPERS_SECOND) == 4 * 400 * 200
    assert 4 * 64 * 200 < winograd.tiled_operations(PAPERS_SECOND, tiling) < 2.5 * 4 * 64 * 200
    assert tiling_of(replace(PAPERS_SECOND, kernel_height=6)) is None
    assert tiling_of(replace(PAPERS_SECOND, kernel_width=1)) is None
    assert tiling_of(replace(PAPERS_SECOND, height=7)) is None  # one row of pooled results is too small for a tile


TILED = {  # the shape of a sample, blocks, and which of them use tiles
    "the paper's network": ((1, 28, 28), [(10, 3, 3), (20, 5, 5)], [False, True]),
    "one tile": ((10, 9, 9), [(20, 5, 5)], [True]),
    "a last row and column dropped, tiles that overlap": ((20, 9, 9), [(20, 3, 3)], [True]),
    "kernels of four, a strip of fewer tiles": ((5, 14, 14), [(20, 4, 4)], [True]),
    "kernels that are not square": ((6, 25, 21), [(14, 3, 5), (20, 5, 4)], [True, True]),
    "many tiles, all kinds of kernels": ((10, 60, 54), [(14, 5, 5), (20, 4, 4), (11, 3, 3)], [True, True, True]),
    "kernels too long, then too few channels": ((1, 24, 30), [(1, 7, 7), (20, 3, 3)], [False, False]),
    "no blocks": ((1, 5, 7), [], []),
}


def two_learners(name, num_samples):
    """The same device with fused kernels, and in float64."""
    shape, blocks, uses_tiles = TILED[name]
    rng = np.random.default_rng(0)
    samples = torch.from_numpy(rng.standard_normal((num_samples, *shape)).astype(np.float32))
    made = []
    for dtype, kernels in ((F32, "fused"), (F64, "torch")):
        torch.manual_seed(0)
        model = network(*shape, blocks, [50]).to(dtype)
        engine = Engine(dtype=dtype, kernels=kernels)
        made.append(
            LearnerMaker(engine).learner(model, samples.to(dtype), np.zeros(num_samples, dtype=np.int64), CLASSES)
        )
    tilings = tilings_of(form_of(made[0].model, shape), use_winograd=True)
    assert (tilings.table[:, TILE_ROWS] > 0).tolist() == uses_tiles
    return samples, *made


@pytest.mark.parametrize("num_samples", [1, 16, 37])
@pytest.mark.parametrize("name", TILED)
def test_tiled_logits(name, num_samples):
    samples, fused, double = two_learners(name, num_samples)
    expected = double.logits([samples.to(F64)])
    error = (fused.approximate_logits([samples]) - expected).abs().max() / expected.abs().max()
    assert error < BOUND


@pytest.fixture
def tiles_everywhere(monkeypatch):
    tilings_of.cache_clear()
    monkeypatch.setattr(winograd, "direct_operations", lambda _: float("inf"))
    yield
    tilings_of.cache_clear()


@pytest.mark.usefixtures("tiles_everywhere")
def test_tiles_with_any_number_of_channels():
    """Even if direct convolution is cheaper: all numbers of rows of a matrix tile, in and out."""
    rng = np.random.default_rng(1)
    for channels_in, channels_out, size in product([1, 2, 10], range(1, 12), SIZES):
        model = network(channels_in, 12, 11, [(channels_out, size, size)], [])
        samples = torch.from_numpy(rng.standard_normal((5, channels_in, 12, 11)).astype(np.float32))
        form = form_of(model, (channels_in, 12, 11))
        assert tilings_of(form, use_winograd=True).table[0, TILE_ROWS] > 0
        expected = model.to(F64)(samples.to(F64)).detach()
        fused = FusedLearner(model.to(F32), form, samples, np.zeros(5, dtype=np.int64), CLASSES, 32)
        error = (fused.approximate_logits([samples]) - expected).abs().max() / expected.abs().max()
        assert error < BOUND, (channels_in, channels_out, size)


@pytest.mark.parametrize("name", TILED)
def test_a_samples_logits_do_not_depend_on_its_batch(name):
    samples, fused, _ = two_learners(name, 37)
    together = fused.approximate_logits([samples])
    for chunk in (1, 7, 16, 20):
        assert torch.equal(fused.approximate_logits(torch.split(samples, chunk)), together)
    assert torch.equal(fused.approximate_logits([samples.flip(0)]), together.flip(0))


def test_a_block_without_tiles_gives_identical_logits():
    samples, fused, _ = two_learners("kernels too long, then too few channels", 37)
    assert torch.equal(fused.approximate_logits([samples]), fused.logits([samples]))


def test_only_accuracy_is_computed_by_tiles(monkeypatch):
    """Transmitted predictions, on private or public samples, are computed by direct convolution."""

    def must_not_be_called(*_):
        raise AssertionError("not by this path")

    samples, fused, double = two_learners("the paper's network", 37)
    fleet, tests = (LearningFleet([fused], Engine(), public=samples), np.zeros(37, dtype=np.int64))
    with monkeypatch.context() as patched:
        patched.setattr(FusedLearner, "approximate_logits", must_not_be_called)
        assert fleet.knowledge(for_full_batch=False)[0] == pytest.approx(double.knowledge(), abs=1e-6, nan_ok=True)
        expected = double.logits([samples.to(F64)]).softmax(dim=1).numpy()
        assert fleet.public_predictions(np.arange(37))[0] == pytest.approx(expected, abs=1e-6)
    with monkeypatch.context() as patched:
        patched.setattr(FusedLearner, "logits", must_not_be_called)
        EvaluationSet.of(samples, tests, CLASSES, 16).evaluate(fleet, np.ones((1, CLASSES), dtype=np.int64))


def test_trained_networks_predict_the_same_digits_as_float64():
    """Except if the two largest logits in float64 are closer than the rounding errors of both."""
    mnist = load_dataset("mnist")
    train, tests = (torch.from_numpy(x[:, None] / 255).to(F32) for x in (mnist.x_train[:600], mnist.x_test[:3000]))
    model = build_model("paper_cnn", (1, 28, 28), 10, np.random.default_rng(0), F32)
    learner = LearnerMaker(Engine()).learner(model, train, mnist.y_train[:600], 10)
    learner.local_epochs(None, 0.1, 0.0, [np.random.default_rng(n).permutation(600) for n in range(8)], 20)
    reference = build_model("paper_cnn", (1, 28, 28), 10, np.random.default_rng(0), F64)
    reference.load_state_dict(learner.model.state_dict())
    exact = Learner(reference, train.to(F64), mnist.y_train[:600], 10, 300).logits(torch.split(tests.to(F64), 300))
    approximate = learner.approximate_logits(torch.split(tests, 300))
    largest, error = exact.topk(2, dim=1).values, float((approximate - exact).abs().max())
    assert error < BOUND * float(exact.abs().max())
    decided = largest[:, 0] - largest[:, 1] > 2 * error
    assert torch.equal(approximate.argmax(dim=1)[decided], exact.argmax(dim=1)[decided])
    assert int((~decided).sum()) <= 1
    assert float((approximate.argmax(dim=1).numpy() == mnist.y_test[:3000]).mean()) > 0.8
