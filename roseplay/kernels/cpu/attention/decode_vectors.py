"""The query heads of a group attend to up to 16 tokens of a block, in explicit vectors of 16 float32.

Keys and values are float32, bfloat16 or int8. The scales of int8, one a token, multiply scores and probabilities
instead of the numbers. In bfloat16, the order of numbers in vectors (``lane_order``) differs from that in memory: two
numbers are loaded as one 32-bit word, whose upper half is the second number and whose lower half, shifted up, is the first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from roseplay.kernels.cpu.simd import FAST, FLOAT, FLOATS, INT, INTS, LANES, Emitter

LOWEST = -3e38  # not -inf: fast-math instructions may assume finite numbers


def lane_order(dim: int, bits: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns which of a token's ``dim`` numbers of ``bits`` bits each lane of its vectors of 16 holds; -1 for an unused
    lane."""
    pairs = dim // (2 * LANES) * 2 * LANES if bits == 16 else 0
    order = np.arange(pairs).reshape(-1, LANES, 2).transpose(0, 2, 1).reshape(-1)
    rest = np.full(-(-(dim - pairs) // LANES) * LANES, -1)
    rest[: dim - pairs] = np.arange(pairs, dim)
    return np.concatenate([order, rest]).astype(np.int64)


class AttentionEmitter(Emitter):
    """Emits the steps of attention to 16 tokens, whose keys and values have ``bits`` bits a number."""

    def __init__(self, builder: Any, bits: int) -> None:
        super().__init__(builder)
        self.bits = bits

    def load_vectors(self, pointer: Any, vectors: int) -> list[Any]:
        return [self.load(pointer, LANES * i, FLOAT, LANES) for i in range(vectors)]

    def load_token(self, pointer: Any, number: int, dim: int) -> list[Any]:
        """Returns the key or value of the token ``number``, as vectors in ``lane_order``."""
        b, begin, vectors = self.builder, number * dim, []
        pairs = dim // (2 * LANES) if self.bits == 16 else 0
        sixteen, upper = ir.Constant(INTS, [16] * LANES), ir.Constant(INTS, [0xFFFF0000] * LANES)
        for i in range(pairs):
            at = b.gep(pointer, [ir.Constant(INT, begin + 2 * LANES * i)])
            both = self.load(at, 0, INT, LANES)
            vectors += [b.bitcast(b.shl(both, sixteen), FLOATS), b.bitcast(b.and_(both, upper), FLOATS)]
        for first in range(2 * LANES * pairs, dim, LANES):
            count = min(LANES, dim - first)
            part = self.load(pointer, begin + first, FLOAT if self.bits == 32 else ir.IntType(self.bits), count)
            if count < LANES:
                lanes = [*range(count), *[count] * (LANES - count)]
                part = b.shuffle_vector(part, ir.Constant(part.type, None), ir.Constant(INTS, lanes))
            if self.bits == 8:
                part = b.sitofp(b.sext(part, INTS), FLOATS)
            vectors.append(b.bitcast(b.shl(b.zext(part, INTS), sixteen), FLOATS) if self.bits == 16 else part)
        return vectors

    def scaled(self, numbers: Any, scales: Any, tokens: int) -> Any:
        """Returns a vector of one number for each token times the tokens' scales, of which lanes from ``tokens`` on are 0."""
        lanes = [*range(tokens), *[tokens] * (LANES - tokens)]
        there = self.load(scales, 0, FLOAT, tokens)
        there = self.builder.shuffle_vector(there, ir.Constant(there.type, None), ir.Constant(INTS, lanes))
        return self.builder.fmul(numbers, there)

    def add_pairs(self, x: Any, y: Any, width: int) -> Any:
        """Add lanes that are ``width`` apart, in two vectors at once: sums of x go to lanes without the bit ``width``, sums
        of y to the others."""
        near = [(LANES if lane & width else 0) + (lane & ~width) for lane in range(LANES)]
        far = [lane + width for lane in near]
        b = self.builder
        return b.fadd(*(b.shuffle_vector(x, y, ir.Constant(INTS, lanes)) for lanes in (near, far)), flags=FAST)

    def scores(self, queries: list[list[Any]], keys: Any, tokens: int, k_dim: int) -> list[Any]:
        """Returns a vector for each head: the dot products of its query with the keys of 16 tokens, one token a lane.

        The 16 vectors of partial sums are added in pairs, which halves their number four times. Lanes from ``tokens`` on
        repeat the last token.
        """
        waiting: list[list[tuple[int, Any]]] = [[] for _ in queries]
        for number in range(LANES):
            key = self.load_token(keys, min(number, tokens - 1), k_dim)
            for query, pending in zip(queries, waiting, strict=True):
                total = self.builder.fmul(query[0], key[0], flags=FAST)
                for x, y in zip(query[1:], key[1:], strict=True):
                    total = self.fma(x, y, total)
                width = 1
                while pending and pending[-1][0] == width:
                    total, width = self.add_pairs(pending.pop()[1], total, width), 2 * width
                pending.append((width, total))
        return [pending[0][1] for pending in waiting]

    def cap(self, scores: Any, cap: Any) -> Any:
        """``cap * tanh(scores / cap)``, with tanh |x| = (1 - e**-2|x|) / (1 + e**-2|x|)."""
        b, one = self.builder, ir.Constant(FLOATS, [1.0] * LANES)
        x = b.fdiv(scores, cap)
        size = self.call(f"llvm.fabs.v{LANES}f32", FLOATS, x)
        e = self.exp(b.fmul(size, ir.Constant(FLOATS, [-2.0] * LANES)))
        tanh = b.fdiv(b.fsub(one, e), b.fadd(one, e))
        return b.fmul(cap, self.call(f"llvm.copysign.v{LANES}f32", FLOATS, tanh, x))

    def visible(self, begin: Any, end: Any, tokens: int) -> Any:
        """Returns a mask of the lanes whose token is from ``begin`` to ``end - 1``, and below ``tokens``."""
        b, lanes = self.builder, ir.Constant(INTS, list(range(LANES)))
        there = ir.Constant(ir.VectorType(ir.IntType(1), LANES), [lane < tokens for lane in range(LANES)])
        first, last = (self.broadcast(b.trunc(bound, INT)) for bound in (begin, end))
        return b.and_(there, b.and_(b.icmp_signed(">=", lanes, first), b.icmp_signed("<", lanes, last)))

    def online_softmax_update(self, scores: Any, visible: Any, top: Any, weight: Any) -> tuple[Any, Any]:
        """Update a head's running maximum (``top``) and sum (``weight``) with 16 scores.

        Returns their unnormalised probabilities, and the factor for earlier sums, in all lanes.
        """
        b = self.builder
        scores = b.select(visible, scores, ir.Constant(FLOATS, [LOWEST] * LANES))
        old = b.load(top)
        highest = self.call(f"llvm.vector.reduce.fmax.v{LANES}f32", FLOAT, scores)
        highest = self.call("llvm.maxnum.f32", FLOAT, highest, old)
        rescale = self.exp(self.broadcast(b.fsub(old, highest)))
        probabilities = self.exp(b.fsub(scores, self.broadcast(highest)))
        probabilities = b.select(visible, probabilities, ir.Constant(FLOATS, [0.0] * LANES))
        zero = ir.Constant(FLOAT, 0.0)
        sum_ = self.call(f"llvm.vector.reduce.fadd.v{LANES}f32", FLOAT, zero, probabilities)
        past = b.fmul(b.load(weight), b.extract_element(rescale, ir.Constant(INT, 0)))
        b.store(b.fadd(past, sum_), weight)
        b.store(highest, top)
        return probabilities, rescale


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def attend_tokens(context, query, keys, values, scales, begin, end, softcap, top, weight, total, shape):
    """Online softmax (Milakov and Gimelshein 2018) of a group's heads over some tokens of one block.

    Args:
        query: pointer to the heads' queries, times the scale, each in ``lane_order`` and whole vectors.
        keys, values: pointers to the first token's; float32, bfloat16 as uint16, or int8.
        scales: pointers to the first token's scales of keys and of values, which are read for int8.
        begin, end: the visible tokens, counted from the first, which is before ``end``.
        softcap: used if ``shape`` is ``capped``.
        top, weight, total: pointers to each head's running maximum, sum, and weighted values (in ``lane_order``).
        shape: ``"heads,k_dim,v_dim,tokens,capped"``, a literal; at most 16 tokens.
    """
    heads, k_dim, v_dim, tokens, capped = map(int, shape.literal_value.split(","))
    bits = keys.dtype.bitwidth
    signature = types.void(query, keys, values, scales, begin, end, softcap, top, weight, total, shape)
    k_vectors, v_vectors = (len(lane_order(dim, bits)) // LANES for dim in (k_dim, v_dim))

    def generate(context, builder, signature, args):
        query, keys, values, scales, begin, end, softcap, top, weight, total, _ = args
        emit = AttentionEmitter(builder, bits)
        key_scales, value_scales = (builder.extract_value(scales, i) for i in range(2))

        def of_head(pointer, head, numbers):
            return builder.gep(pointer, [ir.Constant(INT, head * numbers)])

        queries = [emit.load_vectors(of_head(query, head, k_vectors * LANES), k_vectors) for head in range(heads)]
        visible, final = emit.visible(begin, end, tokens), builder.sub(end, end.type(1))
        probabilities, totals, zeros = [], [], ir.Constant(FLOATS, [0.0] * LANES)
        for head, scores in enumerate(emit.scores(queries, keys, tokens, k_dim)):
            if bits == 8:
                scores = emit.scaled(scores, key_scales, tokens)
            if capped:
                scores = emit.cap(scores, emit.broadcast(softcap))
            probability, rescale = emit.online_softmax_update(
                scores, visible, of_head(top, head, 1), of_head(weight, head, 1)
            )
            if bits == 8:  # scales past the last visible token may be NaN
                probability = builder.select(visible, emit.scaled(probability, value_scales, tokens), zeros)
            past = emit.load_vectors(of_head(total, head, v_vectors * LANES), v_vectors)
            probabilities.append(probability)
            totals.append([builder.fmul(x, rescale, flags=FAST) for x in past])
        for number in range(tokens):
            # What lies past the last visible token may be NaN, which a probability of 0 does not undo.
            at = builder.select(builder.icmp_signed("<", end.type(number), end), end.type(number), final)
            value = emit.load_token(builder.gep(values, [builder.mul(at, end.type(v_dim))]), 0, v_dim)
            for head in range(heads):
                probability = emit.broadcast_lane(probabilities[head], number)
                totals[head] = [emit.fma(probability, x, y) for x, y in zip(value, totals[head], strict=True)]
        for head in range(heads):
            for i, x in enumerate(totals[head]):
                at = of_head(total, head, v_vectors * LANES)
                place = builder.gep(at, [ir.Constant(INT, LANES * i)])
                builder.store(x, builder.bitcast(place, FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return signature, generate
