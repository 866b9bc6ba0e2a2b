"""Convolution with fewer multiplications (Winograd's minimal filtering): its transforms, and where it pays.

OUTPUTS neighbouring results of a kernel of `size` terms come from OUTPUTS + size − 1 products, each a number of the
input's transform times one of the kernel's: multiplying polynomials by their values at as many points, turned round.
Along two axes 64 products make 16 results of a 5 × 5 kernel, for which 400 are needed otherwise. Input channels are
added up between the transforms, so that the more channels there are, the less the transforms count.
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
# Two terms hardly ever pay. From six on there are more than eight points, and rounding grows by an order of magnitude.
SIZES = range(3, 6)
# Small, for little rounding, and in pairs, for few operations; infinity is one more.
_POINTS = tuple(Fraction(*point) for point in ((0, 1), (1, 1), (-1, 1), (2, 1), (-2, 1), (1, 2), (-1, 2)))
_STORED = 3  # instructions that storing a vector and reading it back take the time of
_Row = list[Fraction]
_Terms = tuple[tuple[Fraction, int], ...]


@dataclass(frozen=True)
class Transform:
    """A product with a constant matrix as sums one after another, of factors times earlier values.

    Values are numbered: first the inputs, then each sum.
    """

    num_inputs: int
    sums: tuple[_Terms, ...]
    outputs: tuple[int, ...]

    @property
    def num_operations(self) -> int:
        """A sum takes one for each term, less one if it can begin with a value as it is."""
        return sum(len(terms) - any(factor == 1 for factor, _ in terms) for terms in self.sums)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        values = list(inputs)
        for terms in self.sums:
            values.append(sum(factor * values[number] for factor, number in terms))
        return [values[number] for number in self.outputs]


class _Builder:
    """Puts sums together."""

    def __init__(self, num_inputs: int) -> None:
        self.num_inputs, self.sums = num_inputs, list[_Terms]()

    def add(self, *terms: tuple[Fraction, int]) -> int:
        """The number of this sum; of a value that there is already if it is just that."""
        needed = tuple((factor, number) for factor, number in terms if factor != 0)
        if len(needed) == 1 and needed[0][0] == 1:
            return needed[0][1]
        self.sums.append(needed)
        return self.num_inputs + len(self.sums) - 1

    def done(self, outputs: Sequence[int]) -> Transform:
        return Transform(self.num_inputs, tuple(self.sums), tuple(outputs))


@lru_cache
def input_transform(size: int) -> Transform:
    """Of as many numbers as there are points.

    A row holds the polynomial that is zero at all other points. At ±a those are x·R(x) ± a·R(x), with R zero at all
    points but these two; so both are made of the same two sums.
    """
    points, build, outputs = _points(size), _Builder(OUTPUTS + size - 1), list[int]()
    for point in points:
        rest = _zero_at([other for other in points if abs(other) != abs(point)])
        if point == 0:
            outputs.append(build.add(*_numbered(rest)))
        elif point > 0:
            here, next_to_it = build.add(*_numbered(rest)), build.add(*_numbered([Fraction(0), *rest]))
            outputs += [build.add((Fraction(1), next_to_it), (each, here)) for each in (point, -point)]
    outputs.append(build.add(*_numbered(_zero_at(points))))
    return build.done(outputs)


@lru_cache
def output_transform(size: int) -> Transform:
    """From the products at all points to OUTPUTS results; sum and difference of those at ±a are made once."""
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
    """`[point, term]`: what makes of a kernel its values at all points, divided by what the input's rows are there."""
    points, rows = _points(size), list[_Row]()
    for point in points:
        scale = sum(c * point**power for power, c in enumerate(_zero_at([other for other in points if other != point])))
        rows.append([point**power / scale for power in range(size)])
    return [*rows, [Fraction(0)] * (size - 1) + [Fraction(1)]]


def kernel_values(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of kernels `[channel out, channel in, row, column]` at all points: `[point, channel out and in]`, down first."""
    height, width = weight.shape[2:]
    flat = weight.reshape(-1, height * width)
    # einsum makes no threads, unlike a product of matrices.
    return np.asarray(np.einsum("pt,ct->pc", _kernel_matrix(height, width), flat), dtype=np.float32)


@lru_cache
def _kernel_matrix(height: int, width: int) -> FloatArray:
    down, right = (np.array(kernel_rows(size), dtype=np.float64) for size in (height, width))
    return np.asarray(np.kron(down, right), dtype=np.float64)


def _points(size: int) -> tuple[Fraction, ...]:
    """Without 0 where the others would not be in pairs."""
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
    """How the results of a block are parted into tiles of OUTPUTS × OUTPUTS; the last ones overlap those before.

    Some rows of tiles, a strip, are computed together: enough for the four columns of a matrix product.
    """

    rows: int
    columns: int
    rows_of_strip: int

    @property
    def tiles_of_strip(self) -> int:
        return self.rows_of_strip * self.columns


def tiling_of(block: ConvBlock) -> Tiling | None:
    """None where a convolution term by term takes less, or the kernel has no transforms."""
    too_small = 2 * min(block.pooled_height, block.pooled_width) < OUTPUTS
    if block.kernel_height not in SIZES or block.kernel_width not in SIZES or too_small:
        return None
    rows, columns = (-(-2 * pooled // OUTPUTS) for pooled in (block.pooled_height, block.pooled_width))
    tiling = Tiling(rows, columns, rows_of_strip=min(rows, -(-4 // columns)))
    return tiling if operations_by_tiles(block, tiling) < operations_by_terms(block) else None


def operations_by_terms(block: ConvBlock) -> int:
    """Vector instructions for a group of samples."""
    return 4 * block.num_outputs * block.channels_in * block.kernel_height * block.kernel_width


def operations_by_tiles(block: ConvBlock, tiling: Tiling) -> int:
    """The same, with what it takes to store vectors between two steps and read them back.

    So counted, it was right for 15 kinds of block that were measured, of 1 to 16 channels and kernels of 3 to 5.
    """
    down, right = (OUTPUTS + side - 1 for side in (block.kernel_height, block.kernel_width))
    num_tiles, seen = tiling.rows * tiling.columns, 2 * block.pooled_width + block.kernel_width - 1
    into = [input_transform(side).num_operations for side in (block.kernel_height, block.kernel_width)]
    back = [output_transform(side).num_operations for side in (block.kernel_height, block.kernel_width)]
    columns_in, rows_in = into[0] + _STORED * down, into[1] + _STORED * right
    inputs = tiling.rows * seen * columns_in + num_tiles * down * rows_in
    products = num_tiles * down * right * (block.channels_in + _STORED)
    outputs = num_tiles * (right * (back[0] + _STORED * OUTPUTS) + OUTPUTS * back[1])
    return block.channels_in * inputs + block.channels_out * (products + outputs)
