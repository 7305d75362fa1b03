"""How fast an engine computes by now: as its start measured it, then as its steps, or a server's answers, show."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from roseplay.core.info import EngineInfo
from roseplay.engine.messages import StepRecord
from roseplay.engine.stream import Stream
from roseplay.engine.telemetry import KnobEvent, RequestEvent, StepEvent, TelemetryEvent
from roseplay.traffic.pace import Speed

# Weight of a step, and of a server's answer, in the moving averages; the largest factor that one of them counts with, so
# that a machine that was suspended is not taken for a slow one.
_STEP, _ANSWER, _MAX_FACTOR = 0.05, 0.3, 4.0
_LEAST_PROMPT, _LEAST_GAPS = 32, 4  # tokens and gaps that a measurement needs
_LEAST_S = 1e-7


class MeasuredSpeed:
    """Follows an engine's telemetry. One thread calls ``take``; ``speed`` may be read by any.

    Args:
        info: of the engine.
        slow_motion: its knob at the time.

    Attributes:
        speed: ``None`` until something is known: another server has to answer a request first.
    """

    def __init__(self, info: EngineInfo, slow_motion: float = 1.0) -> None:
        self.speed = Speed.of(info)
        self._slow_motion = slow_motion

    def take(self, events: Iterable[TelemetryEvent]) -> None:
        for event in events:
            if isinstance(event, StepEvent):
                self._take_step(event.record)
            elif isinstance(event, KnobEvent):
                self._slow_motion = event.knobs.slow_motion
            elif isinstance(event, RequestEvent) and event.kind == "finished" and event.stream is not None:
                self._take_answer(event.stream)

    def _take_step(self, record: StepRecord) -> None:
        tokens = record.prompt_tokens + record.decode_tokens
        if not self.speed or not tokens:
            return
        now, took_s = self.speed, (record.end_ns - record.start_ns) / 1e9 / self._slow_motion
        if record.prompt_tokens >= _LEAST_PROMPT and tokens * now.token_s >= now.step_s:
            self._follow(None, (took_s - now.step_s) / (tokens - 1), _STEP)
        elif not record.prompt_tokens:
            self._follow(took_s - (tokens - 1) * now.token_s, None, _STEP)

    def _take_answer(self, stream: Stream) -> None:
        """A server says nothing of its steps; a gap between two tokens is one, and before the first its prompt is computed."""
        metrics = stream.metrics
        if metrics.sent_ns is None or metrics.ttft_s is None or len(metrics.itl_s) < _LEAST_GAPS:
            return
        gap_s, prompt_tokens = median(metrics.itl_s), metrics.prompt_tokens
        token_s = (metrics.ttft_s - gap_s) / prompt_tokens if prompt_tokens >= _LEAST_PROMPT else None
        if self.speed is None:
            self.speed = Speed(max(gap_s, _LEAST_S), max(gap_s / 10 if token_s is None else token_s, _LEAST_S))
        else:
            self._follow(gap_s, token_s, _ANSWER)

    def _follow(self, step_s: float | None, token_s: float | None, weight: float) -> None:
        assert self.speed
        before = self.speed
        self.speed = Speed(_average(before.step_s, step_s, weight), _average(before.token_s, token_s, weight))


def _average(before: float, new: float | None, weight: float) -> float:
    if new is None:
        return before
    new = min(max(new, before / _MAX_FACTOR, _LEAST_S), before * _MAX_FACTOR)
    return before + weight * (new - before)
