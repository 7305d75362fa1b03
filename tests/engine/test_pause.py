"""A paused engine computes nothing, still accepts requests, and continues where it stopped."""

from __future__ import annotations

import time

import pytest

from roseplay import Engine
from roseplay.engine.errors import EngineError
from roseplay.engine.telemetry import StepEvent
from tests.engine.test_engine import LONG
from tests.waiting import wait_until

PAUSE_S = 0.2


def paused(engine):
    """Pause and wait until the worker has noticed: it handles commands in order."""
    engine.pause()
    engine.inspect_block(1)


def num_steps(engine):
    return sum(isinstance(e, StepEvent) and bool(e.record.entries) for e in engine.telemetry.since(0)[1])


def newest(engine):
    """Running and waiting requests and held blocks, as of the last step; None before the first."""
    records = [e.record for e in engine.telemetry.since(0)[1] if isinstance(e, StepEvent)]
    return (records[-1].running, records[-1].waiting, records[-1].blocks_active) if records else None


def test_no_step_is_made_while_paused_and_the_gap_is_told(engine):
    expected = engine.submit([3, 4, 5], LONG).result(20).token_ids
    engine.clear_cache()
    engine.set_knobs(slow_motion=20)
    stream = engine.submit([3, 4, 5], LONG)
    wait_until(lambda: len(stream.token_ids) > 2)
    paused(engine)
    assert engine.paused
    steps, tokens = num_steps(engine), len(stream.token_ids)
    time.sleep(PAUSE_S)
    engine.inspect_block(1)
    assert (num_steps(engine), len(stream.token_ids)) == (steps, tokens)
    assert tokens < 50
    engine.set_knobs(slow_motion=1)
    engine.resume()
    assert not engine.paused
    assert stream.result(20).token_ids == expected
    assert max(stream.metrics.itl_s) >= PAUSE_S


def test_requests_are_taken_while_paused_and_wait(engine):
    paused(engine)
    engine.pause()
    streams = [engine.submit([3 + i], LONG) for i in range(3)]
    wait_until(lambda: newest(engine) == (0, 3, 0))
    assert all(stream.metrics.scheduled_ns is None for stream in streams)
    engine.resume()
    assert all(stream.result(20).finish_reason == "length" for stream in streams)


def test_aborts_work_while_paused_and_free_the_blocks(engine):
    engine.set_knobs(slow_motion=20)
    stream = engine.submit([3] * 10, LONG)
    wait_until(lambda: stream.token_ids)
    paused(engine)
    waiting = engine.submit([4], LONG)
    for doomed in (stream, waiting):
        doomed.cancel()
        assert doomed.result(10).finish_reason == "abort"
    wait_until(lambda: newest(engine) == (0, 0, 0))


def test_a_pause_is_not_taken_for_a_frozen_worker(tiny_llama):
    with Engine(tiny_llama, block_size=4, num_blocks=50, step_timeout_s=0.3) as engine:
        paused(engine)
        stream = engine.submit([3], LONG)
        time.sleep(0.8)
        assert engine.alive
        engine.resume()
        assert stream.result(20).finish_reason == "length"


def test_a_paused_engine_can_be_closed(tiny_llama):
    engine = Engine(tiny_llama, block_size=4, num_blocks=50)
    paused(engine)
    stream = engine.submit([3], LONG)
    engine.close()
    assert stream.result(5).finish_reason == "abort"
    with pytest.raises(EngineError, match="closed"):
        engine.pause()
