"""Graceful shutdown: within a grace period, running API requests may finish and new ones are refused."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from roseplay.serve.errors import PREFIX, SHUTTING_DOWN, refusal
from roseplay.serve.interrupts import Interrupts

_LOOK_S = 0.05
_ABORTED_WITHIN_S = 5.0  # the engine handles aborts between two steps
_RETRY_AFTER_S = 5  # by then a successor, or a load balancer's next server, may answer


class Drain:
    """Counts the API's running requests and, once begun, refuses new ones."""

    def __init__(self) -> None:
        self.began = False
        self.running = 0  # changed on the event loop's thread only

    def begin(self) -> None:
        """Refuse new requests from now on."""
        self.began = True


class DrainGate:
    """ASGI middleware: 503 with ``Retry-After`` for new API requests once the drain has begun."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app, self._drain = app, drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asks = scope["type"] == "http" and scope["method"] == "POST" and scope["path"].startswith(f"{PREFIX}/")
        if not asks:
            await self._app(scope, receive, send)
        elif self._drain.began:
            headers = {"Retry-After": str(_RETRY_AFTER_S), "Connection": "close"}
            await refusal(scope["path"], 503, SHUTTING_DOWN, "draining", headers)(scope, receive, send)
        else:
            self._drain.running += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._drain.running -= 1


class DrainingServer(uvicorn.Server):
    """A server that lets the API's requests finish at the first signal, and exits immediately at the second.

    Args:
        drain: of its application, see ``DrainGate``.
        grace_s: how long requests may take to finish after the first signal.
        interrupts: signals received before the server handles them; after one it starts and exits at once.
        begin: called on another thread at the first signal, if requests run; ends what would keep them from finishing.
        abort: called there at the second signal, or after the grace period; ends the requests that still run, so that
            their clients receive an error.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Drain,
        grace_s: float,
        interrupts: Interrupts,
        *,
        begin: Callable[[], object] = lambda: None,
        abort: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._drain, self._grace_s, self._interrupts = drain, grace_s, interrupts
        self._begin, self._abort = begin, abort

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self._interrupts.came:  # from here on signals are this server's
            self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._drain.began or not self._drain.running:
            self._drain.begin()
            super().handle_exit(sig, frame)
            return
        self._drain.begin()
        threading.Thread(target=self._finish, args=(sig,), name="roseplay-drain", daemon=True).start()

    def _finish(self, sig: int) -> None:
        count = self._drain.running
        print(
            f"roseplay: waiting up to {self._grace_s:g} s for {count} request{'s' * (count != 1)} of the API to finish;"
            " interrupt again to end now",
            file=sys.stderr,
        )
        try:
            self._begin()
            self._wait(self._grace_s, lambda: self.should_exit)
            if self._drain.running:
                self._abort()
                self._wait(_ABORTED_WITHIN_S)
        finally:
            if not self.should_exit:
                super().handle_exit(sig, None)

    def _wait(self, within_s: float, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait until no request runs, the time has passed, or ``unless`` returns true."""
        deadline = time.monotonic() + within_s
        while self._drain.running and time.monotonic() < deadline and not unless():
            time.sleep(_LOOK_S)
