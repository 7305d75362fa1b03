"""One measured run of a workload on an arm's engine, from a cold cache, and its record in the result."""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from roseplay.engine.capabilities import Capabilities
from roseplay.engine.engine_like import EngineLike
from roseplay.engine.messages import StepRecord
from roseplay.engine.telemetry import StepEvent
from roseplay.traffic.driver import Driver, Outcome, Played
from roseplay.traffic.metrics import ms, percentile
from roseplay.traffic.workload import Workload

POLL_S = 0.05


class StoppedError(Exception):
    """The experiment was stopped."""


class RunError(RuntimeError):
    """A run failed; the message is a sentence for the user."""


def measure_run(
    engine: EngineLike,
    workload: Workload,
    *,
    stop: threading.Event,
    time_limit_s: float,
    keep_cache: bool = False,
    on_sent: Callable[[Outcome], None] | None = None,
) -> tuple[Played, list[StepRecord]]:
    """Run the workload, from a cold cache unless it is kept; returns the outcomes and all steps that did any work.

    Raises:
        StoppedError: ``stop`` was set; requests may still be running.
        RunError: a request was refused or failed, or the run took too long.
    """
    if not keep_cache:
        workload = _from_cold(engine, workload)
    cursor = engine.telemetry.next_cursor
    steps: list[StepRecord] = []

    def collect(cursor: int) -> int:
        following, events = engine.telemetry.since(cursor)
        steps.extend(event.record for event in events if isinstance(event, StepEvent) and event.record.entries)
        return int(following)

    driver = Driver(engine, workload, time_limit_s=time_limit_s, on_sent=on_sent)
    driver.start()
    while True:
        try:
            played = driver.wait(POLL_S)
            break
        except TimeoutError:
            cursor = collect(cursor)
        if stop.is_set():
            driver.stop()
            raise StoppedError
    if stop.is_set():
        raise StoppedError
    _check(played, time_limit_s)
    if engine.capabilities.inspect:
        engine.inspect_block(1)  # returns after the record of the last step has arrived
    collect(cursor)
    return played, steps


def _from_cold(engine: EngineLike, workload: Workload) -> Workload:
    """Clear the prefix cache. If that is impossible, return the prompts with a beginning that is unique to this run."""
    if engine.capabilities.clear_cache:
        engine.clear_cache()
        return workload
    salt = f"Run {uuid.uuid4().hex[:8]}."
    return [replace(arrival, prompt=_begun(salt, arrival.prompt)) for arrival in workload]


def _begun(salt: str, prompt: Any) -> Any:
    if isinstance(prompt, str):
        return f"{salt} {prompt}"
    first, *rest = prompt
    return [{**first, "content": f"{salt} {first['content']}"}, *rest] if isinstance(first, Mapping) else prompt


def _check(played: Played, time_limit_s: float) -> None:
    if played.stopped is not None:
        raise RunError(f"a run took longer than {time_limit_s:g} s: send less")
    refused = [outcome.refused for outcome in played.outcomes if outcome.refused is not None]
    if refused:
        raise RunError(f"{len(refused)} of {len(played.outcomes)} requests were refused: {refused[0]}")
    cut = [o.stream for o in played.outcomes if o.stream and str(o.stream.finish_reason) not in ("stop", "length")]
    if cut:
        raise RunError(f"{len(cut)} of {len(played.outcomes)} requests failed: {cut[0].error or cut[0].finish_reason}")


def run_record(
    arm: str, repeat: int, played: Played, steps: list[StepRecord], told: Capabilities | None = None
) -> dict[str, Any]:
    """Returns a run in the result's format; times are in ms since the first submit.

    Args:
        told: what the engine reports; by default everything.
    """
    told = told or Capabilities()
    zero_ns = played.outcomes[0].submit_start_ns
    streams = [outcome.stream for outcome in played.outcomes if outcome.stream is not None]
    metrics = [stream.metrics for stream in streams]
    ended_ns = max(m.finished_ns or zero_ns for m in metrics)
    tokens = json.dumps([stream.token_ids or stream.text for stream in streams], separators=(",", ":"))
    return {
        "arm": arm,
        "repeat": repeat,
        "seconds": round((ended_ns - zero_ns) / 1e9, 4),
        "requests": [_request(index, outcome, zero_ns) for index, outcome in enumerate(played.outcomes)],
        "itl_ms": [round(gap / 1e6, 2) for m in metrics for gap in m.itl_ns if gap],
        "steps": [_step(step, zero_ns) for step in steps],
        "tokens_sha256": hashlib.sha256(tokens.encode()).hexdigest(),
        "saved_tokens": sum(m.cached_tokens + m.shared_tokens for m in metrics) if told.cached_tokens else None,
        "preemptions": sum(m.num_preemptions for m in metrics) if told.steps else None,
    }


def _request(index: int, outcome: Outcome, zero_ns: int) -> dict[str, Any]:
    assert outcome.stream is not None
    metrics = outcome.stream.metrics
    gaps = sorted(metrics.itl_s)
    return {
        "index": index,
        "arrival_ms": round((outcome.submit_start_ns - zero_ns) / 1e6, 2),
        "intended_arrival_ms": round((outcome.due_ns - zero_ns) / 1e6, 2),
        "prompt_tokens": metrics.prompt_tokens,
        "completion_tokens": metrics.completion_tokens,
        "submit_ms": round((outcome.submit_end_ns - outcome.submit_start_ns) / 1e6, 3),
        "queue_ms": ms(metrics.queue_s),
        "ttft_ms": ms(metrics.ttft_s),
        "ttft_from_arrival_ms": ms(outcome.ttft_from_arrival_s),
        "tpot_ms": ms(metrics.tpot_s),
        "e2e_ms": ms(metrics.e2e_s),
        "itl_p99_ms": ms(percentile(gaps, 99)),
        "itl_max_ms": ms(gaps[-1] if gaps else None),
        "reason": str(outcome.stream.finish_reason),
    }


def _step(step: StepRecord, zero_ns: int) -> list[float]:
    start, end = (round((time_ns - zero_ns) / 1e6, 2) for time_ns in (step.start_ns, step.end_ns))
    blocks = step.blocks_active + step.blocks_shared
    return [start, end, step.prompt_tokens, step.decode_tokens, step.running, step.waiting, blocks]
