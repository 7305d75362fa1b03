"""Submits all requests of chats, traffic and programs, so that each request's sender is known."""

from __future__ import annotations

from roseplay.config import SamplingParams
from roseplay.engine.engine_like import EngineLike, Prompt
from roseplay.engine.records import RequestKind
from roseplay.play.chats import title_of
from roseplay.recording.request_registry import RequestRegistry, TrackedRequest


class Requests:
    """Submits and aborts requests. Thread-safe."""

    def __init__(self, engine: EngineLike) -> None:
        self.engine = engine
        self.registry = RequestRegistry(engine.info.block_size)  # for frames and recordings

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        kind: RequestKind,
        tab: str = "",
        lane: int | None = None,
        burst: int | None = None,
        title: str | None = None,
        thinking: bool = False,
        due_ns: int | None = None,
    ) -> TrackedRequest:
        """Submit a request; raises the errors of ``EngineLike.submit``.

        Args:
            kind, tab, lane, burst, thinking: see ``TrackedRequest``.
            title: the prompt for display; by default its text, or in a chat that of the last message.
            due_ns: when the request was scheduled to be submitted.
        """
        with self.registry.submitting() as enter:
            stream = self.engine.submit(prompt, params, due_ns=due_ns)
            title = title_of(prompt) if title is None else title
            tracked = TrackedRequest(stream, kind=kind, lane=lane, burst=burst, tab=tab, title=title, thinking=thinking)
            enter(tracked)
        return tracked

    def abort(self, request_id: int) -> bool:
        if not self.engine.abort(request_id):
            return False
        if tracked := self.registry.get(request_id):
            tracked.stopping = True
        return True
