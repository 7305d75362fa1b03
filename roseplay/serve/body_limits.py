"""Limits for request bodies: size and time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from roseplay.serve.errors import refusal

MAX_BODY = 1 << 20  # bytes, for routes without a limit of their own
BODY_WITHIN_S = 30.0
DISCARDED = 64 << 20  # bytes that are still read of a refused body, so that its sender sees the refusal
DISCARD_WITHIN_S = 5.0
_WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")


class BodyLimits:
    """ASGI middleware that reads each body before anything else does: 413 if it is too large, 408 if it is too slow.

    Args:
        max_bytes: returns the limit for a path.
    """

    def __init__(self, app: ASGIApp, max_bytes: Callable[[str], int] = lambda path: MAX_BODY) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _WITHOUT_BODY:
            await self._app(scope, receive, send)
            return
        limit = self._max_bytes(scope["path"])
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                if _announced(scope) > limit:
                    raise TooLargeError
                body = await read_body(receive, limit)
        except ClientLeftError:
            return
        except TimeoutError:
            await _refuse(408, f"the body did not arrive within {BODY_WITHIN_S:g} s", scope, receive, send)
        except TooLargeError:
            await _discard(receive)
            await _refuse(413, f"the body is too large: send at most {limit:,} bytes", scope, receive, send)
        else:
            await self._app(scope, replayed(body, receive), send)


class ClientLeftError(Exception):
    """The connection was closed before its request was complete."""


class TooLargeError(Exception):
    """A body is larger than its limit."""


def _announced(scope: Scope) -> int:
    length = Headers(scope=scope).get("content-length", "")
    return int(length) if length.isdecimal() and len(length) < 20 else 0


async def _refuse(status: int, line: str, scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse(refusal(scope["path"], status, line), status, {"Connection": "close"})(scope, receive, send)


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


async def _discard(receive: Receive) -> None:
    """Keep reading for a while: a client that is still sending would not see the refusal."""
    size = 0
    try:
        async with asyncio.timeout(DISCARD_WITHIN_S):
            while size < DISCARDED:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
    except TimeoutError:
        return


def replayed(body: bytes, receive: Receive) -> Receive:
    """Returns a ``receive`` that first returns a body already read, then what follows."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay
