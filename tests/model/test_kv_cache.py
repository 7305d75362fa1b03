"""Blocks: copies across all layers, and the size of the pool."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from roseplay.config import EngineConfig
from roseplay.core.progress import Reporter
from roseplay.engine.errors import EngineStartError
from roseplay.engine.load_runner import load_model_runner
from roseplay.host_memory import free_memory
from roseplay.model.host_pool import HostPool
from roseplay.model.kv_cache import (
    KVCache,
    KVCacheSizeError,
    LayerShape,
    bytes_per_token,
    cache_dtype,
    choose_host_blocks,
    choose_num_blocks,
)

CPU = torch.device("cpu")
SHAPES = {0: LayerShape(2, 8, 8), 1: LayerShape(4, 6, 3), 5: LayerShape(2, 8, 8)}


def filled(num_blocks: int = 6, dtype: torch.dtype = torch.float32) -> KVCache:
    cache = KVCache(SHAPES, num_blocks=num_blocks, block_size=4, dtype=dtype, device=CPU, num_host_blocks=9)
    for tensor in stored(cache):
        tensor.copy_(100 * torch.randn(tensor.shape))
    return cache


def stored(cache: KVCache) -> list[torch.Tensor]:
    return [x for layer in SHAPES for x in (cache.keys[layer], cache.values[layer], *cache.scales.get(layer, ()))]


def snapshot(cache: KVCache) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in stored(cache)]


def test_shapes_are_each_layers_own():
    cache = filled()
    assert cache.keys[1].shape == (6, 4, 4, 6)
    assert cache.values[1].shape == (6, 4, 4, 3)
    assert bytes_per_token(SHAPES, torch.float32) == 4 * (2 * 2 * 16 + 4 * 9)


def test_values_in_keys_take_no_memory_and_are_copied_with_them():
    shapes = {0: LayerShape(1, 10, 8, values_in_keys=True)}
    cache = KVCache(shapes, num_blocks=4, block_size=4, dtype=torch.float32, device=CPU)
    assert bytes_per_token(shapes, torch.float32) == 4 * 10
    cache.keys[0][1].normal_()
    cache.copy_blocks([(1, 2)])
    assert torch.equal(cache.values[0][2], cache.keys[0][1, ..., :8])
    assert cache.values[0].data_ptr() == cache.keys[0].data_ptr()


def test_in_int8_each_token_of_a_head_has_a_scale():
    cache = filled(dtype=torch.int8)
    assert [scales.shape for scales in cache.scales[1]] == [(6, 4, 4, 1)] * 2
    assert bytes_per_token(SHAPES, torch.int8) == 2 * 2 * 16 + 4 * 9 + 4 * (2 * 4 + 8)
    latents = {0: LayerShape(1, 10, 8, values_in_keys=True)}
    assert bytes_per_token(latents, torch.int8) == 10 + 4
    keys, values = KVCache(latents, num_blocks=2, block_size=4, dtype=torch.int8, device=CPU).scales[0]
    assert keys is values


def test_int8_is_refused_for_a_model_in_float16():
    config = EngineConfig(kv_dtype="int8")
    assert cache_dtype(config, torch.bfloat16) == torch.int8
    assert cache_dtype(EngineConfig(), torch.float16) == torch.float16
    with pytest.raises(
        EngineStartError, match="needs a model in float32 or bfloat16, this one is in float16: set dtype"
    ):
        load_model_runner("tiny-chat", EngineConfig(kv_dtype="int8", dtype="float16", device="cpu"), Reporter())


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_copies_read_everything_before_they_write(dtype: torch.dtype):
    cache = filled(dtype=dtype)
    before = snapshot(cache)
    cache.copy_blocks([(1, 2), (2, 3), (1, 4)])
    for old, new in zip(before, snapshot(cache), strict=True):
        assert torch.equal(new[2], old[1])
        assert torch.equal(new[3], old[2])
        assert torch.equal(new[4], old[1])
        assert torch.equal(new[[0, 1, 5]], old[[0, 1, 5]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_blocks_are_swapped_out_before_others_are_swapped_in(dtype: torch.dtype):
    cache = filled(num_blocks=8, dtype=dtype)
    before = snapshot(cache)
    cache.swap([(1, 2), (2, 3), (5, 0), (6, 8)], [])
    for tensor in stored(cache):
        tensor.zero_()
    cache.keys[0][7].fill_(7)
    cache.swap([(7, 2)], [(3, 2), (2, 7), (0, 1), (8, 6)])
    for i, (old, new) in enumerate(zip(before, snapshot(cache), strict=True)):
        assert torch.equal(new[[1, 2, 6]], old[[5, 2, 6]])
        assert new[7].eq(7 if i == 0 else 0).all()
        assert not new[[3, 4, 5]].any()


@pytest.mark.parametrize("at_once_bytes", [1, 500, 10**9])
@pytest.mark.parametrize("slab_bytes", [1, 900, 10**9])
def test_many_blocks_are_swapped_in_parts(at_once_bytes: int, slab_bytes: int):
    pools = [torch.randn(2, 30, 1, 4, 3), torch.randn(1, 30, 2, 4, 5)]
    before = [pool.clone() for pool in pools]
    host = HostPool(pools, 20, at_once_bytes, slab_bytes)
    order = [5, 6, 7, 1, 2, 19, 18, 3, 0]
    host.swap([(block, order[block - 1]) for block in range(1, 10)], [])
    host.swap([], [(order[block - 1], 30 - block) for block in range(1, 10)])
    for old, new in zip(before, pools, strict=True):
        for block in range(1, 10):
            assert torch.equal(new[:, 30 - block], old[:, block])
        assert torch.equal(new[:, :21], old[:, :21])


def test_host_memory_is_allocated_as_it_is_used():
    pool = torch.randn(2, 30, 1, 4, 5)  # blocks of 160 bytes
    host = HostPool([pool], num_blocks=20, slab_bytes=500)  # of three blocks, the last of two
    allocated = [host.allocated_bytes]
    for host_block in (3, 5, 19, 4):
        host.swap([(1, host_block)], [])
        allocated.append(host.allocated_bytes // 160)
    host.swap([], [(19, 2)])
    assert allocated == [0, 3, 3, 5, 5]
    assert torch.equal(pool[:, 2], pool[:, 1])


@pytest.mark.parametrize(
    ("act", "blocks"),
    [
        ("swap", ([(1, 2), (2, 2)], [])),
        ("swap", ([], [(1, 2), (3, 2)])),
        *[("swap", ([pair], [])) for pair in [(0, 1), (1, 9)]],
        ("swap", ([], [(-1, 2)])),
        ("copy_blocks", ([(1, 2), (3, 2)],)),
        *[("copy_blocks", ([pair],)) for pair in [(1, 6), (0, 1), (1, 0), (-1, 2)]],
    ],
)
def test_what_makes_no_sense_changes_nothing(act: str, blocks: tuple[list[tuple[int, int]], ...]):
    cache = filled()
    before = snapshot(cache)
    with pytest.raises(ValueError, match="swap|host blocks|cop"):
        getattr(cache, act)(*blocks)
    assert all(torch.equal(old, new) for old, new in zip(before, snapshot(cache), strict=True))


def test_host_blocks_are_what_swap_space_holds():
    config = EngineConfig(swap_space=1000, block_size=4)
    assert choose_host_blocks(config, 25, has_states=False) == 10
    assert choose_host_blocks(config, 251, has_states=False) == 0
    assert choose_host_blocks(config, 25, has_states=True) == 0


def test_pool_size():
    token_bytes, free = bytes_per_token(SHAPES, torch.float32), 10**9
    block_bytes = 16 * token_bytes

    def choose(max_model_len: int = 2048, **settings: int) -> int:
        return choose_num_blocks(EngineConfig(**settings), token_bytes, max_model_len, free_bytes=free, on_gpu=False)

    assert choose(num_blocks=7) == 7
    assert choose(kv_cache_memory=10 * block_bytes + 1) == 10
    most = int(0.98 * free / block_bytes)
    for name, of_block in (("num_blocks", 1), ("kv_cache_memory", block_bytes)):
        assert choose(**{name: most * of_block}) == most
        with pytest.raises(KVCacheSizeError, match=rf"{most + 1:,} KV blocks need 0.9 GiB .* 0.9 GiB are .* {name}"):
            choose(**{name: (most + 1) * of_block})
    with pytest.raises(ValueError, match=f"at least {2 * block_bytes:,}"):
        choose(kv_cache_memory=block_bytes)
    assert choose() == 64 * 128 + 1
    assert choose(max_model_len=16) == 512
    free = 4 * 1000 * block_bytes
    assert choose() == 1000
    free = 200 * block_bytes  # a quarter does not hold a request of 128 blocks, but all of it does
    assert choose() == 129
    free = 100 * block_bytes
    with pytest.raises(ValueError, match="lower max_model_len"):
        choose()


@pytest.mark.parametrize("num_blocks", [2**40, 2**70])
def test_a_pool_that_no_memory_holds_is_one_line(num_blocks: int):
    with pytest.raises(KVCacheSizeError, match=r"[\d,]+ GiB .* set num_blocks or kv_cache_memory lower") as refused:
        KVCache(SHAPES, num_blocks=num_blocks, block_size=16, dtype=torch.float32, device=CPU)
    assert "\n" not in str(refused.value)


def test_files_that_a_container_may_drop_count_as_free(tmp_path: Path):
    (tmp_path / "memory.max").write_text("70000000\n")
    (tmp_path / "memory.current").write_text("60000000\n")
    (tmp_path / "memory.stat").write_text("anon 10000000\ninactive_file 40000000\n")
    cgroups = [(tmp_path, "memory.current", "memory.max", "inactive_file")]
    assert free_memory(cgroups) == 50_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(cgroups) > 2**27
