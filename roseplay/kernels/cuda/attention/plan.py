"""Divides the contexts of decodes among programs by their lengths, on the GPU, so that a graph's replay divides them anew.

The number of programs is fixed when a graph is captured; which tokens' keys each of them reads is not. All get about as many
tiles of keys, as in FlashInfer's and stream-K's schedules; otherwise one long context would keep a few multiprocessors busy
after all others are idle.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _count_tiles(
    seq_lens, row, num_rows, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Returns the number of tiles with keys that the last token of each row sees."""
    end = tl.load(seq_lens + row, mask=row < num_rows, other=0).to(tl.int32)
    first = tl.zeros_like(end)
    if CHUNK:
        first = tl.maximum(end - 1, 0) // CHUNK * CHUNK
    if WINDOW:
        first = tl.maximum(end - WINDOW, 0)
    return (end + BLOCK_N - 1) // BLOCK_N - first // BLOCK_N


@triton.jit(do_not_specialize=["num_rows", "num_programs"], do_not_specialize_on_alignment=["seq_lens"])
def plan_kernel(
    plan, seq_lens, num_rows, num_programs,
    BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write ``plan``, int32 [3, num_programs]: each program's row, which of the row's programs it is, and how many these are.

    Every row has at least one program, and as many as there are shares in its tiles.
    Programs that are not needed have row -1. Grid: 1.
    """
    i = tl.arange(0, BLOCK)
    total = 0
    for first in range(0, num_rows, BLOCK):
        total += tl.sum(_count_tiles(seq_lens, first + i, num_rows, BLOCK_N, WINDOW, CHUNK), 0)
    more = tl.maximum(num_programs - num_rows, 1)
    share = tl.maximum((total + more - 1) // more, 1)
    begin = 0
    for first in range(0, num_rows, BLOCK):
        row = first + i
        tiles = tl.maximum(_count_tiles(seq_lens, row, num_rows, BLOCK_N, WINDOW, CHUNK), 1)
        count = (tiles + share - 1) // share
        length = (tiles + count - 1) // count
        count = tl.where(row < num_rows, (tiles + length - 1) // length, 0)  # none is left without tiles
        place = plan + begin + tl.cumsum(count, 0) - count
        for part in range(tl.max(count, 0)):
            mask = part < count
            tl.store(place + part, row, mask=mask)
            tl.store(place + num_programs + part, tl.zeros_like(row) + part, mask=mask)
            tl.store(place + 2 * num_programs + part, count, mask=mask)
        begin += tl.sum(count, 0)
    for first in range(begin, num_programs, BLOCK):
        tl.store(plan + first + i, tl.full((BLOCK,), -1, tl.int32), mask=first + i < num_programs)
