"""Steps replayed at fixed sizes: the same logits as steps of their own size, and padding that touches only block 0.

A CPU has no graphs. The stand-in here calls the captured function again, on the same static buffers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import itertools
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from roseplay.config import EngineConfig, SamplingParams
from roseplay.core.progress import Reporter
from roseplay.core.request import PLACEHOLDER, Request
from roseplay.core.step import Step, StepEntry
from roseplay.kernels.cuda import graphs
from roseplay.kernels.cuda.attention.tiles import Launch, choose_tiles
from roseplay.kernels.cuda.emulation import emulate_gpu
from roseplay.kernels.cuda.graphs import Bucket, RecordedGraph, StepGraphs, make_buckets
from roseplay.model import gpu_memory
from roseplay.model.attention import BACKENDS
from roseplay.model.batch import HostBatch, pack_step
from roseplay.model.loader import load_model
from roseplay.model.padding import pad
from roseplay.model.runner import ModelRunner
from tests.model.families import FAMILIES, LENGTH, STATEFUL, VOCABULARY, tiny_model
from tests.model.harness import BLOCK_SIZE, Driver, eager_logits, every_state, make_runner, random_tokens, step_of

DECODES, MIXED = (1, 2, 4, 8), (8, 16, 32)


@pytest.fixture(autouse=True)
def as_on_a_gpu() -> Iterator[None]:
    with emulate_gpu(DECODES, MIXED):
        yield


@pytest.fixture(scope="module")
def model():
    return tiny_model(FAMILIES["llama"]())


def graph_runner(model: Any, **settings: Any) -> ModelRunner:
    return make_runner(model, attention="reference", **settings)


def host_of(rows: list[tuple[int, int]]) -> HostBatch:
    """(start, tokens) of each row; all last tokens are wanted."""
    entries, block = [], 1
    for number, (start, count) in enumerate(rows):
        made = Request(number, [5] * (start + count), SamplingParams())
        blocks = -(-(start + count) // BLOCK_SIZE)
        made.block_table = list(range(block, block + blocks))
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
        ([(0, 3)], Bucket(8, 10, 9)),
        ([(0, 9), (4, 1)], Bucket(16, 9, 9)),
        ([(0, 8)], Bucket(8, 10, 9)),
        ([(0, 33)], None),
        ([(0, 30), (4, 1), (3, 1)], Bucket(32, 9, 9)),
    ],
)
def test_the_smallest_size_that_holds_a_step_is_taken(model, rows, bucket):
    found_graphs = graph_runner(model).accelerator.graphs
    host = host_of(rows)
    found = found_graphs.find(host)
    assert (found and found.tokens) == (bucket and bucket.tokens)
    assert (found is None) or found.decodes_only == all(count == 1 for _, count in rows)
    host.batched_append = False
    assert found_graphs.find(host) is None


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


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma3_text", "gpt_oss"])
def test_replayed_steps_give_the_logits_of_the_model(family: str):
    model = tiny_model(FAMILIES[family]())
    runner = graph_runner(model)
    graphs = runner.accelerator.graphs
    assert len(graphs) == len(make_buckets(DECODES, MIXED)), graphs.refused
    prompts = [random_tokens(length, 97, length) for length in (1, 5, 13, 20, 31)]
    expected = [eager_logits(model, prompt) for prompt in prompts]
    for seed in range(2):
        driver = Driver(runner, prompts)
        for counts in schedule(prompts, seed):
            for i, logits in driver.step(counts).items():
                assert (logits - expected[i][driver.computed[i] - 1]).abs().max() < 1e-4


@pytest.mark.skipif(
    "triton" not in BACKENDS or importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="there is no Triton to interpret",
)
@pytest.mark.parametrize("family", [pytest.param("llama", marks=pytest.mark.slow), "gemma3_text"])
def test_the_triton_backend_is_replayed_with_nothing_but_the_devices_numbers(family: str):
    """With a GPU's fused operations as well."""
    config = FAMILIES[family]()
    config.num_hidden_layers = 2
    model = tiny_model(config)
    with emulate_gpu((2,), (8,), kernels=True):
        runner = make_runner(model, attention="triton")
    assert len(runner.accelerator.graphs) == 2, runner.accelerator.graphs.refused
    prompts = [random_tokens(length, 97, length) for length in (1, 5)]
    expected = [eager_logits(model, prompt) for prompt in prompts]
    driver = Driver(runner, prompts)
    for counts in schedule(prompts, 1):
        for i, logits in driver.step(counts).items():
            assert (logits - expected[i][driver.computed[i] - 1]).abs().max() < 1e-4


def test_replays_and_eager_steps_may_take_turns(model):
    """The switch takes effect on the next step, and both kinds of steps use the same cache."""
    runner = graph_runner(model)
    prompt = random_tokens(20, 97, 1)
    made = Request(0, prompt, SamplingParams())
    made.block_table = [3, 9, 4, 8, 1]
    seen = []
    for start, graph in zip(range(20), itertools.cycle([True, False, False]), strict=False):
        result = runner.execute(
            Step(start, [StepEntry(made, start, 1, samples=True, logits_entry=0)], cuda_graphs=graph)
        )
        assert result.graph is graph
        seen.append(result.token_ids[0])
    assert seen == eager_logits(model, prompt).argmax(-1).tolist()
    assert step_of(runner, StepEntry(made, 20, 0)).graph is None


def test_padding_writes_into_no_live_block(model):
    runner = graph_runner(model)
    for tensors in (runner.cache.keys, runner.cache.values):
        for tensor in tensors.values():
            tensor.copy_(torch.randn(tensor.shape))
    before = {layer: tensor.clone() for layer, tensor in runner.cache.keys.items()}
    made = Request(0, random_tokens(7, 97, 0), SamplingParams())
    made.block_table = [9, 20]
    for start, count in ((0, 5), (5, 1), (6, 1)):
        assert step_of(runner, StepEntry(made, start, count)).graph
    for layer, tensor in runner.cache.keys.items():
        changed = (tensor != before[layer]).any(-1).any(1)  # [block, offset]
        written = {tuple(x) for x in changed.nonzero().tolist() if x[0] != 0}
        assert written == {(9, o) for o in range(4)} | {(20, o) for o in range(3)}


def test_capturing_touches_block_0_only(model):
    cache = graph_runner(model).cache
    for tensors in (cache.keys, cache.values):
        assert all(not tensor[1:].any() for tensor in tensors.values())


def test_what_an_earlier_larger_step_left_in_the_buffers_does_not_matter(model):
    runner = graph_runner(model)
    long, short = random_tokens(30, 97, 3), random_tokens(6, 97, 4)
    first, second = Request(0, long, SamplingParams()), Request(1, short, SamplingParams())
    first.block_table, second.block_table = list(range(1, 9)), [20, 21]
    step_of(runner, StepEntry(first, 0, 30))
    for tensors in (runner.cache.keys, runner.cache.values):
        for tensor in tensors.values():
            tensor[1:9].fill_(1e4)
    result = step_of(runner, StepEntry(second, 0, 6, samples=True, logits_entry=0))
    assert result.graph
    assert result.token_ids == [int(eager_logits(model, short)[-1].argmax())]


@pytest.mark.parametrize("graph", [True, False])
def test_a_step_goes_on_from_tokens_that_only_the_device_knows(model, graph: bool):
    runner = graph_runner(model)
    prompts = [random_tokens(n, 97, n) for n in (4, 7, 9)]
    made = [Request(i, list(prompt), SamplingParams()) for i, prompt in enumerate(prompts)]
    for i, r in enumerate(made):
        r.block_table = list(range(1 + 5 * i, 6 + 5 * i))
    flying, said = None, []
    for number in range(6):
        order = made if number % 2 else made[::-1]
        entries = [
            StepEntry(r, 0 if number == 0 else r.num_tokens - 1, r.num_tokens if number == 0 else 1) for r in order
        ]
        for i, entry in enumerate(entries):
            entry.samples, entry.logits_entry = True, i
        launched = runner.launch(Step(number, entries, cuda_graphs=graph))
        if flying is not None:
            said.append(take(flying))
        for r in made:
            r.token_ids.append(PLACEHOLDER)
        flying = launched
    said.append(take(flying))
    for i, prompt in enumerate(prompts):
        tokens = list(prompt)
        for answer in said:
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


def test_a_placeholder_that_nobody_draws_is_an_error(model):
    runner = graph_runner(model)
    made = Request(0, [3, PLACEHOLDER], SamplingParams())
    made.block_table = [1]
    with pytest.raises(ValueError, match="drew no token for requests"):
        step_of(runner, StepEntry(made, 0, 2))


@pytest.mark.parametrize("attention", ["cpu", "gather"])
def test_what_reads_lengths_on_the_host_runs_as_it_is(model, attention: str, caplog: pytest.LogCaptureFixture):
    runner = make_runner(model, attention=attention)
    info = runner.info()
    assert info.cuda_graphs == 0
    assert info.no_cuda_graphs is not None
    assert "on the host" in info.no_cuda_graphs
    assert sum("not replayed as graphs" in record.message for record in caplog.records) == 1
    prompt = random_tokens(5, 97, 1)
    made = Request(0, prompt, SamplingParams())
    made.block_table = [1, 2]
    result = step_of(runner, StepEntry(made, 0, 5, samples=True, logits_entry=0))
    assert (result.token_ids, result.graph) == ([int(eager_logits(model, prompt)[-1].argmax())], False)


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
    """Requests join and leave, in other slots each time. A waiting one keeps its states, as padding writes to none."""
    runners = [stateful_runner(family) for _ in range(2)]
    prompts = [random_tokens(LENGTH - 1, VOCABULARY, seed) for seed in range(5)]
    drivers = [Driver(runner, prompts, cuda_graphs=on) for runner, on in zip(runners, (True, False), strict=True)]
    everyone, replayed = range(5), []
    for running in [everyone] * 3 + [[4, 0, 2], [1], [3, 1, 0, 2], everyone]:
        counts = {i: 1 if drivers[0].computed[i] else 2 + i for i in running}
        found, expected = (driver.step(counts) for driver in drivers)
        replayed.append([driver.result.graph for driver in drivers])
        for i in counts:
            torch.testing.assert_close(found[i], expected[i], rtol=1e-3, atol=1e-3)
    assert replayed == [[False, False], *[[True, False]] * 6], runners[0].accelerator.graphs.refused
    for states in zip(*(every_state(runner, [1, 2, 3, 4, 5]) for runner in runners), strict=True):
        torch.testing.assert_close(*states, rtol=1e-3, atol=1e-3)


def test_only_decodes_of_models_with_recurrent_layers_are_replayed():
    runner = stateful_runner("lfm2")
    assert [bucket.tokens for bucket in runner.accelerator.graphs.buckets] == list(DECODES)
    driver = Driver(runner, [random_tokens(12, VOCABULARY, seed) for seed in range(3)])
    replayed = []
    for counts in [{0: 1}, {0: 1}, {0: 2}, {0: 1, 1: 1}, {0: 1, 1: 1}, {0: 1, 1: 2}, {0: 1, 2: 4}]:
        driver.step(counts)
        replayed.append(driver.result.graph)
    assert replayed == [False, True, False, False, True, False, False]  # a first token is not a decode
    steps = {choice.part: choice for choice in runner.info().choices}["steps"]
    assert steps.chosen == "CUDA graphs of decodes of 4 sizes"
    assert "recurrent layers" in steps.why


@pytest.mark.parametrize(
    ("slots", "sizes"), [(1, [1]), (3, [1, 2, 4]), (4, [1, 2, 4]), (5, [1, 2, 4, 8]), (9, [1, 2, 4, 8])]
)
def test_no_larger_decodes_are_captured_than_there_are_slots(slots: int, sizes: list[int]):
    assert [bucket.tokens for bucket in stateful_runner("lfm2", state_slots=slots).accelerator.graphs.buckets] == sizes


def test_capturing_touches_slot_0_only():
    runner = stateful_runner("qwen3_5_text", state_slots=9)
    assert len(runner.accelerator.graphs) == len(DECODES)
    assert not any(state.any() for state in every_state(runner, list(range(1, 12))))


def test_a_model_with_recurrent_layers_that_cannot_be_captured_runs_as_it_is(monkeypatch: pytest.MonkeyPatch):
    """Its first layers have written their states when the capture fails. The reason says where."""

    def capture(self: RecordedGraph, run: Any) -> None:
        run()
        raise RuntimeError("called a synchronizing CUDA operation")

    monkeypatch.setattr(RecordedGraph, "capture", capture)
    model = tiny_model(STATEFUL["lfm2"]())
    runner = graph_runner(model)
    reason = runner.info().no_cuda_graphs
    assert reason is not None
    assert reason.startswith("RuntimeError: called a synchronizing CUDA operation (kernels/test_graphs.py:")
    assert reason.endswith('raise RuntimeError("called a synchronizing CUDA operation"))')
    prompt = random_tokens(8, VOCABULARY, 1)
    driver, expected = Driver(runner, [prompt]), eager_logits(model, prompt)
    for count in (5, 1, 1, 1):
        logits = driver.step({0: count})[0]
        assert driver.result.graph is False
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
    shape = Launch(
        decode_only=False,
        num_tokens=0,
        num_rows=1,
        group=group,
        k_dim=128,
        v_dim=128,
        values_in_keys=False,
        itemsize=2,
        shared_memory=227 * 1024,
        tensor_cores="wgmma",
    )
    for num_tokens in range(129, 1025, 5):
        bucket = smallest(num_tokens, 1)
        plain, padded = (
            choose_tiles(dataclasses.replace(shape, num_tokens=tokens, num_rows=rows))
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
            "CUDAGraph": lambda: self if self.graph is None else FakeGraph(self),
            "graph_pool_handle": itertools.count().__next__,
            "stream": lambda stream: contextlib.nullcontext(),
            "current_stream": lambda: stream,
            "synchronize": lambda: None,
            "get_sync_debug_mode": lambda: self.mode,
            "set_sync_debug_mode": lambda mode: setattr(self, "mode", mode),
        }.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr(graphs, "end_allocation", self.end_allocation)
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
    cuda = FakeCuda(monkeypatch)
    cuda.end_fails = True
    with pytest.raises(torch.AcceleratorError, match="during capture"):
        cuda.graph.capture(lambda: None)
    assert (cuda.capturing, cuda.allocating, cuda.references) == (False, False, 0)
    assert not cuda.generator_captures


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


def test_graphs_after_a_failed_capture_have_memory_of_their_own(monkeypatch: pytest.MonkeyPatch):
    """Torch's allocator asserts that a pool which no graph refers to is not captured in again."""
    cuda = FakeCuda(monkeypatch)
    before = cuda.pool.handle
    cuda.end_fails = True
    with pytest.raises(torch.AcceleratorError):
        cuda.graph.capture(lambda: None)
    assert cuda.pool.handle != before


def test_a_model_that_cannot_be_captured_runs_as_it_is(model, monkeypatch: pytest.MonkeyPatch):
    def capture(self: RecordedGraph, run: Any) -> None:
        raise torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(RecordedGraph, "capture", capture)
    runner = graph_runner(model)
    assert (runner.info().cuda_graphs, len(runner.accelerator.graphs)) == (0, 0)
    reason = runner.info().no_cuda_graphs
    assert reason is not None
    assert reason.startswith("AcceleratorError: CUDA error: operation not permitted when stream is capturing (")
    prompt = random_tokens(5, 97, 1)
    made = Request(0, prompt, SamplingParams())
    made.block_table = [1, 2]
    result = step_of(runner, StepEntry(made, 0, 5, samples=True, logits_entry=0))
    assert (result.token_ids, result.graph) == ([int(eager_logits(model, prompt)[-1].argmax())], False)


def test_graphs_that_were_refused_keep_no_memory(model, monkeypatch: pytest.MonkeyPatch):
    def capture(self: RecordedGraph, run: Any) -> None:
        raise RuntimeError("called a synchronizing CUDA operation")

    monkeypatch.setattr(RecordedGraph, "capture", capture)
    kept = graph_runner(model).accelerator.graphs
    tensors = [value for value in vars(kept).values() if isinstance(value, torch.Tensor)]
    assert tensors and sum(tensor.untyped_storage().nbytes() for tensor in tensors) == 0


def test_sizes_for_which_there_is_no_memory_are_left_out_and_said(model, monkeypatch: pytest.MonkeyPatch):
    capture, tries = RecordedGraph.capture, itertools.count()

    def capture_small(self: RecordedGraph, run: Any) -> None:
        if next(tries) < 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        capture(self, run)

    monkeypatch.setattr(RecordedGraph, "capture", capture_small)
    runner = graph_runner(model)
    info, sizes = runner.info(), make_buckets(DECODES, MIXED)
    assert (info.cuda_graphs, info.no_cuda_graphs) == (len(sizes) - 2, None)
    steps = {choice.part: choice for choice in info.choices}["steps"]
    assert steps.slow is not None and "no memory for the CUDA graphs of 2 sizes of 32 tokens and more" in steps.slow
    driver = Driver(runner, [random_tokens(40, VOCABULARY, 0)])
    replayed = []
    for count in (30, 1, 9):
        driver.step({0: count})
        replayed.append(driver.result.graph)
    assert replayed == [False, True, True]


def test_no_memory_for_any_size_means_no_graphs(model, monkeypatch: pytest.MonkeyPatch):
    def capture(self: RecordedGraph, run: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(RecordedGraph, "capture", capture)
    info = graph_runner(model).info()
    assert info.cuda_graphs == 0
    assert info.no_cuda_graphs is not None and info.no_cuda_graphs.startswith("OutOfMemoryError: CUDA out of memory.")


class Reserved(Exception):
    """What a runner keeps free beside the KV cache."""


@pytest.mark.parametrize(("attention", "ranks"), [("triton", 1), ("gather", 1), ("triton", 2)])
def test_graphs_are_in_the_account_of_a_gpus_memory(model, attention: str, ranks: int, monkeypatch: pytest.MonkeyPatch):
    config = EngineConfig(attention=attention, tensor_parallel_size=ranks, device="cuda")
    loaded = load_model(model, EngineConfig())
    loaded = dataclasses.replace(loaded, device=torch.device("cuda"), vocab_size=150_000)
    found = gpu_memory.Profile(tokens=8192, activation_bytes=800 * 2**20)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(ModelRunner, "_profile", lambda self, attention, accelerator: found)

    def kv_cache_bytes(utilization: float, reserved: int, device: torch.device) -> int:
        raise Reserved(reserved)

    monkeypatch.setattr(gpu_memory, "kv_cache_bytes", kv_cache_bytes)
    with pytest.raises(Reserved) as raised:
        ModelRunner(loaded, config)
    of_graphs = raised.value.args[0] - found.activation_bytes
    if attention == "gather" or ranks > 1:
        assert of_graphs == 0
        return
    logits = 257 * 150_000 * 4
    assert (
        2 * logits + found.activation_bytes // 8 <= of_graphs <= 2 * logits + found.activation_bytes // 8 + 64 * 2**20
    )


@pytest.mark.parametrize("other", ["load", "start", "step"])
def test_other_threads_wait_while_torch_watches(model, monkeypatch: pytest.MonkeyPatch, other: str):
    """Torch's sync debug mode applies to all threads, so their work would fail meanwhile."""
    FakeCuda(monkeypatch)
    runner, config = graph_runner(model), EngineConfig(num_blocks=32, block_size=BLOCK_SIZE, attention="reference")
    loaded = load_model(model, config)
    made = Request(0, [3, 4, 5], SamplingParams())
    made.block_table = [1]
    work = {
        "load": lambda: load_model(model, config),
        "start": lambda: ModelRunner(loaded, config),
        "step": lambda: step_of(runner, StepEntry(made, 0, 3)),
    }[other]
    modes: list[Any] = []

    def watched(*args: Any, **kwargs: Any) -> None:
        modes.append(torch.cuda.get_sync_debug_mode())

    handle = torch.nn.modules.module.register_module_forward_pre_hook(watched)
    try:
        with graphs.waiting_is_an_error():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join(0.5)
            assert thread.is_alive()
            assert modes == []
        thread.join(60)
    finally:
        handle.remove()
    assert not thread.is_alive()
    assert modes
    assert set(modes) == {"default"}
