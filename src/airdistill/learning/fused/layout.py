"""The layout of a network in flat arrays: parameters, activations of a group of samples, gradients.

The layout is described by tables of integers instead of one object per layer, and so the kernels are compiled once for
all networks. The arrays are `work` (scratch), `saved` (activations that the backward pass reads), `argmax` (winners of
the pooling windows), `sums` (gradients) and `offsets` (index tables).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from airdistill.arrays import IntArray
from airdistill.learning.fused.form import ConvBlock, DenseLayer, NetworkForm
from airdistill.learning.fused.lanes import LANES, LARGE
from airdistill.learning.fused.winograd import OUTPUTS, tiling_of

# Columns of the table of blocks. Sizes in `work`, `saved` and `argmax` are for a group of LANES samples.
WEIGHT, BIAS, CHANNELS_IN, HEIGHT, WIDTH, CHANNELS_OUT, KERNEL_HEIGHT, KERNEL_WIDTH, ROWS, COLUMNS = range(10)
INPUT = 10  # in `work`: [channel, row, column, lane]
OUTPUT = 11  # the block's output in the same order: in `work`, or in `saved` if a dense layer follows
BY_SAMPLE = 12  # in `saved`: the input as [lane, row, column, channel], except for the first block
SAMPLE_SIZE = 13  # distance of consecutive samples there
ARGMAX = 14  # in `argmax`: [channel, row, column, lane]
OUTPUT_GRADIENT = 15  # in `work`: [channel, row, column, lane]
OFFSETS = 16  # in `offsets`: a term's index relative to the kernel's corner, [channel, kernel row, kernel column]
KERNEL_VECTORS = 17  # number of vectors for a row of the kernel with all channels
WEIGHT_ROWS = 18  # in `work`: weights as [channel out, kernel row, (kernel column, channel in), padded with zeros]
WEIGHT_GRADIENT, BIAS_GRADIENT = 19, 20  # in `sums`: [channel out, term, lane] for the first block, else as WEIGHT_ROWS
CHANNELS_LAST = 21  # in `offsets`: the index in [channel, row, column, lane] of each element of [row, column, channel]
BLOCK_SAMPLE_OFFSETS = 22  # in `offsets`: the index of a lane in BY_SAMPLE, [lane]
_BLOCK_COLUMNS = 23
# Columns of the table of dense layers.
NUM_INPUTS, NUM_OUTPUTS, RELU = 2, 3, 4
LAYER_INPUT = 5  # in `saved`: [feature, lane]
LAYER_OUTPUT_GRADIENT = 6  # in `work`: [feature, lane]
LAYER_BY_SAMPLE = 7  # in `work`: the input as [lane, feature], padded
OUTPUT_GRADIENT_BY_SAMPLE = 8  # in `work`: the same as [lane, feature]
INPUT_VECTORS = 9  # number of vectors for a sample's features
LAYER_WEIGHT_GRADIENT, LAYER_BIAS_GRADIENT = 10, 11  # in `sums`: [output, input, padded], [output]
SAMPLE_OFFSETS = 12  # in `offsets`: the index of a lane in LAYER_BY_SAMPLE, [lane]
_LAYER_COLUMNS = 13
# Columns of the table of tilings, which has one row per block.
TILE_ROWS, TILE_COLUMNS = 0, 1  # 0 if the block is convolved directly
STRIP_ROWS = 2  # rows of tiles that are computed together
KERNEL_VALUES = 3  # in `values`: [point down, point right, channel out, channel in]
CHANNEL_OFFSETS = 4  # in `offsets`: a channel's index in `input_points` relative to the first
_TILING_COLUMNS = 5


class Network(NamedTuple):
    """A network's layout, as the kernels take it."""

    blocks: IntArray
    layers: IntArray
    offsets: IntArray
    num_parameters: int
    num_classes: int
    work: int  # sizes of the arrays
    saved: int
    argmax: int
    sums: int
    logits: int  # in `saved`: [class, lane]
    input_gradient: int  # in `work`: gradient of a block's input, as BY_SAMPLE
    feature_offsets: int  # in `offsets`: the index of a feature in [feature, lane]
    upsampled: int  # in `work`: two rows of gradients before pooling, for some channels of the first block


class Tilings(NamedTuple):
    """The layout of tiled convolutions. Sizes in `tiles` are for a strip of tiles, and the largest over all blocks."""

    table: IntArray
    offsets: IntArray
    tiles: int  # size of the array
    line_points: int  # index in it of [point down, column, lane], for one channel of the input
    input_points: int  # [point down, point right, channel in, tile, lane]
    products: int  # for one point right: [point down, channel out of LARGE, tile, lane]
    column_points: int  # [channel out of LARGE, tile, row of the tile, point right, lane]


@dataclass
class _Space:
    """Allocates ranges of an array."""

    size: int = 0

    def take(self, count: int) -> int:
        start, self.size = self.size, self.size + count
        return start


class _Offsets:
    """Allocates ranges of an array together with their content."""

    def __init__(self) -> None:
        self.parts: list[IntArray] = []
        self.size = 0

    def put(self, values: IntArray) -> int:
        start, self.size = self.size, self.size + values.size
        self.parts.append(values.ravel())
        return start


@lru_cache
def layout_of(form: NetworkForm, starts: tuple[tuple[str, int], ...]) -> Network:
    """The layout of a network whose parameters start at `starts` of a flat vector; shared by all devices.

    A missing bias is read behind the end of the vector, which must be followed by `padding_of` zeros.
    """
    planner = _Planner(dict(starts), num_parameters(form))
    layers = np.stack([planner.layer(layer) for layer in form.layers])
    blocks = np.zeros((len(form.blocks), _BLOCK_COLUMNS), dtype=np.int64)
    for number, block in enumerate(form.blocks):
        planner.block(block, blocks[number], blocks[number - 1] if number else None)
    if form.blocks:
        blocks[-1, OUTPUT] = layers[0, LAYER_INPUT]
    first, work = form.blocks[0] if form.blocks else None, planner.work
    largest = max(max(layer.num_inputs, layer.num_outputs) for layer in form.layers)
    return Network(
        blocks,
        layers,
        num_parameters=planner.end,
        num_classes=form.layers[-1].num_outputs,
        logits=planner.saved.take(form.layers[-1].num_outputs * LANES),
        input_gradient=work.take(LANES * int(max(blocks[:, SAMPLE_SIZE], default=0))),
        upsampled=work.take(0 if first is None else LARGE * 2 * 2 * first.pooled_width * LANES),
        feature_offsets=planner.offsets.put(np.arange(largest) * LANES),
        offsets=np.concatenate(planner.offsets.parts),
        work=work.size,
        saved=planner.saved.size,
        argmax=planner.argmax.size,
        sums=planner.sums.size,
    )


@lru_cache
def tilings_of(form: NetworkForm, use_winograd: bool) -> Tilings:
    """The tilings of all blocks for which Winograd takes fewer operations; without `use_winograd`, of no block."""
    table, offsets, values = np.zeros((len(form.blocks), _TILING_COLUMNS), dtype=np.int64), _Offsets(), _Space()
    sizes = np.zeros(4, dtype=np.int64)
    for row, block in zip(table, form.blocks, strict=True):
        tiling = tiling_of(block) if use_winograd else None
        if tiling is None:
            continue
        down, right = (OUTPUTS + side - 1 for side in (block.kernel_height, block.kernel_width))
        channels, tiles = block.channels_in, tiling.strip_tiles
        row[[TILE_ROWS, TILE_COLUMNS, STRIP_ROWS]] = tiling.rows, tiling.columns, tiling.strip_rows
        row[KERNEL_VALUES] = values.take(down * right * block.channels_out * channels)
        row[CHANNEL_OFFSETS] = offsets.put(np.arange(channels) * tiles * LANES)
        products = down * LARGE * tiles, LARGE * tiles * OUTPUTS * right
        sizes = np.maximum(sizes, np.array([down * block.width, down * right * channels * tiles, *products]) * LANES)
    *starts, size = np.cumsum(sizes).tolist()
    return Tilings(table, np.concatenate([*offsets.parts, np.zeros(0, dtype=np.int64)]), size, 0, *starts)


class _Planner:
    """Allocates the ranges of every layer, in order."""

    def __init__(self, starts: dict[str, int], end: int) -> None:
        self.starts, self.end = starts, end
        self.work, self.saved, self.argmax, self.sums = _Space(), _Space(), _Space(), _Space()
        self.offsets = _Offsets()

    def _parameters(self, layer: ConvBlock | DenseLayer) -> tuple[int, int]:
        return self.starts[layer.weight], self.end if layer.bias is None else self.starts[layer.bias]

    def layer(self, layer: DenseLayer) -> IntArray:
        row, vectors = np.zeros(_LAYER_COLUMNS, dtype=np.int64), -(-layer.num_inputs // LANES)
        row[[WEIGHT, BIAS]] = self._parameters(layer)
        row[[NUM_INPUTS, NUM_OUTPUTS, RELU]] = layer.num_inputs, layer.num_outputs, layer.relu
        row[LAYER_INPUT] = self.saved.take(layer.num_inputs * LANES)
        row[LAYER_OUTPUT_GRADIENT] = self.work.take(layer.num_outputs * LANES)
        row[LAYER_BY_SAMPLE], row[INPUT_VECTORS] = self.work.take(LANES * vectors * LANES), vectors
        row[OUTPUT_GRADIENT_BY_SAMPLE] = self.work.take(LANES * layer.num_outputs)
        row[LAYER_WEIGHT_GRADIENT] = self.sums.take(layer.num_outputs * vectors * LANES)
        row[LAYER_BIAS_GRADIENT] = self.sums.take(layer.num_outputs)
        row[SAMPLE_OFFSETS] = self.offsets.put(np.arange(LANES) * vectors * LANES)
        return row

    def block(self, block: ConvBlock, row: IntArray, before: IntArray | None) -> None:
        """Fill a block's row of the table; `before` is the row of the preceding block, if any."""
        terms, vectors = block.kernel_width * block.channels_in, -(-block.kernel_width * block.channels_in // LANES)
        row[[WEIGHT, BIAS]], row[KERNEL_VECTORS] = self._parameters(block), vectors
        row[CHANNELS_IN:INPUT] = _sizes(block)
        row[INPUT] = self.work.take(_input_size(block) * LANES) if before is None else before[OUTPUT]
        row[OUTPUT] = self.work.take(block.num_outputs * LANES)
        row[ARGMAX], row[OUTPUT_GRADIENT] = (
            space.take(block.num_outputs * LANES) for space in (self.argmax, self.work)
        )
        row[OFFSETS] = self.offsets.put(_term_offsets(block))
        if before is None:
            row[WEIGHT_GRADIENT] = self.sums.take(block.channels_out * block.kernel_height * terms * LANES)
            row[BIAS_GRADIENT] = self.sums.take(block.channels_out * LANES)
            return
        row[CHANNELS_LAST] = self.offsets.put(_channels_last_offsets(block))
        row[SAMPLE_SIZE] = _input_size(block) + LANES  # a vector may extend beyond the last channel of the last column
        row[BY_SAMPLE] = self.saved.take(LANES * int(row[SAMPLE_SIZE]))
        row[BLOCK_SAMPLE_OFFSETS] = self.offsets.put(np.arange(LANES) * row[SAMPLE_SIZE])
        padded = block.channels_out * block.kernel_height * vectors * LANES
        row[WEIGHT_ROWS], row[WEIGHT_GRADIENT] = self.work.take(padded), self.sums.take(padded)
        row[BIAS_GRADIENT] = self.sums.take(block.channels_out)


def num_parameters(form: NetworkForm) -> int:
    """The number of parameters of a network of this form."""
    weights = [b.channels_out * b.channels_in * b.kernel_height * b.kernel_width for b in form.blocks]
    weights += [layer.num_outputs * layer.num_inputs for layer in form.layers]
    biases = [b.channels_out for b in form.blocks if b.bias] + [n.num_outputs for n in form.layers if n.bias]
    return sum(weights) + sum(biases)


def padding_of(form: NetworkForm) -> int:
    """The number of zeros behind the parameters: the length of the longest possible bias."""
    return max([b.channels_out for b in form.blocks] + [layer.num_outputs for layer in form.layers])


def _sizes(block: ConvBlock) -> tuple[int, ...]:
    kernel = block.channels_out, block.kernel_height, block.kernel_width
    return block.channels_in, block.height, block.width, *kernel, block.pooled_height, block.pooled_width


def _input_size(block: ConvBlock) -> int:
    return block.channels_in * block.height * block.width


def _channels_last_offsets(block: ConvBlock) -> IntArray:
    channels = np.arange(_input_size(block)).reshape(block.channels_in, -1)
    return np.asarray(channels.T * LANES, dtype=np.int64)


def _term_offsets(block: ConvBlock) -> IntArray:
    channel, row, column = np.ogrid[: block.channels_in, : block.kernel_height, : block.kernel_width]
    return np.asarray(((channel * block.height + row) * block.width + column) * LANES, dtype=np.int64)
