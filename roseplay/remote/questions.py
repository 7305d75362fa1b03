"""Short requests to a server, each with a deadline and a size limit for its whole reply."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import httpx

from roseplay.engine.loop_thread import LoopThread
from roseplay.remote.sentences import object_in

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
    def document(self) -> dict[str, Any] | None:
        """Its JSON object; ``None`` if it is anything else."""
        return object_in(self.content)


class Questions:
    """Sends requests from any thread and waits for the replies.

    A blocking client's timeouts apply to each read: a server that sends a byte now and then could block it for ever. So
    the requests are made by an event loop in a thread of its own.

    Args:
        root: of the server's paths.
        headers: of every request.
    """

    def __init__(self, root: str, headers: Mapping[str, str]) -> None:
        # Ignores the environment's proxies: they cannot reach a server on this machine.
        self._client = httpx.AsyncClient(base_url=root, headers=dict(headers), timeout=None, trust_env=False)
        self._closed = False
        self._loop = LoopThread("roseplay-http-questions", self._finish)

    def ask(self, method: str, path: str, timeout: float, **options: Any) -> Reply:
        """Returns the reply, whatever its status.

        Args:
            timeout: seconds until the reply must have ended.
            options: of ``httpx.AsyncClient.request``, such as ``json``.

        Raises:
            httpx.HTTPError: there is no complete reply in time, or it is longer than ``MOST_REPLY``.
            RuntimeError: the client is closed.
        """
        if self._closed:
            raise RuntimeError("no more questions can be asked: the client is closed")
        question = self._loop.start(self._ask(method, path, timeout, options))
        try:
            return question.result(timeout + _CLOSE_S)  # ends by itself, unless its loop is blocked or ends meanwhile
        except TimeoutError:
            question.cancel()
            raise httpx.ReadTimeout(f"no whole reply within {timeout:g} s") from None
        except concurrent.futures.CancelledError:
            raise RuntimeError("the client was closed") from None

    def close(self) -> None:
        """End the thread, and all requests with ``RuntimeError``. Idempotent."""
        self._closed = True
        self._loop.close(_CLOSE_S)

    # -- the loop's thread

    async def _ask(self, method: str, path: str, timeout: float, options: dict[str, Any]) -> Reply:
        try:
            async with asyncio.timeout(timeout), self._client.stream(method, path, **options) as response:
                content = bytearray()
                async for portion in response.aiter_bytes():
                    content += portion
                    if len(content) > MOST_REPLY:
                        raise httpx.TransportError(f"the reply is longer than {MOST_REPLY >> 20} MiB")
                return Reply(response.status_code, bytes(content))
        except TimeoutError:
            raise httpx.ReadTimeout(f"no whole reply within {timeout:g} s") from None

    async def _finish(self) -> None:
        with suppress(httpx.HTTPError):
            await self._client.aclose()
