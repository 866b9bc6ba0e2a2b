"""Where everything of a network lies in flat arrays: parameters, activations of a group of samples, gradients.

Tables of whole numbers, and not one object a layer, so that the kernels are compiled once for all networks.
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

# Columns of the table of blocks. In `work`, `kept` and `picks`, sizes are for a group of LANES samples.
WEIGHT, BIAS, CHANNELS_IN, HEIGHT, WIDTH, CHANNELS_OUT, KERNEL_HEIGHT, KERNEL_WIDTH, ROWS, COLUMNS = range(10)
INPUT = 10  # in `work`: [channel, row, column, lane]
OUTPUT = 11  # the same of what the block gives: in `work`, or in `kept` if a dense layer takes it
BY_SAMPLE = 12  # in `kept`: the input once more as [lane, row, column, channel], but of the first block
SAMPLE_SIZE = 13  # floats from one sample to the next there
PICKS = 14  # in `picks`: [channel, row, column, lane]
SLOPES = 15  # in `work`: of the output, [channel, row, column, lane]
OFFSETS = 16  # in `offsets`: a term's place from that of the kernel's corner, [channel, kernel row, kernel column]
KERNEL_VECTORS = 17  # vectors that hold a row of the kernel with all channels
WEIGHT_ROWS = 18  # in `work`: weights as [channel out, kernel row, (kernel column, channel in), padded with zeros]
GRADIENT, BIAS_GRADIENT = 19, 20  # in `sums`: of the first block [channel out, term, lane]; else as WEIGHT_ROWS
CHANNELS_LAST = 21  # in `offsets`: where a number of [row, column, channel] is in [channel, row, column, lane]
SAMPLE_PLACES = 22  # in `offsets`: a lane's place in BY_SAMPLE, [lane]
_BLOCK_COLUMNS = 23
# Columns of the table of dense layers.
NUM_INPUTS, NUM_OUTPUTS, RELU = 2, 3, 4
LAYER_INPUT = 5  # in `kept`: [feature, lane]
LAYER_SLOPES = 6  # in `work`: of the layer's output, [feature, lane]
LAYER_BY_SAMPLE = 7  # in `work`: the input as [lane, feature], padded
SLOPES_BY_SAMPLE = 8  # in `work`: the slopes as [lane, feature]
INPUT_VECTORS = 9  # vectors that hold a sample's features
LAYER_GRADIENT, LAYER_BIAS_GRADIENT = 10, 11  # in `sums`: [output, input, padded], [output]
SAMPLE_OFFSETS = 12  # in `offsets`: a lane's place in LAYER_BY_SAMPLE, [lane]
_LAYER_COLUMNS = 13
# Columns of the table of tilings, which has a row for each block.
TILE_ROWS, TILE_COLUMNS = 0, 1  # 0 if the block is computed term by term
STRIP_ROWS = 2  # rows of tiles computed together
KERNEL_VALUES = 3  # in `values`: [point down, point right, channel out, channel in]
CHANNEL_OFFSETS = 4  # in `offsets`: a channel's place in INPUT_POINTS from that of the first
_TILING_COLUMNS = 5


class Network(NamedTuple):
    """What the kernels are told of a network."""

    blocks: IntArray
    layers: IntArray
    offsets: IntArray
    num_parameters: int
    num_classes: int
    work: int  # sizes of the arrays
    kept: int
    picks: int
    sums: int
    logits: int  # where they lie in `kept`: [class, lane]
    input_slopes: int  # in `work`: slopes of a block's input, as BY_SAMPLE
    feature_offsets: int  # in `offsets`: a feature's place in [feature, lane]
    upsampled: int  # in `work`: two rows of slopes before pooling, for some channels of the first block


class Tilings(NamedTuple):
    """What evaluation is told of blocks by tiles. In `tiles`, sizes are for a strip of tiles, and for any block."""

    table: IntArray
    offsets: IntArray
    tiles: int  # size of the array
    line_points: int  # where in it: [point down, column, lane], of one channel of the input
    input_points: int  # [point down, point right, channel in, tile, lane]
    products: int  # of one point right: [point down, channel out of LARGE, tile, lane]
    column_points: int  # [channel out of LARGE, tile, row of the tile, point right, lane]


@dataclass
class _Space:
    """Hands out places in an array."""

    size: int = 0

    def take(self, count: int) -> int:
        start, self.size = self.size, self.size + count
        return start


class _Offsets:
    """Hands out places in an array together with what is there."""

    def __init__(self) -> None:
        self.parts: list[IntArray] = []
        self.size = 0

    def put(self, values: IntArray) -> int:
        start, self.size = self.size, self.size + values.size
        self.parts.append(values.ravel())
        return start


@lru_cache
def layout_of(form: NetworkForm, starts: tuple[tuple[str, int], ...]) -> Network:
    """The network of this form, its parameters beginning at these places of a flat vector; one for all devices alike.

    A bias that the form does not have is read where the vector ends: it must go on with zeros there, `padding_of` of
    them.
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
        logits=planner.kept.take(form.layers[-1].num_outputs * LANES),
        input_slopes=work.take(LANES * int(max(blocks[:, SAMPLE_SIZE], default=0))),
        upsampled=work.take(0 if first is None else LARGE * 2 * 2 * first.pooled_width * LANES),
        feature_offsets=planner.offsets.put(np.arange(largest) * LANES),
        offsets=np.concatenate(planner.offsets.parts),
        work=work.size,
        kept=planner.kept.size,
        picks=planner.picks.size,
        sums=planner.sums.size,
    )


@lru_cache
def tilings_of(form: NetworkForm, by_tiles: bool) -> Tilings:
    """Of all blocks for which tiles take fewer operations; without `by_tiles`, of none."""
    table, offsets, values = np.zeros((len(form.blocks), _TILING_COLUMNS), dtype=np.int64), _Offsets(), _Space()
    sizes = np.zeros(4, dtype=np.int64)
    for row, block in zip(table, form.blocks, strict=True):
        tiling = tiling_of(block) if by_tiles else None
        if tiling is None:
            continue
        down, right = (OUTPUTS + side - 1 for side in (block.kernel_height, block.kernel_width))
        channels, tiles = block.channels_in, tiling.tiles_of_strip
        row[[TILE_ROWS, TILE_COLUMNS, STRIP_ROWS]] = tiling.rows, tiling.columns, tiling.rows_of_strip
        row[KERNEL_VALUES] = values.take(down * right * block.channels_out * channels)
        row[CHANNEL_OFFSETS] = offsets.put(np.arange(channels) * tiles * LANES)
        products = down * LARGE * tiles, LARGE * tiles * OUTPUTS * right
        sizes = np.maximum(sizes, np.array([down * block.width, down * right * channels * tiles, *products]) * LANES)
    *starts, size = np.cumsum(sizes).tolist()
    return Tilings(table, np.concatenate([*offsets.parts, np.zeros(0, dtype=np.int64)]), size, 0, *starts)


class _Planner:
    """Gives every layer its places, one after another."""

    def __init__(self, places: dict[str, int], end: int) -> None:
        self.places, self.end = places, end
        self.work, self.kept, self.picks, self.sums = _Space(), _Space(), _Space(), _Space()
        self.offsets = _Offsets()

    def _parameters(self, layer: ConvBlock | DenseLayer) -> tuple[int, int]:
        return self.places[layer.weight], self.end if layer.bias is None else self.places[layer.bias]

    def layer(self, layer: DenseLayer) -> IntArray:
        row, vectors = np.zeros(_LAYER_COLUMNS, dtype=np.int64), -(-layer.num_inputs // LANES)
        row[[WEIGHT, BIAS]] = self._parameters(layer)
        row[[NUM_INPUTS, NUM_OUTPUTS, RELU]] = layer.num_inputs, layer.num_outputs, layer.relu
        row[LAYER_INPUT] = self.kept.take(layer.num_inputs * LANES)
        row[LAYER_SLOPES] = self.work.take(layer.num_outputs * LANES)
        row[LAYER_BY_SAMPLE], row[INPUT_VECTORS] = self.work.take(LANES * vectors * LANES), vectors
        row[SLOPES_BY_SAMPLE] = self.work.take(LANES * layer.num_outputs)
        row[LAYER_GRADIENT] = self.sums.take(layer.num_outputs * vectors * LANES)
        row[LAYER_BIAS_GRADIENT] = self.sums.take(layer.num_outputs)
        row[SAMPLE_OFFSETS] = self.offsets.put(np.arange(LANES) * vectors * LANES)
        return row

    def block(self, block: ConvBlock, row: IntArray, before: IntArray | None) -> None:
        """Fills the row of a block that takes the output of the one `before` it, if it is not the first."""
        terms, vectors = block.kernel_width * block.channels_in, -(-block.kernel_width * block.channels_in // LANES)
        row[[WEIGHT, BIAS]], row[KERNEL_VECTORS] = self._parameters(block), vectors
        row[CHANNELS_IN:INPUT] = _sizes(block)
        row[INPUT] = self.work.take(_input_size(block) * LANES) if before is None else before[OUTPUT]
        row[OUTPUT] = self.work.take(block.num_outputs * LANES)
        row[PICKS], row[SLOPES] = (space.take(block.num_outputs * LANES) for space in (self.picks, self.work))
        row[OFFSETS] = self.offsets.put(_term_offsets(block))
        if before is None:
            row[GRADIENT] = self.sums.take(block.channels_out * block.kernel_height * terms * LANES)
            row[BIAS_GRADIENT] = self.sums.take(block.channels_out * LANES)
            return
        row[CHANNELS_LAST] = self.offsets.put(_channels_last_offsets(block))
        row[SAMPLE_SIZE] = _input_size(block) + LANES  # a vector may reach beyond the last channel of the last place
        row[BY_SAMPLE] = self.kept.take(LANES * int(row[SAMPLE_SIZE]))
        row[SAMPLE_PLACES] = self.offsets.put(np.arange(LANES) * row[SAMPLE_SIZE])
        padded = block.channels_out * block.kernel_height * vectors * LANES
        row[WEIGHT_ROWS], row[GRADIENT] = self.work.take(padded), self.sums.take(padded)
        row[BIAS_GRADIENT] = self.sums.take(block.channels_out)


def num_parameters(form: NetworkForm) -> int:
    weights = [b.channels_out * b.channels_in * b.kernel_height * b.kernel_width for b in form.blocks]
    weights += [layer.num_outputs * layer.num_inputs for layer in form.layers]
    biases = [b.channels_out for b in form.blocks if b.bias] + [n.num_outputs for n in form.layers if n.bias]
    return sum(weights) + sum(biases)


def padding_of(form: NetworkForm) -> int:
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
