"""An engine lives as long as it or one of its answers is referenced, and engines do not disturb each other."""

from __future__ import annotations

import gc
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest

from roseplay import Engine, SamplingParams
from tests.waiting import wait_until

CHEAP = {"block_size": 4, "num_blocks": 50, "pack_weights": False, "fuse_ops": False, "record_steps": False}
SIMULATED = {"run_as": "h100", "block_size": 4, "num_blocks": 50, "max_model_len": 64}  # its process imports no torch
ANSWER = SamplingParams(max_new_tokens=50, ignore_eos=True)


def running() -> set[Any]:
    """Threads and processes that belong to engines."""
    threads = {thread for thread in threading.enumerate() if thread.name.startswith("roseplay")}
    return threads | set(multiprocessing.active_children())


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_an_engine_that_nobody_holds_ends_by_itself(model_directory: Path, worker: str) -> None:
    before = running()
    model, settings = (str(model_directory), CHEAP) if worker == "thread" else ("qwen3-0.6b", SIMULATED)
    engine = Engine(model, worker=worker, **settings)
    assert engine.submit([3, 4], ANSWER).result(60).finish_reason == "length"
    assert len(running() - before) == 2  # its receiver and its worker
    del engine
    gc.collect()
    wait_until(lambda: not running() - before, "the engine's end", 20)


def test_an_answer_being_streamed_holds_its_engine(tiny_llama: Any) -> None:
    before = running()
    stream = Engine(tiny_llama, slow_motion=5, **CHEAP).submit([3, 4], ANSWER)
    gc.collect()
    assert stream.result(60).finish_reason == "length"
    del stream
    gc.collect()
    wait_until(lambda: not running() - before, "the engine's end", 20)


def test_an_engine_that_nobody_holds_ends_while_it_is_paused(tiny_llama: Any) -> None:
    before = running()
    engine = Engine(tiny_llama, **CHEAP)
    engine.pause()
    del engine
    gc.collect()
    wait_until(lambda: not running() - before, "the engine's end", 20)


def test_two_engines_answer_side_by_side_and_one_goes_on_when_the_other_is_closed(tiny_llama: Any) -> None:
    prompts = [[3 + i, 5, 7] for i in range(6)]
    with Engine(tiny_llama, **CHEAP) as alone:
        expected = [alone.submit(prompt, ANSWER).result(60).token_ids for prompt in prompts]
    with Engine(tiny_llama, **CHEAP) as first:
        second = Engine(tiny_llama, **{**CHEAP, "block_size": 8})
        streams = [(engine.submit(prompt, ANSWER)) for prompt in prompts for engine in (first, second)]
        both = [stream.result(60).token_ids for stream in streams]
        assert both[::2] == both[1::2] == expected
        second.close()
        assert [first.submit(prompt, ANSWER).result(60).token_ids for prompt in prompts] == expected
