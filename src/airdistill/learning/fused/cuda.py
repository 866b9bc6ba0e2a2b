"""CUDA kernels compiled when they are needed: the only place that knows how PyTorch compiles and launches them.

Networks of the paper's form on a GPU, all devices at once, with kernels that are compiled for their sizes.

PyTorch's own convolutions take the devices as groups, for which its libraries have no fast kernels, and write every
output of a convolution to memory, of which pooling keeps one in four.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from airdistill.learning.fused.form import ConvBlock, NetworkForm, logits_by_form
from airdistill.learning.gradients import Target, slopes_from

Launch = Callable[[tuple[int, int, int], list[Any]], None]


@cache
def compiled_kernel(file: str, name: str, threads: int, constants: tuple[tuple[str, int], ...]) -> Launch:
    """A kernel of one of this package's files, to launch on a grid of blocks of so many threads.

    Raises where PyTorch has no compiler, or another way to it.
    """
    source = "".join(f"#define {constant} {value}\n" for constant, value in constants)
    source += files("airdistill.learning.fused").joinpath(file).read_text()
    kernel = torch.cuda._compile_kernel(source, name)

    def launch(grid: tuple[int, int, int], arguments: list[Any]) -> None:
        kernel(grid, (threads, 1, 1), arguments)

    return launch


logger = logging.getLogger(__name__)

_WARP = 32  # threads
_SHARED_BYTES = 40 << 10  # of weights in a block's shared memory; 48 KiB can be had without asking
# Sums that a thread has in registers at once; measured.
_FORWARD_SUMS, _SLOPE_SUMS, _SPARSE_SUMS, _BAND_SUMS = 80, 128, 24, 96
_BUSY_SHARE = 0.6  # of a warp's threads, below which it is faster to take all places than those that were kept
_WARPS_AT_LEAST = 1 << 14  # that keep a large GPU busy
_LOSS_THREADS = 128  # in a block
_AGREEMENT = 1e-4  # relative to the largest logit; a kernel that computes something else would be off by far more


class FusedLogits:
    """The logits of all devices' models, differentiable in their parameters."""

    def __init__(self, form: NetworkForm) -> None:
        self._form = form
        self._blocks = [_BlockKernels(block) for block in form.blocks]

    @property
    def bytes_for_a_sample(self) -> int:
        """About what a forward and a backward pass need at their height: outputs, their slopes, and the places kept."""
        of_blocks = sum(9 * block.num_outputs for block in self._form.blocks)
        return of_blocks + sum(12 * layer.num_outputs for layer in self._form.layers)

    @staticmethod
    def laid_out(samples: Tensor) -> Tensor:
        """Samples `[device, sample, ...]` as the kernels take them: `[device, feature, sample]`."""
        return samples.flatten(2).mT.contiguous()

    def __call__(self, parameters: dict[str, Tensor], samples: Tensor) -> Tensor:
        """`[device, sample, class]` from samples as `laid_out`; with a device axis of one all see the same."""
        features = samples
        for kernels in self._blocks:
            block = kernels.block
            bias = None if block.bias is None else parameters[block.bias]
            features = kernels(features, parameters[block.weight], bias)
        for layer in self._form.layers:
            products = parameters[layer.weight] @ features
            features = products if layer.bias is None else products + parameters[layer.bias][:, :, None]
            features = features.relu() if layer.relu else features
        return features.mT

    def check(self, parameters: dict[str, Tensor], samples: Tensor) -> None:
        """Raises if a kernel fails, or the logits are not what the form says, on samples of the first device."""
        leaves = {name: stack.detach()[:1].requires_grad_() for name, stack in parameters.items()}
        logits = self(leaves, self.laid_out(samples[:1]))
        labels = torch.zeros(logits.shape[:2], dtype=torch.int64, device=logits.device)
        slopes_from(logits, loss_slopes(logits, labels, None, 0.0)[0], list(leaves.values()))
        with torch.no_grad():
            expected = logits_by_form(self._form, {name: leaf[0] for name, leaf in leaves.items()}, samples[0])
            apart = (expected - logits[0]).abs().max()  # to look at it is to wait for all kernels
            if not apart <= _AGREEMENT * (1 + expected.abs().max()):
                raise RuntimeError("the kernels do not compute what the model does")


def loss_slopes(logits: Tensor, labels: Tensor, target: Target | None, distill_weight: float) -> tuple[Tensor, Tensor]:
    """Of eq. (1), from logits `[device, sample, class]`: its slopes for these, and its two means `[loss, device]`."""
    num_devices, num_samples, num_classes = logits.shape
    by_class = logits.detach().mT.contiguous()
    slopes, losses = torch.empty_like(by_class), by_class.new_empty(2, num_devices, num_samples)
    rows, known = (by_class, by_class) if target is None else (target.rows, target.known)
    sizes = [num_devices, num_classes, num_samples, int(target is not None), float(distill_weight)]
    kernel = compiled_kernel("losses.cu", "loss_slopes", _LOSS_THREADS, (("THREADS", _LOSS_THREADS),))
    grid = (-(-num_devices * num_samples // _LOSS_THREADS), 1, 1)
    kernel(grid, [by_class, labels.contiguous(), rows, known, slopes, losses, *sizes])
    return slopes.mT, losses.mean(dim=2)


def fused_logits(form: NetworkForm, parameters: dict[str, Tensor], samples: Tensor) -> FusedLogits | str:
    """The kernels for stacked parameters and samples `[device, sample, ...]`, tried out; or why there are none."""
    first = next(iter(parameters.values()))
    if first.dtype != torch.float32:
        return f"they compute in float32, not in {first.dtype}"
    try:
        fused = FusedLogits(form)
        fused.check(parameters, samples[:, :3])
    except Exception as error:  # the compiler, the driver or PyTorch's way to both may be missing or another
        return f"they cannot be compiled and run here: {' '.join(str(error).split())}"
    return fused


@dataclass(frozen=True)
class _Sizes:
    """The constants that the kernels are compiled with; the file of the kernels says what they are."""

    CIN: int
    H: int
    W: int
    COUT: int
    KH: int
    KW: int
    WARPS: int
    RESIDENT: int
    CELLS: int
    CO_TILE: int
    CI_CHUNK: int
    CO_SLOPES: int
    CELLS_AT_ONCE: int
    HELD: int
    TILE_W: int
    CO_CHUNK: int

    @classmethod
    def of(cls, block: ConvBlock) -> _Sizes:
        taps = block.kernel_height * block.kernel_width
        cells = 2 if block.pooled_width > 1 and taps <= 49 else 1
        channels = _even_share(block.channels_out, _FORWARD_SUMS // (4 * cells))
        band = block.kernel_height + 1
        tile_width = block.width if band * block.width <= _BAND_SUMS else max(2, _BAND_SUMS // band // 2 * 2)
        return cls(
            CIN=block.channels_in,
            H=block.height,
            W=block.width,
            COUT=block.channels_out,
            KH=block.kernel_height,
            KW=block.kernel_width,
            WARPS=4,
            RESIDENT=3,
            CELLS=cells,
            CO_TILE=channels,
            CI_CHUNK=_within_shared(block.channels_in, taps * _up(channels, 4)),
            CO_SLOPES=_even_share(block.channels_out, max(1, min(5, _SLOPE_SUMS // taps))),
            CELLS_AT_ONCE=1,
            HELD=1,
            TILE_W=tile_width,
            CO_CHUNK=1,
        )

    def of_input_slopes(self) -> _Sizes:
        return replace(self, WARPS=1, RESIDENT=12, CO_CHUNK=_within_shared(self.COUT, _up(self.KH * self.KW, 4)))

    def of_weight_slopes(self) -> _Sizes:
        few = self.CO_SLOPES * self.KH * self.KW <= _SLOPE_SUMS // 2
        return replace(self, WARPS=1, RESIDENT=12 if few else 8, CELLS_AT_ONCE=3 if few else 1)

    def of_sparse_weight_slopes(self) -> _Sizes | None:
        """None where the kernel's taps would leave many threads of a warp idle, or too much is to be held."""
        taps, pixels = self.KH * self.KW, self.H * self.W
        together, turns = max(1, _WARP // taps), -(-taps // _WARP)
        rounds = -(-self.CIN // together) * turns
        warps = next((number for number in range(4, 17) if -(-self.COUT // number) * rounds <= _SPARSE_SUMS), None)
        if warps is None or self.CIN * taps < _BUSY_SHARE * _WARP * rounds:
            return None
        cells = ((self.H - self.KH + 1) // 2) * ((self.W - self.KW + 1) // 2)
        entries = 8 * cells * warps * _up(-(-self.COUT // warps), 2)
        for held in (4, 2, 1):
            of_images = 4 * (held * _up(self.CIN * pixels, 32) + 32 + together * pixels)
            if of_images + held * entries <= _SHARED_BYTES:
                return replace(self, WARPS=warps, RESIDENT=max(1, 20 // warps), HELD=held)
        return None


class _BlockKernels:
    """ReLU of the 2×2 maximum of a convolution, of features `[device, feature, sample]`."""

    def __init__(self, block: ConvBlock) -> None:
        self.block = block
        self._sizes = _Sizes.of(block)
        self._weight_sizes, self._input_sizes = self._sizes.of_weight_slopes(), self._sizes.of_input_slopes()
        self._sparse_sizes = self._sizes.of_sparse_weight_slopes()

    def __call__(self, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        outputs: Tensor = _ConvPoolRelu.apply(self, torch.is_grad_enabled(), features, weight, bias)  # type: ignore[no-untyped-call]
        return outputs

    def forward(self, features: Tensor, weight: Tensor, bias: Tensor | None, keeps: bool) -> tuple[Tensor, Tensor]:
        """The block's outputs, and which of four it kept each time, if that is asked for."""
        sizes, block, num_samples = self._sizes, self.block, features.shape[2]
        outputs = features.new_empty(len(weight), block.num_outputs, num_samples)
        kept = outputs.new_empty(outputs.shape if keeps else (0,), dtype=torch.uint8)
        tiles = block.pooled_height * -(-block.pooled_width // sizes.CELLS)
        grid = (-(-tiles // sizes.WARPS) * -(-sizes.COUT // sizes.CO_TILE), _groups(num_samples), len(weight))
        biases = weight if bias is None else bias
        flags = [num_samples, int(len(features) < len(weight)), int(bias is not None), int(keeps)]
        _kernel("block_forward", sizes)(grid, [features, weight, biases, outputs, kept, *flags])
        return outputs, kept

    def weight_slopes(self, features: Tensor, slopes: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """`[device, ...]` of weights and biases; parts of the sums are made side by side."""
        num_devices, _, num_samples = slopes.shape
        sparse, dense = self._sparse_sizes, self._weight_sizes
        sizes = dense if sparse is None else sparse
        if sparse is None:
            tasks = dense.CIN * -(-dense.COUT // dense.CO_SLOPES)
            most = _groups(num_samples) * self.block.pooled_height
        else:
            tasks, most = sparse.WARPS, -(-num_samples // sparse.HELD)
        num_parts = min(most, -(-_WARPS_AT_LEAST // (tasks * num_devices)))
        of_weights = slopes.new_empty(num_parts, num_devices, sizes.COUT, sizes.CIN, sizes.KH, sizes.KW)
        of_biases = slopes.new_empty(num_parts, num_devices, sizes.COUT)
        same = int(len(features) < num_devices)
        arguments = [features, slopes, kept, of_weights, of_biases, num_samples, same]
        if sparse is None:
            _kernel("weight_slopes", dense)((-(-tasks // dense.WARPS), num_parts, num_devices), arguments)
        else:
            _kernel("sparse_weight_slopes", sparse)((num_parts, num_devices, 1), arguments)
        return of_weights.sum(dim=0), of_biases.sum(dim=0)

    def input_slopes(self, weight: Tensor, slopes: Tensor, kept: Tensor) -> Tensor:
        sizes, (num_devices, _, num_samples) = self._input_sizes, slopes.shape
        of_inputs = slopes.new_empty(num_devices, sizes.CIN * sizes.H * sizes.W, num_samples)
        grid = (-(-sizes.CIN // sizes.WARPS) * -(-sizes.W // sizes.TILE_W), _groups(num_samples), num_devices)
        _kernel("input_slopes", sizes)(grid, [weight, slopes, kept, of_inputs, num_samples])
        return of_inputs


class _ConvPoolRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernels: _BlockKernels, keeps: bool, features: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        outputs, kept = kernels.forward(features, weight, bias, keeps)
        ctx.kernels = kernels
        ctx.save_for_backward(features, weight, kept)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[None, None, Tensor | None, Tensor, Tensor | None]:
        features, weight, kept = ctx.saved_tensors
        kernels: _BlockKernels = ctx.kernels
        slopes = slopes.contiguous()
        of_weights, of_biases = kernels.weight_slopes(features, slopes, kept)
        of_inputs = kernels.input_slopes(weight, slopes, kept) if ctx.needs_input_grad[2] else None
        return None, None, of_inputs, of_weights, of_biases if ctx.needs_input_grad[4] else None


def _kernel(name: str, sizes: _Sizes) -> Launch:
    constants = ((name.upper(), 1), *zip(_Sizes.__dataclass_fields__, astuple(sizes), strict=True))
    return compiled_kernel("conv_pool_relu.cu", name, _WARP * sizes.WARPS, constants)


def _groups(num_samples: int) -> int:
    return -(-num_samples // _WARP)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _even_share(number: int, most: int) -> int:
    """The size of the fewest equal shares, none above `most`."""
    return -(-number // -(-number // most))


def _within_shared(number: int, floats_of_one: int) -> int:
    return max(1, min(number, _SHARED_BYTES // (4 * floats_of_one)))
