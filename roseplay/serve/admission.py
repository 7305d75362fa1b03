"""Refuses requests for which there is no room in the queue, before their bodies are read.

In a burst of a thousand, those that are refused should not wait behind those that are read, checked and tokenised.
"""

from __future__ import annotations

import threading
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from roseplay.engine.errors import EngineError
from roseplay.serve.errors import PREFIX, ApiError
from roseplay.serve.served import Served

_ASK = (f"{PREFIX}/completions", f"{PREFIX}/chat/completions")
_ARRIVAL = "roseplay_arrival"  # in the scope


class _Arrival:
    """A request that was let in and takes a place of the queue that the engine does not know of yet."""

    def __init__(self, gate: AdmissionGate) -> None:
        self._gate, self._over = gate, False
        with gate.lock:
            gate.arriving += 1

    def over(self) -> None:
        """Give the place back; may be called again, from any thread."""
        with self._gate.lock:
            if not self._over:
                self._gate.arriving -= 1
            self._over = True


def submits(scope: Any) -> None:
    """This request is submitted now, from any thread.

    Its place is given back before the engine takes it: counted twice it would keep out another request that there is
    room for, while one that is let in too many is refused by the engine.
    """
    arrival = scope.get(_ARRIVAL)
    if arrival is not None:
        arrival.over()


class AdmissionGate:
    """ASGI middleware: 429 with ``Retry-After`` for requests of the API that exceed the room in the engine's queue."""

    def __init__(self, app: ASGIApp, served: Served) -> None:
        self._app, self._served = app, served
        self.arriving = 0
        self.lock = threading.Lock()  # for ``arriving``

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in _ASK:
            await self._app(scope, receive, send)
            return
        if self._is_full():
            waiting = self._served.engine.config.max_waiting
            refusal = ApiError(429, f"{waiting} requests wait already: try again later", code="queue_full")
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
        except EngineError:  # it is starting, which another gate says
            return False
