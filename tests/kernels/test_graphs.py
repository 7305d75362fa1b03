"""Steps replayed at fixed sizes: the same logits as steps of their own size, and padding that touches only block 0.

A CPU has no graphs. The stand-in here calls the captured function again, on the same static buffers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from roseplay.config import EngineConfig, SamplingParams
from roseplay.core.progress import Reporter
from roseplay.core.request import PLACEHOLDER, Request
from roseplay.core.step import Step, StepEntry
from roseplay.kernels.cuda import graphs
from roseplay.kernels.cuda.graphs import Bucket, StepGraphs, make_buckets
from roseplay.model import gpu_memory
from roseplay.model.accelerator import Accelerator
from roseplay.model.batch import HostBatch, pack_step
from roseplay.model.loader import load_model
from roseplay.model.padding import pad
from roseplay.model.runner import ModelRunner
from tests.kernels.conftest import interpreted
from tests.kernels.emulation import RecordedGraph, emulate_gpu
from tests.kernels.test_triton_tiles import tiles
from tests.model.families import FAMILIES, LENGTH, STATEFUL, VOCABULARY, tiny_model
from tests.model.harness import (
    BLOCK_SIZE,
    Driver,
    check_only_decodes_are_replayed,
    eager_logits,
    every_state,
    make_runner,
    random_tokens,
    step_as_requests_join_and_leave,
    step_of,
)

DECODES, MIXED = (1, 2, 4, 8), (8, 16, 32)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model(FAMILIES["llama"]())


@pytest.fixture(scope="module")
def runner(model: PreTrainedModel) -> ModelRunner:
    return graph_runner(model)


def graph_runner(model: PreTrainedModel, graph: type[RecordedGraph] = RecordedGraph, **settings: Any) -> ModelRunner:
    with emulate_gpu(DECODES, MIXED, graph=graph):
        return make_runner(model, **{"attention": "reference", **settings})


def failing(error: type[Exception], message: str, times: int = 100) -> type[RecordedGraph]:
    """Returns a kind of graph whose first captures run the step and then fail."""
    left = iter(range(times))

    class Failing(RecordedGraph):
        def capture(self, run: Any) -> None:
            if next(left, None) is not None:
                run()
                raise error(message)
            super().capture(run)

    return Failing


def request_of(number: int, tokens: list[int], blocks: list[int]) -> Request:
    made = Request(number, tokens, SamplingParams())
    made.block_table = blocks
    return made


def host_of(rows: list[tuple[int, int]]) -> HostBatch:
    """(start, tokens) of each row; all last tokens are wanted."""
    entries, block = [], 1
    for number, (start, count) in enumerate(rows):
        blocks = -(-(start + count) // BLOCK_SIZE)
        made = request_of(number, [5] * (start + count), list(range(block, block + blocks)))
        block += blocks
        entries.append(StepEntry(made, start, count))
    host = pack_step(Step(0, entries), list(range(len(rows))), num_blocks=2000, block_size=BLOCK_SIZE, vocab_size=97)
    assert host is not None
    return host


@pytest.mark.parametrize(
    ("rows", "bucket"),
    [
        ([(4, 1)], Bucket(1, 1, 1)),
        ([(4, 1)] * 3, Bucket(4, 4, 4)),
        ([(4, 1)] * 8, Bucket(8, 8, 8)),
        ([(4, 1)] * 9, None),  # too many rows for any size
        ([(0, 3)], Bucket(8, 9, 8)),
        ([(0, 9), (4, 1)], Bucket(16, 9, 8)),
        ([(0, 8)], Bucket(8, 9, 8)),
        ([(0, 33)], None),
        ([(0, 30), (4, 1), (3, 1)], Bucket(32, 9, 8)),
    ],
)
def test_the_smallest_size_that_holds_a_step_is_taken(runner: ModelRunner, rows: list[tuple[int, int]], bucket):
    host = host_of(rows)
    assert runner.accelerator.graphs.find(host) == bucket
    host.batched_append = False
    assert runner.accelerator.graphs.find(host) is None


@pytest.mark.parametrize("bucket", make_buckets(DECODES, MIXED))
def test_padding_lives_in_block_0(bucket: Bucket):
    hosts = [host_of([(6, 1)] * n) for n in (1, 2, 3, 7, 8)] + [host_of([(4, 3), (5, 1)]), host_of([(0, 8)])]
    tried = 0
    for host in hosts:
        if not bucket.holds(host):
            continue
        tried += 1
        padded = pad(
            host, num_tokens=bucket.tokens, num_rows=bucket.rows, num_logits=bucket.logits, block_size=BLOCK_SIZE
        )
        tokens, rows = host.num_tokens, host.num_rows
        assert (padded.num_tokens, padded.num_rows) == (bucket.tokens, bucket.rows)
        assert padded.logits_rows.shape == (bucket.logits,)
        for name in ("input_ids", "positions", "slot_mapping", "seq_lens", "logits_rows"):
            real = getattr(host, name)
            assert np.array_equal(getattr(padded, name)[: real.shape[0]], real)
        assert (padded.slot_mapping[tokens:] // BLOCK_SIZE == 0).all()
        assert padded.cu_seqlens_q[-1] == bucket.tokens
        assert (np.diff(padded.cu_seqlens_q) >= 0).all()
        counts = np.diff(padded.cu_seqlens_q)
        assert np.array_equal(counts[:rows], np.diff(host.cu_seqlens_q))
        assert np.array_equal(counts[rows:], padded.seq_lens[rows:])  # padding attends only to padding
        for row in range(rows, padded.block_tables.shape[0]):
            assert not padded.block_tables[row].any()
        needed = -(-padded.seq_lens // BLOCK_SIZE)
        assert (needed[: padded.block_tables.shape[0]] <= padded.block_tables.shape[1]).all()
        assert not needed[padded.block_tables.shape[0] :].any()
    assert tried


def schedule(prompts: list[list[int]], seed: int) -> Iterator[dict[int, int]]:
    """Chunks of prompts and single tokens, all mixed."""
    rng = np.random.default_rng(seed)
    left = {i: len(prompt) for i, prompt in enumerate(prompts)}
    while left:
        counts = {i: min(int(rng.choice([1, 1, 1, 3, 7])), n) for i, n in left.items() if rng.random() < 0.8}
        if counts:
            yield counts
        left = {i: n - counts.get(i, 0) for i, n in left.items() if n > counts.get(i, 0)}


@pytest.mark.parametrize("family", ["gpt2", "gemma3_text", "gpt_oss"])
def test_replayed_steps_give_the_logits_of_the_model(family: str):
    model = tiny_model(FAMILIES[family]())
    runner = graph_runner(model)
    graphs = runner.accelerator.graphs
    assert len(graphs) == len(make_buckets(DECODES, MIXED)), graphs.refused
    prompts = [random_tokens(length, 97, length) for length in (1, 5, 13, 20, 31)]
    check_logits(runner, model, prompts)


def check_logits(runner: ModelRunner, model: PreTrainedModel, prompts: list[list[int]]) -> None:
    expected = [eager_logits(model, prompt) for prompt in prompts]
    driver = Driver(runner, prompts)
    for counts in schedule(prompts, 1):
        for i, logits in driver.step(counts).items():
            assert (logits - expected[i][driver.computed[i] - 1]).abs().max() < 1e-4


@interpreted
@pytest.mark.parametrize("family", [pytest.param("llama", marks=pytest.mark.slow), "gemma3_text"])
def test_the_triton_backend_is_replayed_with_nothing_but_the_devices_numbers(family: str):
    """With a GPU's fused operations as well."""
    config = FAMILIES[family]()
    config.num_hidden_layers, config.max_position_embeddings = 2, 16
    model = tiny_model(config)
    with emulate_gpu((2,), (8,), kernels=True):
        runner = make_runner(model, attention="triton")
    assert len(runner.accelerator.graphs) == 2, runner.accelerator.graphs.refused
    check_logits(runner, model, [random_tokens(length, 97, length) for length in (1, 5)])


def test_replays_and_eager_steps_may_take_turns(runner: ModelRunner, model: PreTrainedModel):
    """The switch takes effect on the next step, and both kinds of steps use the same cache."""
    prompt = random_tokens(20, 97, 1)
    made, answers = request_of(0, prompt, [3, 9, 4, 8, 1]), []
    for start, graph in zip(range(20), itertools.cycle([True, False, False]), strict=False):
        result = step_of(runner, StepEntry(made, start, 1, samples=True, logits_entry=0), cuda_graphs=graph)
        assert result.replayed is graph
        answers += result.token_ids
    assert answers == eager_logits(model, prompt).argmax(-1).tolist()
    assert step_of(runner, StepEntry(made, 20, 0)).replayed is None


def test_padding_writes_into_no_live_block(model: PreTrainedModel):
    """Capturing touches block 0 alone; a step, the slots of its tokens and block 0."""
    runner = graph_runner(model)
    tensors = [*runner.cache.keys.values(), *runner.cache.values.values()]
    assert not any(tensor[1:].any() for tensor in tensors)
    for tensor in tensors:
        tensor.copy_(torch.randn(tensor.shape))
    before = [tensor.clone() for tensor in tensors]
    made = request_of(0, random_tokens(7, 97, 0), [9, 20])
    for start, count in ((0, 5), (5, 1), (6, 1)):
        assert step_of(runner, StepEntry(made, start, count)).replayed
    for tensor, old in zip(tensors, before, strict=True):
        changed = (tensor != old).any(-1).any(1)  # [block, offset]
        written = {tuple(x) for x in changed.nonzero().tolist() if x[0] != 0}
        assert written == {(9, o) for o in range(4)} | {(20, o) for o in range(3)}


def test_what_an_earlier_larger_step_left_in_the_buffers_does_not_matter(runner: ModelRunner, model: PreTrainedModel):
    long, short = random_tokens(30, 97, 3), random_tokens(6, 97, 4)
    step_of(runner, StepEntry(request_of(0, long, list(range(1, 9))), 0, 30))
    for tensor in (*runner.cache.keys.values(), *runner.cache.values.values()):
        tensor[1:9].fill_(1e4)
    check_prompt(runner, model, short, [20, 21], graph=True)


def check_prompt(
    runner: ModelRunner, model: PreTrainedModel, prompt: list[int], blocks: list[int], graph: bool
) -> None:
    """The token after a prompt is the model's, and the step was replayed or not."""
    result = step_of(runner, StepEntry(request_of(1, prompt, blocks), 0, len(prompt), samples=True, logits_entry=0))
    assert (result.token_ids, result.replayed) == ([int(eager_logits(model, prompt)[-1].argmax())], graph)


@pytest.mark.parametrize("graph", [True, False])
def test_a_step_goes_on_from_tokens_that_only_the_device_knows(
    runner: ModelRunner, model: PreTrainedModel, graph: bool
):
    prompts = [random_tokens(n, 97, n) for n in (4, 7, 9)]
    made = [request_of(i, list(prompt), list(range(1 + 5 * i, 6 + 5 * i))) for i, prompt in enumerate(prompts)]
    flying, answers = None, []
    for number in range(6):
        order = made if number % 2 else made[::-1]
        entries = [
            StepEntry(r, 0 if number == 0 else r.num_tokens - 1, r.num_tokens if number == 0 else 1) for r in order
        ]
        for i, entry in enumerate(entries):
            entry.samples, entry.logits_entry = True, i
        launched = runner.launch(Step(number, entries, cuda_graphs=graph))
        if flying is not None:
            answers.append(take(flying))
        for r in made:
            r.token_ids.append(PLACEHOLDER)
        flying = launched
    answers.append(take(flying))
    for i, prompt in enumerate(prompts):
        tokens = list(prompt)
        for answer in answers:
            assert answer[i] == int(eager_logits(model, tokens)[-1].argmax())
            tokens.append(answer[i])


def take(launched: Any) -> dict[int, int]:
    """A step's tokens by request. They replace the oldest placeholders."""
    found = {}
    for entry, token in zip(launched.step.entries, launched.result().token_ids, strict=True):
        r = entry.request
        r.token_ids[r.token_ids.index(PLACEHOLDER)] = token
        found[r.request_id] = token
    return found


def test_a_placeholder_that_nobody_draws_is_an_error(runner: ModelRunner):
    with pytest.raises(ValueError, match="drew no token for requests"):
        step_of(runner, StepEntry(request_of(99, [3, PLACEHOLDER], [1]), 0, 2))


CAPTURING = "CUDA error: operation not permitted when stream is capturing"


@pytest.mark.parametrize(
    ("attention", "graph", "reason"),
    [
        ("cpu", RecordedGraph, "on the host"),
        ("gather", RecordedGraph, "on the host"),
        ("reference", failing(torch.AcceleratorError, f"{CAPTURING}\nmore"), f"AcceleratorError: {CAPTURING} ("),
        ("reference", failing(torch.OutOfMemoryError, "CUDA out of memory."), "OutOfMemoryError: CUDA out of memory."),
    ],
    ids=["CPU", "gather", "an operation", "memory"],
)
def test_a_model_that_cannot_be_captured_runs_as_it_is(
    model: PreTrainedModel, attention: str, graph: type[RecordedGraph], reason: str, caplog: pytest.LogCaptureFixture
):
    runner = graph_runner(model, graph, attention=attention)
    info, graphs = runner.info(), runner.accelerator.graphs
    assert (info.cuda_graphs, len(graphs)) == (0, 0)
    assert reason in (info.no_cuda_graphs or "")
    assert sum("not replayed as graphs" in record.message for record in caplog.records) == 1
    tensors = [value for value in vars(graphs).values() if isinstance(value, torch.Tensor)]
    assert tensors and sum(tensor.untyped_storage().nbytes() for tensor in tensors) == 0
    check_prompt(runner, model, random_tokens(5, 97, 1), [1, 2], graph=False)


def test_sizes_for_which_there_is_no_memory_are_left_out_and_said(model: PreTrainedModel):
    runner = graph_runner(model, failing(torch.OutOfMemoryError, "CUDA out of memory.", times=2))
    info, sizes = runner.info(), make_buckets(DECODES, MIXED)
    assert (info.cuda_graphs, info.no_cuda_graphs) == (len(sizes) - 2, None)
    steps = {choice.part: choice for choice in info.choices}["steps"]
    assert steps.slow is not None and "2 sizes of 32 tokens and more" in steps.slow
    driver = Driver(runner, [random_tokens(40, VOCABULARY, 0)])
    replayed = []
    for count in (30, 1, 9):
        driver.step({0: count})
        replayed.append(driver.result.replayed)
    assert replayed == [False, True, True]


def test_the_largest_size_is_captured_first():
    captured: list[int] = []

    def forward(batch: Any) -> torch.Tensor:
        captured.append(batch.num_tokens)
        assert batch.logits_rows is not None
        return torch.zeros(batch.logits_rows.shape[0], 5)

    graphs = StepGraphs(
        forward, table_columns=4, block_size=4, vocab_size=5, dtype=torch.float32, device=torch.device("cpu"),
        new_graph=RecordedGraph, buckets=make_buckets(DECODES, MIXED),
    )  # fmt: skip
    graphs.capture(Reporter())
    assert sorted(set(captured), reverse=True) == sorted(set(DECODES + MIXED), reverse=True)
    assert captured == sorted(captured, reverse=True)


# -- models with recurrent layers


def stateful_runner(family: str, **settings: Any) -> ModelRunner:
    """Without the CPU kernels that update states in place: on a GPU, states are copied from their slots and back."""
    return graph_runner(tiny_model(STATEFUL[family]()), **{"fuse_ops": False, "state_snapshots": 2, **settings})


SOME_STATEFUL = ["qwen3_5_text", "lfm2", "bamba"]


@pytest.mark.parametrize(
    "family",
    [*SOME_STATEFUL, *(pytest.param(name, marks=pytest.mark.slow) for name in STATEFUL if name not in SOME_STATEFUL)],
)
def test_replayed_decodes_give_the_logits_and_states_of_the_model(family: str):
    replaying, plain = (stateful_runner(family) for _ in range(2))
    prompts = [random_tokens(LENGTH - 1, VOCABULARY, seed) for seed in range(5)]
    drivers = Driver(replaying, prompts), Driver(plain, prompts, cuda_graphs=False)
    replayed = step_as_requests_join_and_leave(*drivers, together=3, tolerance=1e-3)
    assert replayed == [False, *[True] * 6], replaying.accelerator.graphs.refused
    assert drivers[1].result.replayed is False


def test_only_decodes_of_models_with_recurrent_layers_are_replayed():
    runner = stateful_runner("lfm2")
    assert [bucket.tokens for bucket in runner.accelerator.graphs.buckets] == list(DECODES)
    check_only_decodes_are_replayed(Driver(runner, [random_tokens(12, VOCABULARY, seed) for seed in range(3)]))
    steps = {choice.part: choice for choice in runner.info().choices}["steps"]
    assert steps.chosen == "CUDA graphs of decodes of 4 sizes"
    assert "recurrent layers" in steps.why


@pytest.mark.parametrize(("slots", "sizes"), [(1, [1]), (4, [1, 2, 4]), (5, [1, 2, 4, 8])])
def test_no_larger_decodes_are_captured_than_there_are_slots(slots: int, sizes: list[int]):
    assert [bucket.tokens for bucket in stateful_runner("lfm2", state_slots=slots).accelerator.graphs.buckets] == sizes


def test_capturing_touches_slot_0_only():
    runner = stateful_runner("qwen3_5_text", state_slots=9)
    assert len(runner.accelerator.graphs) == len(DECODES)
    assert not any(state.any() for state in every_state(runner, list(range(1, 12))))


def test_a_model_with_recurrent_layers_that_cannot_be_captured_runs_as_it_is():
    """Its first layers have written their states when the capture fails. The reason says where."""
    model = tiny_model(STATEFUL["lfm2"]())
    runner = graph_runner(model, failing(RuntimeError, "called a synchronizing CUDA operation"))
    reason = runner.info().no_cuda_graphs
    assert reason is not None
    assert reason.startswith("RuntimeError: called a synchronizing CUDA operation (kernels/test_graphs.py:")
    assert reason.endswith("raise error(message))")
    prompt = random_tokens(8, VOCABULARY, 1)
    driver, expected = Driver(runner, [prompt]), eager_logits(model, prompt)
    for count in (5, 1, 1, 1):
        logits = driver.step({0: count})[0]
        assert driver.result.replayed is False
        assert (logits - expected[driver.computed[0] - 1]).abs().max() < 1e-4


# -- which sizes there are


def smallest(num_tokens: int, num_rows: int) -> Bucket:
    """The size that a GPU uses for a step of prompts and decodes."""
    counts = [1] * (num_rows - 1) + [num_tokens - num_rows + 1]
    host = host_of([(0, count) for count in counts])
    return next(bucket for bucket in make_buckets() if bucket.holds(host))


@pytest.mark.parametrize("num_rows", [1, 2, 5, 8, 33, 34, 100, 256])
def test_every_step_that_had_a_size_has_one_as_small(num_rows: int):
    for num_tokens in {2, 20, 64, 65, 130, 300, 512, 700, 1024}:
        if num_tokens > num_rows:
            assert smallest(num_tokens, num_rows).tokens == min(t for t in graphs.MIXED if t >= num_tokens)


@pytest.mark.parametrize("group", [1, 2, 4, 8])
def test_prompts_alone_take_the_tiles_of_prompts(group: int):
    """Whenever they would do so without padding."""
    for num_tokens in range(129, 1025, 5):
        bucket = smallest(num_tokens, 1)
        plain, padded = (
            tiles(num_tokens=tokens, num_rows=rows, group=group)
            for tokens, rows in ((num_tokens, 1), (bucket.tokens, bucket.rows))
        )
        assert padded == plain


@pytest.mark.parametrize(
    ("num_tokens", "num_rows", "most"), [(1000, 1, 8), (300, 2, 33), (200, 33, 33), (1000, 32, 33)]
)
def test_few_rows_of_logits_are_computed_for_few_requests(num_tokens: int, num_rows: int, most: int):
    assert num_rows <= smallest(num_tokens, num_rows).logits <= most


# -- a capture that fails


class FakeCuda:
    """Torch's state during a capture: the sync debug mode, the stream's capture, the allocator's pool and the default
    random generator."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mode, self.capturing, self.allocating, self.references = "default", False, False, 0
        self.end_fails = self.generator_captures = False
        stream = SimpleNamespace(wait_stream=lambda other: None)
        for name, stand_in in {
            "torch.cuda.CUDAGraph": lambda: self if self.graph is None else FakeGraph(self),
            "torch.cuda.graph_pool_handle": itertools.count().__next__,
            "torch.cuda.stream": lambda stream: contextlib.nullcontext(),
            "torch.cuda.current_stream": lambda: stream,
            "torch.cuda.synchronize": lambda: None,
            "torch.cuda.get_sync_debug_mode": lambda: self.mode,
            "torch.cuda.set_sync_debug_mode": lambda mode: setattr(self, "mode", mode),
            "roseplay.kernels.cuda.graphs.end_allocation": self.end_allocation,
        }.items():
            monkeypatch.setattr(name, stand_in)
        self.graph: Any = None
        self.pool = graphs.Pool((0, 1), stream)
        self.graph = graphs.CudaGraph(self.pool)

    def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
        self.allocating, self.capturing, self.references = True, True, self.references + 1
        self.generator_captures = True

    def capture_end(self) -> None:
        assert self.capturing, "no capture has begun"
        self.capturing = False
        if self.end_fails:
            raise torch.AcceleratorError("CUDA error: operation failed due to a previous error during capture")
        self.allocating = self.generator_captures = False

    def end_allocation(self, pool: Any) -> None:
        assert self.allocating, "the allocator is not recording"
        self.allocating, self.references = False, self.references - 1

    def reset(self) -> None:
        if not self.end_fails:
            self.references = 0


class FakeGraph:
    """A second graph, whose capture succeeds."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda

    def capture_begin(self, capture_error_mode: str) -> None:
        assert not self.cuda.capturing and not self.cuda.allocating
        self.cuda.generator_captures = True

    def capture_end(self) -> None:
        self.cuda.generator_captures = False


@pytest.mark.parametrize("end_fails", [False, True])
@pytest.mark.parametrize("failing", [1, 2])
def test_a_capture_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, failing: int, end_fails: bool):
    cuda, runs = FakeCuda(monkeypatch), itertools.count(1)
    cuda.end_fails = end_fails

    def run() -> None:
        assert (cuda.mode, cuda.capturing) in [("error", False), ("default", True)]
        if next(runs) == failing:
            raise ValueError("not this model")

    with pytest.raises(ValueError, match="not this model"):
        cuda.graph.capture(run)
    assert (cuda.mode, cuda.capturing, cuda.allocating, cuda.references) == ("default", False, False, 0)
    assert not cuda.generator_captures


def test_a_capture_that_cannot_be_ended_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    """Later graphs have memory of their own: torch's allocator asserts that a pool which no graph refers to is not
    captured in again."""
    cuda = FakeCuda(monkeypatch)
    cuda.end_fails, before = True, cuda.pool.handle
    with pytest.raises(torch.AcceleratorError, match="during capture"):
        cuda.graph.capture(lambda: None)
    assert (cuda.capturing, cuda.allocating, cuda.references) == (False, False, 0)
    assert not cuda.generator_captures
    assert cuda.pool.handle != before


def test_no_engine_frees_memory_while_another_captures(monkeypatch: pytest.MonkeyPatch):
    cuda, freed = FakeCuda(monkeypatch), []
    allocator = SimpleNamespace(empty_cache=lambda: freed.append(cuda.capturing))
    threads: list[threading.Thread] = []

    def run() -> None:
        if cuda.capturing:
            threads.append(threading.Thread(target=gpu_memory.empty_cache, args=(allocator,)))
            threads[0].start()
            threads[0].join(0.2)

    cuda.graph.capture(run)
    threads[0].join(20)
    assert freed == [False]


class Reserved(Exception):
    """What a runner keeps free beside the KV cache."""


@pytest.mark.parametrize(("attention", "ranks"), [("triton", 1), ("gather", 1), ("triton", 2)])
def test_graphs_are_in_the_account_of_a_gpus_memory(
    model: PreTrainedModel, attention: str, ranks: int, monkeypatch: pytest.MonkeyPatch
):
    config = EngineConfig(attention=attention, tensor_parallel_size=ranks, device="cuda")
    loaded = load_model(model, EngineConfig())
    loaded = dataclasses.replace(loaded, device=torch.device("cuda"), vocab_size=150_000)
    found = gpu_memory.Profile(tokens=8192, activation_bytes=800 * 2**20)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)

    class OnGPU(ModelRunner):
        def _profile(self, attention: str, accelerator: type[Accelerator]) -> gpu_memory.Profile:
            return found

        def _kv_cache_bytes(self, utilization: float, reserved: int) -> int:
            raise Reserved(reserved)

    with pytest.raises(Reserved) as raised:
        OnGPU(loaded, config)
    of_graphs = raised.value.args[0] - found.activation_bytes
    if attention == "gather" or ranks > 1:
        assert of_graphs == 0
        return
    least = 2 * 257 * 150_000 * 4 + found.activation_bytes // 8  # logits twice
    assert least <= of_graphs <= least + 64 * 2**20


@pytest.mark.parametrize("other", ["load", "start", "step"])
def test_other_threads_wait_while_torch_watches(
    runner: ModelRunner, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, other: str
):
    """Torch's sync debug mode applies to all threads, so their work would fail meanwhile."""
    FakeCuda(monkeypatch)
    config = EngineConfig(num_blocks=32, block_size=BLOCK_SIZE, attention="reference")
    loaded = load_model(model, config)
    work = {
        "load": lambda: load_model(model, config),
        "start": lambda: ModelRunner(loaded, config),
        "step": lambda: step_of(runner, StepEntry(request_of(0, [3, 4, 5], [1]), 0, 3)),
    }[other]
    modes: list[Any] = []

    def watched(*args: Any, **kwargs: Any) -> None:
        modes.append(torch.cuda.get_sync_debug_mode())

    handle = torch.nn.modules.module.register_module_forward_pre_hook(watched)
    try:
        with graphs.waiting_is_an_error():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join(0.2)
            assert thread.is_alive()
            assert modes == []
        thread.join(60)
    finally:
        handle.remove()
    assert not thread.is_alive() and set(modes) == {"default"}
