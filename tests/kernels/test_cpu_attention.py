"""Attention to cached blocks on a CPU, of single tokens and of prompts, against the same written out in float64."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from roseplay.kernels.cpu import tape
from roseplay.kernels.cpu.attention import calls
from roseplay.kernels.cpu.attention.backend import CPUBackend
from roseplay.kernels.cpu.attention.plan import SHORT_QUERIES, Decodes, Plan
from roseplay.model.attention.gather import GatherBackend
from roseplay.model.attention.interface import AttentionParams
from roseplay.model.attention.pattern import EVERYTHING, Reach
from roseplay.model.kv_cache import KVCache, LayerShape
from tests.model.harness import torch_threads

prompt_loops = pytest.importorskip("roseplay.kernels.cpu.attention.prompt_loops", reason="Numba is not installed")

# One token, a block of four minus one, a block, a block plus one, several blocks.
LENGTHS = (1, 3, 4, 5, 16, 17, 40)


class Rows:
    """Rows of ``counts`` queries with ``pasts`` tokens before them, in blocks in any order.

    Numbers outside the rows' tokens are NaN, as a request that overflowed may have left them.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        counts: list[int],
        pasts: list[int],
        heads: tuple[int, int] = (9, 3),
        dims: tuple[int, int] = (32, 32),
        block_size: int = 16,
        *,
        int8: bool = False,
    ) -> None:
        generator = torch.Generator().manual_seed(sum(counts) + dims[0])
        self.counts, self.seq_lens = np.array(counts), np.array(counts) + np.array(pasts)
        blocks = -(-self.seq_lens // block_size)
        order = iter(torch.randperm(int(blocks.sum()), generator=generator).add(1).tolist())
        self.tables = np.zeros((len(counts), int(blocks.max()) + 2), np.int64)
        shape = int(blocks.sum()) + 1, heads[1], block_size
        self.keys, self.values = (torch.full((*shape, dim), math.nan, dtype=dtype) for dim in dims)
        for row, length in enumerate(self.seq_lens):
            for column in range(blocks[row]):
                block = self.tables[row, column] = next(order)
                filled = min(block_size, length - column * block_size)
                for cache, dim in ((self.keys, dims[0]), (self.values, dims[1])):
                    cache[block, :, :filled] = torch.randn(heads[1], filled, dim, generator=generator).to(dtype)
        self.codes: Any = None
        self.scales: Any = None
        if int8:
            self.scales = [cache.abs().amax(-1, keepdim=True).float() / 127 for cache in (self.keys, self.values)]
            self.codes = [(x / y).to(torch.int8) for x, y in zip((self.keys, self.values), self.scales, strict=True)]
            self.keys, self.values = (x * y for x, y in zip(self.codes, self.scales, strict=True))
        self.q = torch.randn(int(self.counts.sum()), heads[0], dims[0], generator=generator).to(dtype)
        self.starts = np.concatenate([[0], np.cumsum(counts)])

    @property
    def stored(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.codes or (self.keys, self.values)

    @property
    def plan(self) -> Plan:
        return Plan(self.starts, self.seq_lens, self.tables)

    def attended(self, reach: Reach = EVERYTHING, *, rows: slice = slice(None), **settings: Any) -> torch.Tensor:
        """By the kernel of single tokens: for ``rows`` of these."""
        every = self.plan.decodes(reach)
        assert every is not None
        arrays = (array[rows] for array in (every.tables, every.seq_lens, every.firsts))
        tables, seq_lens, firsts = arrays
        q = self.q[rows]
        decodes = Decodes(np.arange(len(q)), tables, np.array([len(q)]), seq_lens, firsts)
        out = q.new_empty((*q.shape[:2], self.values.shape[-1]))
        params = AttentionParams(q.shape[-1] ** -0.5, reach, **settings)
        calls.attend_in_place(q, out, *self.stored, decodes, params, self.scales)
        return out

    def attended_in_spans(self, tiled: bool | None = None, *, every: bool = False, **settings: Any) -> torch.Tensor:
        """By the kernel of prompts; 7 where it does not write."""
        span = calls.prompt_span(self.q, self.stored[0])
        assert span is not None
        spans = self.plan.spans(span, every=every)
        out = self.q.new_full((*self.q.shape[:2], self.values.shape[-1]), 7.0)
        params = AttentionParams(self.q.shape[-1] ** -0.5, **settings)
        calls.attend_prompts(self.q, out, *self.stored, spans, params, self.scales, tiled=tiled)
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


# -- single tokens


def decodes(dtype: torch.dtype, heads: tuple[int, int], dims: tuple[int, int], block_size: int = 4) -> Rows:
    """Rows of one query, float32 whatever the cache holds."""
    int8 = dtype == torch.int8
    dtype = torch.float32 if int8 else dtype
    made = Rows(dtype, [1] * len(LENGTHS), [length - 1 for length in LENGTHS], heads, dims, block_size, int8=int8)
    made.q = made.q.float()
    return made


@pytest.mark.parametrize(
    ("dtype", "heads", "dims", "block_size", "window", "softcap", "sinks"),
    [  # few, as each has to be compiled
        (torch.float32, (4, 4), (8, 8), 4, None, None, False),
        (torch.float32, (9, 3), (32, 32), 4, None, None, False),
        (torch.float32, (8, 1), (16, 16), 4, 6, None, False),
        (torch.float32, (4, 2), (64, 64), 4, 1, None, True),
        (torch.float32, (2, 2), (24, 12), 4, 7, 3.0, True),
        (torch.bfloat16, (9, 3), (32, 32), 4, None, None, False),
        (torch.bfloat16, (4, 2), (80, 80), 4, None, 5.0, False),
        (torch.bfloat16, (4, 2), (64, 64), 4, 1, None, True),
        (torch.bfloat16, (2, 2), (24, 12), 4, 7, 3.0, True),
        # 16 tokens are read at a time, or as many as divide the block size
        (torch.bfloat16, (9, 3), (32, 32), 3, 9, None, False),
        (torch.bfloat16, (9, 3), (32, 32), 24, 9, None, False),
        (torch.bfloat16, (9, 3), (32, 32), 32, 9, None, False),
        (torch.int8, (9, 3), (32, 32), 16, None, None, False),
        (torch.int8, (2, 2), (24, 12), 3, 7, 3.0, True),
    ],
)
def test_single_tokens_are_as_spelled_out(dtype, heads, dims, block_size, window, softcap, sinks) -> None:
    given = decodes(dtype, heads, dims, block_size)
    asked: dict[str, Any] = {"reach": Reach(window=window) if window else EVERYTHING, "softcap": softcap}
    asked["sinks"] = torch.linspace(-2, 3, heads[0]).to(given.q.dtype) if sinks else None
    torch.testing.assert_close(given.attended(**asked), given.spelled_out(**asked), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("threads", "sinks"), [(2, False), (3, True)])
@pytest.mark.parametrize(("heads", "dim"), [((9, 3), 32), ((8, 1), 16), ((4, 2), 64)])
def test_one_request_s_blocks_are_shared_by_threads(
    heads: tuple[int, int], dim: int, threads: int, sinks: bool
) -> None:
    """Also of a request with fewer blocks than threads, and when the same call is repeated."""
    given = decodes(torch.float32, heads, (dim, dim))
    asked = {"reach": Reach(window=30), "sinks": torch.linspace(-2, 3, heads[0]) if sinks else None}
    expected = given.spelled_out(**asked)
    with torch_threads(threads):
        for row in range(len(LENGTHS)):
            recorded = tape.Tape()
            with tape.record(recorded):
                found = given.attended(rows=slice(row, row + 1), **asked)
            assert recorded.calls[0].pieces == threads
            for _ in range(2):
                torch.testing.assert_close(found[0], expected[row], rtol=1e-4, atol=1e-4)
                found.zero_()
                recorded.replay()


def test_bfloat16_answers_are_the_nearest() -> None:
    given = decodes(torch.bfloat16, (4, 2), (64, 64))
    given.q = given.q.bfloat16().float()
    exact = given.attended()
    given.q = given.q.bfloat16()
    assert torch.equal(given.attended(), exact.bfloat16())


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("part", ["keys", "values"])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_what_is_not_finite_spoils_the_rows_that_see_it(part: str, number: float, softcap: float | None) -> None:
    """Whichever token of a row it is; a softcap makes an infinite score the largest that there is."""
    for token in (0, 15, 16, 39):
        given = decodes(torch.float32, (2, 2), (24, 12))
        blocks, row = getattr(given, part), len(LENGTHS) - 1
        blocks[given.tables[row, token // 4], :, token % 4, 5] = number
        given.q = given.q.abs()
        found = given.attended(softcap=softcap).isfinite().all(-1)
        assert found[:row].all() and found[row].any() == (softcap is not None and (part, number) == ("keys", math.inf))


def test_scores_far_from_zero_do_not_overflow() -> None:
    given = decodes(torch.float32, (2, 2), (8, 8))
    given.q *= 1e4
    assert torch.isfinite(given.attended()).all()


def test_two_threads_may_call_at_once() -> None:
    given = decodes(torch.float32, (4, 2), (64, 64))
    expected = given.attended()
    wrong: list[bool] = []

    def call() -> None:
        wrong.extend(not torch.equal(given.attended(), expected) for _ in range(50))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(wrong) == 100 and not any(wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("int8", [False, True])
def test_appending_is_the_same_as_torchs(dtype: torch.dtype, int8: bool) -> None:
    """Of keys that are not contiguous, some of them NaN or infinite."""
    shapes, sizes = {0: LayerShape(3, 20, 8)}, {"num_blocks": 6, "block_size": 4}
    stored = torch.int8 if int8 else dtype
    cache, other = (KVCache(shapes, **sizes, dtype=stored, device=torch.device("cpu")) for _ in range(2))
    k, v = (torch.randn(3, 7, dim).to(dtype).transpose(0, 1) for dim in (20, 8))
    k[1, 2, 3], k[2, 0, 0], v[6, 1, 7] = math.nan, math.inf, -math.inf
    v[3, 1] = 0
    slots = torch.tensor([4, 5, 6, 7, 17, 23, 1])
    batch: Any = SimpleNamespace(slot_mapping=slots, batched_append=True, memo={})
    GatherBackend(cache).append(0, k, v, batch)
    CPUBackend(other).append(0, k, v, batch)
    found, expected = ([x.keys[0].float(), x.values[0].float()] for x in (other, cache))
    if int8:
        found, expected = (
            [codes * scales for codes, scales in zip(numbers, x.scales[0], strict=True)]
            for numbers, x in ((found, other), (expected, cache))
        )
    # A number halfway between two codes may get either one.
    torch.testing.assert_close(found, expected, rtol=0, atol=0.03 if int8 else 0, equal_nan=True)
    keys, values = found
    assert keys[1].isnan().any() and not keys[5].isnan().any() and keys[5].any() and not values[1, 1, 3].any()
    if not int8:
        assert (keys.isnan().sum(), keys.isinf().sum(), values.isinf().sum()) == (1, 1, 1)


# -- prompts


@pytest.fixture(params=[(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)], ids=str)
def kind(request: pytest.FixtureRequest) -> tuple[torch.dtype, bool]:
    """Each dtype; bfloat16 with vector products and with AMX's tiles."""
    dtype, tiled = request.param
    if not prompt_loops.fits(dtype, 2) or (tiled and not prompt_loops.by_tiles(dtype)):
        pytest.skip("this CPU has no such instructions")
    return dtype, tiled


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = 1e-2 if found.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


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
def test_prompts_are_as_spelled_out(kind, heads, dims, block_size, reach, softcap, sinks) -> None:
    """With and without earlier tokens, in one span and in several; with a softcap, of a cache in int8."""
    dtype, tiled = kind
    prompts = Rows(dtype, [33, 140, 50], [0, 130, 5], heads, dims, block_size, int8=softcap is not None)
    asked: dict[str, Any] = {"reach": reach, "softcap": softcap}
    asked["sinks"] = torch.linspace(-2, 30, heads[0]).to(dtype) if sinks else None
    close(prompts.attended_in_spans(tiled, **asked), prompts.spelled_out(**asked))


def test_a_query_sees_the_same_in_any_chunk_and_with_any_number_of_threads(kind: tuple[torch.dtype, bool]) -> None:
    """Bit for bit: the answer must not depend on how the scheduler splits a prompt."""
    dtype, tiled = kind
    whole, part = Rows(dtype, [300], [0]), Rows(dtype, [300], [0])
    with torch_threads(2):
        expected = whole.attended_in_spans(tiled, reach=Reach(window=170))
    part.q, part.counts, part.starts = part.q[217:], part.counts - 217, np.array([0, 83])
    assert torch.equal(part.attended_in_spans(tiled, reach=Reach(window=170)), expected[217:])


def test_short_rows_are_left_to_the_decodes_kernel(kind: tuple[torch.dtype, bool]) -> None:
    dtype, tiled = kind
    prompts = Rows(dtype, [SHORT_QUERIES, SHORT_QUERIES + 1, 1], [3, 0, 9])
    found, expected = prompts.attended_in_spans(tiled), prompts.spelled_out()
    begin, end = prompts.starts[1:3]
    close(found[begin:end], expected[begin:end])
    assert (found[:begin] == 7).all() and (found[end:] == 7).all()


def test_latents_of_which_one_head_has_all_queries(kind: tuple[torch.dtype, bool]) -> None:
    """Decodes as well as prompts, and with more threads than KV heads: the same, bit for bit."""
    dtype, tiled = kind
    latents = Rows(dtype, [1, 40, 3], [300, 0, 9], (16, 1), (48, 32))
    latents.values = latents.keys[..., :32]
    found = []
    for threads in (1, 2) if dtype == torch.float32 else (1,):
        with torch_threads(threads):
            found.append(latents.attended_in_spans(tiled, every=True))
    close(found[0], latents.spelled_out())
    assert torch.equal(found[0], found[-1])


def test_queries_that_do_not_lie_in_one_piece_and_large_scores(kind: tuple[torch.dtype, bool]) -> None:
    dtype, tiled = kind
    prompts = Rows(dtype, [40], [0], (3, 1))
    together = torch.stack([prompts.q * 30, prompts.q], 1)
    prompts.q = together[:, 0]
    found = prompts.attended_in_spans(tiled)
    assert not prompts.q.is_contiguous() and torch.isfinite(found).all()
    close(found, prompts.spelled_out())


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("part", ["keys", "values"])
def test_what_is_not_finite_spoils_a_prompt_from_there_on(
    kind: tuple[torch.dtype, bool], part: str, number: float
) -> None:
    """And nothing of other prompts; queries before it may share its product."""
    dtype, tiled = kind
    prompts = Rows(dtype, [40, 150], [0, 0], (2, 2), (24, 12), 4)
    prompts.q = prompts.q.abs()
    getattr(prompts, part)[prompts.tables[1, 35], :, 1, 5] = number
    found = prompts.attended_in_spans(tiled).isfinite().all(-1)
    assert found[:40].all() and not found[40 + 141 :].any()


def test_what_the_kernel_of_prompts_does_not_take() -> None:
    keys = torch.zeros(1, 2, 4, 7)
    assert calls.prompt_span(torch.zeros(1, 4, 7, dtype=torch.float64), keys) is None
    assert calls.prompt_span(torch.zeros(1, 4, 7).bfloat16(), keys.bfloat16()) is None  # an odd size
