"""Winograd's minimal filtering: convolution with fewer multiplications. Its transforms, and when it is faster.

OUTPUTS adjacent results of a kernel of `size` terms take OUTPUTS + size − 1 products of the transformed input and the
transformed kernel. The transforms are the transpose of polynomial multiplication by evaluation at as many points. In
two dimensions, 64 products give 16 results of a 5 × 5 kernel, instead of 400. Input channels are summed between the
transforms, and so the cost of the transforms matters less with more channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airdistill.arrays import FloatArray
from airdistill.learning.fused.form import ConvBlock

OUTPUTS = 4  # of a tile along an axis: two pooling windows
# Kernels of two terms gain little. From six terms on there are more than eight points, and the rounding error is an
# order of magnitude larger.
SIZES = range(3, 6)
# Small numbers for small rounding errors, and in pairs for few operations; infinity is an additional point.
_POINTS = tuple(Fraction(*point) for point in ((0, 1), (1, 1), (-1, 1), (2, 1), (-2, 1), (1, 2), (-1, 2)))
_STORE_COST = 3  # of storing a vector and loading it again, in arithmetic instructions
_Row = list[Fraction]
_Terms = tuple[tuple[Fraction, int], ...]


@dataclass(frozen=True)
class Transform:
    """A product with a constant matrix as a sequence of sums, each of factors times earlier values.

    Values are numbered: first the inputs, then the sums.
    """

    num_inputs: int
    sums: tuple[_Terms, ...]
    outputs: tuple[int, ...]

    @property
    def num_operations(self) -> int:
        """One operation per term of a sum, or one less if a term has factor 1."""
        return sum(len(terms) - any(factor == 1 for factor, _ in terms) for terms in self.sums)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        values = list(inputs)
        for terms in self.sums:
            values.append(sum(factor * values[number] for factor, number in terms))
        return [values[number] for number in self.outputs]


class _Builder:
    """Collects the sums of a transform."""

    def __init__(self, num_inputs: int) -> None:
        self.num_inputs, self.sums = num_inputs, list[_Terms]()

    def add(self, *terms: tuple[Fraction, int]) -> int:
        """Add a sum and return its number; a sum that equals an existing value is not added."""
        nonzero = tuple((factor, number) for factor, number in terms if factor != 0)
        if len(nonzero) == 1 and nonzero[0][0] == 1:
            return nonzero[0][1]
        self.sums.append(nonzero)
        return self.num_inputs + len(self.sums) - 1

    def done(self, outputs: Sequence[int]) -> Transform:
        return Transform(self.num_inputs, tuple(self.sums), tuple(outputs))


@lru_cache
def input_transform(size: int) -> Transform:
    """The transform of the input, with as many inputs as points.

    The row of a point holds the coefficients of the polynomial that is zero at all other points. For ±a these are
    x·R(x) ± a·R(x), with R zero at all points but these two, and so both are formed from the same two sums.
    """
    points, build, outputs = _points(size), _Builder(OUTPUTS + size - 1), list[int]()
    for point in points:
        rest = _zero_at([other for other in points if abs(other) != abs(point)])
        if point == 0:
            outputs.append(build.add(*_numbered(rest)))
        elif point > 0:
            even, odd = build.add(*_numbered(rest)), build.add(*_numbered([Fraction(0), *rest]))
            outputs += [build.add((Fraction(1), odd), (each, even)) for each in (point, -point)]
    outputs.append(build.add(*_numbered(_zero_at(points))))
    return build.done(outputs)


@lru_cache
def output_transform(size: int) -> Transform:
    """The transform from the products at all points to OUTPUTS results; it shares sum and difference of those at ±a."""
    points, one = _points(size), Fraction(1)
    build, results = _Builder(len(points) + 1), [list[tuple[Fraction, int]]() for _ in range(OUTPUTS)]
    for number, point in enumerate(points):
        if point == 0:
            results[0].append((one, number))
        elif point > 0:
            even, odd = (build.add((one, number), (sign, number + 1)) for sign in (one, -one))
            for power, terms in enumerate(results):
                terms.append((point**power, odd if power % 2 else even))
    results[-1].append((one, len(points)))
    return build.done([build.add(*terms) for terms in results])


def kernel_rows(size: int) -> list[_Row]:
    """The matrix `[point, term]` that evaluates a kernel at all points, scaled to match the input's transform."""
    points, rows = _points(size), list[_Row]()
    for point in points:
        scale = sum(c * point**power for power, c in enumerate(_zero_at([other for other in points if other != point])))
        rows.append([point**power / scale for power in range(size)])
    return [*rows, [Fraction(0)] * (size - 1) + [Fraction(1)]]


def kernel_values(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Transform kernels `[channel out, channel in, row, column]` to `[point, channel out and in]`, row-major points."""
    height, width = weight.shape[2:]
    flat = weight.reshape(-1, height * width)
    # einsum is single-threaded, unlike a matrix product.
    return np.asarray(np.einsum("pt,ct->pc", _kernel_matrix(height, width), flat), dtype=np.float32)


@lru_cache
def _kernel_matrix(height: int, width: int) -> FloatArray:
    down, right = (np.array(kernel_rows(size), dtype=np.float64) for size in (height, width))
    return np.asarray(np.kron(down, right), dtype=np.float64)


def _points(size: int) -> tuple[Fraction, ...]:
    """The finite points; 0 is left out if the others would not be in pairs."""
    count = OUTPUTS + size - 2
    return _POINTS[:count] if count % 2 else _POINTS[1 : count + 1]


def _numbered(row: _Row) -> _Terms:
    return tuple((factor, number) for number, factor in enumerate(row))


def _zero_at(points: Sequence[Fraction]) -> _Row:
    """The coefficients of Π (x − point), the constant first."""
    row = [Fraction(1)]
    for point in points:
        row = [a - point * b for a, b in zip([Fraction(0), *row], [*row, Fraction(0)], strict=True)]
    return row


@dataclass(frozen=True)
class Tiling:
    """A partition of a block's results into tiles of OUTPUTS × OUTPUTS; the last tiles overlap the preceding ones.

    A strip is a number of tile rows that are computed together, enough for the four columns of a matrix product.
    """

    rows: int
    columns: int
    strip_rows: int

    @property
    def strip_tiles(self) -> int:
        return self.strip_rows * self.columns


def tiling_of(block: ConvBlock) -> Tiling | None:
    """The tiling of a block, or None if direct convolution is cheaper or the kernel size is not supported."""
    too_small = 2 * min(block.pooled_height, block.pooled_width) < OUTPUTS
    if block.kernel_height not in SIZES or block.kernel_width not in SIZES or too_small:
        return None
    rows, columns = (-(-2 * pooled // OUTPUTS) for pooled in (block.pooled_height, block.pooled_width))
    tiling = Tiling(rows, columns, strip_rows=min(rows, -(-4 // columns)))
    return tiling if tiled_operations(block, tiling) < direct_operations(block) else None


def direct_operations(block: ConvBlock) -> int:
    """Vector instructions of a direct convolution for a group of samples."""
    return 4 * block.num_outputs * block.channels_in * block.kernel_height * block.kernel_width


def tiled_operations(block: ConvBlock, tiling: Tiling) -> int:
    """Vector instructions of a tiled convolution, including storing and loading vectors between steps.

    This count predicted the faster variant for 15 measured blocks of 1 to 16 channels and kernels of 3 to 5.
    """
    down, right = (OUTPUTS + side - 1 for side in (block.kernel_height, block.kernel_width))
    num_tiles, line = tiling.rows * tiling.columns, 2 * block.pooled_width + block.kernel_width - 1
    into = [input_transform(side).num_operations for side in (block.kernel_height, block.kernel_width)]
    back = [output_transform(side).num_operations for side in (block.kernel_height, block.kernel_width)]
    columns_in, rows_in = into[0] + _STORE_COST * down, into[1] + _STORE_COST * right
    inputs = tiling.rows * line * columns_in + num_tiles * down * rows_in
    products = num_tiles * down * right * (block.channels_in + _STORE_COST)
    outputs = num_tiles * (right * (back[0] + _STORE_COST * OUTPUTS) + OUTPUTS * back[1])
    return block.channels_in * inputs + block.channels_out * (products + outputs)
