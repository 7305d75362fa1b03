"""Requests to a server besides its streams: models, metrics, health, knobs."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import httpx

from roseplay.engine.errors import EngineError
from roseplay.engine.loop_thread import LoopThread
from roseplay.extras.servers.sentences import Document, object_in, refusal
from roseplay.extras.servers.timings import USUAL
from roseplay.formats.text import one_line

MOST_REPLY = 8 << 20  # bytes
_CLOSE_S = 2.0


class Reply(NamedTuple):
    """A reply that has been read to its end."""

    status: int
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace")

    @property
    def document(self) -> Document | None:
        """Its JSON object; ``None`` if it is anything else."""
        return object_in(self.content)


class Control:
    """Sends such requests from any thread and waits for the replies, each with a deadline and a limit of its size.

    A blocking client's timeouts apply to each read: a server that sends a byte now and then could block it for ever. So
    the requests are made by an event loop in a thread of its own.

    Args:
        url: of the API, with or without ``/v1``.
        reply_s: default timeout for a complete reply, in seconds.

    Attributes:
        root: the address without ``/v1``.
        headers: of every request, including streams.

    Raises:
        ValueError: the address or the key cannot be used; the message is one line without any key or password.
    """

    def __init__(self, url: str, api_key: str | None = None, reply_s: float = USUAL.reply_s) -> None:
        key = (api_key or "").strip()
        if not key.isascii() or not all(char.isprintable() and char != " " for char in key):
            raise ValueError("the key holds characters that cannot be sent: a key is printable ASCII without spaces")
        self.root = _checked(url).rstrip("/").removesuffix("/v1")
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._reply_s = reply_s
        # Ignores the environment's proxies: they cannot reach a server on this machine.
        self._client = httpx.AsyncClient(base_url=self.root, headers=self.headers, timeout=None, trust_env=False)
        self._loop = LoopThread("roseplay-http-control", self._finish)

    def get(self, path: str, timeout: float | None = None) -> Reply:
        """Returns the reply, whatever its status; raises the errors of ``ask``."""
        return self.ask("GET", path, timeout)

    def text(self, path: str, timeout: float | None = None) -> str | None:
        """Returns the text at a path; ``None`` if there is none."""
        reply = self.get(path, timeout)
        return reply.text if reply.status == 200 else None

    def document(self, path: str) -> Document:
        """Returns the JSON object at a path; empty if there is none."""
        reply = self.get(path)
        return (reply.document or {}) if reply.status == 200 else {}

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Reply:
        """Returns the reply to a request, whatever its status; raises the errors of ``ask``."""
        return self.ask("POST", path, json=None if body is None else dict(body))

    def patch(self, path: str, changes: Mapping[str, Any]) -> Document:
        """Send changes and return the reply; raises ``RefusedError`` with the server's message."""
        reply = self.ask("PATCH", path, json=dict(changes))
        if reply.status != 200:
            raise refusal(*reply)
        return reply.document or {}

    def ask(self, method: str, path: str, timeout: float | None = None, **options: Any) -> Reply:
        """Returns the reply, whatever its status.

        Args:
            timeout: seconds until the reply must have ended; by default ``reply_s``.
            options: of ``httpx.AsyncClient.request``, such as ``json``.

        Raises:
            httpx.HTTPError: there is no complete reply in time, or it is longer than ``MOST_REPLY``.
            EngineError: the client is closed, or was closed meanwhile.
        """
        within_s = self._reply_s if timeout is None else timeout
        future = self._loop.start(self._ask(method, path, within_s, options))
        try:
            return future.result(within_s + _CLOSE_S)  # ends by itself, unless its loop is blocked or ends meanwhile
        except TimeoutError:
            future.cancel()
            raise httpx.ReadTimeout(f"no whole reply within {within_s:g} s") from None
        except concurrent.futures.CancelledError:
            raise EngineError("the engine is closed") from None

    def close(self) -> None:
        """End the thread, and all requests with ``EngineError``. Idempotent."""
        self._loop.close(_CLOSE_S)

    # -- the loop's thread

    async def _ask(self, method: str, path: str, within_s: float, options: dict[str, Any]) -> Reply:
        try:
            async with asyncio.timeout(within_s), self._client.stream(method, path, **options) as response:
                content = bytearray()
                async for portion in response.aiter_bytes():
                    content += portion
                    if len(content) > MOST_REPLY:
                        raise httpx.TransportError(f"the reply is longer than {MOST_REPLY >> 20} MiB")
                return Reply(response.status_code, bytes(content))
        except TimeoutError:
            raise httpx.ReadTimeout(f"no whole reply within {within_s:g} s") from None

    async def _finish(self) -> None:
        with suppress(httpx.HTTPError):
            await self._client.aclose()


def _checked(url: str) -> str:
    """Returns the address. It is shown on the page and in recordings, so nothing secret may be part of it."""
    try:
        parsed = httpx.URL(url.strip())
    except (httpx.InvalidURL, UnicodeError, TypeError) as error:
        raise ValueError(f"{url!r} is not the address of an API ({one_line(error)}): use http://host:8000/v1") from None
    if parsed.userinfo or parsed.query or parsed.fragment:
        raise ValueError("the address has a user's name, a query or a fragment: leave it out, and give a key as such")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"{url!r} is not the address of an API: use http://host:8000/v1")
    return url.strip()
