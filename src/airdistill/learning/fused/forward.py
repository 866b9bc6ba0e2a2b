"""Forward passes of a group of samples through a network, compiled by Numba.

Arrays and indices are those of `layout`. A group has LANES samples. Only `count` samples of a batch's last group are
real; the others are zero, and so are their gradients.
"""

from __future__ import annotations

import numpy as np

from airdistill.learning.fused.compiling import compiled
from airdistill.learning.fused.lanes import LANES, LARGE, MIDDLE, pooled_tile
from airdistill.learning.fused.layout import (
    ARGMAX,
    BIAS,
    BLOCK_SAMPLE_OFFSETS,
    BY_SAMPLE,
    CHANNELS_IN,
    CHANNELS_LAST,
    CHANNELS_OUT,
    COLUMNS,
    INPUT,
    KERNEL_HEIGHT,
    KERNEL_WIDTH,
    LAYER_INPUT,
    NUM_INPUTS,
    NUM_OUTPUTS,
    OFFSETS,
    OUTPUT,
    RELU,
    ROWS,
    WEIGHT,
    WIDTH,
)
from airdistill.learning.fused.tiles import add_products, input_size, rows_of_tile, transposed_rows

_pooled_large, _pooled_middle, _pooled_one = pooled_tile(LARGE), pooled_tile(MIDDLE), pooled_tile(1)


@compiled
def gather(samples, indices, count, out, start):
    """Copy the samples with these indices from `[sample, feature]` to `[feature, lane]`."""
    size, flat = samples.shape[1], samples.reshape(samples.size)
    if count == LANES and size >= LANES:
        starts, steps = np.empty(LANES, dtype=np.int64), np.empty(LANES, dtype=np.int64)
        for lane in range(LANES):
            starts[lane], steps[lane] = indices[lane] * size, lane * LANES
        for tile in range((size + LANES - 1) // LANES):
            first = min(tile * LANES, size - LANES)  # the last tile overlaps the one before
            transposed_rows(flat, first, starts, out, start + first * LANES, steps, flat, 0)
        return
    for lane in range(LANES):
        for feature in range(size):
            out[start + feature * LANES + lane] = samples[indices[lane], feature] if lane < count else 0.0


@compiled
def forward(net, weights, work, saved, argmax, training):
    """Compute the logits from the input; with `training`, save what the backward pass needs."""
    num_blocks = len(net.blocks)
    for number in range(num_blocks):
        out = saved if number == num_blocks - 1 else work
        convolve(net.blocks[number], weights, net.offsets, work, out, training, argmax)
        if training and number + 1 < num_blocks:
            _by_sample(net.blocks[number + 1], net.offsets, work, saved)
    multiply(net, weights, saved)


@compiled
def multiply(net, weights, saved):
    """Compute the logits from the last block's output, or from the network's input, by all dense layers."""
    num_layers = len(net.layers)
    for number in range(num_layers):
        layer = net.layers[number]
        out = net.layers[number + 1, LAYER_INPUT] if number + 1 < num_layers else net.logits
        _multiply(layer, weights, net.offsets[net.feature_offsets :], saved, out)


@compiled
def convolve(block, weights, offsets, x, out, training, argmax):
    """Convolution, 2×2 max-pooling and ReLU; with `training`, store the winners of the pooling windows."""
    terms = block[CHANNELS_IN] * block[KERNEL_HEIGHT] * block[KERNEL_WIDTH]
    taps, line = offsets[block[OFFSETS] :], block[WIDTH] * LANES
    plane, channels = block[ROWS] * block[COLUMNS] * LANES, block[CHANNELS_OUT]
    channel = 0
    while channel < channels:
        taken = rows_of_tile(channels - channel)
        w, b = block[WEIGHT] + channel * terms, block[BIAS] + channel
        for row in range(block[ROWS]):
            for column in range(block[COLUMNS]):
                base = block[INPUT] + 2 * row * line + 2 * column * LANES
                at = channel * plane + (row * block[COLUMNS] + column) * LANES
                o, p = block[OUTPUT] + at, block[ARGMAX] + at
                if taken == LARGE:
                    _pooled_large(
                        x, base, LANES, line, taps, terms, weights, w, terms, b, out, o, plane, training, argmax, p
                    )
                elif taken == MIDDLE:
                    _pooled_middle(
                        x, base, LANES, line, taps, terms, weights, w, terms, b, out, o, plane, training, argmax, p
                    )
                else:
                    _pooled_one(
                        x, base, LANES, line, taps, terms, weights, w, terms, b, out, o, plane, training, argmax, p
                    )
        channel += taken


@compiled
def _by_sample(block, offsets, work, saved):
    """Save a block's input as `[lane, row, column, channel]`."""
    size, at, samples = input_size(block), offsets[block[CHANNELS_LAST] :], offsets[block[BLOCK_SAMPLE_OFFSETS] :]
    if size < LANES:
        for number in range(size):
            for lane in range(LANES):
                saved[block[BY_SAMPLE] + samples[lane] + number] = work[block[INPUT] + at[number] + lane]
        return
    for tile in range((size + LANES - 1) // LANES):
        first = min(tile * LANES, size - LANES)
        transposed_rows(work, block[INPUT], at[first:], saved, block[BY_SAMPLE] + first, samples, work, 0)


@compiled
def _multiply(layer, weights, taps, saved, out):
    """One dense layer, from its input to `out` in `saved`."""
    inputs, outputs, start = layer[NUM_INPUTS], layer[NUM_OUTPUTS], layer[LAYER_INPUT]
    for output in range(outputs):
        for lane in range(LANES):
            saved[out + output * LANES + lane] = weights[layer[BIAS] + output]
    add_products(outputs, inputs, saved, start, taps, weights, layer[WEIGHT], inputs, 1, saved, out)
    if layer[RELU]:
        for index in range(out, out + outputs * LANES):
            if saved[index] < 0.0:
                saved[index] = 0.0
