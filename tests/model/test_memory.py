"""How much memory the KV cache may use, on a simulated GPU."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from roseplay.config import EngineConfig
from roseplay.core.request import Request
from roseplay.core.step import DeviceLostError
from roseplay.model import gpu_memory
from roseplay.model.accelerator import Accelerator
from roseplay.model.attention.interface import Paged
from roseplay.model.gpu_memory import free_bytes, kv_cache_bytes, profile
from roseplay.model.kv_cache import LayerShape, bytes_per_token, choose_num_blocks
from roseplay.model.padding import dummy_batch
from roseplay.model.parallel_runner import Followers, LeadingForward
from roseplay.model.runner import ModelRunner
from tests.model.families import FAMILIES, VOCABULARY, tiny_model
from tests.model.harness import PLAIN, Operations, make_runner

GPU = torch.device("cuda")


class FakeCuda:
    """A GPU with ``total`` bytes, ``held`` of them in use; a step uses ``per_token`` bytes for each of its tokens."""

    def __init__(self, total: int, held: int, per_token: int) -> None:
        self.total, self.held, self.per_token = total, held, per_token
        self.peak = held
        self.unused = 0
        self.tried: list[int] = []

    def run(self, num_tokens: int) -> None:
        self.tried.append(num_tokens)
        if self.held + num_tokens * self.per_token > self.total:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.peak = max(self.peak, self.held + num_tokens * self.per_token)

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return self.total - self.held, self.total

    def memory_allocated(self, device: torch.device) -> int:
        return self.held

    def max_memory_allocated(self, device: torch.device) -> int:
        return self.peak

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.peak = self.held

    def empty_cache(self) -> None:
        self.held -= self.unused
        self.unused = 0

    def synchronize(self, device: torch.device) -> None: ...


def test_the_largest_step_is_run_to_see_what_it_takes():
    cuda = FakeCuda(1000, 300, 1)
    found = profile(cuda.run, 200, GPU, cuda)
    assert (found.tokens, found.activation_bytes) == (200, 200)
    assert kv_cache_bytes(0.9, found.activation_bytes, GPU, cuda) == 900 - 300 - 200


def test_where_memory_is_short_steps_are_smaller():
    cuda = FakeCuda(1000, 900, 1)
    found = profile(cuda.run, 350, GPU, cuda)
    assert cuda.tried == [350, 175, 87]
    assert (found.tokens, found.activation_bytes) == (87, 87)
    assert kv_cache_bytes(0.9, 87, GPU, cuda) < 0


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> ModelRunner:
    """Whose profile runs one step of 64 tokens."""
    monkeypatch.setattr(gpu_memory, "profile", lambda run, tokens, device: run(64))
    return make_runner(tiny_model(FAMILIES["llama"]()), **PLAIN)


def test_the_largest_step_draws_tokens_in_the_way_that_takes_most(runner: ModelRunner):
    """All of its rows are sorted, penalised and turned into log-probabilities."""
    with Operations() as seen:
        runner._profile("reference", Accelerator)
    for name in ("sort", "cumsum", "scatter_add_", "log_softmax"):
        largest = max((size for operation, size in seen.largest.items() if name in operation), default=0)
        assert largest >= 64 * VOCABULARY, name


def test_the_largest_step_draws_tokens_by_the_kernels_that_will(runner: ModelRunner):
    rows: list[int] = []

    class Kernels(Accelerator):
        @staticmethod
        def sample(logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
            rows.append(len(requests))
            return torch.zeros(len(requests), dtype=torch.int64)

    with Operations() as seen:
        runner._profile("reference", Kernels)
    assert rows == [64]
    assert not any("sort" in operation for operation in seen.largest)


def test_no_memory_for_a_single_token():
    cuda = FakeCuda(1000, 1000, 1)
    with pytest.raises(torch.OutOfMemoryError):
        profile(cuda.run, 8, GPU, cuda)
    assert cuda.tried == [8, 4, 2, 1]


@pytest.mark.parametrize("allocator", ["torch", "cuBLAS"])
def test_a_step_that_the_other_ranks_wait_in_is_not_tried_again(allocator: str):
    """They would stay in a collective operation that rank 0 has left, and never receive the smaller step."""
    errors = {
        "torch": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        "cuBLAS": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    }
    sent: list[bytes] = []
    connection: Any = SimpleNamespace(send_bytes=sent.append)
    ranks: Any = SimpleNamespace(broadcast=lambda values: None)

    class Full(torch.nn.Module):
        def forward(self, **inputs: Any) -> Any:
            raise errors[allocator]

    forward = LeadingForward(Full(), Followers(ranks, [connection], lambda: None))

    def run(num_tokens: int) -> None:
        host = dummy_batch(num_tokens, row_tokens=8, block_size=4)
        forward(Paged(backend, host.upload(torch.device("cpu"))))

    backend: Any = None
    cuda = FakeCuda(1000, 0, 1)
    with pytest.raises(DeviceLostError, match="cannot be finished: rank 0 failed"):
        profile(run, 8, GPU, cuda)
    assert len(sent) == 1


def test_what_is_held_unused_counts_as_free():
    cuda = FakeCuda(1000, 900, 1)
    cuda.unused = 250
    assert free_bytes(GPU, cuda) == (350, 1000)


@pytest.mark.parametrize(("tokens", "limit"), [(1, 1), (10, 64), (64, 64), (65, 64), (200, 64)])
def test_the_largest_step_is_prompts_as_long_as_they_may_be(tokens: int, limit: int):
    host = dummy_batch(tokens, row_tokens=limit, block_size=4, num_logits=min(3, tokens))
    assert host.num_tokens == tokens
    assert host.positions.max() < limit
    assert host.seq_lens.tolist() == [limit] * (tokens // limit) + ([tokens % limit] if tokens % limit else [])
    assert host.cu_seqlens_q.tolist() == [0, *host.seq_lens.cumsum().tolist()]
    assert host.block_tables.shape[1] * 4 >= host.seq_lens.max()
    assert host.slot_mapping.max() < 4
    assert not host.block_tables.any()


def test_the_pool_is_sized_from_what_a_gpu_has_left():
    token_bytes = bytes_per_token({0: LayerShape(2, 8, 8)}, torch.float16)
    block = 2 * 16 * 2 * 16

    def blocks(gpu_bytes: int, **settings: int) -> int:
        return choose_num_blocks(EngineConfig(**settings), token_bytes, 4096, free_bytes=gpu_bytes, on_gpu=True)

    assert blocks(1000 * block) == 1000
    assert blocks(10**6 * block) == 256 * 256 + 1  # no more than requests can use
    with pytest.raises(ValueError, match="lower max_model_len"):
        blocks(100 * block)
    with pytest.raises(ValueError, match="0.0 GiB are free"):
        blocks(-5)
    assert blocks(-5, num_blocks=7) == 7


@pytest.mark.parametrize("share", [0, -1, 1.1, "all"])
def test_a_share_that_makes_no_sense(share):
    with pytest.raises(ValueError, match="gpu_memory_utilization"):
        EngineConfig(gpu_memory_utilization=share)
