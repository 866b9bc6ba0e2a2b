"""Backward passes of a group of samples, from the gradients of the logits to sums of gradients; compiled by Numba.

Arrays and indices are those of `layout`, with the content that `forward` left.
"""

from __future__ import annotations

import numpy as np

from airdistill.learning.fused.compiling import compiled
from airdistill.learning.fused.lanes import (
    LANES,
    LARGE,
    MIDDLE,
    added_tile,
    correlated_tile,
    scattered_rows,
    transposed,
    unpooled,
)
from airdistill.learning.fused.layout import (
    ARGMAX,
    BIAS,
    BIAS_GRADIENT,
    BLOCK_SAMPLE_OFFSETS,
    BY_SAMPLE,
    CHANNELS_IN,
    CHANNELS_LAST,
    CHANNELS_OUT,
    COLUMNS,
    HEIGHT,
    INPUT,
    INPUT_VECTORS,
    KERNEL_HEIGHT,
    KERNEL_VECTORS,
    KERNEL_WIDTH,
    LAYER_BIAS_GRADIENT,
    LAYER_BY_SAMPLE,
    LAYER_INPUT,
    LAYER_OUTPUT_GRADIENT,
    LAYER_WEIGHT_GRADIENT,
    NUM_INPUTS,
    NUM_OUTPUTS,
    OUTPUT_GRADIENT,
    OUTPUT_GRADIENT_BY_SAMPLE,
    RELU,
    ROWS,
    SAMPLE_OFFSETS,
    SAMPLE_SIZE,
    WEIGHT,
    WEIGHT_GRADIENT,
    WEIGHT_ROWS,
    WIDTH,
)
from airdistill.learning.fused.tiles import (
    add_products,
    added_large_1,
    added_middle_1,
    added_one_1,
    input_size,
    rows_of_tile,
    transposed_rows,
)

_added_large_4, _added_middle_4, _added_one_4 = added_tile(LARGE, 4), added_tile(MIDDLE, 4), added_tile(1, 4)
_added_one_2 = added_tile(1, 2)
_correlated_large_3, _correlated_middle_3, _correlated_one_3 = (correlated_tile(n, 3) for n in (LARGE, MIDDLE, 1))
_correlated_large_1, _correlated_middle_1, _correlated_one_1 = (correlated_tile(n, 1) for n in (LARGE, MIDDLE, 1))
_scattered_4, _scattered_2, _scattered_1 = scattered_rows(4), scattered_rows(2), scattered_rows(1)
_transposed_masked = transposed(masked=True)


@compiled
def _columns_of_tile(left):
    return 4 if left >= 4 else (2 if left >= 2 else 1)


@compiled
def backpropagate_layers(net, weights, work, saved):
    """Backpropagate the gradients of the logits through all dense layers to the last block's output."""
    taps = net.offsets[net.feature_offsets :]
    for number in range(len(net.layers) - 1, -1, -1):
        layer = net.layers[number]
        if number > 0:
            target, has_relu = net.layers[number - 1, LAYER_OUTPUT_GRADIENT], net.layers[number - 1, RELU] == 1
        elif len(net.blocks) > 0:
            target, has_relu = net.blocks[-1, OUTPUT_GRADIENT], True
        else:
            return
        inputs, outputs, start = layer[NUM_INPUTS], layer[NUM_OUTPUTS], layer[LAYER_INPUT]
        work[target : target + inputs * LANES] = 0.0
        add_products(
            inputs, outputs, work, layer[LAYER_OUTPUT_GRADIENT], taps, weights, layer[WEIGHT], 1, inputs, work, target
        )
        if has_relu:
            for index in range(inputs * LANES):
                if not saved[start + index] > 0.0:
                    work[target + index] = 0.0


@compiled
def add_layer_gradients(net, work, saved, sums):
    """Add the weight gradients of all dense layers, from their inputs and output gradients."""
    for number in range(len(net.layers)):
        layer = net.layers[number]
        _features_by_sample(layer, net.offsets, net.feature_offsets, saved, work)
        outputs, vectors = layer[NUM_OUTPUTS], layer[INPUT_VECTORS]
        for output in range(outputs):
            total = np.float32(0.0)
            for lane in range(LANES):
                value = work[layer[LAYER_OUTPUT_GRADIENT] + output * LANES + lane]
                work[layer[OUTPUT_GRADIENT_BY_SAMPLE] + lane * outputs + output] = value
                total += value
            sums[layer[LAYER_BIAS_GRADIENT] + output] += total
        taps, line = net.offsets[layer[SAMPLE_OFFSETS] :], vectors * LANES
        row = 0
        while row < outputs:
            taken = rows_of_tile(outputs - row)
            vector = 0
            while vector < vectors:
                columns = 4 if vectors - vector >= 4 else 1
                x, out = (
                    layer[LAYER_BY_SAMPLE] + vector * LANES,
                    layer[LAYER_WEIGHT_GRADIENT] + row * line + vector * LANES,
                )
                w = layer[OUTPUT_GRADIENT_BY_SAMPLE] + row
                if columns == 4:
                    if taken == LARGE:
                        _added_large_4(work, x, taps, LANES, work, w, 1, outputs, sums, out, line)
                    elif taken == MIDDLE:
                        _added_middle_4(work, x, taps, LANES, work, w, 1, outputs, sums, out, line)
                    else:
                        _added_one_4(work, x, taps, LANES, work, w, 1, outputs, sums, out, line)
                elif taken == LARGE:
                    added_large_1(work, x, taps, LANES, work, w, 1, outputs, sums, out, line)
                elif taken == MIDDLE:
                    added_middle_1(work, x, taps, LANES, work, w, 1, outputs, sums, out, line)
                else:
                    added_one_1(work, x, taps, LANES, work, w, 1, outputs, sums, out, line)
                vector += columns
            row += taken


@compiled
def _features_by_sample(layer, offsets, feature_offsets, saved, work):
    """Copy a layer's input to `[lane, feature]`; the padding of a row is never read."""
    inputs, line, samples = layer[NUM_INPUTS], layer[INPUT_VECTORS] * LANES, offsets[layer[SAMPLE_OFFSETS] :]
    if inputs >= LANES:
        for tile in range(layer[INPUT_VECTORS]):
            first = min(tile * LANES, inputs - LANES)
            features, target = offsets[feature_offsets + first :], layer[LAYER_BY_SAMPLE] + first
            transposed_rows(saved, layer[LAYER_INPUT], features, work, target, samples, saved, 0)
        return
    for feature in range(inputs):
        source, target = layer[LAYER_INPUT] + feature * LANES, layer[LAYER_BY_SAMPLE] + feature
        for lane in range(LANES):
            work[target + lane * line] = saved[source + lane]


@compiled
def arrange_weights(net, weights, work):
    """Copy the weights of all blocks but the first to the zero-padded layout of the backward pass."""
    for number in range(1, len(net.blocks)):
        block = net.blocks[number]
        channels, height, width = block[CHANNELS_IN], block[KERNEL_HEIGHT], block[KERNEL_WIDTH]
        line = block[KERNEL_VECTORS] * LANES
        for out in range(block[CHANNELS_OUT]):
            for row in range(height):
                target = block[WEIGHT_ROWS] + (out * height + row) * line
                work[target + width * channels : target + line] = 0.0
                for channel in range(channels):
                    source = block[WEIGHT] + ((out * channels + channel) * height + row) * width
                    for column in range(width):
                        work[target + column * channels + channel] = weights[source + column]


@compiled
def add_block_gradients(net, count, work, saved, argmax, sums, stride):
    """Add the weight gradients of all blocks, from the gradient of the last block's output.

    The sums of consecutive samples are `stride` elements apart; with 0 all samples share them. Those of the first block
    are always separate, by lanes.
    """
    offsets = np.empty(_max_positions(net), dtype=np.int64)
    values = np.empty(_max_positions(net), dtype=np.float32)
    for number in range(len(net.blocks) - 1, 0, -1):
        block, before = net.blocks[number], net.blocks[number - 1]
        work[net.input_gradient : net.input_gradient + LANES * block[SAMPLE_SIZE]] = 0.0
        for lane in range(count):
            _sample_backward(block, lane, work, saved, argmax, sums, lane * stride, net.input_gradient, offsets, values)
        _to_previous_block(block, net.offsets, saved, work, net.input_gradient, before[OUTPUT_GRADIENT])
    if len(net.blocks) > 0:
        _first_block(net.blocks[0], work, argmax, sums, net.upsampled)


@compiled
def _max_positions(net):
    """The largest number of pooled positions of a channel."""
    most = 1
    for number in range(len(net.blocks)):
        most = max(most, net.blocks[number, ROWS] * net.blocks[number, COLUMNS])
    return most


@compiled
def _sample_backward(block, lane, work, saved, argmax, sums, sums_start, input_gradient, offsets, values):
    """Backpropagate one sample through a block; only positions with a nonzero gradient are processed."""
    channels, width, height = block[CHANNELS_IN], block[WIDTH], block[KERNEL_HEIGHT]
    line, vectors = block[WIDTH] * block[CHANNELS_IN], block[KERNEL_VECTORS]
    positions, x = block[ROWS] * block[COLUMNS], block[BY_SAMPLE] + lane * block[SAMPLE_SIZE]
    input_start = input_gradient + lane * block[SAMPLE_SIZE]
    for out in range(block[CHANNELS_OUT]):
        num_active, total = 0, np.float32(0.0)
        at = out * positions * LANES + lane
        for row in range(block[ROWS]):
            for column in range(block[COLUMNS]):
                value, winner = work[block[OUTPUT_GRADIENT] + at], np.int64(argmax[block[ARGMAX] + at])
                offsets[num_active] = ((2 * row + (winner >> 1)) * width + 2 * column + (winner & 1)) * channels
                values[num_active] = value
                num_active += value != 0.0
                total += value
                at += LANES
        sums[sums_start + block[BIAS_GRADIENT] + out] += total
        rows = out * height * vectors * LANES
        gradient, weight = sums_start + block[WEIGHT_GRADIENT] + rows, block[WEIGHT_ROWS] + rows
        vector = 0
        while vector < vectors:
            columns, by = _columns_of_tile(vectors - vector), vector * LANES
            for row in range(height):
                w, o = x + row * line + by, gradient + row * vectors * LANES + by
                if columns == 4:
                    _added_one_4(saved, w, offsets, num_active, values, 0, 0, 1, sums, o, 0)
                elif columns == 2:
                    _added_one_2(saved, w, offsets, num_active, values, 0, 0, 1, sums, o, 0)
                else:
                    added_one_1(saved, w, offsets, num_active, values, 0, 0, 1, sums, o, 0)
            o, w, w_line = input_start + by, weight + by, vectors * LANES
            if columns == 4:
                _scattered_4(work, o, line, offsets, values, num_active, work, w, w_line, height)
            elif columns == 2:
                _scattered_2(work, o, line, offsets, values, num_active, work, w, w_line, height)
            else:
                _scattered_1(work, o, line, offsets, values, num_active, work, w, w_line, height)
            vector += columns


@compiled
def _to_previous_block(block, offsets, saved, work, input_gradient, target):
    """Copy gradients `[lane, row, column, channel]` to `[channel, row, column, lane]`, zero where ReLU was inactive."""
    size, at, samples = input_size(block), offsets[block[CHANNELS_LAST] :], offsets[block[BLOCK_SAMPLE_OFFSETS] :]
    if size < LANES:
        for number in range(size):
            for lane in range(LANES):
                index = samples[lane] + number
                value = work[input_gradient + index] if saved[block[BY_SAMPLE] + index] > 0.0 else np.float32(0.0)
                work[target + at[number] + lane] = value
        return
    for tile in range((size + LANES - 1) // LANES):
        first = min(tile * LANES, size - LANES)
        x, mask = input_gradient + first, block[BY_SAMPLE] + first
        _transposed_masked(work, x, samples, work, target, at[first:], saved, mask)


@compiled
def _first_block(block, work, argmax, sums, upsampled):
    """Add the first block's weight gradient by lanes: two rows at a time, unpooled to the winning positions."""
    width, plane = 2 * block[COLUMNS], block[ROWS] * block[COLUMNS] * LANES
    terms = block[CHANNELS_IN] * block[KERNEL_HEIGHT] * block[KERNEL_WIDTH]
    line = width * LANES
    channel = 0
    while channel < block[CHANNELS_OUT]:
        taken = rows_of_tile(block[CHANNELS_OUT] - channel)
        for row in range(block[ROWS]):
            for tile_row in range(taken):
                at = (channel + tile_row) * plane + row * block[COLUMNS] * LANES
                bias = sums[block[BIAS_GRADIENT] + (channel + tile_row) * LANES :]
                for column in range(block[COLUMNS]):
                    d, p = block[OUTPUT_GRADIENT] + at + column * LANES, block[ARGMAX] + at + column * LANES
                    unpooled(
                        work, d, argmax, p, work, upsampled + tile_row * 2 * line + 2 * column * LANES, LANES, line
                    )
                    for lane in range(LANES):
                        bias[lane] += work[d + lane]
            x = block[INPUT] + 2 * row * block[WIDTH] * LANES
            _correlate_rows(
                block, work, x, taken, upsampled, line, sums, block[WEIGHT_GRADIENT] + channel * terms * LANES
            )
        channel += taken


@compiled
def _correlate_rows(block, work, x_start, taken, upsampled, line, sums, gradient):
    """Correlate two rows of gradients with the input at every term of the kernel."""
    kernel, x_line, width = block[KERNEL_WIDTH], block[WIDTH] * LANES, 2 * block[COLUMNS]
    by_channel = block[CHANNELS_IN] * block[KERNEL_HEIGHT] * kernel * LANES
    for lines in range(block[CHANNELS_IN] * block[KERNEL_HEIGHT]):
        channel, row = lines // block[KERNEL_HEIGHT], lines % block[KERNEL_HEIGHT]
        term = 0
        while term < kernel:
            columns = 3 if kernel - term >= 3 else 1
            x = x_start + (channel * block[HEIGHT] + row) * x_line + term * LANES
            out = gradient + (lines * kernel + term) * LANES
            if columns == 3:
                if taken == LARGE:
                    _correlated_large_3(
                        work, upsampled, 2 * line, line, work, x, x_line, 2, width, sums, out, by_channel
                    )
                elif taken == MIDDLE:
                    _correlated_middle_3(
                        work, upsampled, 2 * line, line, work, x, x_line, 2, width, sums, out, by_channel
                    )
                else:
                    _correlated_one_3(work, upsampled, 2 * line, line, work, x, x_line, 2, width, sums, out, by_channel)
            elif taken == LARGE:
                _correlated_large_1(work, upsampled, 2 * line, line, work, x, x_line, 2, width, sums, out, by_channel)
            elif taken == MIDDLE:
                _correlated_middle_1(work, upsampled, 2 * line, line, work, x, x_line, 2, width, sums, out, by_channel)
            else:
                _correlated_one_1(work, upsampled, 2 * line, line, work, x, x_line, 2, width, sums, out, by_channel)
            term += columns


@compiled
def add_gradient(net, sums, gradient):
    """Add the sums to a gradient vector in the order of the parameters."""
    for number in range(len(net.layers)):
        layer = net.layers[number]
        inputs, line = layer[NUM_INPUTS], layer[INPUT_VECTORS] * LANES
        for output in range(layer[NUM_OUTPUTS]):
            source, target = layer[LAYER_WEIGHT_GRADIENT] + output * line, layer[WEIGHT] + output * inputs
            for feature in range(inputs):
                gradient[target + feature] += sums[source + feature]
            gradient[layer[BIAS] + output] += sums[layer[LAYER_BIAS_GRADIENT] + output]
    for number in range(len(net.blocks)):
        block = net.blocks[number]
        if number == 0:
            _add_first_block(block, sums, gradient)
        else:
            _add_block(block, sums, gradient)


@compiled
def _add_first_block(block, sums, gradient):
    terms = block[CHANNELS_IN] * block[KERNEL_HEIGHT] * block[KERNEL_WIDTH]
    for term in range(block[CHANNELS_OUT] * terms):
        total = np.float32(0.0)
        for lane in range(LANES):
            total += sums[block[WEIGHT_GRADIENT] + term * LANES + lane]
        gradient[block[WEIGHT] + term] += total
    for out in range(block[CHANNELS_OUT]):
        total = np.float32(0.0)
        for lane in range(LANES):
            total += sums[block[BIAS_GRADIENT] + out * LANES + lane]
        gradient[block[BIAS] + out] += total


@compiled
def _add_block(block, sums, gradient):
    channels, height, width = block[CHANNELS_IN], block[KERNEL_HEIGHT], block[KERNEL_WIDTH]
    line = block[KERNEL_VECTORS] * LANES
    for out in range(block[CHANNELS_OUT]):
        gradient[block[BIAS] + out] += sums[block[BIAS_GRADIENT] + out]
        for row in range(height):
            source = block[WEIGHT_GRADIENT] + (out * height + row) * line
            for channel in range(channels):
                target = block[WEIGHT] + ((out * channels + channel) * height + row) * width
                for column in range(width):
                    gradient[target + column] += sums[source + column * channels + channel]
