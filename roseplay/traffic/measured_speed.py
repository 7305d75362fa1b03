"""An engine's current speed: as measured at its start, then derived from its steps or a server's answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median

from roseplay.core.info import EngineInfo
from roseplay.engine.records import StepRecord
from roseplay.engine.stream import Stream
from roseplay.engine.telemetry import KnobEvent, RequestEvent, StepEvent, TelemetryEvent
from roseplay.traffic.pace import Speed

# Number of recent steps, steps that compute prompts, and answers of a server to consider. Their lower quartile is used, so
# that a machine that was suspended, or is busy with something else, is not taken for a slow one.
_STEPS, _PROMPTS, _ANSWERS = 31, 9, 5
_LEAST_PROMPT, _LEAST_GAPS = 32, 4  # the fewest tokens, and gaps, that a measurement needs
_PROMPT_FACTOR = 10  # how much faster a prompt's tokens are assumed to be than an answer's before a long prompt is seen
_LEAST_S = 1e-7


class MeasuredSpeed:
    """Follows an engine's telemetry, unless it is simulated: its speed is known. One thread calls ``take``; any thread may
    read ``speed``.

    Args:
        info: the engine's facts.
        slow_motion: the current value of its knob.

    Attributes:
        speed: ``None`` until it is known: another server has to answer a request first.
    """

    def __init__(self, info: EngineInfo, slow_motion: float = 1.0) -> None:
        speed = self.speed = Speed.of(info)
        self._step = _Recent(_STEPS, speed.step_s) if speed else _Recent(_ANSWERS)
        self._token = _Recent(_PROMPTS, speed.token_s) if speed else _Recent(_ANSWERS)
        self._slow_motion = slow_motion
        self._known = info.simulated and speed is not None

    def take(self, events: Iterable[TelemetryEvent]) -> None:
        for event in () if self._known else events:
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
        # Otherwise what it took beyond another step says little.
        long = max(tokens * now.token_s, took_s - now.step_s) >= now.step_s
        if record.prompt_tokens >= _LEAST_PROMPT and long:
            self.speed = Speed(now.step_s, self._token.quartile_with((took_s - now.step_s) / (tokens - 1)))
        elif not record.prompt_tokens:
            self.speed = Speed(self._step.quartile_with(took_s - (tokens - 1) * now.token_s), now.token_s)

    def _take_answer(self, stream: Stream) -> None:
        """Take a gap between tokens for a step, and the rest of TTFT for the prompt: a server does not report steps."""
        metrics = stream.metrics
        if metrics.sent_ns is None or metrics.ttft_s is None or len(metrics.itl_s) < _LEAST_GAPS:
            return
        gap_s, prompt_tokens = median(metrics.itl_s), metrics.prompt_tokens
        step_s = self._step.quartile_with(gap_s)
        if prompt_tokens >= _LEAST_PROMPT:
            self.speed = Speed(step_s, self._token.quartile_with((metrics.ttft_s - gap_s) / prompt_tokens))
        else:
            self.speed = Speed(step_s, self.speed.token_s if self.speed else gap_s / _PROMPT_FACTOR)


class _Recent:
    """The most recent values of a quantity, beginning with a known one if there is one."""

    def __init__(self, count: int, known: float | None = None) -> None:
        self._values: deque[float] = deque([] if known is None else [known], maxlen=count)

    def quartile_with(self, value: float) -> float:
        """Add a value and return the lower quartile: a quarter of the others are below."""
        self._values.append(max(value, _LEAST_S))
        return sorted(self._values)[(len(self._values) - 1) // 4]
