"""How the Triton kernels' work is divided, and what the kernels take of GPUs that are not present."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roseplay.kernels.cuda.attention.tiles import (
    MOST_SPLITS,
    Launch,
    TensorCores,
    Tiles,
    choose_tiles,
    more_for_decodes,
    shared_bytes,
    split_prompts,
    tensor_cores,
)
from tests.kernels.conftest import HAS_TRITON, interpreted, needs_triton

if HAS_TRITON:
    from roseplay.kernels.cuda.attention.plan import plan_kernel

HOPPER, ADA = 227 * 1024, 99 * 1024
DIMS = [(32, 32), (64, 64), (80, 80), (128, 128), (192, 128), (256, 256), (512, 512)]


def launch(**changes: Any) -> Launch:
    one = Launch(
        decode_only=False,
        num_tokens=1,
        num_rows=1,
        group=4,
        k_dim=128,
        v_dim=128,
        values_in_keys=False,
        itemsize=2,
        shared_memory=HOPPER,
        tensor_cores="wgmma",
    )
    return dataclasses.replace(one, **changes)


def tiles(**changes: Any) -> Tiles:
    return choose_tiles(launch(**changes))


@pytest.mark.parametrize(
    ("shared_memory", "cores"),
    [(HOPPER, "wgmma"), (HOPPER, "tcgen05"), (ADA, "mma"), (64 * 1024, "mfma")],
    ids=["Hopper", "Blackwell", "Ada", "CDNA"],
)
def test_tiles_fit_and_hold_whole_tokens(shared_memory: int, cores: TensorCores):
    loads = ((True, 4), (False, 8), (False, 4096))
    for dims, group, itemsize, load in product([*DIMS, (576, 512)], [1, 3, 4, 8, 71], [2, 4], loads):
        if dims[1] == 512 and itemsize == 4 and shared_memory < HOPPER:
            continue  # float32 heads of 512 need a data centre's GPU
        given = launch(
            decode_only=load[0], num_tokens=load[1], num_rows=4, group=group, k_dim=dims[0], v_dim=dims[1],
            values_in_keys=dims == (576, 512), itemsize=itemsize, shared_memory=shared_memory, tensor_cores=cores,
        )  # fmt: skip
        found = choose_tiles(given)
        assert shared_bytes(found, given) <= shared_memory, given
        assert found.block_q >= 1, given
        assert found.block_q * found.heads <= found.block_m, given
        assert min(found.block_m, found.block_n) >= 16, given  # the minimum for a matrix product


def test_a_decode_takes_as_many_rows_as_a_kv_head_has_queries():
    assert [tiles(decode_only=True, group=group).block_m for group in (1, 4, 16, 17, 71)] == [16, 16, 16, 32, 64]
    assert tiles(decode_only=True, group=71).heads == 64
    one, many = (tiles(decode_only=True, group=group, k_dim=512, v_dim=512) for group in (16, 17))
    assert (one.num_warps, many.num_warps) == (4, 8)  # twice the rows are twice the sums


def test_what_a_gpu_multiplies_with_decides_the_tiles():
    ada = tiles(num_tokens=4096, shared_memory=ADA, tensor_cores=tensor_cores(8))
    assert (ada.block_m, ada.block_n) == (128, 32)
    assert tiles(num_tokens=4096, tensor_cores=tensor_cores(9)).block_n == 64
    assert [tensor_cores(capability) for capability in (8, 9, 10, 12, None)] == [
        "mma", "wgmma", "tcgen05", "mma", "mfma",
    ]  # fmt: skip


def test_rows_of_few_tokens_take_smaller_tiles_than_prompts():
    prompt, mixed = tiles(num_tokens=4096, num_rows=2), tiles(num_tokens=200, num_rows=64)
    assert mixed.block_m < prompt.block_m


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="up to 512"):
        tiles(k_dim=576)
    with pytest.raises(ValueError, match="do not fit 16384 bytes"):
        tiles(k_dim=512, v_dim=512, shared_memory=16384)


def test_prompts_are_split_until_all_multiprocessors_have_work():
    shape = {"block_n": 64, "num_processors": 132}
    assert split_prompts(1, most_keys=2**17, **shape) == MOST_SPLITS
    assert split_prompts(8, most_keys=1024, **shape) == 8  # no split has fewer than two tiles
    assert split_prompts(100, most_keys=4096, **shape) == 2
    assert split_prompts(132, most_keys=4096, **shape) == 1


# -- how many programs share a context


def planned(
    seq_lens: list[int], programs: int, *, block_n: int = 16, window: int = 0, chunk: int = 0
) -> list[list[int]]:
    """Returns (row, which of its programs, how many these are) of each program."""
    plan = torch.full((3, programs), 7, dtype=torch.int32)
    plan_kernel[1,](
        plan, torch.tensor(seq_lens), len(seq_lens), programs,
        BLOCK_N=block_n, WINDOW=window, CHUNK=chunk, BLOCK=4,
    )  # fmt: skip
    return plan.T.tolist()


@interpreted
@pytest.mark.parametrize(
    ("seq_lens", "options", "shares"),
    [
        ([1], {}, [1]),
        ([31, 0, 32, 33, 64], {}, [1, 1, 1, 2, 2]),
        ([160] * 9, {}, [1] * 9),
        ([16, 16, 16, 16 * 97], {}, [1, 1, 1, 8]),
        ([16 * 50, 16 * 10], {}, [7, 2]),
        ([16 * 50, 16 * 10], {"window": 64}, [4, 4]),
        ([16 * 50, 16 * 10], {"chunk": 16 * 48}, [1, 5]),
    ],
    ids=str,
)
def test_long_contexts_are_shared_by_more_programs(seq_lens: list[int], options: dict[str, int], shares: list[int]):
    """All programs get about as many tiles of keys, of 16 here, and there are 8 beyond one for each row."""
    programs = len(seq_lens) + 8
    found = planned(seq_lens, programs, **options)
    expected = [[row, part, count] for row, count in enumerate(shares) for part in range(count)]
    assert found[: len(expected)] == expected
    assert {row for row, _, _ in found[len(expected) :]} <= {-1}


@interpreted
def test_every_row_has_a_program_and_none_is_without_tiles():
    rng = np.random.default_rng(0)
    for _ in range(30):
        rows, more = rng.integers(1, 12), rng.integers(0, 20)
        seq_lens = rng.integers(1, 3000, rows).tolist()
        found = [program for program in planned(seq_lens, int(rows + more)) if program[0] >= 0]
        assert [program[0] for program in found] == sorted(program[0] for program in found)
        for row, length in enumerate(seq_lens):
            parts = [(part, count) for of, part, count in found if of == row]
            assert parts == [(part, len(parts)) for part in range(len(parts))] and parts
            tiles = -(-length // 16)
            assert (len(parts) - 1) * -(-tiles // len(parts)) < tiles


def test_fewer_parts_of_heads_are_shared_by_more_programs():
    assert [more_for_decodes(parts, 132) for parts in (1, 8, 1000)] == [264, 33, 1]


# -- compiled, by Triton's own compiler and assembler, which need no GPU

ARCHITECTURES = ("80", "89", "90", "100", "120", "gfx942")
COMPILE = Path(__file__).with_name("compile_triton.py")
# Bytes of registers that a program may spill, by a pattern of its name; none in all others. float32 is computed as three
# products, whose operands take three times the registers: tiles with fewer rows spill less and reread keys more often.
SPILLED = {
    "fp32, 5": 5200,
    "fp32": 128,
    "decode, bf16, 576x512": 16,
    "bf16, 192x128": 40,  # with everything that takes registers at once, which no model does
    "^(90|120): mixed, bf16, 80x80": 40,
    "^100: prefill, bf16, 64x64": 8,
    "(mixed|prefill), bf16.*int8": 344,  # codes are converted in registers
    "fp32.*int8": 160,
    "^gfx942: .*bf16, 512x512.*int8": 200,
    "^gfx942: .*bf16, 576x512": 112,  # which has the shared memory for 16 rows and keys only
}


def compiled(*arguments: str, folder: Path, repository: Path, timeout: float) -> list[dict[str, Any]]:
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder), "PYTHONPATH": str(repository)}
    command = [sys.executable, str(COMPILE), *arguments]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


def hold_to_bounds(variants: list[dict[str, Any]]) -> None:
    for variant in variants:
        name = variant["name"]
        assert variant["shared"] <= variant["predicted"] <= variant["available"], name
        allowed = max((most for pattern, most in SPILLED.items() if re.search(pattern, name)), default=0)
        assert variant["spilled"] <= allowed, variant


@needs_triton
def test_common_variants_spill_no_registers(tmp_path: Path, repository: Path):
    variants = compiled("few", folder=tmp_path, repository=repository, timeout=100)
    assert len(variants) == 4
    hold_to_bounds(variants)


@pytest.mark.slow
@pytest.mark.timeout(2000)  # several minutes of one core
@needs_triton
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_variant_fits(architecture: str, tmp_path: Path, repository: Path):
    variants = compiled("all", architecture, folder=tmp_path, repository=repository, timeout=1800)
    refused = {variant["name"] for variant in variants if "refused" in variant}
    assert all("fp32" in name and "512" in name for name in refused)
    hold_to_bounds([variant for variant in variants if variant["name"] not in refused])
