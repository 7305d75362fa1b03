"""A few figures on what a replica is doing now, for comparing replicas side by side."""

from __future__ import annotations

from typing import NamedTuple

from roseplay.core.info import EngineInfo
from roseplay.engine.records import StepRecord
from roseplay.engine.telemetry import Load, RequestEvent, StepEvent, TelemetryEvent


class ReplicaFigures(NamedTuple):
    """The state of a replica; counts are since its start."""

    engine: str  # its label in ``/metrics``
    running: int
    waiting: int
    kv_usage: float  # share of the KV blocks that requests hold, 0 to 1
    num_blocks: int
    cached_blocks: int  # blocks that no request holds and that the prefix cache can reuse
    prompt_tokens: int  # prompt tokens of requests that have a first token
    cached_tokens: int  # those of them that did not have to be computed
    hit_rate: float | None  # their share; None before the first request
    generated_tokens: int


class FigureCounter:
    """Derives the figures from an engine's telemetry; ``engine`` is the replica's label."""

    def __init__(self, info: EngineInfo, engine: str) -> None:
        self._engine, self._num_blocks = engine, info.num_blocks - 1  # one block is for padding
        self._last: StepRecord | None = None
        self._prompt = self._cached = self._generated = 0

    def take(self, event: TelemetryEvent) -> None:
        if isinstance(event, StepEvent):
            self._last = event.record
            self._generated += len(event.tokens)
        elif isinstance(event, RequestEvent) and event.kind == "first_token" and event.stream is not None:
            metrics = event.stream.metrics
            self._prompt += metrics.prompt_tokens
            self._cached += metrics.saved_tokens

    def look(self, unfinished: int) -> ReplicaFigures:
        last, load = self._last, Load.after(self._last, unfinished, self._num_blocks)
        held = last.blocks_active + last.blocks_shared if last is not None else 0
        return ReplicaFigures(
            engine=self._engine,
            running=load.running or 0,
            waiting=load.waiting or 0,
            kv_usage=load.kv_usage or 0.0,
            num_blocks=self._num_blocks,
            cached_blocks=0 if last is None else last.blocks_cached + (0 if unfinished else held),
            prompt_tokens=self._prompt,
            cached_tokens=self._cached,
            hit_rate=self._cached / self._prompt if self._prompt else None,
            generated_tokens=self._generated,
        )
