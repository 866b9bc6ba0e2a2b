"""The innermost loops as SIMD instructions: a lane is a sample, or a column of a matrix.

A tile of results stays in the processor's vector registers while its terms are accumulated. The tile sizes are indices
here, because the compiler by itself would keep the results in memory and take several times as long. All indices are
from the start of flat arrays, and are not checked.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from airdistill.learning.fused.winograd import Transform


def _has_wide_registers() -> bool:
    """Whether the processor has 32 registers of 16 floats (AVX-512), and not 16 of 8."""
    features: str | None = getattr(config, "CPU_FEATURES", None)  # set to compile for another processor
    if features is not None:
        return "+avx512f" in features.split(",")
    return bool(llvm.get_host_cpu_features().get("avx512f", False))


WIDE = _has_wide_registers()
LANES = 16 if WIDE else 8
# Rows of a tile: as many as fit into the registers with four columns, and fewer for the rest of a matrix.
LARGE, MIDDLE = (5, 4) if WIDE else (3, 2)

_INDEX, _FLOAT, _BYTE = ir.IntType(64), ir.FloatType(), ir.IntType(8)
_VECTOR, _BYTES = ir.VectorType(_FLOAT, LANES), ir.VectorType(_BYTE, LANES)
_ZEROS = ir.Constant(_VECTOR, [0.0] * LANES)
_Tile = list[list[Any]]


def _constant(number: Fraction) -> Any:
    return ir.Constant(_VECTOR, [float(number)] * LANES)


class _Code:
    """Emits vector instructions into a function."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> None:
        self.builder = builder
        # Arrays become pointers to their first element.
        self.given = [
            context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
            for kind, value in zip(signature.args, arguments, strict=True)
        ]

    def index(self, start: Any, *steps: tuple[Any, int]) -> Any:
        """start + Σ stride · count."""
        for stride, count in steps:
            if count:
                start = self.builder.add(start, self.builder.mul(stride, ir.Constant(_INDEX, count)))
        return start

    def load(self, array: Any, index: Any) -> Any:
        address = self.builder.bitcast(self.builder.gep(array, [index]), _VECTOR.as_pointer())
        return self.builder.load(address, align=4)

    def load_bytes(self, array: Any, index: Any) -> Any:
        address = self.builder.bitcast(self.builder.gep(array, [index]), _BYTES.as_pointer())
        return self.builder.load(address, align=1)

    def store(self, vector: Any, array: Any, index: Any) -> None:
        address = self.builder.bitcast(self.builder.gep(array, [index]), vector.type.as_pointer())
        self.builder.store(vector, address, align=1 if vector.type == _BYTES else 4)

    def number(self, array: Any, index: Any) -> Any:
        """One number, broadcast to all lanes."""
        undefined = ir.Constant(_VECTOR, ir.Undefined)
        scalar = self.builder.load(self.builder.gep(array, [index]))
        first = self.builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def multiply_add(self, factor: Any, other: Any, addend: Any) -> Any:
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        name = f"llvm.fmuladd.v{LANES}f32"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [factor, other, addend])

    def registers(self, rows: int, columns: int) -> _Tile:
        """A tile of zeros; the compiler's first pass promotes it to registers."""
        tile = [[cgutils.alloca_once(self.builder, _VECTOR) for _ in range(columns)] for _ in range(rows)]
        for address in (address for row in tile for address in row):
            self.builder.store(_ZEROS, address)
        return tile

    def values(self, tile: _Tile) -> _Tile:
        return [[self.builder.load(address) for address in row] for row in tile]

    def add_product(self, factor: Any, other: Any, address: Any) -> None:
        self.builder.store(self.multiply_add(factor, other, self.builder.load(address)), address)

    def repeat(self, count: Any) -> Any:
        return cgutils.for_range(self.builder, count, intp=_INDEX)

    def entry(self, offsets: Any, number: int) -> Any:
        return self.builder.load(self.builder.gep(offsets, [ir.Constant(_INDEX, number)]))

    def transpose(self, rows: list[Any]) -> list[Any]:
        """Transpose LANES vectors by swapping blocks of increasing size across the diagonal."""
        for size in (2**power for power in range(LANES.bit_length() - 1)):
            for number in range(LANES):
                if not number & size:
                    first, second = rows[number], rows[number | size]
                    rows[number] = self._shuffle(
                        first, second, [n if not n & size else LANES + n - size for n in range(LANES)]
                    )
                    rows[number | size] = self._shuffle(
                        first, second, [n + size if not n & size else LANES + n for n in range(LANES)]
                    )
        return rows

    def transformed(self, transform: Transform, vectors: Sequence[Any]) -> list[Any]:
        """Apply a transform of `winograd` to vectors."""
        values = list(vectors)
        for terms in transform.sums:
            # A term with factor 1 comes first, and takes no instruction.
            (factor, number), *others = sorted(terms, key=lambda term: term[0] != 1)
            total = values[number] if factor == 1 else self.builder.fmul(_constant(factor), values[number])
            for factor, number in others:
                if abs(factor) == 1:
                    total = (self.builder.fadd if factor > 0 else self.builder.fsub)(total, values[number])
                else:
                    total = self.multiply_add(_constant(factor), values[number], total)
            values.append(total)
        return [values[number] for number in transform.outputs]

    def largest(self, four: Sequence[Any]) -> tuple[Any, Any]:
        """The maximum of four vectors in each lane, and its index; the first of equal ones."""
        (largest, *others), which = four, ir.Constant(_BYTES, [0] * LANES)
        for number, other in enumerate(others, 1):
            above = self.builder.fcmp_ordered(">", other, largest)
            largest = self.builder.select(above, other, largest)
            which = self.builder.select(above, ir.Constant(_BYTES, [number] * LANES), which)
        return largest, which

    def pooled(self, four: Sequence[Any], bias: Any) -> Any:
        """ReLU of maximum plus bias; NaN stays NaN."""
        total = self.builder.fadd(self.largest(four)[0], bias)
        return self.builder.select(self.builder.fcmp_ordered("<", total, _ZEROS), _ZEROS, total)

    def _shuffle(self, first: Any, second: Any, lanes: list[int]) -> Any:
        mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), lanes)
        return self.builder.shuffle_vector(first, second, mask)

    def weighted_columns(
        self, rows: int, columns: Sequence[Any], x: Any, offsets: Any, count: Any, w: Any, w_start: Any, w_strides: Any
    ) -> _Tile:
        """tile[j][p] = Σ_t w[w_start + j·stride_j + t·stride_t] · x[columns[p] + offsets[t]], a vector for each p."""
        tile, (by_row, by_term) = self.registers(rows, len(columns)), w_strides
        starts = [self.builder.gep(w, [self.index(w_start, (by_row, row))]) for row in range(rows)]
        addresses = [self.builder.gep(x, [column]) for column in columns]
        with self.repeat(count) as loop:
            offset = self.builder.load(self.builder.gep(offsets, [loop.index]))
            loaded = [self.load(address, offset) for address in addresses]
            term = self.builder.mul(loop.index, by_term)
            for start, row in zip(starts, tile, strict=True):
                weight = self.number(start, term)
                for vector, address in zip(loaded, row, strict=True):
                    self.add_product(weight, vector, address)
        return self.values(tile)


def _kernel(write: Callable[..., None]) -> Any:
    """A function without a result for compiled callers, whose instructions `write(code, ...)` emits.

    `write` takes all arguments of a call; arrays are pointers to their first element.
    """

    def typed(_typing: Any, *kinds: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            code = _Code(context, builder, signature, arguments)
            write(code, *code.given)
            return context.get_dummy_value()

        return types.void(*kinds), generate

    typed.__signature__ = inspect.signature(write)  # type: ignore[attr-defined]  # Numba needs the parameter names
    return intrinsic(typed)


def pooled_tile(rows: int) -> Any:
    """Convolution, 2×2 max-pooling and ReLU for `rows` output channels at one pooled position of all lanes.

    The pooling window is at `base`, one step `right`, one step `down`, and both. Terms are at `offsets` from there, and
    the first channel's bias is at `bias` in `w`. Row j is stored to `out` at o_start + j·o_row. With `training`, the
    index of the maximum, the first of equal ones, is stored to `argmax` at p_start + j·o_row.
    """

    @_kernel
    def kernel(
        code,
        x,
        base,
        right,
        down,
        offsets,
        count,
        w,
        w_start,
        w_row,
        bias,
        out,
        o_start,
        o_row,
        training,
        argmax,
        p_start,
    ):
        builder = code.builder
        below = builder.add(base, down)
        addresses = [base, builder.add(base, right), below, builder.add(below, right)]
        one = ir.Constant(_INDEX, 1)
        tile = code.weighted_columns(rows, addresses, x, offsets, count, w, w_start, (w_row, one))
        for row, four in enumerate(tile):
            added = code.number(w, code.index(bias, (one, row)))
            code.store(code.pooled(four, added), out, code.index(o_start, (o_row, row)))
        with builder.if_then(training):
            for row, four in enumerate(tile):
                code.store(code.largest(four)[1], argmax, code.index(p_start, (o_row, row)))

    return kernel


def added_tile(rows: int, columns: int) -> Any:
    """out[o_start + j·o_row + p·LANES] += Σ_t w[w_start + j·w_row + t·w_term] · x[x_start + p·LANES + offsets[t]]."""

    @_kernel
    def kernel(code, x, x_start, offsets, count, w, w_start, w_row, w_term, out, o_start, o_row):
        lanes = ir.Constant(_INDEX, LANES)
        addresses = [code.index(x_start, (lanes, column)) for column in range(columns)]
        tile = code.weighted_columns(rows, addresses, x, offsets, count, w, w_start, (w_row, w_term))
        for row, vectors in enumerate(tile):
            for column, vector in enumerate(vectors):
                address = code.index(o_start, (o_row, row), (lanes, column))
                code.store(code.builder.fadd(code.load(out, address), vector), out, address)

    return kernel


def correlated_tile(rows: int, columns: int) -> Any:
    """out[o_start + j·o_row + p·LANES] += Σ d[d_start + j·d_row + i] · x[x_start + p·LANES + i'] in each lane.

    The sum is over `height` lines of `width` positions; lines are `d_line` and `x_line` long.
    """

    @_kernel
    def kernel(code, d, d_start, d_row, d_line, x, x_start, x_line, height, width, out, o_start, o_row):
        builder, lanes = code.builder, ir.Constant(_INDEX, LANES)
        tile = code.registers(rows, columns)
        with code.repeat(height) as lines:
            d_first = builder.add(d_start, builder.mul(lines.index, d_line))
            x_first = builder.add(x_start, builder.mul(lines.index, x_line))
            with code.repeat(width) as addresses:
                along = builder.mul(addresses.index, lanes)
                loaded = [
                    code.load(x, builder.add(code.index(x_first, (lanes, column)), along)) for column in range(columns)
                ]
                for row in range(rows):
                    gradient = code.load(d, builder.add(code.index(d_first, (d_row, row)), along))
                    for column in range(columns):
                        code.add_product(gradient, loaded[column], tile[row][column])
        for row, vectors in enumerate(code.values(tile)):
            for column, vector in enumerate(vectors):
                address = code.index(o_start, (o_row, row), (lanes, column))
                code.store(builder.fadd(code.load(out, address), vector), out, address)

    return kernel


def scattered_rows(columns: int) -> Any:
    """out[o_start + offsets[t] + r·o_line + p·LANES] += values[t] · w[w_start + r·w_line + p·LANES], for all t, r."""

    @_kernel
    def kernel(code, out, o_start, o_line, offsets, values, count, w, w_start, w_line, height):
        builder, lanes = code.builder, ir.Constant(_INDEX, LANES)
        # Lines are innermost: the next term may load what this one stored, and the stores have completed by then.
        with code.repeat(count) as terms:
            o_term = builder.add(o_start, builder.load(builder.gep(offsets, [terms.index])))
            value = code.number(values, terms.index)
            with code.repeat(height) as lines:
                w_first = builder.add(w_start, builder.mul(lines.index, w_line))
                o_first = builder.add(o_term, builder.mul(lines.index, o_line))
                for column in range(columns):
                    weight, address = (
                        code.load(w, code.index(w_first, (lanes, column))),
                        code.index(o_first, (lanes, column)),
                    )
                    code.store(code.multiply_add(value, weight, code.load(out, address)), out, address)

    return kernel


@_kernel
def unpooled(code, d, d_start, argmax, p_start, out, o_start, right, down):
    """Store each lane's number to the winner of the pooling window, and zeros to the other three positions."""
    builder = code.builder
    gradient, which = code.load(d, d_start), code.load_bytes(argmax, p_start)
    below = builder.add(o_start, down)
    addresses = [o_start, builder.add(o_start, right), below, builder.add(below, right)]
    for number, address in enumerate(addresses):
        is_winner = builder.icmp_unsigned("==", which, ir.Constant(_BYTES, [number] * LANES))
        code.store(builder.select(is_winner, gradient, _ZEROS), out, address)


def transposed(masked: bool) -> Any:
    """Transpose LANES vectors of x, at x_start + x_offsets[i], to LANES vectors of out, at o_start + o_offsets[i].

    With `masked`, elements are zero if the element of `mask`, at m_start + x_offsets[i], is not positive.
    """

    @_kernel
    def kernel(code, x, x_start, x_offsets, out, o_start, o_offsets, mask, m_start):
        builder, rows = code.builder, []
        for number in range(LANES):
            offset = code.entry(x_offsets, number)
            row = code.load(x, builder.add(x_start, offset))
            if masked:
                above = builder.fcmp_ordered(">", code.load(mask, builder.add(m_start, offset)), _ZEROS)
                row = builder.select(above, row, _ZEROS)
            rows.append(row)
        for number, row in enumerate(code.transpose(rows)):
            code.store(row, out, builder.add(o_start, code.entry(o_offsets, number)))

    return kernel


def product_tile(rows: int, columns: int) -> Any:
    """out[o_start + j·o_row + p·LANES] = Σ_t w[w_start + j·w_row + t] · x[x_start + p·LANES + offsets[t]]."""

    @_kernel
    def kernel(code, x, x_start, offsets, count, w, w_start, w_row, out, o_start, o_row):
        lanes, one = ir.Constant(_INDEX, LANES), ir.Constant(_INDEX, 1)
        addresses = [code.index(x_start, (lanes, column)) for column in range(columns)]
        tile = code.weighted_columns(rows, addresses, x, offsets, count, w, w_start, (w_row, one))
        for row, vectors in enumerate(tile):
            for column, vector in enumerate(vectors):
                code.store(vector, out, code.index(o_start, (o_row, row), (lanes, column)))

    return kernel


def transformed_lines(transform: Transform) -> Any:
    """Transform vectors at x_start + i·x_step to vectors at o_start + j·o_step, `count` times.

    Each repetition is x_next and o_next farther.
    """

    @_kernel
    def kernel(code, x, x_start, x_step, x_next, out, o_start, o_step, o_next, count):
        builder = code.builder
        with code.repeat(count) as lines:
            x_first = builder.add(x_start, builder.mul(lines.index, x_next))
            o_first = builder.add(o_start, builder.mul(lines.index, o_next))
            loaded = [code.load(x, code.index(x_first, (x_step, number))) for number in range(transform.num_inputs)]
            for number, vector in enumerate(code.transformed(transform, loaded)):
                code.store(vector, out, code.index(o_first, (o_step, number)))

    return kernel


def pooled_lines(transform: Transform) -> Any:
    """Transform two lines of vectors at distance x_line, then 2×2 max-pooling, bias b[b_start] and ReLU.

    This is repeated `count` times, each x_next and o_next farther.
    """

    @_kernel
    def kernel(code, x, x_start, x_line, x_next, b, b_start, out, o_start, o_next, count):
        builder, lanes = code.builder, ir.Constant(_INDEX, LANES)
        bias = code.number(b, b_start)
        with code.repeat(count) as lines:
            x_first = builder.add(x_start, builder.mul(lines.index, x_next))
            o_first = builder.add(o_start, builder.mul(lines.index, o_next))
            above, below = (
                code.transformed(
                    transform, [code.load(x, code.index(first, (lanes, n))) for n in range(transform.num_inputs)]
                )
                for first in (x_first, builder.add(x_first, x_line))
            )
            for number in range(0, len(above), 2):
                four = [*above[number : number + 2], *below[number : number + 2]]
                code.store(code.pooled(four, bias), out, code.index(o_first, (lanes, number // 2)))

    return kernel
