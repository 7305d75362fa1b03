"""How the Triton kernels' work is divided, and that the kernels compile for GPUs that are not present."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from roseplay.kernels.cuda.attention.tiles import MOST_SPLITS, choose_splits, choose_tiles, shared_bytes

HOPPER, ADA = 227 * 1024, 99 * 1024
DIMS = [(32, 32), (64, 64), (80, 80), (128, 128), (192, 128), (256, 256), (512, 512)]


def tiles(**changes: Any):
    one = {"num_tokens": 1, "num_rows": 1, "group": 4, "k_dim": 128, "v_dim": 128, "itemsize": 2}
    return choose_tiles(**{"decode_only": False, "shared_memory": HOPPER, **one, **changes})


@pytest.mark.parametrize("shared_memory", [HOPPER, ADA])
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("group", [1, 3, 4, 8, 71])
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_tiles_fit_and_hold_whole_tokens(dims: tuple[int, int], group: int, itemsize: int, shared_memory: int):
    if (dims, itemsize, shared_memory) == ((512, 512), 4, ADA):
        pytest.skip("float32 heads of 512 need a data centre's GPU")
    for decode_only, num_tokens in ((True, 4), (False, 8), (False, 4096)):
        found = tiles(
            decode_only=decode_only, num_tokens=num_tokens, num_rows=4, group=group, k_dim=dims[0], v_dim=dims[1],
            itemsize=itemsize, shared_memory=shared_memory,
        )  # fmt: skip
        assert shared_bytes(found, *dims, itemsize) <= shared_memory
        assert found.block_q >= 1
        assert found.block_q * found.heads <= found.block_m
        assert min(found.block_m, found.block_n) >= 16  # the minimum for a matrix product


def test_a_decode_takes_as_many_rows_as_a_kv_head_has_queries():
    assert [tiles(decode_only=True, group=group).block_m for group in (1, 4, 16, 17, 71)] == [16, 16, 16, 32, 64]
    assert tiles(decode_only=True, group=71).heads == 64


def test_rows_of_few_tokens_take_smaller_tiles_than_prompts():
    prompt, mixed = tiles(num_tokens=4096, num_rows=2), tiles(num_tokens=200, num_rows=64)
    assert mixed.block_m < prompt.block_m


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="up to 512"):
        tiles(k_dim=576)
    with pytest.raises(ValueError, match="do not fit 16384 bytes"):
        tiles(k_dim=512, v_dim=512, shared_memory=16384)


def test_contexts_are_split_until_all_multiprocessors_have_work():
    shape = {"decode_only": True, "block_n": 64, "num_processors": 132}
    assert choose_splits(programs=8, most_keys=2**17, **shape) == MOST_SPLITS
    assert choose_splits(programs=8, most_keys=1024, **shape) == 8  # no split has fewer than two tiles
    assert choose_splits(programs=64 * 8, most_keys=4096, **shape) == 2
    assert choose_splits(programs=256 * 8, most_keys=4096, **shape) == 1
    assert choose_splits(programs=64 * 8, most_keys=4096, **{**shape, "decode_only": False}) == 1


COMPILE = Path(__file__).with_name("compile_triton.py")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("architecture, shared_memory", [(80, 163 * 1024), (89, ADA), (90, HOPPER)])
def test_all_tiles_compile_and_fit(architecture: int, shared_memory: int, tmp_path: Path, repository: Path):
    """Uses Triton's own compiler and assembler, which need no GPU."""
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(repository)}
    command = [sys.executable, str(COMPILE), str(architecture), str(shared_memory)]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    # Nine shapes, each for decodes, mixed steps and prompts; and for each dtype, three joins, an append and the rest.
    assert len(result.stdout.splitlines()) == 9 * 3 + 3 * 5
