"""An engine lives as long as it or one of its answers is referenced, and engines do not disturb each other."""

from __future__ import annotations

import gc
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

import pytest

from roseplay import Engine, SamplingParams
from tests.hardware import needs_simulation
from tests.waiting import wait_until

SIMULATED = {"run_as": "h100", "block_size": 4, "num_blocks": 50, "max_model_len": 64}  # a process imports no torch
ANSWER = SamplingParams(max_new_tokens=50, ignore_eos=True)


def running() -> set[Any]:
    """Threads and processes that belong to engines."""
    threads = {thread for thread in threading.enumerate() if thread.name.startswith("roseplay")}
    return threads | set(multiprocessing.active_children())


@pytest.fixture
def wait_for_end() -> Callable[[], None]:
    """Waits until what engines have started since the beginning of the test has ended."""
    before = running()

    def wait() -> None:
        gc.collect()
        wait_until(lambda: not running() - before, "the engine's end", 20)

    return wait


@needs_simulation
@pytest.mark.parametrize("worker", ["thread", "process"])
def test_an_engine_that_nobody_holds_ends_by_itself(wait_for_end: Callable[[], None], worker: str) -> None:
    before = running()
    engine = Engine("qwen3-0.6b", worker=worker, **SIMULATED)
    assert engine.submit([3, 4], ANSWER).result(60).finish_reason == "length"
    assert len(running() - before) == 2  # its receiver and its worker
    del engine
    wait_for_end()


@needs_simulation
def test_an_answer_being_streamed_holds_its_engine(wait_for_end: Callable[[], None]) -> None:
    stream = Engine("qwen3-0.6b", slow_motion=5, **SIMULATED).submit([3, 4], ANSWER)
    gc.collect()
    assert stream.result(60).finish_reason == "length"
    del stream
    wait_for_end()


@needs_simulation
def test_an_engine_that_nobody_holds_ends_while_it_is_paused(wait_for_end: Callable[[], None]) -> None:
    engine = Engine("qwen3-0.6b", **SIMULATED)
    engine.pause()
    del engine
    wait_for_end()


SETTINGS: dict[str, Any] = {"num_blocks": 50, "pack_weights": False, "fuse_ops": False, "record_steps": False}
SETTINGS["attention"] = "gather"  # so that no kernel is compiled


def test_two_engines_answer_side_by_side_and_one_goes_on_when_the_other_is_closed(tiny_llama: Any) -> None:
    prompts = [[3 + i, 5, 7] for i in range(6)]
    with Engine(tiny_llama, block_size=4, **SETTINGS) as alone:
        expected = [alone.submit(prompt, ANSWER).result(60).token_ids for prompt in prompts]
    with Engine(tiny_llama, block_size=4, **SETTINGS) as first:
        second = Engine(tiny_llama, block_size=8, **SETTINGS)
        streams = [(engine.submit(prompt, ANSWER)) for prompt in prompts for engine in (first, second)]
        both = [stream.result(60).token_ids for stream in streams]
        assert both[::2] == both[1::2] == expected
        second.close()
        assert [first.submit(prompt, ANSWER).result(60).token_ids for prompt in prompts] == expected
