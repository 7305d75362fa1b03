"""The engine's public interface, with a model."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from roseplay import SamplingParams
from roseplay.engine.telemetry import RequestEvent, StepEvent
from tests.waiting import wait_until

LONG = SamplingParams(max_new_tokens=50, ignore_eos=True)


def test_a_stream_gives_tokens_times_a_reason_and_metrics(engine):
    stream = engine.submit([3, 4, 5], SamplingParams(max_new_tokens=8, logprobs=2, ignore_eos=True))
    chunks = list(stream)
    assert [token for chunk in chunks for token in chunk.token_ids] == stream.token_ids
    assert [t for chunk in chunks for t in chunk.times_ns] == stream.token_times_ns == sorted(stream.token_times_ns)
    assert len(stream.token_ids) == 8
    assert stream.finish_reason == "length"
    metrics = stream.metrics
    assert metrics.prompt_tokens == 3
    assert metrics.completion_tokens == 8
    assert metrics.accepted_ns >= metrics.submitted_ns
    assert 0 < metrics.queue_s <= metrics.ttft_s < metrics.e2e_s
    assert len(metrics.itl_s) == 7
    assert metrics.tpot_s == pytest.approx(sum(metrics.itl_s) / 7)
    for token, told in zip(stream.token_ids, stream.logprobs, strict=True):
        assert told.top[0] == (token, pytest.approx(told.logprob))
        assert len(told.top) == 2
        assert told.logprob < 0


def test_streams_can_be_read_asynchronously(engine):
    async def read():
        streams = [engine.submit([3 + i], LONG) for i in range(5)]

        async def tokens(stream):
            return [token async for chunk in stream for token in chunk.token_ids]

        return await asyncio.gather(*(tokens(stream) for stream in streams)), streams

    with ThreadPoolExecutor(1) as pool:  # in its own thread, as tests of the page leave a loop running in this one
        outputs, streams = pool.submit(asyncio.run, asyncio.wait_for(read(), 30)).result(60)
    assert outputs == [stream.token_ids for stream in streams]
    assert all(len(output) == 50 for output in outputs)


def test_many_threads_submit_at_once(engine):
    alone = {i: engine.submit([i, i + 1], LONG).result(20).token_ids for i in range(3, 15)}
    with ThreadPoolExecutor(len(alone)) as pool:
        outputs = pool.map(lambda i: engine.submit([i, i + 1], LONG).result(30).token_ids, alone)
        assert list(outputs) == list(alone.values())


def test_aborts_end_waiting_and_running_requests_and_are_no_success(engine):
    engine.set_knobs(max_batch_size=1, slow_motion=20)
    streams = [engine.submit([3 + i], LONG) for i in range(4)]
    wait_until(lambda: streams[0].token_ids)
    assert streams[0].cancel()
    assert streams[0].result(20).finish_reason == "abort"
    assert len(streams[0].token_ids) < 50
    assert not streams[0].cancel()
    assert engine.abort_all() == 3
    assert [stream.result(20).finish_reason for stream in streams] == ["abort"] * 4


def test_the_telemetry_tells_each_request_token_and_time_once(engine):
    engine.set_knobs(slow_motion=4)
    reader = engine.telemetry.reader()
    streams = [engine.submit([3 + i] * 5, SamplingParams(max_new_tokens=6, ignore_eos=True)) for i in range(4)]
    events = []

    def ended():
        events.extend(reader.read())
        return sum(getattr(event, "kind", "") == "finished" for event in events) == 4

    wait_until(ended)
    for stream in streams:
        kinds = [e.kind for e in events if isinstance(e, RequestEvent) and e.request_id == stream.request_id]
        assert kinds == ["submitted", "scheduled", "first_token", "finished"]
        told = [t for e in events if isinstance(e, StepEvent) for t in e.tokens if t.request_id == stream.request_id]
        assert [t.token_id for t in told] == stream.token_ids
        assert [t.itl_ns for t in told] == [None, *stream.metrics.itl_ns]
    steps = [e.record for e in events if isinstance(e, StepEvent)]
    assert sum(step.prompt_tokens for step in steps) == 20
    assert sum(step.decode_tokens for step in steps) == 20
    for step in steps:
        used = step.blocks_free + step.blocks_cached + step.blocks_active + step.blocks_shared
        assert used == engine.info.num_blocks - 1
        took = step.schedule_ns + step.prepare_ns + step.forward_ns + step.sample_ns
        assert step.end_ns - step.start_ns >= 4 * took


def test_seeds_make_samples_repeatable_whatever_the_batch(engine):
    params = SamplingParams(max_new_tokens=20, temperature=1.0, seed=7, ignore_eos=True)
    alone = engine.submit([3, 4, 5], params).result(20).token_ids
    for i in range(6):
        engine.submit([9 + i] * (i + 1), SamplingParams(max_new_tokens=30, temperature=1.0))
    assert engine.submit([3, 4, 5], params).result(20).token_ids == alone
    other_seed = SamplingParams(max_new_tokens=20, temperature=1.0, seed=8, ignore_eos=True)
    assert engine.submit([3, 4, 5], other_seed).result(20).token_ids != alone
