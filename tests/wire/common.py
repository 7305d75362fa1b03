"""Shared by several test files: traffic for an engine, its records, and metrics in files."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import msgspec

from roseplay.config import SamplingParams
from roseplay.engine.client import Engine
from roseplay.engine.records import StepRecord
from roseplay.engine.telemetry import StepEvent
from roseplay.recording.reader import Recording, parse
from roseplay.wire.forward_pass import ForwardPassMetrics, ScheduledRequests
from roseplay.wire.imported_run import ImportedRun

TIMEOUT_S = 20.0


def traffic(engine: Engine, requests: int = 12, seed: int = 0) -> None:
    """Serve prompts to their end, some of which share a prefix."""
    rng = random.Random(seed)
    heads = [[rng.randrange(97) for _ in range(12)] for _ in range(3)]
    prompts = [rng.choice(heads) + [rng.randrange(97) for _ in range(rng.randrange(1, 20))] for _ in range(requests)]
    params = SamplingParams(max_new_tokens=10, ignore_eos=True)
    for stream in [engine.submit(prompt, params) for prompt in prompts]:
        stream.result(timeout=60)


def records(engine: Engine) -> list[StepRecord]:
    return [event.record for event in engine.telemetry.since(0)[1] if isinstance(event, StepEvent)]


def recorded(run: ImportedRun) -> Recording:
    return parse(list(run.lines()), "run.jsonl")


def blank(**values: Any) -> StepRecord:
    """A record that has only these values."""
    return StepRecord(0, start_ns=0, end_ns=0, **values)


def batches(engine: Engine) -> int:
    """The number of steps so far that changed the cache."""
    return sum(bool(record.cache_events) for record in records(engine))


def step(wall_s: float, prompt: int = 0, decodes: int = 0, **more: Any) -> ForwardPassMetrics:
    scheduled = ScheduledRequests(int(prompt > 0), prompt, 0.0, 0, decodes)
    return ForwardPassMetrics(**{"worker_id": "w", "wall_time": wall_s, "scheduled_requests": scheduled, **more})


def envelope(metrics: ForwardPassMetrics, unix_ms: int) -> dict[str, Any]:
    """A record in Dynamo's format."""
    source = {"namespace": "default", "component": "backend", "producer_id": "4192"}
    event = {"schema": "dynamo.fpm.trace.v1", "source": source, "capture_mode": "full", "observed_at_unix_ms": unix_ms}
    return {"timestamp": unix_ms % 100_000, "event": {**event, "fpm": msgspec.to_builtins(metrics)}}


def written(path: Path, values: list[Any]) -> Path:
    lines = b"".join(json.dumps(value).encode() + b"\n" for value in values)
    path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    return path
