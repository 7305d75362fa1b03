"""Too little memory for a step or for sampling: how the error is recognized, and what becomes of the requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from roseplay import Engine, SamplingParams
from roseplay.core import memory_limit
from roseplay.core.scheduler import Scheduler
from roseplay.core.step import Step
from roseplay.engine.records import StepRecord
from roseplay.model import step_sampler
from roseplay.model.forward import PackedForward
from roseplay.model.sampler import Logprobs
from tests.engine.test_overlap import answers, open_engine, records

PROMPTS = [[5 + i, 6, 7, 8, 9, 10, 11, 12, 13] for i in range(6)]
GREEDY = SamplingParams(max_new_tokens=8, ignore_eos=True)


def raised_by(call: Callable[[], Any]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("there was memory for it")


ERRORS = {
    "torch on a CPU": raised_by(lambda: torch.empty(2**50, dtype=torch.uint8)),
    "torch on Windows": RuntimeError(
        "DefaultCPUAllocator: not enough memory: you tried to allocate 1125899906842624 bytes."
    ),
    "NumPy": raised_by(lambda: np.empty(2**60, np.uint8)),
    "C++": RuntimeError("std::bad_alloc"),
    "torch on a GPU": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    "CUDA": torch.AcceleratorError(
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported ..."
    ),
    "cuBLAS": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "Triton": RuntimeError("Triton Error [CUDA]: out of memory"),
}


def tokens_of(record: StepRecord) -> int:
    return record.prompt_tokens + record.decode_tokens


def expected_answers(model: Any) -> list[list[int]]:
    with Engine(model, block_size=4, num_blocks=100) as engine:
        return [engine.submit(prompt, GREEDY).result(30).token_ids for prompt in PROMPTS]


@pytest.mark.parametrize("kind", ERRORS)
def test_smaller_steps_serve_everybody_whatever_the_error_is_called(
    tiny_llama: Any, monkeypatch: pytest.MonkeyPatch, kind: str
):
    expected = expected_answers(tiny_llama)
    forward = PackedForward.__call__

    def tight(self: PackedForward, paged: Any) -> Any:
        if paged.batch.num_tokens > 20:
            raise ERRORS[kind]
        return forward(self, paged)

    with Engine(
        tiny_llama, block_size=4, num_blocks=100, record_steps=False
    ) as engine:  # replays do not call the model
        monkeypatch.setattr(PackedForward, "__call__", tight)
        engine.pause()
        streams = [engine.submit(prompt, GREEDY) for prompt in PROMPTS]
        engine.resume()
        assert [stream.result(30).token_ids for stream in streams] == expected
        assert sum(record.out_of_memory for record in records(engine)) == 2
        assert max(map(tokens_of, records(engine))) <= 20


def test_preemptions_of_a_step_that_had_no_memory_are_counted(tiny_llama: Any, monkeypatch: pytest.MonkeyPatch):
    schedule, forward = Scheduler.schedule, PackedForward.__call__
    preempted: list[int] = []
    failures: list[int] = []

    def noted(self: Scheduler) -> Step | None:
        step = schedule(self)
        preempted.extend(step.preempted if step else [])
        return step

    def tight(self: PackedForward, paged: Any) -> Any:
        if preempted and not failures:  # in the step that preempts for the first time
            failures.append(len(preempted))
            raise ERRORS["torch on a CPU"]
        return forward(self, paged)

    with Engine(tiny_llama, block_size=4, num_blocks=12, record_steps=False, prefix_cache=False) as engine:
        monkeypatch.setattr(Scheduler, "schedule", noted)
        monkeypatch.setattr(PackedForward, "__call__", tight)
        engine.pause()
        streams = [engine.submit(prompt, SamplingParams(max_new_tokens=16, ignore_eos=True)) for prompt in PROMPTS]
        engine.resume()
        assert {stream.result(30).finish_reason for stream in streams} == {"length"}
        assert sum(record.out_of_memory for record in records(engine)) == len(failures) == 1
        assert sum(stream.metrics.num_preemptions for stream in streams) == len(preempted) > 0


def test_steps_grow_again_when_there_is_memory_again(tiny_llama: Any, monkeypatch: pytest.MonkeyPatch):
    forward, most = PackedForward.__call__, [20]

    def tight(self: PackedForward, paged: Any) -> Any:
        if paged.batch.num_tokens > most[0]:
            raise ERRORS["torch on a CPU"]
        return forward(self, paged)

    monkeypatch.setattr(memory_limit, "_FIRST_WAIT", 2)

    def burst(engine: Engine) -> list[int]:
        """The number of tokens in each of its steps."""
        cursor = engine.telemetry.since(0)[0]
        engine.clear_cache()
        engine.pause()
        streams = [engine.submit(prompt, SamplingParams(max_new_tokens=1)) for prompt in PROMPTS]
        engine.resume()
        assert {stream.result(30).finish_reason for stream in streams} == {"length"}
        return [tokens_of(event.record) for event in engine.telemetry.since(cursor)[1] if hasattr(event, "record")]

    with Engine(
        tiny_llama, block_size=4, num_blocks=100, record_steps=False
    ) as engine:  # replays do not call the model
        monkeypatch.setattr(PackedForward, "__call__", tight)
        assert max(burst(engine)) <= 20
        most[0] = 10**6
        for _ in range(20):
            if max(burst(engine)) == sum(map(len, PROMPTS)):
                return
    raise AssertionError("steps stay small")


@pytest.mark.parametrize("name", ["draw", "Logprobs"])
@pytest.mark.parametrize("gpu", [False, True])
def test_tokens_are_drawn_a_few_rows_at_a_time_where_memory_is_short(
    tiny_llama: Any, monkeypatch: pytest.MonkeyPatch, gpu: bool, name: str
):
    """The steps keep their size, since the model had enough memory for them."""
    with Engine(tiny_llama, block_size=4, num_blocks=100) as engine:
        expected = answers(engine)
    real, tried = getattr(step_sampler, name), []

    def tight(logits: torch.Tensor, requests: Any, *args: Any, **named: Any) -> Any:
        tried.append(len(requests))
        if len(requests) > 2:
            raise ERRORS["torch on a GPU" if gpu else "torch on a CPU"]
        return real(logits, requests, *args, **named)

    make = open_engine if gpu else Engine
    with make(tiny_llama, block_size=4, num_blocks=100) as engine:
        monkeypatch.setattr(step_sampler, name, tight)
        assert answers(engine) == expected
        assert sum(record.out_of_memory for record in records(engine)) == 0
    assert max(tried) > 2
    assert min(tried) <= 2


def test_logprobs_of_rows_drawn_apart_are_their_own(tiny_llama: Any, monkeypatch: pytest.MonkeyPatch):
    params = [SamplingParams(max_new_tokens=4, logprobs=3 if i % 2 else None, ignore_eos=True) for i in range(6)]

    def run() -> list[Any]:
        with Engine(tiny_llama, block_size=4, num_blocks=100) as engine:
            engine.pause()
            streams = [engine.submit(prompt, p) for prompt, p in zip(PROMPTS, params, strict=True)]
            engine.resume()
            results = [stream.result(30) for stream in streams]
            assert not any(result.error for result in results)
            return [[(found.logprob, found.top) if found else None for found in stream.logprobs] for stream in streams]

    expected = run()

    def tight(logits: torch.Tensor, requests: Any, tokens: Any) -> Logprobs:
        if len(requests) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return Logprobs(logits, requests, tokens)

    monkeypatch.setattr(step_sampler, "Logprobs", tight)
    assert run() == expected
    assert any(expected[1]) and not any(expected[0])
