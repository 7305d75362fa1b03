"""The Triton kernels against the reference, on a GPU or in Triton's interpreter (see ``conftest``)."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from roseplay.config import EngineConfig
from roseplay.kernels.cuda.attention import backend as triton_backend
from roseplay.model.attention.gather import GatherBackend
from roseplay.model.attention.interface import make_backend
from roseplay.model.attention.pattern import EVERYTHING, Reach
from roseplay.model.kv_cache import KVCache, LayerShape
from tests.model.attention_cases import (
    ROWS,
    TOLERANCE,
    Bucket,
    Case,
    Problem,
    all_cases,
    large_cases,
    latent_cases,
    make_problem,
    pairwise_cases,
    relative_error,
    right_answer,
)
from tests.model.families import FAMILIES, tiny_model
from tests.model.test_families import worst_difference
from tests.model.test_patterns import FAMILIES as PATTERNED
from tests.suites.gpu.conftest import ON_GPU

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

DEVICE = torch.device("cuda" if ON_GPU else "cpu")
SLOW_PARTS = 16
models_on_the_cpu = pytest.mark.skipif(ON_GPU, reason="its models are on the CPU; test_answers runs models on the GPU")
CASE = Case("mixed", (24, 16), (6, 2), EVERYTHING, torch.float32, 4, None, False, True, True)


@pytest.fixture(autouse=True, scope="module")
def nothing_is_what_was_there_before() -> Iterator[None]:
    """On a CPU, fills new memory with NaN, so that unwritten values are noticed. This needs no CUDA setting there."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(not ON_GPU)
    assert ON_GPU or torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)


def hold_to_the_reference(case: Case, seed: int) -> None:
    """Computed twice from the same numbers, as the reference's append would repair what ours left out."""
    problem, same = make_problem(case, DEVICE, seed), make_problem(case, DEVICE, seed)
    right = right_answer(same)
    found = problem.attend(make_backend("triton", problem.cache))
    assert relative_error(found, right) <= TOLERANCE[case.dtype]
    for ours, theirs in zip(cached(problem.cache), cached(same.cache), strict=True):
        assert torch.equal(ours[1:].nan_to_num(7.0), theirs[1:].nan_to_num(7.0))


def cached(cache: KVCache) -> list[torch.Tensor]:
    """Returns what a cache holds of layer 0."""
    return [cache.keys[0], cache.values[0], *cache.scales.get(0, ())]


@pytest.mark.parametrize("seed, case", list(enumerate(pairwise_cases() + latent_cases())), ids=str)
def test_pairwise(seed: int, case: Case):
    hold_to_the_reference(case, seed)


@pytest.mark.parametrize(
    "seed, case",
    [pytest.param(*pair, marks=() if ON_GPU else pytest.mark.slow) for pair in enumerate(large_cases())],
    ids=str,
)
def test_large(seed: int, case: Case):
    hold_to_the_reference(case, seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(SLOW_PARTS))
def test_everything(part: int):
    for seed, case in enumerate(all_cases()[part::SLOW_PARTS]):
        hold_to_the_reference(case, seed)


def test_each_pair_of_values_meets():
    """The small set includes the pairs that it is supposed to include."""
    cases = pairwise_cases()
    assert {(c.rows, c.reach) for c in cases} >= set(
        itertools.product(ROWS, (EVERYTHING, *map(Reach, (1, 6, 40)), Reach(chunk=7)))
    )
    assert len({(c.dims, c.dtype) for c in cases}) == 5 * 3
    assert len({(c.heads, c.softcap, c.rows) for c in cases}) >= 4 * len(ROWS)


def replay_case(rows: str, dtype: torch.dtype, reach: Reach = EVERYTHING, *, sinks: bool = False) -> Case:
    return Case(rows, (64, 64), (8, 2), reach, dtype, 16, None, sinks, padded=True, strided=False)


# Launches captured with the first batch of each, and replayed with the others in its place.
REPLAYS: dict[str, tuple[Bucket, tuple[Case, ...]]] = {
    "replay decodes": (
        Bucket(num_rows=4, num_tokens=4, table_width=48, num_blocks=64),
        tuple(replay_case(rows, torch.float16) for rows in ("decodes", "a long decode", "one token")),
    ),
    "replay any batch": (
        Bucket(num_rows=6, num_tokens=32, table_width=48, num_blocks=64),
        tuple(
            replay_case(rows, torch.float32, reach=Reach(window=40), sinks=True)
            for rows in ("decodes", "mixed", "a prompt", "chunks", "a long decode")
        ),
    ),
    "replay as many rows as tokens": (
        Bucket(num_rows=6, num_tokens=6, table_width=48, num_blocks=64),
        tuple(replay_case(rows, torch.bfloat16) for rows in ("drafts", "decodes")),
    ),
}


def replay_error(bucket: Bucket, cases: Sequence[Case], device: torch.device) -> float:
    """The worst error when launches made for the first case are repeated with the others' numbers in the same tensors.

    On a CUDA device they are replayed from a graph. Elsewhere the calls are repeated with only the device's tensors
    changed, so a kernel that looked at the host's copies would still see the first batch.
    """
    static = make_problem(cases[0], device, bucket=bucket)
    backend = make_backend("triton", static.cache)
    static.attend(backend)  # compiles
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = static.attend(backend)
    worst = 0.0
    for seed, case in enumerate((*cases[1:], cases[0])):
        problem = make_problem(case, device, seed + 1, bucket)
        copy_numbers(problem, static)
        if device.type == "cuda":
            graph.replay()
        else:
            out = static.attend(backend)
        worst = max(worst, relative_error(out, right_answer(problem)))
    return worst


def copy_numbers(source: Problem, target: Problem) -> None:
    """Copy a problem's numbers into the tensors of another problem of the same sizes."""
    for name in ("q", "k", "v"):
        getattr(target, name).copy_(getattr(source, name))
    for name in ("slot_mapping", "cu_seqlens_q", "seq_lens", "block_tables"):
        getattr(target.batch, name).copy_(getattr(source.batch, name))
    for mine, theirs in zip(cached(target.cache), cached(source.cache), strict=True):
        mine.copy_(theirs)
    if target.params.sinks is not None and source.params.sinks is not None:
        target.params.sinks.copy_(source.params.sinks)


@pytest.mark.parametrize("name", REPLAYS)
def test_launches_hold_for_other_batches_of_their_size(name: str):
    """As in a CUDA graph: the result must depend on the device's tensors and on nothing else."""
    bucket, cases = REPLAYS[name]
    assert replay_error(bucket, cases, DEVICE) <= TOLERANCE[cases[0].dtype]


def test_padding_changes_no_block_but_block_0():
    problem = make_problem(CASE, DEVICE)
    batch, block_size = problem.batch, CASE.block_size
    before = {name: getattr(problem.cache, name)[0].clone() for name in ("keys", "values")}
    problem.attend(make_backend("triton", problem.cache))
    own = batch.slot_mapping[batch.slot_mapping >= 0]
    assert own.numel() < batch.num_tokens
    for name, old in before.items():
        new = getattr(problem.cache, name)[0]
        changed = ~torch.isclose(new, old, rtol=0, atol=0, equal_nan=True).all(-1).all(1)  # [blocks, slots]
        allowed = torch.zeros_like(changed)
        allowed[own // block_size, own % block_size] = True
        allowed[0] = True
        assert not (changed & ~allowed).any()
        assert changed[own // block_size, own % block_size].all()


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_append_leaves_what_the_plain_append_leaves(dtype: torch.dtype, batched: bool):
    """Keys and values of different sizes, seven heads, and values that are NaN or infinite."""
    problem = make_problem(Case("mixed", (48, 16), (7, 7), EVERYTHING, dtype, 4, None, False, False, True), DEVICE)
    problem.batch.batched_append = batched
    problem.k[3, 2, 5], problem.v[0, 0, 0], problem.v[8, 6, 15] = float("nan"), float("inf"), float("-inf")
    shape = {0: LayerShape(7, 48, 16)}
    plain = KVCache(shape, num_blocks=problem.cache.num_blocks, block_size=4, dtype=dtype, device=problem.cache.device)
    plain.keys[0].copy_(problem.cache.keys[0])
    plain.values[0].copy_(problem.cache.values[0])
    GatherBackend(plain).append(0, problem.k, problem.v, problem.batch)
    make_backend("triton", problem.cache).append(0, problem.k, problem.v, problem.batch)
    for ours, theirs in ((problem.cache.keys[0], plain.keys[0]), (problem.cache.values[0], plain.values[0])):
        assert torch.equal(ours.nan_to_num(7.0), theirs.nan_to_num(7.0))


@models_on_the_cpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "settings"),
    [
        *((FAMILIES[family], {"batched_append": batched}) for family in FAMILIES for batched in (True, False)),
        (FAMILIES["deepseek_v3"], {"latent_cache": "on"}),
        *((PATTERNED[family], {}) for family in PATTERNED),
    ],
)
def test_families_through_the_runner(make: Callable[[], Any], settings: dict[str, Any]):
    """Whole prompts, chunks, decodes and mixtures; also chunks, windows that exist only in the mask, and layers that read
    the keys of other layers."""
    assert worst_difference(tiny_model(make()), "triton", **settings) < 1e-4


def test_a_context_is_joined_by_whichever_of_its_programs_is_last():
    """What the programs count in is as it was for the next launch, which may have other rows."""
    case = pairwise_cases()[-3]
    problem, same = make_problem(case, DEVICE), make_problem(case, DEVICE)
    backend = make_backend("triton", problem.cache)
    found, again = problem.attend(backend), problem.attend(backend)
    assert relative_error(found, right_answer(same)) <= TOLERANCE[case.dtype]
    assert torch.equal(found, again)
    (plan,) = problem.batch.memo.values()
    row, _, count = plan.programs.tolist()
    assert count[0] > 1 and row[: count[0] + 1] == [
        *[0] * count[0],
        1,
    ]  # several programs in the first row, then padding
    assert not backend._arrived.any()


def test_a_backend_that_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch):
    import triton

    cache = KVCache(
        {0: LayerShape(1, 8, 8)}, num_blocks=2, block_size=4, dtype=torch.float32, device=torch.device("cpu")
    )
    with triton.knobs.runtime.scope(), pytest.raises(ValueError, match="needs a CUDA device, the model is on cpu"):
        triton.knobs.runtime.interpret = False
        make_backend("triton", cache)
    monkeypatch.setattr(triton_backend, "available", lambda: False)
    with pytest.raises(ValueError, match="install roseplay\\[triton\\]"):
        make_backend("triton", cache)
    assert EngineConfig(attention="triton").attention == "triton"
