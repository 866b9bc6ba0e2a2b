"""Networks of the paper's form on a GPU: all devices at once, with CUDA kernels compiled for their sizes.

PyTorch would compute the convolutions of all devices as one grouped convolution, for which its libraries do not have
fast kernels. It would also write every output of a convolution to memory, although pooling discards three of four.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from airdistill.learning.fused.form import ConvBlock, NetworkForm, logits_by_form
from airdistill.learning.gradients import Target, parameter_gradients

Launch = Callable[[tuple[int, int, int], list[Any]], None]

_WARP = 32  # threads
_SHARED_BYTES = 40 << 10  # of weights in a block's shared memory; 48 KiB are available by default
# Accumulators in the registers of a thread; measured.
_FORWARD_SUMS, _WEIGHT_SUMS, _SPARSE_SUMS, _BAND_SUMS = 80, 128, 24, 96
_MIN_OCCUPANCY = 0.6  # of a warp's threads, below which the dense kernel is faster than the sparse one
_MIN_WARPS = 1 << 14  # that keep a large GPU busy
_LOSS_THREADS = 128  # in a block
PASS_BYTES = 4 << 30  # peak memory that a forward pass of all devices may take
_TOLERANCE = 1e-4  # relative to the largest logit; a wrong kernel would deviate by far more


class FusedLogits:
    """The logits of all devices' models, differentiable with respect to their parameters."""

    def __init__(self, form: NetworkForm) -> None:
        self._form = form
        self._blocks = [_BlockKernels(block) for block in form.blocks]

    @property
    def bytes_per_sample(self) -> int:
        """The approximate peak memory of forward and backward pass: outputs, their gradients and pooling indices."""
        of_blocks = sum(9 * block.num_outputs for block in self._form.blocks)
        return of_blocks + sum(12 * layer.num_outputs for layer in self._form.layers)

    @property
    def most_samples(self) -> int:
        """Samples of all devices in one pass."""
        return 2 * PASS_BYTES // self.bytes_per_sample

    def fitting_chunk(self, chunk: int, num_devices: int) -> int:
        """The number of samples of each device in one forward pass: at least `chunk`, and as many as fit."""
        return max(chunk, PASS_BYTES // (self.bytes_per_sample * num_devices))

    @staticmethod
    def to_layout(samples: Tensor) -> Tensor:
        """Samples `[device, sample, ...]` in the memory layout of the kernels, `[device, feature, sample]`."""
        return samples.flatten(2).mT.contiguous()

    def __call__(self, parameters: dict[str, Tensor], samples: Tensor) -> Tensor:
        """Logits `[device, sample, class]` of samples from `to_layout`.

        A device axis of length 1 serves all devices.
        """
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
        """Raise an error if a kernel fails, or if the logits of the first device differ from those of the form."""
        leaves = {name: stack.detach()[:1].requires_grad_() for name, stack in parameters.items()}
        logits = self(leaves, self.to_layout(samples[:1]))
        labels = torch.zeros(logits.shape[:2], dtype=torch.int64, device=logits.device)
        parameter_gradients(logits, loss_gradients(logits, labels, None, 0.0)[0], list(leaves.values()))
        with torch.no_grad():
            expected = logits_by_form(self._form, {name: leaf[0] for name, leaf in leaves.items()}, samples[0])
            difference = (expected - logits[0]).abs().max()
            # The comparison waits for all kernels.
            if not difference <= _TOLERANCE * (1 + expected.abs().max()):
                raise RuntimeError("the kernels do not compute what the model does")


def loss_gradients(
    logits: Tensor, labels: Tensor, target: Target | None, distill_weight: float
) -> tuple[Tensor, Tensor]:
    """The gradients of eq. (1) for logits `[device, sample, class]`, and its two mean losses `[loss, device]`."""
    num_devices, num_samples, num_classes = logits.shape
    by_class = logits.detach().mT.contiguous()
    gradients, losses = torch.empty_like(by_class), by_class.new_empty(2, num_devices, num_samples)
    rows, known = (by_class, by_class) if target is None else (target.rows, target.known)
    sizes = [num_devices, num_classes, num_samples, int(target is not None), float(distill_weight)]
    kernel = compiled_kernel("losses.cu", "loss_gradients", _LOSS_THREADS, (("THREADS", _LOSS_THREADS),))
    grid = (-(-num_devices * num_samples // _LOSS_THREADS), 1, 1)
    kernel(grid, [by_class, labels.contiguous(), rows, known, gradients, losses, *sizes])
    return gradients.mT, losses.mean(dim=2)


def fused_logits(form: NetworkForm, parameters: dict[str, Tensor], samples: Tensor) -> FusedLogits | str:
    """The checked kernels for stacked parameters and samples `[device, sample, ...]`, or why they cannot be used."""
    first = next(iter(parameters.values()))
    if first.dtype != torch.float32:
        return f"they compute in float32, not in {first.dtype}"
    try:
        fused = FusedLogits(form)
        fused.check(parameters, samples[:, :3])
    except Exception as error:  # compiler or driver may be missing, or PyTorch's private interface may differ
        return f"they cannot be compiled and run here: {' '.join(str(error).split())}"
    return fused


@dataclass(frozen=True)
class _Sizes:
    """The constants that the kernels are compiled with; `conv_pool_relu.cu` describes them."""

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
    CO_GRADIENTS: int
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
            CO_GRADIENTS=_even_share(block.channels_out, max(1, min(5, _WEIGHT_SUMS // taps))),
            CELLS_AT_ONCE=1,
            HELD=1,
            TILE_W=tile_width,
            CO_CHUNK=1,
        )

    def of_input_gradients(self) -> _Sizes:
        return replace(self, WARPS=1, RESIDENT=12, CO_CHUNK=_within_shared(self.COUT, _up(self.KH * self.KW, 4)))

    def of_weight_gradients(self) -> _Sizes:
        few = self.CO_GRADIENTS * self.KH * self.KW <= _WEIGHT_SUMS // 2
        return replace(self, WARPS=1, RESIDENT=12 if few else 8, CELLS_AT_ONCE=3 if few else 1)

    def of_sparse_weight_gradients(self) -> _Sizes | None:
        """None if many threads of a warp would be idle, or if shared memory does not suffice."""
        taps, pixels = self.KH * self.KW, self.H * self.W
        together, turns = max(1, _WARP // taps), -(-taps // _WARP)
        rounds = -(-self.CIN // together) * turns
        warps = next((number for number in range(4, 17) if -(-self.COUT // number) * rounds <= _SPARSE_SUMS), None)
        if warps is None or self.CIN * taps < _MIN_OCCUPANCY * _WARP * rounds:
            return None
        cells = ((self.H - self.KH + 1) // 2) * ((self.W - self.KW + 1) // 2)
        entries = 8 * cells * warps * _up(-(-self.COUT // warps), 2)
        for held in (4, 2, 1):
            of_images = 4 * (held * _up(self.CIN * pixels, 32) + 32 + together * pixels)
            if of_images + held * entries <= _SHARED_BYTES:
                return replace(self, WARPS=warps, RESIDENT=max(1, 20 // warps), HELD=held)
        return None


class _BlockKernels:
    """Convolution, 2×2 max-pooling and ReLU of features `[device, feature, sample]`."""

    def __init__(self, block: ConvBlock) -> None:
        self.block = block
        self._sizes = _Sizes.of(block)
        self._weight_sizes, self._input_sizes = self._sizes.of_weight_gradients(), self._sizes.of_input_gradients()
        self._sparse_sizes = self._sizes.of_sparse_weight_gradients()

    def __call__(self, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        outputs: Tensor = _ConvPoolRelu.apply(self, torch.is_grad_enabled(), features, weight, bias)  # type: ignore[no-untyped-call]
        return outputs

    def forward(self, features: Tensor, weight: Tensor, bias: Tensor | None, keeps: bool) -> tuple[Tensor, Tensor]:
        """The block's outputs and, with `keeps`, the index of the maximum in each pooling window."""
        sizes, block, num_samples = self._sizes, self.block, features.shape[2]
        outputs = features.new_empty(len(weight), block.num_outputs, num_samples)
        winners = outputs.new_empty(outputs.shape if keeps else (0,), dtype=torch.uint8)
        tiles = block.pooled_height * -(-block.pooled_width // sizes.CELLS)
        grid = (-(-tiles // sizes.WARPS) * -(-sizes.COUT // sizes.CO_TILE), _groups(num_samples), len(weight))
        biases = weight if bias is None else bias
        flags = [num_samples, int(len(features) < len(weight)), int(bias is not None), int(keeps)]
        _kernel("block_forward", sizes)(grid, [features, weight, biases, outputs, winners, *flags])
        return outputs, winners

    def weight_gradients(self, features: Tensor, output_gradients: Tensor, winners: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients `[device, ...]` of weights and biases; partial sums are computed in parallel."""
        num_devices, _, num_samples = output_gradients.shape
        sparse, dense = self._sparse_sizes, self._weight_sizes
        sizes = dense if sparse is None else sparse
        if sparse is None:
            tasks = dense.CIN * -(-dense.COUT // dense.CO_GRADIENTS)
            most = _groups(num_samples) * self.block.pooled_height
        else:
            tasks, most = sparse.WARPS, -(-num_samples // sparse.HELD)
        num_parts = min(most, -(-_MIN_WARPS // (tasks * num_devices)))
        of_weights = output_gradients.new_empty(num_parts, num_devices, sizes.COUT, sizes.CIN, sizes.KH, sizes.KW)
        of_biases = output_gradients.new_empty(num_parts, num_devices, sizes.COUT)
        shared = int(len(features) < num_devices)
        arguments = [features, output_gradients, winners, of_weights, of_biases, num_samples, shared]
        if sparse is None:
            _kernel("weight_gradients", dense)((-(-tasks // dense.WARPS), num_parts, num_devices), arguments)
        else:
            _kernel("sparse_weight_gradients", sparse)((num_parts, num_devices, 1), arguments)
        return of_weights.sum(dim=0), of_biases.sum(dim=0)

    def input_gradients(self, weight: Tensor, output_gradients: Tensor, winners: Tensor) -> Tensor:
        """Gradients of the block's input features."""
        sizes, (num_devices, _, num_samples) = self._input_sizes, output_gradients.shape
        of_inputs = output_gradients.new_empty(num_devices, sizes.CIN * sizes.H * sizes.W, num_samples)
        grid = (-(-sizes.CIN // sizes.WARPS) * -(-sizes.W // sizes.TILE_W), _groups(num_samples), num_devices)
        _kernel("input_gradients", sizes)(grid, [weight, output_gradients, winners, of_inputs, num_samples])
        return of_inputs


class _ConvPoolRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernels: _BlockKernels, keeps: bool, features: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        outputs, winners = kernels.forward(features, weight, bias, keeps)
        ctx.kernels = kernels
        ctx.save_for_backward(features, weight, winners)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output_gradients: Tensor) -> tuple[None, None, Tensor | None, Tensor, Tensor | None]:
        features, weight, winners = ctx.saved_tensors
        kernels: _BlockKernels = ctx.kernels
        output_gradients = output_gradients.contiguous()
        of_weights, of_biases = kernels.weight_gradients(features, output_gradients, winners)
        of_inputs = kernels.input_gradients(weight, output_gradients, winners) if ctx.needs_input_grad[2] else None
        return None, None, of_inputs, of_weights, of_biases if ctx.needs_input_grad[4] else None


def _kernel(name: str, sizes: _Sizes) -> Launch:
    """A kernel of `conv_pool_relu.cu` for these sizes."""
    constants = ((name.upper(), 1), *zip(_Sizes.__dataclass_fields__, astuple(sizes), strict=True))
    return compiled_kernel("conv_pool_relu.cu", name, _WARP * sizes.WARPS, constants)


@cache
def compiled_kernel(file: str, name: str, threads: int, constants: tuple[tuple[str, int], ...]) -> Launch:
    """Compile a kernel of one of this package's files; the result launches it on a grid of blocks of `threads`.

    Raises an error if PyTorch does not have a compiler, or if its private interface differs.
    """
    source = "".join(f"#define {constant} {value}\n" for constant, value in constants)
    source += files("airdistill.learning.fused").joinpath(file).read_text()
    kernel = torch.cuda._compile_kernel(source, name)

    def launch(grid: tuple[int, int, int], arguments: list[Any]) -> None:
        kernel(grid, (threads, 1, 1), arguments)

    return launch


def _groups(num_samples: int) -> int:
    """The number of warps for so many samples."""
    return -(-num_samples // _WARP)


def _up(number: int, multiple: int) -> int:
    """`number` rounded up to a multiple."""
    return -(-number // multiple) * multiple


def _even_share(number: int, most: int) -> int:
    """The size of the parts if `number` is divided into as few equal parts of at most `most` as possible."""
    return -(-number // -(-number // most))


def _within_shared(number: int, floats_each: int) -> int:
    """How many of `number` items fit into shared memory at once."""
    return max(1, min(number, _SHARED_BYTES // (4 * floats_each)))
