"""Draws tokens on a GPU: temperature, top-k, top-p, min-p, noise and argmax in two Triton launches.

The tokens are those of ``roseplay.model.sampler``. A threshold is found without sorting: it is the largest number at which
the tokens from there up are enough in count (top-k) or in probability (top-p), and the interval in which it lies is
narrowed by comparing each logit with several numbers at once, until no two tokens are left in it. Probabilities are added
as integers, so that their sums do not depend on the order.

Nothing of the logits' size is written. Launches depend only on shapes and on whether any request has a threshold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from roseplay.config import SamplingParams
from roseplay.core.request import Request
from roseplay.model.drawing import Drawing
from roseplay.model.gumbel import row_keys
from roseplay.model.sampler import GREEDY_BELOW
from roseplay.model.upload import to_device

# Tokens that a program reads at a time, numbers with which it compares each of them, and its warps.
_ZEROS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}  # the last bits of each of them in float32
_SEARCH = {"BLOCK": 2048, "PIVOTS": 8, "num_warps": 16}
_DRAW = {"BLOCK": 1024, "num_warps": 4}
# With few rows, each is drawn by several programs, of at least this many blocks, for this many of each multiprocessor.
_LEAST_BLOCKS, _PROGRAMS = 4, 8
_INTERPRETED_PROCESSORS = 4
_TEMPERATURE, _TOP_K, _TOP_P, _MIN_P, _FIRST_KEY, _SECOND_KEY, _PARAMS = (tl.constexpr(i) for i in range(7))
# Probabilities relative to the largest are integers in this unit: the sum over 2**18 tokens fits 64 bits.
_UNIT = tl.constexpr(2.0**44)


@triton.jit
def _divisor(temperature):
    return tl.where(temperature > 0, temperature, 1.0).to(tl.float32)


@triton.jit
def _load(row, token, VOCABULARY: tl.constexpr):
    """Returns logits, float32; -inf for tokens beyond the vocabulary."""
    return tl.load(row + token, mask=token < VOCABULARY, other=float("-inf")).to(tl.float32)


@triton.jit
def _order(x, SHIFT: tl.constexpr):
    """Returns integers that compare as the floats do, whose last ``SHIFT`` bits are 0; 0.0 and -0.0 are the same."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) >> SHIFT


@triton.jit
def _at_order(order, SHIFT: tl.constexpr):
    """Returns the float of an order, see ``_order``."""
    bits = ((order << SHIFT) + tl.where(order < 0, (1 << SHIFT) - 1, 0)).to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _amount(x, least, largest, WEIGHTS: tl.constexpr):
    """Returns what tokens count: their probabilities or 1 each; nothing below ``least``. All after temperature."""
    if WEIGHTS:
        amount = (tl.exp(x - largest) * _UNIT).to(tl.int64)
    else:
        amount = tl.full(x.shape, 1, tl.int64)
    return tl.where(x >= least, amount, 0)


@triton.jit
def _cut(row, temperature, largest, low, least, wanted, WEIGHTS: tl.constexpr, SHIFT: tl.constexpr,
         VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, PIVOTS: tl.constexpr):  # fmt: skip
    """Returns the order of the largest logit from which up the tokens amount to ``wanted``: their count or, with
    ``WEIGHTS``, their share of all tokens that are at least ``least`` after temperature. Or a smaller order, with no token
    between. ``low`` is one that all of these tokens reach."""
    number = tl.arange(0, PIVOTS)
    scaled_largest = tl.div_rn(largest, temperature)
    # From ``low`` up it is enough, from ``high`` up it is not: of these, the amounts are as last summed.
    high = _order(largest, SHIFT) + 1
    at_low, at_high = tl.full((), 2**62, tl.int64), tl.full((), 0, tl.int64)
    distance = tl.exp2((5 - number).to(tl.float32)) * temperature  # most thresholds are near the largest
    pivots = tl.where(number == 0, low, tl.maximum(_order(largest - distance, SHIFT), low))
    enough = wanted * 0.0
    while high - low > 1:
        sums = tl.zeros((PIVOTS, BLOCK), tl.int64)
        for begin in range(0, VOCABULARY, BLOCK):
            x = _load(row, begin + tl.arange(0, BLOCK), VOCABULARY)
            amount = _amount(tl.div_rn(x, temperature), least, scaled_largest, WEIGHTS)
            sums += tl.where(_order(x, SHIFT)[None, :] >= pivots[:, None], amount[None, :], 0)
        totals = tl.sum(sums, 1)
        if WEIGHTS:
            enough = tl.where(enough == 0.0, wanted * tl.max(totals, 0).to(tl.float64), enough)
        else:
            enough = wanted
        reached = totals.to(tl.float64) >= enough
        low = tl.maximum(low, tl.max(tl.where(reached, pivots, low), 0))
        high = tl.minimum(high, tl.min(tl.where(reached, high, pivots), 0))
        at_low = tl.minimum(at_low, tl.min(tl.where(reached, totals, at_low), 0))
        at_high = tl.maximum(at_high, tl.max(tl.where(reached, at_high, totals), 0))
        lowest = tl.div_rn(_at_order(low, SHIFT), temperature)
        alone = _amount(lowest, lowest, scaled_largest, WEIGHTS)  # no token between counts less
        done = (at_low.to(tl.float64) == enough) | (2 * (at_low - at_high) < 3 * alone)
        high = tl.where(done, low + 1, high)
        pivots = low + (high - low) * number // PIVOTS
    return low


@triton.jit
def threshold_kernel(
    thresholds, logits, sampling, row_stride,
    SHIFT: tl.constexpr, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, PIVOTS: tl.constexpr,
):  # fmt: skip
    """Write the lowest logit after temperature that a row keeps, float32. Grid: rows; see ``draw_kernel``.

    The last ``SHIFT`` bits of logits in float32 are 0. The search is among logits before temperature, of which there are
    few different ones in half precision; dividing them does not change their order.
    """
    number = tl.program_id(0).to(tl.int64)
    row, of_row = logits + number * row_stride, sampling + number * _PARAMS
    temperature = _divisor(tl.load(of_row + _TEMPERATURE))
    k, p = tl.load(of_row + _TOP_K), tl.load(of_row + _TOP_P)
    seen = tl.full((BLOCK,), float("-inf"), tl.float32)
    for begin in range(0, VOCABULARY, BLOCK):
        seen = tl.maximum(seen, _load(row, begin + tl.arange(0, BLOCK), VOCABULARY))
    largest = tl.max(seen, 0)
    least = tl.full((), float("-inf"), tl.float32)
    low = _order(least, SHIFT)
    lowest = low
    if (largest > float("-inf")) & (largest < float("inf")):
        if k < VOCABULARY:
            low = _cut(row, temperature, largest, low, least, k, False, SHIFT, VOCABULARY, BLOCK, PIVOTS)
            least = tl.div_rn(_at_order(low, SHIFT), temperature)
        if p < 1.0:
            low = tl.maximum(low - 4, lowest)  # smaller logits may be equal after temperature
            low = _cut(row, temperature, largest, low, least, p, True, SHIFT, VOCABULARY, BLOCK, PIVOTS)
            least = tl.maximum(least, tl.div_rn(_at_order(low, SHIFT), temperature))
        least = tl.maximum(least, tl.div_rn(largest, temperature) + tl.load(of_row + _MIN_P).to(tl.float32))
    tl.store(thresholds + number, least)


@triton.jit
def _mixed(x, key):
    """Returns the hash of uint32 numbers; see ``roseplay.model.gumbel``."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= key
    x ^= x >> 15
    x *= 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _gumbel(token, first, second):
    x = _mixed((token + 1).to(tl.uint32), tl.full((), 0, tl.uint32))
    x = _mixed(x ^ first, second) >> 9
    return -tl.log(-tl.log((x.to(tl.float32) + 0.5) * (2.0**-23)))


@triton.jit
def draw_kernel(
    scores, tokens, logits, sampling, thresholds, row_stride, part_len,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, CUT: tl.constexpr,
):  # fmt: skip
    """Write the best score of a part of a row, and its token. Grid: rows, parts of ``part_len`` tokens, whole blocks.

    ``sampling`` [rows, 6], float64, are temperature (0 takes the largest logit), top-k, top-p, the logarithm of min-p and the
    two keys of the noise; ``scores`` and ``tokens`` are [rows, parts], float32 and int64. A part with a NaN or +inf has the
    score +inf and the token -1, one with only -inf the token -1.
    """
    number, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, of_row = logits + number * row_stride, sampling + number * _PARAMS
    asked = tl.load(of_row + _TEMPERATURE)
    temperature = _divisor(asked)
    first = tl.load(of_row + _FIRST_KEY).to(tl.int64).to(tl.uint32)
    second = tl.load(of_row + _SECOND_KEY).to(tl.int64).to(tl.uint32)
    least = tl.load(thresholds + number) if CUT else float("-inf")
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    at = tl.full((BLOCK,), -1, tl.int32)
    unusable = tl.zeros((BLOCK,), tl.int32)
    for begin in range(part * part_len, tl.minimum((part + 1) * part_len, VOCABULARY), BLOCK):
        token = begin + tl.arange(0, BLOCK)
        x = tl.div_rn(_load(row, token, VOCABULARY), temperature)
        unusable |= tl.where(x < float("inf"), 0, 1)  # also of a NaN
        if tl.max(tl.where(x >= least, 1, 0), 0) > 0:  # noise takes longer than reading
            score = x
            if asked > 0:
                score = tl.where(x >= least, x + _gumbel(token, first, second), float("-inf"))
            better = score > best
            best, at = tl.where(better, score, best), tl.where(better, token, at)
    score = tl.max(best, 0)
    token = tl.min(tl.where((best == score) & (at >= 0), at, 2**31 - 1), 0)
    usable = tl.max(unusable, 0) == 0
    place = number * tl.num_programs(1) + part
    tl.store(scores + place, tl.where(usable, score, float("inf")))
    tl.store(tokens + place, tl.where(usable & (score > float("-inf")), token, -1).to(tl.int64))


def fits(logits: torch.Tensor) -> bool:
    """Returns whether ``sample`` takes these logits: dense rows of at most 2**18 tokens, where Triton supports the GPU."""
    dense = logits.stride(1) == 1 and 0 < logits.shape[1] <= 2**18 and logits.dtype in _ZEROS
    return dense and (not logits.is_cuda or torch.cuda.get_device_capability(logits.device) >= (8, 0))


def sample(logits: torch.Tensor, requests: Sequence[Drawing]) -> torch.Tensor:
    """Draw a token for each row of ``logits [rows, vocabulary]``; see ``roseplay.model.sampler.draw``."""
    rows, vocabulary = logits.shape
    packed = [_packed(request, vocabulary) for request in requests]
    sampling = to_device(packed, torch.float64, logits.device)
    cut = any(k < vocabulary or p < 1.0 or min_p > -math.inf for _, k, p, min_p, _, _ in packed)
    blocks = -(-vocabulary // _DRAW["BLOCK"])
    parts = max(1, min(_processors(logits.device) * _PROGRAMS // rows, blocks // _LEAST_BLOCKS))
    part_len = -(-blocks // parts) * _DRAW["BLOCK"]
    parts = -(-vocabulary // part_len)
    scores = torch.empty((rows, parts), dtype=torch.float32, device=logits.device)
    tokens = torch.empty((rows, parts), dtype=torch.int64, device=logits.device)
    thresholds = torch.empty(rows, dtype=torch.float32, device=logits.device) if cut else scores
    sizes: dict[str, Any] = {"VOCABULARY": vocabulary}
    with torch.cuda.device_of(logits):
        if cut:
            threshold_kernel[(rows,)](
                thresholds, logits, sampling, logits.stride(0), SHIFT=_ZEROS[logits.dtype], **sizes, **_SEARCH
            )
        draw_kernel[rows, parts](
            scores, tokens, logits, sampling, thresholds, logits.stride(0), part_len, CUT=cut, **sizes, **_DRAW
        )
    return tokens.gather(1, scores.argmax(-1, keepdim=True))[:, 0]


def warm_up(vocabulary: int, dtypes: Sequence[torch.dtype], device: torch.device) -> None:
    """Compile the kernels for logits of these dtypes, in rows that are aligned and in rows that are not."""
    for dtype in dtypes:
        logits = torch.zeros((2, vocabulary), dtype=dtype, device=device)
        if not fits(logits):
            return
        for top_p in (1.0, 0.9):
            request = Request(0, [0], SamplingParams(temperature=1.0, top_p=top_p))
            for row in (logits[:1], logits[1:], logits):
                sample(row, [request] * len(row))


def _packed(request: Drawing, vocabulary: int) -> tuple[float, ...]:
    """Returns a row's ``sampling``, see ``draw_kernel``; a greedy one has no thresholds."""
    params = request.sampling
    if params.temperature < GREEDY_BELOW:
        return 0.0, float(vocabulary), 1.0, -math.inf, 0.0, 0.0
    top_k = min(params.top_k or vocabulary, vocabulary)
    min_p = float(np.log(np.float32(params.min_p))) if params.min_p > 0.0 else -math.inf
    return params.temperature, float(top_k), params.top_p, min_p, *row_keys(request.seed, request.num_tokens)


@cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return _INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
