"""Requests to a server besides its streams: models, metrics, health, knobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from roseplay.formats.text import one_line
from roseplay.remote.questions import Questions, Reply
from roseplay.remote.sentences import refusal
from roseplay.remote.timings import USUAL


class Control:
    """Sends such requests; may be used from any thread.

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
        self._questions = Questions(self.root, self.headers)
        self._reply_s = reply_s

    def close(self) -> None:
        self._questions.close()

    def get(self, path: str, timeout: float | None = None) -> Reply:
        """Returns the reply, whatever its status; raises ``httpx.HTTPError`` if none comes in ``timeout`` seconds."""
        return self._questions.ask("GET", path, self._reply_s if timeout is None else timeout)

    def text(self, path: str, timeout: float | None = None) -> str | None:
        """Returns the text at a path; ``None`` if there is none."""
        reply = self.get(path, timeout)
        return reply.text if reply.status == 200 else None

    def document(self, path: str) -> dict[str, Any]:
        """Returns the JSON object at a path; empty if there is none."""
        reply = self.get(path)
        return (reply.document or {}) if reply.status == 200 else {}

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Reply:
        """Returns the reply to a request, whatever its status; raises ``httpx.HTTPError`` if there is none."""
        return self._questions.ask("POST", path, self._reply_s, json=None if body is None else dict(body))

    def patch(self, path: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Send changes and return the reply; raises ``RefusedError`` with the server's message."""
        reply = self._questions.ask("PATCH", path, self._reply_s, json=dict(changes))
        if reply.status != 200:
            raise refusal(reply.status, reply.content)
        return reply.document or {}


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
