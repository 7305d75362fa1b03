"""How fast an engine computes by now: as its start measured it, then as its steps, or a server's answers, show."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from roseplay.core.info import EngineInfo
from roseplay.engine.messages import StepRecord
from roseplay.engine.stream import Stream
from roseplay.engine.telemetry import KnobEvent, RequestEvent, StepEvent, TelemetryEvent
from roseplay.traffic.pace import Speed

# Least weights of a step, of one that computes prompts, and of a server's answer in the moving averages: the first ones
# count as much as the start. And the largest factor that one of them counts with, so that a machine that was suspended is
# not taken for a slow one.
_STEP, _PROMPTS, _ANSWER, _MAX_FACTOR = 0.05, 0.2, 0.3, 4.0
_LEAST_PROMPT, _LEAST_GAPS = 32, 4  # tokens and gaps that a measurement needs
_PROMPT_FACTOR = 10  # how much faster a prompt's token is taken to be than an answer's where no long prompt was seen
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
        self._step, self._token = _Average(), _Average()
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
            self.speed = Speed(
                now.step_s, self._token.after(now.token_s, (took_s - now.step_s) / (tokens - 1), _PROMPTS)
            )
        elif not record.prompt_tokens:
            self.speed = Speed(self._step.after(now.step_s, took_s - (tokens - 1) * now.token_s, _STEP), now.token_s)

    def _take_answer(self, stream: Stream) -> None:
        """A server says nothing of its steps; a gap between two tokens is one, and before the first its prompt is computed."""
        metrics = stream.metrics
        if metrics.sent_ns is None or metrics.ttft_s is None or len(metrics.itl_s) < _LEAST_GAPS:
            return
        gap_s, prompt_tokens = median(metrics.itl_s), metrics.prompt_tokens
        long = prompt_tokens >= _LEAST_PROMPT
        token_s = max(_LEAST_S, (metrics.ttft_s - gap_s) / prompt_tokens if long else gap_s / _PROMPT_FACTOR)
        if self.speed is None:
            self.speed = Speed(max(gap_s, _LEAST_S), token_s)
            return
        now = self.speed
        token_s = self._token.after(now.token_s, token_s, _ANSWER) if long else now.token_s
        self.speed = Speed(self._step.after(now.step_s, gap_s, _ANSWER), token_s)


class _Average:
    """A moving average whose first values count as much as its beginning."""

    def __init__(self) -> None:
        self._count = 1

    def after(self, before: float, new: float, least_weight: float) -> float:
        """Returns the average after another value."""
        self._count += 1
        new = min(max(new, before / _MAX_FACTOR, _LEAST_S), before * _MAX_FACTOR)
        return before + max(least_weight, 1 / self._count) * (new - before)
