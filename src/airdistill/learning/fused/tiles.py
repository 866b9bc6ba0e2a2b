"""Shared by forward and backward passes: division of rows into tiles, and matrix products of a group of samples."""

from __future__ import annotations

from airdistill.learning.fused.compiling import compiled
from airdistill.learning.fused.lanes import LANES, LARGE, MIDDLE, added_tile, transposed
from airdistill.learning.fused.layout import CHANNELS_IN, HEIGHT, WIDTH

added_large_1, added_middle_1, added_one_1 = added_tile(LARGE, 1), added_tile(MIDDLE, 1), added_tile(1, 1)
transposed_rows = transposed(masked=False)


@compiled
def rows_of_tile(left):
    """The number of rows of the next tile, of `left` remaining: two equal tiles rather than a large one and a rest."""
    if left % LARGE == 0 or left > 2 * MIDDLE + LARGE:
        return LARGE
    return MIDDLE if left >= MIDDLE else 1


@compiled
def input_size(block):
    """The size of one sample's input to the block."""
    return block[CHANNELS_IN] * block[HEIGHT] * block[WIDTH]


@compiled
def add_products(rows, terms, x, x_start, taps, w, w_start, w_row, w_term, out, o_start):
    """out[row] += Σ_t w[row, t] x[t], each a vector of lanes."""
    row = 0
    while row < rows:
        taken = rows_of_tile(rows - row)
        w_at, o_at = w_start + row * w_row, o_start + row * LANES
        if taken == LARGE:
            added_large_1(x, x_start, taps, terms, w, w_at, w_row, w_term, out, o_at, LANES)
        elif taken == MIDDLE:
            added_middle_1(x, x_start, taps, terms, w, w_at, w_row, w_term, out, o_at, LANES)
        else:
            added_one_1(x, x_start, taps, terms, w, w_at, w_row, w_term, out, o_at, LANES)
        row += taken
