"""Forward passes for evaluation, compiled by Numba: convolutions by Winograd's algorithm if a tiling is given.

Arrays and indices are those of `layout`; `values` are the transformed kernels of `winograd`.
"""

from __future__ import annotations

import numpy as np

from airdistill.learning.fused.compiling import compiled
from airdistill.learning.fused.forward import convolve, multiply
from airdistill.learning.fused.lanes import LANES, LARGE, MIDDLE, pooled_lines, product_tile, transformed_lines
from airdistill.learning.fused.layout import (
    BIAS,
    CHANNEL_OFFSETS,
    CHANNELS_IN,
    CHANNELS_OUT,
    COLUMNS,
    HEIGHT,
    INPUT,
    KERNEL_HEIGHT,
    KERNEL_VALUES,
    KERNEL_WIDTH,
    OUTPUT,
    ROWS,
    STRIP_ROWS,
    TILE_COLUMNS,
    TILE_ROWS,
    WIDTH,
)
from airdistill.learning.fused.tiles import rows_of_tile
from airdistill.learning.fused.winograd import OUTPUTS, SIZES, input_transform, output_transform

_product_large_4, _product_middle_4, _product_one_4 = (product_tile(rows, 4) for rows in (LARGE, MIDDLE, 1))
_product_large_1, _product_middle_1, _product_one_1 = (product_tile(rows, 1) for rows in (LARGE, MIDDLE, 1))
_inputs_3, _inputs_4, _inputs_5 = (transformed_lines(input_transform(size)) for size in SIZES)
_outputs_3, _outputs_4, _outputs_5 = (transformed_lines(output_transform(size)) for size in SIZES)
_pooled_3, _pooled_4, _pooled_5 = (pooled_lines(output_transform(size)) for size in SIZES)


@compiled
def evaluate(net, tilings, weights, values, work, saved, tiles):
    """Compute the logits from the input."""
    num_blocks, unused = len(net.blocks), np.empty(0, dtype=np.uint8)
    for number in range(num_blocks):
        block, tiling, out = net.blocks[number], tilings.table[number], saved if number == num_blocks - 1 else work
        if tiling[TILE_ROWS] == 0:
            convolve(block, weights, net.offsets, work, out, False, unused)
            continue
        for first in range(0, tiling[TILE_ROWS], tiling[STRIP_ROWS]):
            last = min(first + tiling[STRIP_ROWS], tiling[TILE_ROWS])
            _transform_strip(block, tiling, tilings, first, last, work, tiles)
            _multiply_strip(block, tiling, tilings, first, last, weights, values, out, tiles)
    multiply(net, weights, saved)


@compiled
def _start(tile, pooled):
    """The first result of a tile along an axis; the last tile overlaps the preceding one."""
    return min(tile * OUTPUTS, 2 * pooled - OUTPUTS)


@compiled
def _strip_tiles(tiling):
    return tiling[STRIP_ROWS] * tiling[TILE_COLUMNS]


@compiled
def _transform_strip(block, tiling, tilings, first, last, x, tiles):
    """Transform all channels of the input for the rows of tiles from `first` until `last`."""
    height, width, lines = block[KERNEL_HEIGHT], block[KERNEL_WIDTH], tilings.line_points
    down, right, line_length = height + OUTPUTS - 1, width + OUTPUTS - 1, 2 * block[COLUMNS] + width - 1
    channel_step, line, next_down = _strip_tiles(tiling) * LANES, block[WIDTH] * LANES, line_length * LANES
    point_step = block[CHANNELS_IN] * channel_step
    for channel in range(block[CHANNELS_IN]):
        target = tilings.input_points + channel * channel_step
        for tile_row in range(first, last):
            source = block[INPUT] + (channel * block[HEIGHT] + _start(tile_row, block[ROWS])) * line
            _transform_input(height, x, source, line, LANES, tiles, lines, next_down, LANES, line_length)
            for column in range(tiling[TILE_COLUMNS]):
                source, next_point = lines + _start(column, block[COLUMNS]) * LANES, right * point_step
                _transform_input(width, tiles, source, LANES, next_down, tiles, target, point_step, next_point, down)
                target += LANES


@compiled
def _transform_input(size, x, x_start, x_step, x_next, out, o_start, o_step, o_next, count):
    if size == 3:
        _inputs_3(x, x_start, x_step, x_next, out, o_start, o_step, o_next, count)
    elif size == 4:
        _inputs_4(x, x_start, x_step, x_next, out, o_start, o_step, o_next, count)
    else:
        _inputs_5(x, x_start, x_step, x_next, out, o_start, o_step, o_next, count)


@compiled
def _multiply_strip(block, tiling, tilings, first, last, weights, values, out, tiles):
    """Compute the block's output in a strip from the transformed input, a few channels at a time."""
    size, right, num_tiles = block[KERNEL_HEIGHT], block[KERNEL_WIDTH] + OUTPUTS - 1, _strip_tiles(tiling)
    step, line, tile_size = LARGE * num_tiles * LANES, right * LANES, OUTPUTS * right * LANES
    channel = 0
    while channel < block[CHANNELS_OUT]:
        taken = rows_of_tile(block[CHANNELS_OUT] - channel)
        needed = (last - first) * tiling[TILE_COLUMNS]
        # Point by point: the products of all points would not fit into the first-level cache.
        for point in range(right):
            _multiply_points(block, tiling, tilings, point, channel, taken, needed, values, tiles)
            x, o = tilings.products, tilings.column_points + point * LANES
            _transform_products(size, tiles, x, step, LANES, tiles, o, line, tile_size, taken * num_tiles)
        for number in range(taken):
            source = tilings.column_points + number * num_tiles * tile_size
            for tile_row in range(first, last):
                for column in range(tiling[TILE_COLUMNS]):
                    _pool_tile(block, channel + number, tile_row, column, tiles, source, weights, out)
                    source += tile_size
        channel += taken


@compiled
def _multiply_points(block, tiling, tilings, column, channel, taken, num_tiles, values, tiles):
    """Sum over input channels for `taken` output channels, starting at `channel`, at the points of one column."""
    terms, tile_step = block[CHANNELS_IN], _strip_tiles(tiling) * LANES
    steps, right = tilings.offsets[tiling[CHANNEL_OFFSETS] :], block[KERNEL_WIDTH] + OUTPUTS - 1
    columns = 4 if num_tiles >= 4 else 1
    for row in range(block[KERNEL_HEIGHT] + OUTPUTS - 1):
        point = row * right + column
        w = tiling[KERNEL_VALUES] + (point * block[CHANNELS_OUT] + channel) * terms
        for begin in range(0, num_tiles, columns):
            tile = min(begin, num_tiles - columns) * LANES
            x = tilings.input_points + point * terms * tile_step + tile
            o = tilings.products + row * LARGE * tile_step + tile
            if columns == 4:
                if taken == LARGE:
                    _product_large_4(tiles, x, steps, terms, values, w, terms, tiles, o, tile_step)
                elif taken == MIDDLE:
                    _product_middle_4(tiles, x, steps, terms, values, w, terms, tiles, o, tile_step)
                else:
                    _product_one_4(tiles, x, steps, terms, values, w, terms, tiles, o, tile_step)
            elif taken == LARGE:
                _product_large_1(tiles, x, steps, terms, values, w, terms, tiles, o, tile_step)
            elif taken == MIDDLE:
                _product_middle_1(tiles, x, steps, terms, values, w, terms, tiles, o, tile_step)
            else:
                _product_one_1(tiles, x, steps, terms, values, w, terms, tiles, o, tile_step)


@compiled
def _transform_products(size, x, x_start, x_step, x_next, out, o_start, o_step, o_next, count):
    if size == 3:
        _outputs_3(x, x_start, x_step, x_next, out, o_start, o_step, o_next, count)
    elif size == 4:
        _outputs_4(x, x_start, x_step, x_next, out, o_start, o_step, o_next, count)
    else:
        _outputs_5(x, x_start, x_step, x_next, out, o_start, o_step, o_next, count)


@compiled
def _pool_tile(block, channel, tile_row, tile_column, x, start, weights, out):
    """Pool a tile `[row, point]` of one channel, which starts at `start`."""
    row, column = _start(tile_row, block[ROWS]) // 2, _start(tile_column, block[COLUMNS]) // 2
    o = block[OUTPUT] + ((channel * block[ROWS] + row) * block[COLUMNS] + column) * LANES
    size, b = block[KERNEL_WIDTH], block[BIAS] + channel
    line, o_next = (size + OUTPUTS - 1) * LANES, block[COLUMNS] * LANES
    if size == 3:
        _pooled_3(x, start, line, 2 * line, weights, b, out, o, o_next, OUTPUTS // 2)
    elif size == 4:
        _pooled_4(x, start, line, 2 * line, weights, b, out, o, o_next, OUTPUTS // 2)
    else:
        _pooled_5(x, start, line, 2 * line, weights, b, out, o, o_next, OUTPUTS // 2)
