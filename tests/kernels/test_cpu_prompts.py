"""Prompt attention with our own products, against the same computation written out in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from roseplay.kernels.cpu.attention import calls
from roseplay.kernels.cpu.attention.plan import SHORT_QUERIES, Plan
from roseplay.model.attention import EVERYTHING, AttentionParams, Reach

prompt_loops = pytest.importorskip("roseplay.kernels.cpu.attention.prompt_loops", reason="Numba is not installed")


@pytest.fixture(params=[(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)], ids=str)
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """Each dtype; bfloat16 with vector products and with AMX's tiles."""
    found, tiled = request.param
    if not prompt_loops.fits(found, 2) or (tiled and not prompt_loops.by_tiles(found)):
        pytest.skip("this CPU has no such instructions")
    monkeypatch.setattr(prompt_loops, "by_tiles", lambda dtype: tiled)
    return found  # type: ignore[no-any-return]


class Prompts:
    """Rows of ``counts`` queries with ``pasts`` tokens before them, in blocks in any order.

    Numbers outside the rows' tokens are so large that using them would be noticed.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        counts: list[int],
        pasts: list[int],
        heads: tuple[int, int] = (4, 2),
        dims: tuple[int, int] = (32, 32),
        block_size: int = 4,
    ) -> None:
        generator = torch.Generator().manual_seed(sum(counts) + dims[0])
        self.counts, self.seq_lens = np.array(counts), np.array(counts) + np.array(pasts)
        blocks = -(-self.seq_lens // block_size)
        order = iter(torch.randperm(int(blocks.sum()), generator=generator).add(1).tolist())
        self.tables = np.zeros((len(counts), int(blocks.max()) + 2), np.int64)
        shape = int(blocks.sum()) + 1, heads[1], block_size
        self.keys, self.values = (torch.full((*shape, dim), 1e4, dtype=dtype) for dim in dims)
        for row, length in enumerate(self.seq_lens):
            for column in range(blocks[row]):
                block = self.tables[row, column] = next(order)
                filled = min(block_size, length - column * block_size)
                for cache, dim in ((self.keys, dims[0]), (self.values, dims[1])):
                    cache[block, :, :filled] = torch.randn(heads[1], filled, dim, generator=generator).to(dtype)
        self.q = torch.randn(int(self.counts.sum()), heads[0], dims[0], generator=generator).to(dtype)
        self.starts = np.concatenate([[0], np.cumsum(counts)])

    def attended(self, *, every: bool = False, **settings: Any) -> torch.Tensor:
        span = calls.prompt_span(self.q, self.keys)
        assert span is not None
        spans = Plan(self.starts, self.seq_lens, self.tables).spans(span, every=every)
        out = self.q.new_full((*self.q.shape[:2], self.values.shape[-1]), 7.0)
        params = AttentionParams(self.q.shape[-1] ** -0.5, **settings)
        calls.attend_prompts(self.q, out, self.keys, self.values, spans, params)
        return out

    def spelled_out(
        self, reach: Reach = EVERYTHING, softcap: float | None = None, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        found = []
        group = self.q.shape[1] // self.keys.shape[1]
        for row, (count, length) in enumerate(zip(self.counts, self.seq_lens, strict=True)):
            k, v = (
                torch.cat(list(cache[self.tables[row]]), 1)[:, :length].double().repeat_interleave(group, 0)
                for cache in (self.keys, self.values)
            )
            q = self.q[self.starts[row] : self.starts[row + 1]].transpose(0, 1).double()
            scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
            if softcap:
                scores = torch.tanh(scores / softcap) * softcap
            query, key = torch.arange(length - count, length)[:, None], torch.arange(length)
            hidden = (key > query) | (key <= query - (reach.window or length))
            if reach.chunk:
                hidden |= key // reach.chunk != query // reach.chunk
            scores = scores.masked_fill(hidden, -torch.inf)
            if sinks is not None:
                scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, count, 1)], -1)
            found.append((scores.softmax(-1)[..., :length] @ v).transpose(0, 1))
        return torch.cat(found).to(self.q.dtype)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    narrow = found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=1e-2 if narrow else 1e-5, atol=1e-2 if narrow else 1e-5)


@pytest.mark.parametrize(
    ("heads", "dims", "block_size", "reach", "softcap", "sinks"),
    [
        ((4, 4), (8, 8), 4, EVERYTHING, None, False),
        ((9, 3), (32, 32), 16, Reach(window=150), None, False),
        ((9, 3), (32, 32), 16, Reach(chunk=100), None, False),
        ((8, 1), (64, 64), 24, Reach(window=6), None, True),
        ((2, 2), (24, 12), 3, Reach(window=1), 3.0, True),
        ((2, 2), (24, 12), 3, Reach(chunk=7), 3.0, True),
    ],
)
def test_it_is_the_same_as_spelled_out(
    dtype: torch.dtype,
    heads: tuple[int, int],
    dims: tuple[int, int],
    block_size: int,
    reach: Reach,
    softcap: float | None,
    sinks: bool,
) -> None:
    """With and without earlier tokens, in one span and in several."""
    prompts = Prompts(dtype, [33, 140, 50], [0, 130, 5], heads, dims, block_size)
    asked: dict[str, Any] = {"reach": reach, "softcap": softcap}
    asked["sinks"] = torch.linspace(-2, 30, heads[0]).to(dtype) if sinks else None
    close(prompts.attended(**asked), prompts.spelled_out(**asked))


def test_a_query_sees_the_same_in_any_chunk_and_with_any_number_of_threads(dtype: torch.dtype) -> None:
    """Bit for bit: the answer must not depend on how the scheduler splits a prompt."""
    whole, part = Prompts(dtype, [300], [0]), Prompts(dtype, [300], [0])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        expected = whole.attended(reach=Reach(window=170))
    finally:
        torch.set_num_threads(before)
    part.q, part.counts, part.starts = part.q[217:], part.counts - 217, np.array([0, 83])
    assert torch.equal(part.attended(reach=Reach(window=170)), expected[217:])


def test_short_rows_are_left_to_the_decodes_kernel(dtype: torch.dtype) -> None:
    prompts = Prompts(dtype, [SHORT_QUERIES, SHORT_QUERIES + 1, 1], [3, 0, 9])
    found, expected = prompts.attended(), prompts.spelled_out()
    begin, end = prompts.starts[1:3]
    close(found[begin:end], expected[begin:end])
    assert (found[:begin] == 7).all() and (found[end:] == 7).all()


def test_latents_of_which_one_head_has_all_queries(dtype: torch.dtype) -> None:
    """Decodes as well as prompts, and with more threads than KV heads: the same, bit for bit."""
    latents = Prompts(dtype, [1, 40, 3], [300, 0, 9], (16, 1), (48, 32))
    latents.values = latents.keys[..., :32]
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(latents.attended(every=True))
    finally:
        torch.set_num_threads(before)
    close(found[0], latents.spelled_out())
    assert torch.equal(*found)


def test_queries_that_do_not_lie_in_one_piece_and_large_scores(dtype: torch.dtype) -> None:
    prompts = Prompts(dtype, [40], [0], (4, 4))
    together = torch.stack([prompts.q * 300, prompts.q], 1)
    prompts.q = together[:, 0]
    found = prompts.attended()
    assert not prompts.q.is_contiguous() and torch.isfinite(found).all()
    close(found, prompts.spelled_out())


def test_what_it_does_not_take() -> None:
    keys = torch.zeros(1, 2, 4, 7)
    assert calls.prompt_span(torch.zeros(1, 4, 7, dtype=torch.float64), keys) is None
    assert calls.prompt_span(torch.zeros(1, 4, 7).bfloat16(), keys.bfloat16()) is None  # an odd size
