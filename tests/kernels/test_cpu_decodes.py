"""Decode attention in place, against the same computation written out in float64."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from roseplay.kernels.cpu import tape
from roseplay.kernels.cpu.attention import calls
from roseplay.kernels.cpu.attention.plan import Decodes
from roseplay.model.attention import AttentionParams
from roseplay.model.attention.append import append_paged
from roseplay.model.kv_cache import KVCache, LayerShape

pytestmark = pytest.mark.skipif(
    not calls.available(torch.float32, torch.device("cpu")), reason="Numba is not installed"
)

BLOCK_SIZE, BLOCKS = 4, 40
SEQ_LENS = (1, 3, 4, 5, 16, 17, 40)  # one token, a block minus one, a block, a block plus one, several blocks


def case(
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    k_dim: int,
    v_dim: int,
    window: int | None,
    block_size: int = BLOCK_SIZE,
) -> dict[str, Any]:
    """Arguments of ``attended``. Numbers outside the rows' tokens are so large that using them would be noticed."""
    generator = torch.Generator().manual_seed(heads * 100 + k_dim)
    seq_lens = np.array(SEQ_LENS)
    keys = torch.full((BLOCKS, kv_heads, block_size, k_dim), 1e4, dtype=dtype)
    values = torch.full((BLOCKS, kv_heads, block_size, v_dim), 1e4, dtype=dtype)
    tables = np.zeros((len(SEQ_LENS), 14), np.int64)
    order = iter(torch.randperm(BLOCKS - 1, generator=generator).add(1).tolist())
    for row, length in enumerate(SEQ_LENS):
        for column in range(-(-length // block_size)):
            block = tables[row, column] = next(order)
            filled = min(block_size, length - column * block_size)
            keys[block, :, :filled] = torch.randn(kv_heads, filled, k_dim, generator=generator).to(dtype)
            values[block, :, :filled] = torch.randn(kv_heads, filled, v_dim, generator=generator).to(dtype)
    return {
        "q": torch.randn(len(SEQ_LENS), heads, k_dim, generator=generator),
        "keys": keys,
        "values": values,
        "tables": tables,
        "seq_lens": seq_lens,
        "firsts": np.maximum(0, seq_lens - window) if window else np.zeros_like(seq_lens),
        "scaling": k_dim**-0.5,
        "softcap": None,
        "sinks": None,
    }


def attended(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **more: Any) -> torch.Tensor:
    tables, *lengths = (more.pop(name) for name in ("tables", "seq_lens", "firsts"))
    rows = Decodes(np.arange(len(q)), tables, np.array([len(q)]), *lengths)
    out = torch.empty(*q.shape[:2], values.shape[-1], dtype=q.dtype)
    calls.attend_in_place(q, out, keys, values, rows, AttentionParams(**more))
    return out


def spelled_out(c: dict[str, Any]) -> torch.Tensor:
    rows = []
    group = c["q"].shape[1] // c["keys"].shape[1]
    for row, (first, last) in enumerate(zip(c["firsts"], c["seq_lens"], strict=True)):
        size = c["keys"].shape[2]
        places = [(c["tables"][row, t // size], t % size) for t in range(first, last)]
        k, v = (torch.stack([x[b, :, o] for b, o in places], 1).double() for x in (c["keys"], c["values"]))
        scores = torch.einsum("hd,htd->ht", c["q"][row].double(), k.repeat_interleave(group, 0)) * c["scaling"]
        if c["softcap"]:
            scores = torch.tanh(scores / c["softcap"]) * c["softcap"]
        if c["sinks"] is not None:
            scores = torch.cat([scores, c["sinks"].double()[:, None]], 1)
        weights = scores.softmax(-1)[:, : last - first]
        rows.append(torch.einsum("ht,htd->hd", weights, v.repeat_interleave(group, 0)))
    return torch.stack(rows).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "k_dim", "v_dim", "window", "softcap", "sinks"),
    [
        (4, 4, 8, 8, None, None, False),
        (9, 3, 32, 32, None, None, False),
        (8, 1, 16, 16, 6, None, False),
        (4, 2, 80, 80, None, 5.0, False),
        (4, 2, 64, 64, 1, None, True),
        (2, 2, 24, 12, 7, 3.0, True),
    ],
)
def test_it_is_the_same_as_spelled_out(
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    k_dim: int,
    v_dim: int,
    window: int | None,
    softcap: float | None,
    sinks: bool,
) -> None:
    given = case(dtype, heads, kv_heads, k_dim, v_dim, window)
    given["softcap"] = softcap
    given["sinks"] = torch.linspace(-2, 3, heads).to(dtype) if sinks else None
    found = attended(**given)
    torch.testing.assert_close(found, spelled_out(given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (8, 1), (4, 2)])
@pytest.mark.parametrize("sinks", [False, True])
def test_one_request_s_blocks_are_shared_by_threads(
    heads: int, kv_heads: int, threads: int, sinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a request with fewer blocks than threads, and when the same call is repeated."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    given = case(torch.float32, heads, kv_heads, 32, 32, 30)
    given["sinks"] = torch.linspace(-2, 3, heads) if sinks else None
    expected, works = spelled_out(given), []
    for row in range(len(SEQ_LENS)):
        alone = {**given, **{name: given[name][row : row + 1] for name in ("q", "tables", "seq_lens", "firsts")}}
        recorded = tape.Tape()
        with tape.record(recorded):
            found = attended(**alone)
        works.append(recorded.calls[0].pieces)
        for _ in range(3):
            torch.testing.assert_close(found[0], expected[row], rtol=1e-4, atol=1e-4)
            found.zero_()
            recorded.replay()
    assert set(works) == {threads}


@pytest.mark.parametrize("block_size", [3, 8, 24, 32])
def test_any_block_size(block_size: int) -> None:
    """16 tokens are read at a time, or as many as divide the block size."""
    given = case(torch.bfloat16, 4, 2, 32, 32, 9, block_size)
    torch.testing.assert_close(attended(**given), spelled_out(given), rtol=1e-4, atol=1e-4)


def test_bfloat16_answers_are_the_nearest() -> None:
    given = case(torch.bfloat16, 4, 2, 64, 64, None)
    exact = attended(**given)
    given["q"] = given["q"].bfloat16()
    rounded = attended(**{**given, "q": given["q"].float()}).bfloat16()
    assert torch.equal(attended(**given), rounded)
    torch.testing.assert_close(rounded.float(), exact, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_appending_is_the_same_as_torchs(dtype: torch.dtype) -> None:
    """Of keys that are not contiguous, some of them NaN or infinite."""
    cache = KVCache({0: LayerShape(3, 20, 8)}, num_blocks=6, block_size=4, dtype=dtype, device=torch.device("cpu"))
    k, v = (torch.randn(3, 7, dim).to(dtype).transpose(0, 1) for dim in (20, 8))
    k[1, 2, 3], k[2, 0, 0], v[6, 1, 7] = math.nan, math.inf, -math.inf
    slots = torch.tensor([4, 5, 6, 7, 17, 23, 1])
    append_paged(cache, 0, k, v, SimpleNamespace(slot_mapping=slots, batched_append=True, memo={}))  # type: ignore[arg-type]
    keys, values = torch.zeros_like(cache.keys[0]), torch.zeros_like(cache.values[0])
    calls.append_in_place(k, keys, slots)
    calls.append_in_place(v, values, slots)
    assert keys.any() and torch.equal(keys, cache.keys[0]) and torch.equal(values, cache.values[0])


def test_two_threads_may_call_at_once() -> None:
    given = case(torch.float32, 4, 2, 16, 16, None)
    expected = attended(**given)
    wrong: list[bool] = []

    def call() -> None:
        wrong.extend(not torch.equal(attended(**given), expected) for _ in range(50))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(wrong) == 100 and not any(wrong)


def test_scores_far_from_zero_do_not_overflow() -> None:
    given = case(torch.float32, 2, 2, 8, 8, None)
    given["q"] *= 1e4
    assert torch.isfinite(attended(**given)).all()


def test_torch_keeps_the_number_of_threads_it_was_given() -> None:
    """Runs in its own process, because only Numba's first call starts threads."""
    script = (
        "import numpy as np, torch\n"
        "from roseplay.kernels.cpu.attention.calls import attend_in_place\n"
        "from roseplay.kernels.cpu.attention.plan import Decodes\n"
        "from roseplay.model.attention import AttentionParams\n"
        "torch.set_num_threads(1)\n"
        "q, blocks, one = torch.ones(1, 1, 8), torch.ones(2, 1, 4, 8), np.ones(1, np.int64)\n"
        "rows = Decodes(one - 1, one[:, None], one, one, one - 1)\n"
        "attend_in_place(q, q.clone(), blocks, blocks, rows, AttentionParams(1.0))\n"
        "print(torch.get_num_threads())"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert told.stdout.split() == ["1"]
