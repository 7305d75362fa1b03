"""Steps that overlap and steps replayed as graphs, as on a GPU: the same tokens, and requests end the same way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from roseplay import Engine, SamplingParams
from roseplay.core.step import StepTooLargeError
from roseplay.engine.errors import EngineError
from roseplay.engine.records import StepRecord
from roseplay.engine.telemetry import StepEvent
from roseplay.kernels.cuda.emulation import emulate_gpu
from roseplay.model.launch import LaunchedStep
from roseplay.model.runner import ModelRunner
from tests.engine.test_engine import LONG
from tests.engine.test_equality import prompts
from tests.model.families import STATEFUL, tiny_model
from tests.waiting import wait_until

PARAMS = [
    SamplingParams(max_new_tokens=12, ignore_eos=True),
    SamplingParams(max_new_tokens=9, temperature=1.0, seed=3, ignore_eos=True),
    SamplingParams(max_new_tokens=14, temperature=0.8, seed=4, top_k=20, top_p=0.9, repetition_penalty=1.3),
    SamplingParams(max_new_tokens=11, presence_penalty=1.0, frequency_penalty=0.5, logprobs=3),
    SamplingParams(max_new_tokens=20, temperature=1.5, seed=5, stop_token_ids=tuple(range(10, 40)), ignore_eos=True),
    SamplingParams(max_new_tokens=1),
]
CASES: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked": {"prefill_max_tokens": 7},
    "one at a time": {"max_batch_size": 1},
    "not shared": {"prefix_cache": False, "same_step_sharing": False},
    "after preemption": {"num_blocks": 24},
    "swapped at preemption": {"num_blocks": 24, "preemption_mode": "swap", "prefix_cache": False},
    "few tokens a step": {"step_max_tokens": 5},
    "one append a request": {"batched_append": False},
}


def open_engine(model: Any, **settings: Any) -> Engine:
    """An engine that runs its steps as on a GPU."""
    with emulate_gpu():
        return Engine(model, **{"block_size": 4, "num_blocks": 100, "attention": "reference", **settings})


@pytest.fixture
def engine(tiny_llama: Any) -> Iterator[Engine]:
    with open_engine(tiny_llama) as engine:
        yield engine


def answers(engine: Engine, *, together: bool = False) -> list[tuple[Any, ...]]:
    """``together``: whether no step begins before all requests have been submitted."""
    asked = list(zip(prompts(), itertools.cycle(PARAMS)))
    if together:
        engine.pause()
    streams = [engine.submit(prompt, params) for prompt, params in asked]
    streams += [engine.submit(prompt, params) for prompt, params in asked[::-1]]
    if together:
        engine.resume()
    results = [stream.result(60) for stream in streams]
    assert not any(result.error for result in results), [result.error for result in results]
    return [(result.token_ids, result.finish_reason) for result in results]


def records(engine: Engine) -> list[StepRecord]:
    return [event.record for event in engine.telemetry.since(0)[1] if isinstance(event, StepEvent)]


@pytest.mark.parametrize("case", CASES)
def test_the_same_tokens_with_and_without(tiny_llama: Any, case: str):
    with Engine(tiny_llama, block_size=4, **{"num_blocks": 100, **CASES[case]}) as plain:
        expected = answers(plain)
    with open_engine(tiny_llama, **CASES[case]) as engine:
        assert answers(engine) == expected
        replayed = [record.graph for record in records(engine) if record.prompt_tokens or record.decode_tokens]
        assert any(replayed) == (case != "one append a request")
        wait_until(lambda: records(engine)[-1].blocks_active == 0)
    with open_engine(tiny_llama, overlap=False, **CASES[case]) as engine:
        assert answers(engine) == expected
    with open_engine(tiny_llama, cuda_graphs=False, **CASES[case]) as engine:
        assert answers(engine) == expected
        assert not any(record.graph for record in records(engine))


STATEFUL_CASES: dict[str, dict[str, Any]] = {
    "chunked": {"prefill_max_tokens": 7},
    "after preemption": {"num_blocks": 24},
    "few kept states": {"state_interval": 1, "state_snapshots": 3, "state_slots": 5},
}
SOME_STATEFUL = [("lfm2", case) for case in STATEFUL_CASES]
OTHER_STATEFUL = [pair for pair in itertools.product(STATEFUL, STATEFUL_CASES) if pair not in SOME_STATEFUL]


@pytest.mark.parametrize(
    ("family", "case"), [*SOME_STATEFUL, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHER_STATEFUL)]
)
def test_the_same_tokens_with_and_without_of_models_with_recurrent_layers(family: str, case: str):
    """States are kept and restored between steps that are launched but not yet waited for."""
    model, settings = tiny_model(STATEFUL[family]()), {"dtype": "float32", "max_batch_size": 8, **STATEFUL_CASES[case]}
    with open_engine(model, cuda_graphs=False, overlap=False, **settings) as plain:
        expected = answers(plain)
        assert not any(record.graph for record in records(plain))
    for overlap in (True, False):
        with open_engine(model, overlap=overlap, **settings) as engine:
            assert answers(engine) == expected
            decodes = [record for record in records(engine) if record.decode_tokens and not record.prompt_tokens]
            assert decodes
            assert all(record.graph for record in decodes), engine.info.no_cuda_graphs


def test_steps_do_overlap(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    """A step is launched before the previous one has been waited for."""
    order: list[tuple[str, int]] = []
    launch, result = ModelRunner.launch, LaunchedStep.result

    def launching(self: ModelRunner, step: Any) -> Any:
        order.append(("launch", step.step_id))
        return launch(self, step)

    def waiting(self: LaunchedStep) -> Any:
        order.append(("wait", self.step.step_id))
        return result(self)

    monkeypatch.setattr(ModelRunner, "launch", launching)
    monkeypatch.setattr(LaunchedStep, "result", waiting)
    engine.submit([3, 4, 5], SamplingParams(max_new_tokens=6, ignore_eos=True)).result(20)
    first = order[0][1]
    expected = [("launch", first)]
    for step in range(first, first + 5):
        expected += [("launch", step + 1), ("wait", step)]
    assert order[: len(expected)] == expected
    engine.set_knobs(overlap=False)
    order.clear()
    engine.submit([6, 4, 5], SamplingParams(max_new_tokens=6, ignore_eos=True)).result(20)
    assert [kind for kind, _ in order] == ["launch", "wait"] * 6


def test_switches_are_live(engine: Engine, tiny_llama: Any):
    with Engine(tiny_llama, block_size=4, num_blocks=100) as plain:
        expected = plain.submit([3, 4, 5], LONG).result(20).token_ids
    stream = engine.submit([3, 4, 5], LONG)
    for number in range(12):
        engine.set_knobs(overlap=bool(number & 1), cuda_graphs=bool(number & 2))
        seen = len(stream.token_ids)
        wait_until(lambda seen=seen: len(stream.token_ids) > seen or stream.finish_reason)
    assert stream.result(20).token_ids == expected
    assert {True, False} <= {record.graph for record in records(engine)}


def test_steps_are_told_one_after_the_other(engine: Engine):
    answers(engine)
    told = records(engine)
    for one, following in itertools.pairwise(told):
        assert one.start_ns <= one.end_ns <= following.start_ns
        assert one.step_id < following.step_id
    usable = engine.info.num_blocks - 1
    for record in told:
        total = record.blocks_free + record.blocks_cached + record.blocks_active + record.blocks_shared
        assert total == usable


def test_aborts_that_arrive_while_steps_overlap(engine: Engine):
    expected = engine.submit([3, 4, 5], LONG).result(20).token_ids
    for tokens in (0, 1, 5):
        streams = [engine.submit([6 + i, 4, 5], LONG) for i in range(4)]
        kept = engine.submit([3, 4, 5], LONG)
        wait_until(lambda streams=streams, tokens=tokens: all(len(s.token_ids) >= tokens for s in streams))
        for stream in streams:
            stream.cancel()
        assert {stream.result(20).finish_reason for stream in streams} <= {"abort", "length"}
        assert kept.result(20).token_ids == expected
    wait_until(lambda: records(engine)[-1].blocks_active + records(engine)[-1].blocks_shared == 0)


def break_once(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception, after: int = 0
) -> list[tuple[Any, ...]]:
    """Make one call of a method raise, after ``after`` calls that do not. The returned list receives its arguments."""
    method, calls, broken = getattr(owner, name), itertools.count(), []

    def once(self: Any, *args: Any) -> Any:
        if next(calls) == after:
            broken.append(args)
            raise error
        return method(self, *args)

    monkeypatch.setattr(owner, name, once)
    return broken


@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize(("owner", "name"), [(ModelRunner, "launch"), (LaunchedStep, "result")])
def test_a_step_that_raises_ends_those_in_flight(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: int
):
    expected = engine.submit([3, 4, 5], LONG).result(20).token_ids
    wait_until(lambda: records(engine)[-1].blocks_active == 0)
    break_once(monkeypatch, owner, name, RuntimeError("out of luck"), after)
    streams = [engine.submit([6 + i] * 5, LONG) for i in range(2)]
    failed = [stream.result(20) for stream in streams]
    assert "RuntimeError: out of luck" in {result.error for result in failed}
    assert {result.finish_reason for result in failed} <= {"error", "length"}
    assert engine.submit([3, 4, 5], LONG).result(20).token_ids == expected
    wait_until(lambda: records(engine)[-1].blocks_active == 0)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_no_memory_for_a_step_makes_steps_smaller(
    tiny_llama: Any, monkeypatch: pytest.MonkeyPatch, overlap: bool, after: int
):
    with Engine(tiny_llama, block_size=4, num_blocks=100) as plain:
        expected = answers(plain)
    with open_engine(tiny_llama, overlap=overlap) as engine:
        no_memory = torch.OutOfMemoryError("CUDA out of memory. Tried ...")
        undone = break_once(monkeypatch, ModelRunner, "_launch", no_memory, after)
        # Otherwise a machine that is slow to submit has small steps, and so many that the limit is raised again.
        assert answers(engine, together=True) == expected
        told = records(engine)
        assert sum(record.out_of_memory for record in told) == 1
        at = next(i for i, record in enumerate(told) if record.out_of_memory)
        before = [computed for record in told[:at] if (computed := record.prompt_tokens + record.decode_tokens)]
        most = (undone[0][0].prompt_tokens + undone[0][0].decode_tokens) // 2
        assert max(record.prompt_tokens + record.decode_tokens for record in told[at:]) <= most
        assert len(before) == after
        assert not before or max(before) > most
        wait_until(lambda: records(engine)[-1].blocks_active == 0)


def test_a_step_that_cannot_be_smaller_fails(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    def launch(self: ModelRunner, step: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried ...")

    with monkeypatch.context() as patch:
        patch.setattr(ModelRunner, "_launch", launch)
        failed = engine.submit([3, 4, 5], LONG).result(20)
    assert failed.error == f"{StepTooLargeError.__name__}: CUDA out of memory"
    assert engine.submit([3, 4, 5], LONG).result(20).finish_reason == "length"


@pytest.mark.parametrize(("owner", "name"), [(ModelRunner, "_launch"), (LaunchedStep, "_wait")])
def test_a_lost_device_ends_every_stream_and_says_to_restart(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
):
    break_once(monkeypatch, owner, name, torch.AcceleratorError("CUDA error: an illegal memory access\nmore"), 3)
    streams = [engine.submit([6 + i] * 5, LONG) for i in range(3)]
    errors = {stream.result(20).error for stream in streams}
    assert len(errors) == 1
    assert "the device is lost (CUDA error: an illegal memory access)" in errors.pop()
    with pytest.raises(EngineError, match="restart"):
        engine.submit([3], LONG)
