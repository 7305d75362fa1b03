"""An engine without a model that takes as long as a model would, on a virtual clock that only waiting advances."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable
from typing import Any

from roseplay.config import SamplingParams
from roseplay.engine.stream import Stream
from roseplay.traffic.pace import Speed
from tests.play.fake_engine import FakeEngine


class VirtualClock:
    """Waiting takes no real time: it performs the work due until then and advances the clock."""

    def __init__(self) -> None:
        self.ns = 10**9
        self.work: Callable[[int], None] = lambda until_ns: None

    def now_ns(self) -> int:
        return self.ns

    def wait(self, event: threading.Event, seconds: float) -> bool:
        until = self.ns + int(seconds * 1e9)
        if not event.is_set():
            self.work(until)
            self.ns = max(self.ns, until)
        return event.is_set()


class Letters:
    """A decoder for which each token is a letter, as each token of a prompt is here."""

    def push(self, token_id: int) -> str:
        return "abcdefgh"[token_id % 8]

    def flush(self) -> str:
        return ""


class PacedEngine(FakeEngine):
    """Steps take the time that ``speed`` gives, longer in slow motion. Common prompt prefixes are computed once."""

    detokenizer = Letters

    def __init__(self, speed: Speed) -> None:
        self.virtual = VirtualClock()
        super().__init__(clock=self.virtual)
        self.speed = speed
        self.info = dataclasses.replace(self.info, decode_s=speed.step_s, prompt_token_s=speed.token_s)
        self.virtual.work = self.run_until

    def run_until(self, ns: int) -> None:
        """Make the steps that begin before this time."""
        while self.virtual.ns < ns and self.num_unfinished:
            self.step()

    def submit(self, prompt: Any, params: SamplingParams | None = None, **more: Any) -> Stream:
        live = [stream for stream in self.streams.values() if not stream.finished]
        self.virtual.ns += 20_000  # later than the previous step
        stream = super().submit(prompt, params, **more)
        if self.knobs.same_step_sharing:
            common = max((_common(prompt, other.prompt_token_ids) for other in live), default=0)
            shared = min(common - common % self.info.block_size, len(prompt) - 1)
            self._shared[stream.request_id] = shared
            self._left[stream.request_id] -= shared
        return stream

    def _compute(self, tokens: int) -> None:
        self.virtual.ns += int(self.speed.step(tokens) * self.knobs.slow_motion * 1e9)


def _common(one: Any, other: Any) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
