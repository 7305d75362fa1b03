"""Prompt attention without its two products, in explicit vectors: softmax, and the layout of keys and values."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from roseplay.kernels.cpu.attention.decode_vectors import LOWEST, AttentionEmitter
from roseplay.kernels.cpu.simd import FLOAT, FLOATS, INT, INTS, LANES, Emitter

_WIDE = ir.VectorType(ir.IntType(16), 2 * LANES)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def online_softmax_update(context, scores, probabilities, vectors, begin, end, scaling, softcap, top, weight, capped):
    """Update a query's online softmax with scores; returns the factor for its earlier sums.

    Args:
        scores: pointer to float32, whole vectors of 16; overwritten.
        probabilities: pointer to which the unnormalised probabilities are written: float32, or bfloat16 as uint16.
        begin, end: the visible tokens, counted from the first score.
        softcap: used if ``capped`` (a literal) is not 0.
        top, weight: pointers to the running maximum and sum.
    """

    def generate(context, builder, signature, args):
        scores, probabilities, vectors, begin, end, scaling, softcap, top, weight, _ = args
        emit = AttentionEmitter(builder, bits=32)
        lowest, zeros = (ir.Constant(FLOATS, [number] * LANES) for number in (LOWEST, 0.0))
        highest, total = (cgutils.alloca_once_value(builder, number) for number in (lowest, zeros))

        def place(at, index):
            return builder.gep(at, [builder.mul(index, ir.Constant(index.type, LANES))])

        def visible(index):
            first = builder.mul(index, ir.Constant(index.type, LANES))
            return emit.visible(builder.sub(begin, first), builder.sub(end, first), LANES)

        with cgutils.for_range(builder, vectors) as loop:
            at = place(scores, loop.index)
            x = builder.fmul(emit.load(at, 0, FLOAT, LANES), emit.broadcast(scaling))
            x = emit.cap(x, emit.broadcast(softcap)) if capped.literal_value else x
            x = builder.select(visible(loop.index), x, lowest)
            builder.store(x, builder.bitcast(at, FLOATS.as_pointer()), align=4)
            builder.store(emit.call(f"llvm.maxnum.v{LANES}f32", FLOATS, x, builder.load(highest)), highest)
        old = builder.load(top)
        best = emit.call(f"llvm.vector.reduce.fmax.v{LANES}f32", FLOAT, builder.load(highest))
        best = emit.call("llvm.maxnum.f32", FLOAT, best, old)
        with cgutils.for_range(builder, vectors) as loop:
            x = emit.load(place(scores, loop.index), 0, FLOAT, LANES)
            probability = builder.select(visible(loop.index), emit.exp(builder.fsub(x, emit.broadcast(best))), zeros)
            builder.store(builder.fadd(builder.load(total), probability), total)
            if probabilities.type.pointee == ir.IntType(16):
                probability = emit.rounded(probability)
            at = builder.bitcast(place(probabilities, loop.index), probability.type.as_pointer())
            builder.store(probability, at, align=2)
        rescale = builder.extract_element(emit.exp(emit.broadcast(builder.fsub(old, best))), ir.Constant(INT, 0))
        zero = ir.Constant(FLOAT, 0.0)
        sum_ = emit.call(f"llvm.vector.reduce.fadd.v{LANES}f32", FLOAT, zero, builder.load(total))
        builder.store(builder.fadd(builder.fmul(builder.load(weight), rescale), sum_), weight)
        builder.store(best, top)
        return rescale

    signature = types.float32(scores, probabilities, vectors, begin, end, scaling, softcap, top, weight, capped)
    return signature, generate


@intrinsic  # type: ignore[untyped-decorator]
def transpose_16x16(context, rows, stride, columns, column_stride):
    """Transpose 16 rows of 16 words (32 bits); strides are in words."""

    def generate(context, builder, signature, args):
        emit = Emitter(builder)
        rows_at, columns_at = (builder.bitcast(at, INT.as_pointer()) for at in (args[0], args[2]))

        def place(at, number, stride):
            return builder.gep(at, [builder.mul(stride, ir.Constant(stride.type, number))])

        vectors = [emit.load(place(rows_at, row, args[1]), 0, INT, LANES) for row in range(LANES)]
        for width in (1, 2, 4, 8):
            near = [LANES + lane - width if lane & width else lane for lane in range(LANES)]
            far = [LANES + lane if lane & width else lane + width for lane in range(LANES)]
            for row in range(LANES):
                if not row & width:
                    pair = vectors[row], vectors[row + width]
                    vectors[row] = builder.shuffle_vector(*pair, ir.Constant(INTS, near))
                    vectors[row + width] = builder.shuffle_vector(*pair, ir.Constant(INTS, far))
        for column, vector in enumerate(vectors):
            at = place(columns_at, column, args[3])
            builder.store(vector, builder.bitcast(at, INTS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(rows, stride, columns, column_stride), generate


@intrinsic  # type: ignore[untyped-decorator]
def interleave_pairs(context, first, second, pairs):
    """Write 32 bfloat16 (as uint16) of one row and 32 of another as 32 pairs."""

    def generate(context, builder, signature, args):
        emit = Emitter(builder)
        x, y = (emit.load(row, 0, ir.IntType(16), 2 * LANES) for row in args[:2])
        for half in range(2):
            lanes = [LANES * half + lane // 2 + (2 * LANES if lane % 2 else 0) for lane in range(2 * LANES)]
            both = builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(INT, 2 * LANES), lanes))
            at = builder.gep(args[2], [ir.Constant(INT, 2 * LANES * half)])
            builder.store(both, builder.bitcast(at, _WIDE.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(first, second, pairs), generate
