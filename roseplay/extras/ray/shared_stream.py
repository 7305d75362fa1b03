"""An engine's answers to one ingress as one stream: a step's tokens of all requests are sent together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from roseplay.clock import Clock
from roseplay.engine.stream import Listener, Stream
from roseplay.engine.wakeups import wakeups
from roseplay.extras.ray.messages import Part

GAP_S = 0.01  # minimum time between two items


class SharedStream:
    """The requests of one ingress, on the replica's event loop.

    Each request has a Ray stream of its own, and each item of it costs both processes about a millisecond, however
    small. So one of these streams, the carrier, brings the parts of all requests; the others only their last part.

    If a carrier's request is aborted, the parts that the ingress has not read yet are lost. So the next carrier sends
    all answers again from the beginning, a last part is always the whole answer, and the ingress skips what it has.

    Args:
        clock: of the engine.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: dict[int, _Answer] = {}  # oldest first
        self._carrier: _Answer | None = None
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._answers)

    def listener(self, ended: asyncio.Event) -> Listener:
        """Returns the listener of a request's stream, which sets ``ended`` at its end. Call this on the event loop."""
        wake = wakeups().wake

        def note(stream: Stream) -> None:
            wake(self._news)
            if stream.finished:
                wake(ended)

        return note

    async def parts(
        self, request_id: int, stream: Stream, ended: asyncio.Event
    ) -> AsyncGenerator[list[tuple[int, Part]]]:
        """Yields the items of a request's Ray stream: parts with their requests' ids, its own last part at the end.

        Args:
            ended: the event that was passed to ``listener``.
        """
        answer = self._answers[request_id] = _Answer(stream, ended)
        if self._carrier is None:
            self._carrier = answer
        try:
            while not stream.finished:
                if self._carrier is answer:
                    await self._news.wait()
                    self._news.clear()
                    if items := self._cut():
                        yield items
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GAP_S if self._carrier is answer else None):
                        await answer.woken.wait()
                        answer.woken.clear()
            self._leave(request_id)
            yield [(request_id, answer.whole(self._clock.now_ns()))]
        finally:
            self._leave(request_id)

    def _cut(self) -> list[tuple[int, Part]]:
        now_ns = self._clock.now_ns()
        running = [(request_id, it) for request_id, it in self._answers.items() if not it.stream.finished]
        return [(request_id, it.next(now_ns)) for request_id, it in running if it.stream.num_tokens > it.sent]

    def _leave(self, request_id: int) -> None:
        answer = self._answers.pop(request_id, None)
        if answer is None or self._carrier is not answer:
            return
        running = [other for other in self._answers.values() if not other.stream.finished]
        self._carrier = running[-1] if running else None  # the newest, which will carry longest
        for other in running:
            other.sent = 0
        if self._carrier is not None:
            self._carrier.woken.set()
            self._news.set()


@dataclass(eq=False, slots=True)
class _Answer:
    """One request, and how much of it has been sent."""

    stream: Stream
    woken: asyncio.Event  # set when it has ended, or when it has become the carrier
    sent: int = 0  # tokens

    def next(self, now_ns: int) -> Part:
        """Returns the tokens since the last part, without the end: it may have come since they were counted."""
        begin, self.sent = self.sent, self.stream.num_tokens
        return _part(self.stream, begin, self.sent, now_ns, ended=False)

    def whole(self, now_ns: int) -> Part:
        """Returns the answer of a request that has ended."""
        return _part(self.stream, 0, self.stream.num_tokens, now_ns, ended=True)


def _part(stream: Stream, begin: int, end: int, now_ns: int, *, ended: bool) -> Part:
    metrics, ends = stream.metrics, stream.text_ends
    reason, error = (stream.finish_reason, stream.error) if ended else (None, None)
    text_begin = ends[begin - 1] if begin else 0
    return Part(
        begin=begin,
        token_ids=stream.token_ids[begin:end],
        ages_ns=[now_ns - time_ns for time_ns in stream.token_times_ns[begin:end]],
        text=stream.text[text_begin : ends[end - 1] if reason is None else None],
        text_ends=ends[begin:end],
        logprobs=stream.logprobs[begin:end],
        prompt_logprobs=stream.prompt_logprobs if begin == 0 else [],
        scheduled_ns=None if metrics.scheduled_ns is None else now_ns - metrics.scheduled_ns,
        computed_prompt_tokens=stream.computed_prompt_tokens,
        cached_tokens=metrics.cached_tokens,
        shared_tokens=metrics.shared_tokens,
        num_preemptions=metrics.num_preemptions,
        finish_reason=None if reason is None else reason.value,
        error=error,
    )
