"""Which kind of product is used: the fastest that was measured, and none that this CPU does not support."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roseplay.kernels.cpu.products import (
    EXPANDED,
    INTEGERS,
    ONEDNN,
    ROWS,
    TILES,
    VECTORS,
    Products,
    choose,
    choose_ahead,
    decide,
    default_products,
    measured_size,
)

pytest.importorskip("numba", reason="Numba is not installed")
from roseplay.kernels.cpu.features import has

TIMES = st.fixed_dictionaries({rows: st.floats(1, 1e5) for rows in ROWS})


def times(*microseconds: float) -> dict[int, float]:
    return dict(zip(ROWS, microseconds, strict=True))


@pytest.mark.parametrize(
    ("tiles", "vectors", "onednn", "strips", "tiles_from"),
    [
        ((100, 100, 150, 400), (110, 140, 500, 2000), (170, 160, 220, 420), True, 1),
        ((100, 100, 150, 400), (90, 80, 500, 2000), (170, 160, 220, 420), True, 1),
        ((200, 200, 150, 400), (90, 80, 500, 2000), (370, 360, 420, 820), True, 32),
        ((100, 100, 150, 400), (70, 60, 100, 300), (170, 160, 220, 420), True, None),
        (None, (100, 140, 500, 2000), (170, 160, 520, 1500), True, None),
        (None, (100, 140, 500, 2000), (60, 70, 200, 500), False, None),
    ],
)
def test_the_fastest_kind_is_used(tiles, vectors, onednn, strips, tiles_from) -> None:  # type: ignore[no-untyped-def]
    measured = {VECTORS: times(*vectors), ONEDNN: times(*onednn), **({TILES: times(*tiles)} if tiles else {})}
    found = decide(measured)
    assert (found.strips, found.tiles_from) == (strips, tiles_from)


@pytest.mark.parametrize(
    ("integers", "floats", "floats_from"),
    [
        ((100, 120, 400, 900), (95, 110, 360, 800), None),  # not clearly faster
        ((100, 120, 400, 900), (400, 400, 420, 700), None),
        ((100, 120, 400, 900), (400, 400, 220, 300), 32),
        ((100, 120, 400, 900), (40, 40, 120, 300), 1),
        (None, (400, 400, 420, 500), 1),
    ],
)
def test_blocks_are_multiplied_in_integers_unless_floats_are_clearly_faster(integers, floats, floats_from) -> None:  # type: ignore[no-untyped-def]
    found = decide({EXPANDED: times(*floats), **({INTEGERS: times(*integers)} if integers else {})})
    assert (found.blocks, found.tiles_from) == (True, floats_from)


@pytest.mark.parametrize(
    ("near", "far", "chosen"),
    [
        ((95, 110, 500, 500), (90, 100, 100, 100), 16384),  # not clearly faster; prompts do not count
        ((80, 85, 900, 900), (90, 80, 100, 100), 1024),
        ((300, 80, 100, 100), (70, 90, 900, 900), 4096),
    ],
)
def test_weights_are_prefetched_by_16_kb_unless_another_distance_is_clearly_better(near, far, chosen) -> None:  # type: ignore[no-untyped-def]
    measured = {"16384": times(100, 100, 100, 100), "4096": times(*far), "1024": times(*near)}
    assert choose_ahead(measured) == chosen


@given(TIMES, TIMES, TIMES)
def test_nothing_chosen_is_much_slower_than_what_was_not(
    tiles: dict[int, float], vectors: dict[int, float], onednn: dict[int, float]
) -> None:
    found = decide({TILES: tiles, VECTORS: vectors, ONEDNN: onednn})
    least = found.tiles_from or max(ROWS) + 1
    mine = onednn if not found.strips else {rows: (tiles if rows >= least else vectors)[rows] for rows in ROWS}
    for other in (tiles, vectors, onednn):
        ratio = 1.0
        for rows in ROWS:
            ratio *= (mine[rows] / other[rows]) ** (1 / len(ROWS))
        assert ratio <= 1 / 0.85 + 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_choice_is_measured_and_says_so(dtype: torch.dtype) -> None:
    found = choose(dtype, [(64, 96), (96, 64), (96, 64)])
    assert bool(found.measured) == default_products(dtype).strips
    if found.measured:
        assert found.size == (96, 64), "most weights are in these layers"
        assert all(set(of) == set(ROWS) for of in found.measured.values())
        assert "1/8/32/128 rows x 96 x 64" in str(found)
    else:
        assert str(found) == ONEDNN


@pytest.mark.parametrize(("layers", "most"), [(1, 1), (4, 4), (10_000, 2**25 // (64 * 96 * 4))])
def test_as_many_weights_are_multiplied_as_there_are_but_no_more_than_caches_hold(layers: int, most: int) -> None:
    numbers = Counter({(64, 96): layers * 64 * 96, (8, 8): 64})
    assert measured_size(numbers, 4.0) == (64, 96, most)


def test_a_kind_that_computes_something_else_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("roseplay.kernels.cpu.matmul.multiply", lambda x, *_: torch.zeros(len(x), 64))
    assert choose(torch.float32, [(96, 64)]) == Products(strips=False)
    if caplog.records:  # if this CPU has such products at all
        assert f"{VECTORS} are wrong on this CPU" in caplog.text


AVX2_ALONE = """
import pytest, sys, torch
from roseplay.kernels.cpu import features, products
from roseplay.model.accelerator import accelerator_for
import roseplay.kernels
assert features.has("avx2", "fma") and not features.has("avx512f") and not features.has_amx()
assert not accelerator_for(torch.device("cpu")).multiplies_bfloat16()
assert products.choose(torch.bfloat16, [(96, 64)]) == products.Products(strips=False)
assert set(products.choose(torch.float32, [(96, 64)]).measured) == {"AVX2", "oneDNN"}
sys.exit(pytest.main(sys.argv[1:]))
"""
NEON = """
import platform, pytest, re, sys
platform.machine = lambda: "aarch64"
import torch
from llvmlite import binding
from numba import types
from roseplay.kernels.cpu import products
from roseplay.kernels.cpu.simd import kernel, pointer
from roseplay.kernels.cpu.tiles import most_rows, multiply_rows

assert set(products.choose(torch.float32, [(96, 64)]).measured) == {"NEON", "oneDNN"}
most = most_rows(torch.float32)

def product(args, rows):
    x, strip = pointer(args[1], types.float32), pointer(args[2], types.float32)
    bias, out = pointer(args[3], types.float32), pointer(args[4], types.float32)
    multiply_rows(x, args[5], strip, bias, 0, args[6], out, args[7], strip, 64, rows, most)

binding.initialize_all_targets()
binding.initialize_all_asmprinters()
machine = binding.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(opt=3)
text = kernel(product).inspect_llvm()
text = re.sub('target (triple|datalayout) = .*|"target-(cpu|features)"="[^"]*"', "", text)
module = binding.parse_assembly(text)
module.triple, module.data_layout = machine.triple, str(machine.target_data)
assembly = machine.emit_assembly(module)
assert assembly.count("fmla\\tv") >= 8 * sum(range(1, most + 1)), assembly
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.skipif(not has("avx2", "fma"), reason="this CPU cannot stand in for another")
@pytest.mark.parametrize(
    ("name", "features", "script", "tests"),
    [
        ("haswell", "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,-avx512f,-avx512vnni", AVX2_ALONE, "test_matmul test_quants"),
        ("sandybridge", "+avx,+fma,-avx2,-avx512f", NEON, "test_matmul"),
    ],
    ids=["AVX2", "NEON"],
)
def test_products_of_other_machines_are_right(name: str, features: str, script: str, tests: str) -> None:
    """The tests of products, compiled for another machine; products for NEON also assemble for it."""
    mask = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}
    here = Path(__file__).parent
    files = [str(here / f"{test}.py") for test in tests.split()]
    few = "test_matmul or (integers and not bfloat16 and (Q4_0 or Q5_1 or Q6_K or Q8_0))"
    alone = [f"--confcutdir={here}", "-p", "no:cacheprovider"]  # without what loads the page
    command = [sys.executable, "-c", script, "-q", "-x", *alone, "-k", few, *files]
    subprocess.run(command, env=os.environ | mask, check=True, timeout=300, cwd=Path(__file__).parents[2])
