"""Tests of the fused GPU kernels that do not need a GPU."""

from importlib.resources import files

import pytest
import torch

from airdistill.learning.deferred import DeferredLosses
from airdistill.learning.fused.cuda import _Sizes, fused_logits
from airdistill.learning.fused.form import ConvBlock, form_of
from airdistill.learning.learner import Losses
from airdistill.learning.models import MODELS

BLOCKS = [
    (1, 28, 28, 10, 3, 3),
    (10, 13, 13, 20, 5, 5),
    (3, 32, 32, 32, 3, 3),
    (256, 14, 14, 256, 3, 3),
    (64, 9, 9, 512, 1, 1),
    (4, 40, 90, 13, 11, 9),
]


@pytest.mark.parametrize("sizes", BLOCKS)
def test_weights_and_samples_fit_into_shared_memory(sizes):
    sizes_of_block = _Sizes.of(ConvBlock("weight", "bias", *sizes))
    taps, limit = sizes_of_block.KH * sizes_of_block.KW, 48 << 10
    assert 4 * sizes_of_block.CI_CHUNK * taps * (sizes_of_block.CO_TILE + 3) <= limit
    of_inputs = sizes_of_block.of_input_gradients()
    assert 4 * of_inputs.CO_CHUNK * of_inputs.WARPS * (taps + 3) <= limit
    sparse = sizes_of_block.of_sparse_weight_gradients()
    if sparse is not None:
        cells = (sizes_of_block.H - sizes_of_block.KH + 1) // 2 * ((sizes_of_block.W - sizes_of_block.KW + 1) // 2)
        channels = -(-sizes_of_block.COUT // sparse.WARPS)
        images = sparse.HELD * sizes_of_block.CIN * sizes_of_block.H * sizes_of_block.W
        assert 4 * images + 8 * sparse.HELD * cells * channels * sparse.WARPS <= limit
        assert 32 * sparse.WARPS <= 1024


def test_the_papers_second_block_uses_the_sparse_kernel_and_the_first_does_not():
    first, second = (_Sizes.of(ConvBlock("weight", "bias", *sizes)) for sizes in BLOCKS[:2])
    assert first.of_sparse_weight_gradients() is None
    assert second.of_sparse_weight_gradients() is not None


def test_the_kernel_sources_are_packaged():
    assert all(
        files("airdistill.learning.fused").joinpath(name).is_file() for name in ("conv_pool_relu.cu", "losses.cu")
    )


@pytest.mark.parametrize(("dtype", "reason"), [(torch.float64, "float32"), (torch.float32, "cannot be compiled")])
def test_a_reason_is_given_if_the_kernels_cannot_be_used(dtype, reason, monkeypatch):
    monkeypatch.delattr(
        torch.cuda, "_compile_kernel", raising=False
    )  # a private function of PyTorch, which may be missing
    model = MODELS["paper_cnn"]((1, 16, 17), 3).to(dtype)
    stacks = {name: parameter.detach()[None] for name, parameter in model.named_parameters()}
    found = fused_logits(form_of(model, (1, 16, 17)), stacks, torch.zeros(1, 2, 1, 16, 17, dtype=dtype))
    assert isinstance(found, str)
    assert reason in found


def test_deferred_losses():
    numbers = torch.tensor([[0.5, 1.5], [0.25, float("nan")]], dtype=torch.float64)
    deferred = DeferredLosses(numbers, torch.tensor([True, False]))
    assert len(deferred) == 2
    assert deferred[0] == Losses(0.5, 0.25)
    assert [loss.training for loss in deferred] == [0.5, 1.5]
    assert deferred[:1] == [Losses(0.5, 0.25)]
    assert deferred.left_finite_weights == [True, False]
