"""Limits for request bodies: size and time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from roseplay.serve.errors import refusal

MAX_BODY = 1 << 20  # bytes, for routes without a limit of their own
_WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")


class BodyLimits:
    """ASGI middleware that reads each body before anything else does: 413 if it is too large, 408 if it is too slow.

    Args:
        max_bytes: returns the limit for a path.

    Attributes:
        within_s: how long a body may take.
        discarded, discard_within_s: how many bytes of a refused body are still read, and for how long, so that its sender
            sees the refusal.
    """

    within_s = 30.0
    discarded, discard_within_s = 64 << 20, 5.0

    def __init__(self, app: ASGIApp, max_bytes: Callable[[str], int] = lambda path: MAX_BODY) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _WITHOUT_BODY:
            await self._app(scope, receive, send)
            return
        limit = self._max_bytes(scope["path"])
        try:
            async with asyncio.timeout(self.within_s):
                if _announced(scope) > limit:
                    raise TooLargeError
                body = await read_body(receive, limit)
        except ClientLeftError:
            return
        except TimeoutError:
            await _refuse(408, f"the body did not arrive within {self.within_s:g} s", scope, receive, send)
        except TooLargeError:
            await self._discard(receive)
            await _refuse(413, f"the body is too large: send at most {limit:,} bytes", scope, receive, send)
        else:
            await self._app(scope, replayed(body, receive), send)

    async def _discard(self, receive: Receive) -> None:
        """Keep reading for a while: a client that is still sending would not see the refusal."""
        size = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(self.discard_within_s):
                while size < self.discarded:
                    message = await receive()
                    size += len(message.get("body", b""))
                    if message["type"] != "http.request" or not message.get("more_body"):
                        return


class ClientLeftError(Exception):
    """The connection was closed before its request was complete."""


class TooLargeError(Exception):
    """A body is larger than its limit."""


def _announced(scope: Scope) -> int:
    length = Headers(scope=scope).get("content-length", "")
    return int(length) if length.isdecimal() and len(length) < 20 else 0


async def _refuse(status: int, line: str, scope: Scope, receive: Receive, send: Send) -> None:
    await refusal(scope["path"], status, line, headers={"Connection": "close"})(scope, receive, send)


async def read_body(receive: Receive, limit: float = math.inf) -> bytes:
    """Returns the whole body.

    Raises:
        TooLargeError: it has more than ``limit`` bytes; the rest was not read.
        ClientLeftError: the client closed the connection.
    """
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientLeftError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise TooLargeError
        if not message.get("more_body"):
            return b"".join(parts)


def replayed(body: bytes, receive: Receive) -> Receive:
    """Returns a ``receive`` that first returns a body already read, then what follows."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay
