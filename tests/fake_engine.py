"""An engine with the public interface of the real one and no model: answers come at once, or when a test says so."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from roseplay.clock import SYSTEM_CLOCK, Clock
from roseplay.config import EngineConfig, Knobs, SamplingParams
from roseplay.core.info import EngineInfo
from roseplay.core.request import FinishReason
from roseplay.engine.request_metrics import RequestMetrics

INFO = EngineInfo(
    model="fake",
    architecture="FakeForCausalLM",
    device="cpu",
    dtype="float32",
    attention="none",
    num_parameters=1_000_000,
    weight_bytes=4_000_000,
    vocab_size=1000,
    block_size=16,
    num_blocks=64,
    max_model_len=1024,
    kv_bytes_per_token=8,
    threads=2,
)


class FakeStream:
    """An answer with the engine's own ``RequestMetrics``, so that the tests exercise its definitions."""

    def __init__(self, request_id: int, prompt: Any, params: SamplingParams, submitted_ns: int) -> None:
        self.request_id = request_id
        self.params = params
        self.metrics = RequestMetrics(submitted_ns, prompt_tokens=len(prompt), scheduled_ns=submitted_ns)
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None
        self._finished = threading.Event()

    @property
    def finished(self) -> bool:
        return self._finished.is_set()

    def finish(
        self, token_times_s: list[float], reason: FinishReason = FinishReason.LENGTH, error: str | None = None
    ) -> None:
        """End with tokens at these times, in seconds after the submit. The last time is also the end."""
        metrics = self.metrics
        times = [metrics.submitted_ns + round(time_s * 1e9) for time_s in token_times_s]
        if times:
            metrics.first_token_ns, metrics.last_token_ns = times[0], times[-1]
        metrics.itl_ns = [later - earlier for earlier, later in itertools.pairwise(times)]
        metrics.completion_tokens = len(times)
        metrics.finished_ns = times[-1] if times else metrics.submitted_ns
        self.error = error
        self.finish_reason = reason
        self._finished.set()

    def result(self, timeout: float | None = None) -> FakeStream:
        if not self._finished.wait(timeout):
            raise TimeoutError
        return self

    def cancel(self) -> None:
        if not self.finished:
            self.finish([], FinishReason.ABORT)


class FakeEngine:
    """Answers each request with ``answer(stream)``, or else with ``max_new_tokens`` tokens, one per millisecond."""

    def __init__(
        self,
        model: str = "fake",
        *,
        config: EngineConfig | None = None,
        knobs: Knobs | None = None,
        answer: Callable[[FakeStream], None] | None = None,
        tokenizer: Any = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.model = model
        self.config = config or EngineConfig()
        self.clock = clock
        self.knobs = knobs or Knobs()
        self.info = replace(INFO, model=model)
        self.tokenizer = tokenizer
        self.streams: list[FakeStream] = []
        self.prompts: list[Any] = []
        self.calls: list[str] = []
        self._answer = answer or answer_at_once

    def submit(self, prompt: Any, params: SamplingParams | None = None, *, on_update: Any = None) -> FakeStream:
        self.calls.append("submit")
        stream = FakeStream(len(self.streams), prompt, params or SamplingParams(), self.clock.now_ns())
        self.streams.append(stream)
        self.prompts.append(prompt)
        self._answer(stream)
        return stream

    def set_knobs(self, **changes: Any) -> Knobs:
        self.calls.append("set_knobs")
        self.knobs = self.knobs.changed({**asdict(self.knobs), **changes})
        return self.knobs

    def clear_cache(self) -> None:
        self.calls.append("clear_cache")

    def close(self) -> None:
        self.calls.append("close")

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def answer_at_once(stream: FakeStream) -> None:
    stream.finish([0.001 * (number + 1) for number in range(stream.params.max_new_tokens)])
