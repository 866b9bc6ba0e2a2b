"""Where everything of a network lies in flat arrays: parameters, activations of a group of samples, gradients.

Tables of whole numbers, and not one object a layer, so that the kernels are compiled once for all networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from airdistill.arrays import IntArray
from airdistill.learning.fused.form import ConvBlock, NetworkForm
from airdistill.learning.fused.lanes import LANES, LARGE

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


class Network(NamedTuple):
    """What the kernels are told of a network."""

    blocks: IntArray
    layers: IntArray
    offsets: IntArray
    num_parameters: int
    num_classes: int
    num_features: int
    work: int  # sizes of the arrays
    kept: int
    picks: int
    sums: int
    logits: int  # where they lie in `kept`: [class, lane]
    input_slopes: int  # in `work`: slopes of a block's input, as BY_SAMPLE
    feature_offsets: int  # in `offsets`: a feature's place in [feature, lane]
    upsampled: int  # in `work`: two rows of slopes before pooling, for some channels of the first block


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


def layout_of(form: NetworkForm, places: dict[str, int]) -> Network:
    """The network of this form, its parameters beginning at these places of a flat vector.

    A bias that the form does not have is read where the vector ends: it must go on with zeros there, `padding_of` of
    them.
    """
    work, kept, picks, sums, offsets = _Space(), _Space(), _Space(), _Space(), _Offsets()
    blocks = np.zeros((len(form.blocks), _BLOCK_COLUMNS), dtype=np.int64)
    layers = np.zeros((len(form.layers), _LAYER_COLUMNS), dtype=np.int64)
    end = num_parameters(form)
    for layer, row in zip(form.layers, layers, strict=True):
        vectors = -(-layer.num_inputs // LANES)
        row[WEIGHT], row[BIAS] = places[layer.weight], end if layer.bias is None else places[layer.bias]
        row[NUM_INPUTS], row[NUM_OUTPUTS], row[RELU] = layer.num_inputs, layer.num_outputs, layer.relu
        row[LAYER_INPUT], row[LAYER_SLOPES] = kept.take(layer.num_inputs * LANES), work.take(layer.num_outputs * LANES)
        row[LAYER_BY_SAMPLE] = work.take(LANES * vectors * LANES)
        row[SLOPES_BY_SAMPLE], row[INPUT_VECTORS] = work.take(LANES * layer.num_outputs), vectors
        row[LAYER_GRADIENT] = sums.take(layer.num_outputs * vectors * LANES)
        row[LAYER_BIAS_GRADIENT] = sums.take(layer.num_outputs)
        row[SAMPLE_OFFSETS] = offsets.put(np.arange(LANES) * vectors * LANES)
    for number, (block, row) in enumerate(zip(form.blocks, blocks, strict=True)):
        row[[WEIGHT, BIAS]] = places[block.weight], end if block.bias is None else places[block.bias]
        row[CHANNELS_IN:INPUT] = _sizes(block)
        is_last = number == len(blocks) - 1
        row[INPUT] = blocks[number - 1, OUTPUT] if number else work.take(_input_size(block) * LANES)
        row[OUTPUT] = layers[0, LAYER_INPUT] if is_last else work.take(block.num_outputs * LANES)
        row[PICKS], row[SLOPES] = picks.take(block.num_outputs * LANES), work.take(block.num_outputs * LANES)
        row[OFFSETS] = offsets.put(_term_offsets(block))
        row[CHANNELS_LAST] = offsets.put(_channels_last_offsets(block))
        row[KERNEL_VECTORS] = vectors = -(-block.kernel_width * block.channels_in // LANES)
        if number:
            # A vector may reach beyond the last channel of the last place.
            row[SAMPLE_SIZE] = _input_size(block) + LANES
            row[BY_SAMPLE] = kept.take(LANES * row[SAMPLE_SIZE])
            row[SAMPLE_PLACES] = offsets.put(np.arange(LANES) * row[SAMPLE_SIZE])
            padded = block.channels_out * block.kernel_height * vectors * LANES
            row[WEIGHT_ROWS], row[GRADIENT] = work.take(padded), sums.take(padded)
            row[BIAS_GRADIENT] = sums.take(block.channels_out)
        else:
            terms = block.channels_in * block.kernel_height * block.kernel_width
            row[GRADIENT] = sums.take(block.channels_out * terms * LANES)
            row[BIAS_GRADIENT] = sums.take(block.channels_out * LANES)
    first = form.blocks[0] if form.blocks else None
    most_inputs = max(layer.num_inputs for layer in form.layers)
    most_outputs = max(layer.num_outputs for layer in form.layers)
    return Network(
        blocks,
        layers,
        np.concatenate([*offsets.parts, np.arange(max(most_inputs, most_outputs)) * LANES]),
        num_parameters=end,
        num_classes=form.layers[-1].num_outputs,
        num_features=form.layers[0].num_inputs if first is None else _input_size(first),
        logits=kept.take(form.layers[-1].num_outputs * LANES),
        input_slopes=work.take(LANES * int(max((row[SAMPLE_SIZE] for row in blocks), default=0))),
        upsampled=work.take(0 if first is None else LARGE * 2 * 2 * first.pooled_width * LANES),
        feature_offsets=offsets.size,
        work=work.size,
        kept=kept.size,
        picks=picks.size,
        sums=sums.size,
    )


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
