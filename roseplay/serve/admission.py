"""Refuses requests for which the queue has no room, before their bodies are read.

In a burst of a thousand, refusals should not wait for accepted requests to be read, checked and tokenised.
"""

from __future__ import annotations

import threading
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from roseplay.engine.errors import EngineError
from roseplay.serve.errors import PREFIX, ApiError
from roseplay.serve.served import Served

_ASK = (f"{PREFIX}/completions", f"{PREFIX}/chat/completions")
_ARRIVAL = "roseplay_arrival"  # key in the ASGI scope


class _Arrival:
    """An admitted request that takes a place in the queue before the engine knows of it."""

    def __init__(self, gate: AdmissionGate) -> None:
        self._gate, self._over = gate, False
        with gate.lock:
            gate.arriving += 1

    def over(self) -> None:
        """Give the place back. May be called repeatedly and from any thread."""
        with self._gate.lock:
            if not self._over:
                self._gate.arriving -= 1
            self._over = True


def submits(scope: Any) -> None:
    """Give back the place of a request that is about to be submitted. May be called from any thread.

    This happens before the engine takes the request: counted twice, it would keep out another request for which there
    is room, while the engine itself refuses one that was admitted in excess.
    """
    if (arrival := scope.get(_ARRIVAL)) is not None:
        arrival.over()


class AdmissionGate:
    """ASGI middleware: 429 with ``Retry-After`` for API requests that exceed the room in the engine's queue."""

    def __init__(self, app: ASGIApp, served: Served) -> None:
        self._app, self._served = app, served
        self.arriving = 0
        self.lock = threading.Lock()  # guards ``arriving``

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in _ASK:
            await self._app(scope, receive, send)
            return
        if self._is_full():
            waiting = self._served.engine.config.max_waiting
            refusal = ApiError(429, f"{waiting} requests are already waiting: try again later", code="queue_full")
            await refusal.response()(scope, receive, send)
            return
        arrival = scope[_ARRIVAL] = _Arrival(self)
        try:
            await self._app(scope, receive, send)
        finally:
            arrival.over()

    def _is_full(self) -> bool:
        try:
            return self.arriving >= self._served.engine.room
        except EngineError:  # it is starting, which another gate reports
            return False
