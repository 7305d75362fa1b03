"""Facts about each request that are not in its stream: its sender, its prompt's progress, and the tokens saved."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from roseplay.engine.records import EntryRecord, RequestFacts
from roseplay.engine.stream import Stream
from roseplay.recording.tenant_numbers import TenantNumbers

MOST_SENDERS = 1 << 14  # requests whose sender is remembered


@dataclass(slots=True, eq=False)
class TrackedRequest(RequestFacts):
    """One request and its sender."""

    stream: Stream  # the engine's stream (text, token times, metrics)
    tab: str = ""  # id of the tab whose lease keeps it alive; "" for programs, which have none
    title: str = ""  # its prompt, as displayed
    stopping: bool = False  # an abort was requested; the current step is finished first
    reached: int = 0  # the most prompt tokens that its blocks ever held; a preemption does not lower it
    counted: int = 0  # its prompt tokens included in the totals
    # Its tokens that came late, as the time and the gap that was usual then, in ms of the page's clock.
    late: list[tuple[float, float]] = field(default_factory=list)

    @property
    def request_id(self) -> int:
        return self.stream.request_id

    @property
    def prompt_tokens(self) -> int:
        return self.stream.metrics.prompt_tokens  # its ids may be unknown

    @property
    def finished(self) -> bool:
        return self.stream.finish_reason is not None

    @property
    def ttft_s(self) -> float | None:
        return self.stream.metrics.ttft_s


class Sender(NamedTuple):
    """The sender of a request: a tab, or "" for a program, and the lane, or ``None`` for other traffic."""

    tab: str
    lane: int | None


@dataclass(slots=True)
class PrefillTotals:
    """Sums of prompt tokens over all requests since the server started, from lanes, bursts and programs.

    ``computed`` counts each prompt token once: tokens that a preempted request computes again count neither as computed
    nor as saved. When all requests have completed, ``prompt_tokens = computed + cached + shared``; the rest of a prompt
    that was stopped early is in none of these. ``blocks_saved``: whole blocks that the saved tokens would have filled.
    """

    requests: int = 0
    prompt_tokens: int = 0
    computed: int = 0
    cached: int = 0
    shared: int = 0
    blocks_saved: int = 0

    @property
    def saved(self) -> int:
        return self.cached + self.shared

    def figures(self) -> dict[str, int]:
        """Returns the totals for a frame's ``stats``."""
        return {**asdict(self), "saved": self.saved}


class RequestRegistry:
    """All live and recently ended requests, by id.

    The engine reports a submission from its own thread, possibly before ``submit`` has returned the request's id. While
    one of our submissions is in progress, an unknown request therefore has no known sender: ``find`` returns ``None``,
    and the caller asks again later.

    Args:
        block_size: tokens of a KV block.
    """

    def __init__(self, block_size: int) -> None:
        self.totals = PrefillTotals()
        self._block_size = block_size
        self._lock = threading.Lock()
        self._requests: dict[int, TrackedRequest] = {}
        self._senders: dict[int, Sender] = {}
        self._tenants = TenantNumbers()
        self._submitting = 0

    @contextmanager
    def submitting(self) -> Iterator[Callable[[TrackedRequest], None]]:
        """Returns a context for a call of ``submit``; it yields the function that registers the request."""
        with self._lock:
            self._submitting += 1
        try:
            yield self._enter
        finally:
            with self._lock:
                self._submitting -= 1

    def _enter(self, tracked: TrackedRequest) -> None:
        with self._lock:
            self._requests[tracked.request_id] = tracked
            self._senders[tracked.request_id] = Sender(tracked.tab, tracked.lane)
            if len(self._senders) > MOST_SENDERS:
                del self._senders[next(iter(self._senders))]

    def get(self, request_id: int) -> TrackedRequest | None:
        return self._requests.get(request_id)

    def sender(self, request_id: int) -> Sender | None:
        """Returns the sender of a request made through this page, even after it was forgotten; ``None`` if unknown."""
        return self._senders.get(request_id)

    def find(self, request_id: int, stream: Stream | None) -> TrackedRequest | None:
        """Returns the request; an unknown one is registered as a program's, or gives ``None`` while we submit another.

        A request without a stream ended long ago and is not registered again.
        """
        with self._lock:
            tracked = self._requests.get(request_id)
            if tracked is None and stream is not None and not self._submitting:
                tracked = self._requests[request_id] = TrackedRequest(stream)
            return tracked

    def submitted(self, tracked: TrackedRequest) -> None:
        """Add a request to the totals and number its tenant; called once for each."""
        tracked.tenant, tracked.priority = self._tenants.of(tracked.stream.params)
        self.totals.requests += 1
        self.totals.prompt_tokens += tracked.prompt_tokens
        tracked.counted = tracked.prompt_tokens

    def progress(self, entry: EntryRecord) -> None:
        """Record the progress of a request's prompt."""
        tracked = self._requests.get(entry.request_id)
        if tracked is None or (
            entry.computed == tracked.computed and entry.target == tracked.target == tracked.reached
        ):
            return  # it decodes: most entries
        tracked.computed, tracked.target = entry.computed, entry.target
        self._account(tracked, entry.computed, entry.cached, entry.shared)

    def settle(self, tracked: TrackedRequest) -> None:
        """Account for facts about a request that are known only when it has ended.

        Steps may have been reported before it was registered, and a server counts a prompt's tokens at the end.
        """
        self.totals.prompt_tokens += tracked.prompt_tokens - tracked.counted
        tracked.counted = tracked.prompt_tokens
        tracked.computed = max(tracked.computed, min(tracked.stream.computed_prompt_tokens, tracked.prompt_tokens))
        metrics = tracked.stream.metrics
        self._account(tracked, tracked.stream.computed_prompt_tokens, metrics.cached_tokens, metrics.shared_tokens)

    def _account(self, tracked: TrackedRequest, computed: int, cached: int, shared: int) -> None:
        """Add only what exceeds earlier counts: progress falls back when a preempted request starts again."""
        totals, saved = self.totals, tracked.cached + tracked.shared
        if more := max(0, cached + shared - saved):
            totals.cached += cached - tracked.cached
            totals.shared += shared - tracked.shared
            totals.blocks_saved += (saved + more) // self._block_size - saved // self._block_size
            tracked.cached, tracked.shared = cached, shared
        reached = max(tracked.reached, min(computed, tracked.prompt_tokens))
        totals.computed += max(0, reached - tracked.reached - more)
        tracked.reached = reached

    def all(self) -> list[TrackedRequest]:
        with self._lock:
            return list(self._requests.values())

    def forget(self, ended_before_ns: int) -> None:
        """Drop requests that ended before this time."""
        with self._lock:
            for request_id, tracked in list(self._requests.items()):
                ended = tracked.stream.metrics.finished_ns
                if tracked.finished and (ended or 0) < ended_before_ns:
                    del self._requests[request_id]
