"""Cases of paged attention that a backend must compute correctly, on a CPU and on a GPU.

A case is a hand-made paged batch. Every part of the cache that must not be read is filled with NaN: block 0, blocks
named by stale columns of the block tables, and the slots behind each row's tokens. A backend that uses any of these
computes NaN. The reference backend gives the right answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from roseplay.model.attention.interface import AttentionBackend, AttentionParams, make_backend
from roseplay.model.attention.pattern import EVERYTHING, Reach
from roseplay.model.batch import PagedBatch
from roseplay.model.kv_cache import KVCache, LayerShape
from tests.pairwise import pairwise

# For ||found - right|| / ||right||. bfloat16 has 8 bits, and the interpreter truncates instead of rounding.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
_PADDING = 3  # rows and tokens added to a padded case
_STALE = 3  # columns that each block table has beyond its longest row

# For each row: (tokens to compute, tokens in the cache once these are appended).
_DECODES = tuple((1, 1 + 37 * i % 301) for i in range(40))
ROWS: dict[str, tuple[tuple[int, int], ...]] = {
    "one token": ((1, 1),),
    "decodes": ((1, 5), (1, 16), (1, 33)),
    "a long decode": ((1, 700),),
    "a prompt": ((19, 19),),
    "chunks": ((8, 40), (3, 3)),
    "mixed": ((1, 37), (21, 21), (1, 16), (5, 64)),
}
DRAFT_ROWS = {"drafts": ((3, 30), (1, 9), (2, 2))}
LARGE_ROWS = {
    "many decodes": _DECODES,
    "very long decodes": ((1, 3000), (1, 1777)),
    "a long prompt": ((150, 150),),
    "a chunk with a long past": ((130, 1000),),
    "all kinds": (*_DECODES[:9], (200, 200), (64, 512), (1, 700)),
}
_FACTORS: dict[str, Sequence[Any]] = {
    "rows": tuple(ROWS),
    "dims": ((32, 32), (64, 64), (80, 80), (24, 16), (128, 128)),
    "heads": ((2, 2), (6, 2), (4, 1), (20, 1)),
    "reach": (EVERYTHING, Reach(window=1), Reach(window=6), Reach(window=40), Reach(chunk=7), Reach(chunk=32)),
    "dtype": (torch.float32, torch.float16, torch.bfloat16),
    "block_size": (4, 16, 24),
    "softcap": (None, 5.0),
    "sinks": (False, True),
    "padded": (False, True),
    "strided": (False, True),
    "int8": (False, True),
}
_LARGE_FACTORS = {
    **_FACTORS,
    "rows": (*LARGE_ROWS, "mixed"),
    "dims": ((64, 64), (96, 96), (192, 128), (256, 256), (512, 512)),
    "heads": ((12, 12), (9, 3), (32, 8), (71, 1)),
    "reach": (EVERYTHING, Reach(window=6), Reach(window=250), Reach(chunk=96)),
    "block_size": (16, 32),
}


@dataclass(frozen=True, slots=True)
class Case:
    """What varies; see ``AttentionParams`` for the terms."""

    rows: str  # a name in ``ROWS``, ``DRAFT_ROWS`` or ``LARGE_ROWS``
    dims: tuple[int, int]  # ``k_dim`` and ``v_dim``. heads: query heads and KV heads
    heads: tuple[int, int]
    reach: Reach
    dtype: torch.dtype
    block_size: int
    softcap: float | None
    sinks: bool
    padded: bool  # rows without tokens and tokens without a row follow the real ones, as in a CUDA graph's bucket
    strided: bool  # queries, keys and values are views of one tensor, as a fused projection returns them
    latents: bool = False  # values are the first numbers of the keys
    int8: bool = False  # the cache stores codes and scales

    def __str__(self) -> str:
        told = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ", ".join(_say(name, value) for name, value in told if value not in (None, False, EVERYTHING))


def _say(name: str, value: Any) -> str:
    if value is True:
        return name
    if isinstance(value, Reach):
        return f"window {value.window}" if value.window else f"chunk {value.chunk}"
    if name in ("rows", "dtype"):
        return str(value).removeprefix("torch.")
    return f"{name} {'x'.join(map(str, value)) if isinstance(value, tuple) else value}"


# Three factors together, which pairs do not guarantee: split contexts, and what each split must or must not count.
_SPLIT_CASES = (
    Case("a long decode", (24, 16), (6, 2), EVERYTHING, torch.float32, 16, None, True, True, False),
    Case("a long decode", (64, 64), (2, 2), Reach(window=500), torch.float32, 24, 5.0, True, False, True),
    Case("a long decode", (32, 32), (2, 2), Reach(chunk=450), torch.float32, 16, None, False, False, False),
)


def pairwise_cases() -> list[Case]:
    """Small cases that include every pair of values of two factors."""
    return [*(Case(**values) for values in pairwise(_FACTORS)), *_SPLIT_CASES]


def large_cases() -> list[Case]:
    """The same with large heads, long contexts and many rows."""
    return [Case(**values) for values in pairwise(_LARGE_FACTORS)]


def latent_cases() -> list[Case]:
    """Latents, of which one KV head has all query heads: of any size and in each dtype, and once of DeepSeek's size."""
    factors = {
        "rows": tuple(ROWS),
        "dims": ((24, 16), (48, 32), (80, 64)),
        "heads": ((4, 1), (16, 1), (20, 1)),
        "dtype": _FACTORS["dtype"],
        "block_size": (4, 16, 24),
        "padded": (False, True),
        "strided": (False, True),
        "int8": (False, True),
    }
    plain: dict[str, Any] = {"reach": EVERYTHING, "softcap": None, "sinks": False, "latents": True}
    windowed = Case(
        "mixed", (24, 16), (16, 1), Reach(window=6), torch.float32, 16, 5.0, True, False, False, latents=True
    )
    real = Case("decodes", (576, 512), (16, 1), EVERYTHING, torch.bfloat16, 16, None, False, False, False, latents=True)
    return [*(Case(**values, **plain) for values in pairwise(factors)), windowed, real]


def all_cases() -> list[Case]:
    """Thousands: the product of the small factors that decide which code runs, with the other factors cycled."""
    turning = ("dtype", "block_size", "strided", "padded")
    product = itertools.product(*(_FACTORS[name] for name in _FACTORS if name not in turning))
    names = [name for name in _FACTORS if name not in turning]
    cases = []
    for i, values in enumerate(product):
        turn = {name: _FACTORS[name][(i + i // 7) % len(_FACTORS[name])] for name in turning}
        cases.append(Case(**dict(zip(names, values, strict=True)), **turn))
    return cases


@dataclass(slots=True)
class Problem:
    """A case with numbers: a backend's arguments, and the cache it reads."""

    cache: KVCache
    batch: PagedBatch
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    params: AttentionParams

    def attend(self, backend: AttentionBackend, batch: PagedBatch | None = None) -> torch.Tensor:
        """Append and attend, in layer 0."""
        batch = batch or self.batch
        backend.append(0, self.k, self.v, batch)
        return backend.attend(0, self.q, self.k, self.v, batch, self.params)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sizes that a batch is padded to, as in a CUDA graph."""

    num_rows: int
    num_tokens: int
    table_width: int
    num_blocks: int


def make_problem(case: Case, device: torch.device, seed: int = 0, bucket: Bucket | None = None) -> Problem:
    """Random numbers and block tables for a case, depending on the seed. ``bucket`` replaces the batch's own sizes."""
    rng = np.random.default_rng(seed)
    rows = {**ROWS, **DRAFT_ROWS, **LARGE_ROWS}[case.rows]
    bucket = bucket or _own_bucket(rows, case)
    batch = make_batch(rows, case.block_size, bucket, rng, device)
    (heads, kv_heads), (k_dim, v_dim) = case.heads, case.dims
    cache = KVCache(
        {0: LayerShape(kv_heads, k_dim, v_dim, values_in_keys=case.latents)},
        num_blocks=bucket.num_blocks,
        block_size=case.block_size,
        dtype=torch.int8 if case.int8 else case.dtype,
        device=device,
    )
    generator = torch.Generator(device).manual_seed(seed)
    for blocks, scales in zip((cache.keys[0], cache.values[0]), cache.scales.get(0, (None, None)), strict=True):
        (blocks if scales is None else scales).fill_(float("nan"))
        for row, seq_len in enumerate(batch.host_seq_lens.tolist()):
            positions = np.arange(seq_len)
            where = torch.from_numpy(batch.host_block_tables[row, positions // case.block_size]).to(device)
            numbers = torch.randn((seq_len, kv_heads, blocks.shape[-1]), generator=generator, device=device)
            at = where, slice(None), torch.from_numpy(positions % case.block_size).to(device)
            if scales is None:
                blocks[at] = numbers.to(case.dtype)
            else:
                scales[at] = numbers.abs().amax(-1, keepdim=True) / 127
                blocks[at] = (numbers / scales[at]).to(torch.int8)

    widths = (heads * k_dim, kv_heads * k_dim, kv_heads * v_dim)
    fused = torch.randn((batch.num_tokens, sum(widths)), generator=generator, device=device).to(case.dtype)
    q, k, v = fused.split(widths, 1) if case.strided else (part.contiguous() for part in fused.split(widths, 1))
    sinks = torch.randn(heads, generator=generator, device=device).to(case.dtype) if case.sinks else None
    k, v = k.unflatten(1, (kv_heads, k_dim)), v.unflatten(1, (kv_heads, v_dim))
    return Problem(
        cache,
        batch,
        q.unflatten(1, (heads, k_dim)),
        k,
        k[..., :v_dim] if case.latents else v,
        AttentionParams(k_dim**-0.5, case.reach, case.softcap, sinks),
    )


def _own_bucket(rows: Sequence[tuple[int, int]], case: Case) -> Bucket:
    padding = _PADDING if case.padded else 0
    used = [-(-seq_len // case.block_size) for _, seq_len in rows]
    num_tokens = sum(count for count, _ in rows)
    return Bucket(len(rows) + padding, num_tokens + padding, max(used) + _STALE, sum(used) + 2)


def make_batch(
    rows: Sequence[tuple[int, int]], block_size: int, bucket: Bucket, rng: np.random.Generator, device: torch.device
) -> PagedBatch:
    """A batch with shuffled blocks, in which stale columns of the block tables name a block that no row owns.

    Padding rows have no tokens; padding tokens have slot -1. Raises ``ValueError`` when the rows do not fit the bucket.
    """
    counts = np.array([count for count, _ in rows], np.int64)
    seq_lens = np.array([seq_len for _, seq_len in rows], np.int64)
    used = -(-seq_lens // block_size)
    spare_rows, spare_tokens = bucket.num_rows - len(rows), bucket.num_tokens - int(counts.sum())
    if min(spare_rows, spare_tokens, bucket.table_width - used.max(), bucket.num_blocks - 2 - used.sum()) < 0:
        raise ValueError(f"the rows {rows} do not fit {bucket}")
    order = rng.permutation(bucket.num_blocks - 1)[: used.sum() + 1] + 1
    tables = np.full((bucket.num_rows, bucket.table_width), order[-1], np.int64)
    tables[: len(rows)][np.arange(bucket.table_width) < used[:, None]] = order[:-1]
    row_of_token = np.repeat(np.arange(len(rows)), counts)
    positions = np.concatenate([np.arange(seq_len - count, seq_len) for count, seq_len in rows])
    slots = tables[row_of_token, positions // block_size] * block_size + positions % block_size
    ends = np.cumsum(counts)
    host: dict[str, Any] = {
        "cu_seqlens_q": np.concatenate([[0], ends, np.full(spare_rows, ends[-1])]),
        "seq_lens": np.concatenate([seq_lens, np.zeros(spare_rows, np.int64)]),
        "block_tables": tables,
    }
    device_only: dict[str, Any] = {
        "input_ids": np.zeros(bucket.num_tokens, np.int64),
        "positions": np.concatenate([positions, np.zeros(spare_tokens, np.int64)]),
        "slot_mapping": np.concatenate([slots, np.full(spare_tokens, -1)]),
        "logits_rows": ends - 1,
    }
    tensors: dict[str, Any] = {
        name: torch.from_numpy(array).to(device) for name, array in {**host, **device_only}.items()
    }
    return PagedBatch(**tensors, **{f"host_{name}": array for name, array in host.items()})


def right_answer(problem: Problem) -> torch.Tensor:
    """The reference backend's answer, zero for tokens without a row. This appends to the cache as well."""
    batch = problem.batch
    real = replace(batch, slot_mapping=batch.slot_mapping.clamp(min=0), memo={})
    out = problem.attend(make_backend("reference", problem.cache), real)
    out[int(batch.host_cu_seqlens_q[-1]) :] = 0
    return out


def relative_error(found: torch.Tensor, right: torch.Tensor) -> float:
    """``||found - right|| / ||right||``, infinite if ``found`` contains a value that is not finite."""
    if found.shape != right.shape or not bool(found.isfinite().all()):
        return float("inf")
    return float((found.double() - right.double()).norm() / right.double().norm().clamp(min=1e-12))
