"""When something breaks, requests end with a reason, blocks are freed, and no caller waits forever."""

from __future__ import annotations

import dataclasses
import os
import signal
import time

import pytest

from roseplay import Engine
from roseplay.engine.errors import EngineError
from roseplay.model.runner import ModelRunner
from tests.engine.test_engine import LONG
from tests.waiting import wait_until


def break_next_step(monkeypatch, error):
    """The next step raises; later ones do not."""
    execute, broken = ModelRunner.execute, []

    def once(self, step):
        if not broken:
            broken.append(step)
            raise error
        return execute(self, step)

    monkeypatch.setattr(ModelRunner, "execute", once)


def test_a_step_that_raises_ends_its_requests_and_the_engine_goes_on(engine, monkeypatch):
    expected = engine.submit([3, 4, 5], LONG).result(20).token_ids
    break_next_step(monkeypatch, RuntimeError("out of luck"))
    failed = engine.submit([6, 7, 8, 9, 10], LONG).result(20)
    assert failed.finish_reason == "error"
    assert failed.error == "RuntimeError: out of luck"
    again = engine.submit([3, 4, 5], LONG).result(20)
    assert again.token_ids == expected
    after = engine.submit([6, 7, 8, 9, 10], LONG).result(20)
    assert after.finish_reason == "length"
    assert after.metrics.cached_tokens == 0  # no block of the failed step could be found


def test_a_frozen_thread_ends_every_stream_and_says_to_restart(tiny_llama, monkeypatch):
    engine = Engine(tiny_llama, block_size=4, num_blocks=50, step_timeout_s=0.3)
    execute = ModelRunner.execute

    def freeze(self, step):
        time.sleep(1.5)
        return execute(self, step)

    monkeypatch.setattr(ModelRunner, "execute", freeze)
    streams = [engine.submit([3 + i], LONG) for i in range(3)]
    for stream in streams:
        assert stream.result(10).finish_reason == "error"
        assert "restart" in stream.error
    with pytest.raises(EngineError, match="restart"):
        engine.submit([3], LONG)
    assert not engine.alive
    engine.close()


@pytest.fixture(scope="module")
def process_engine(tmp_path_factory, tiny_llama):
    directory = tmp_path_factory.mktemp("model")
    tiny_llama.save_pretrained(directory)
    with Engine(str(directory), worker="process", block_size=4, num_blocks=100, slow_motion=1) as engine:
        yield engine


def test_the_same_loop_runs_in_a_process(process_engine, tiny_llama):
    params = dataclasses.replace(LONG, prompt_logprobs=2)
    with Engine(tiny_llama, block_size=4, num_blocks=100) as engine:
        expected = [engine.submit([5 + i] * 9, params).result(20) for i in range(3)]
    streams = [process_engine.submit([5 + i] * 9, params).result(30) for i in range(3)]
    assert [stream.token_ids for stream in streams] == [stream.token_ids for stream in expected]
    for theirs, ours in zip(streams, expected, strict=True):
        assert len(theirs.prompt_logprobs) == 9
        for one, other in zip(theirs.prompt_logprobs[1:], ours.prompt_logprobs[1:], strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
    assert process_engine.set_knobs(max_batch_size=7).max_batch_size == 7


def test_a_killed_process_ends_every_stream_within_a_second_and_is_replaced(process_engine):
    process_engine.set_knobs(slow_motion=20)
    streams = [process_engine.submit([3 + i], LONG) for i in range(3)]
    wait_until(lambda: streams[0].token_ids)
    killed = time.monotonic()
    os.kill(process_engine._transport.pid, signal.SIGKILL)
    for stream in streams:
        assert stream.result(5).finish_reason == "error"
    assert time.monotonic() - killed < 3  # one second, with allowance for a busy machine
    assert "process ended" in streams[0].error
    process_engine.set_knobs(slow_motion=1)
    assert process_engine.submit([3], LONG).result(60).finish_reason == "length"
