"""A client for the checks: requests, and streams with the time of each event."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx

from roseplay.extras.servers.control import Control, Reply
from roseplay.extras.servers.sentences import Document
from roseplay.extras.servers.server import models_in
from roseplay.extras.servers.sse import EventParser
from roseplay.formats.json_text import tolerant_json
from roseplay.formats.text import one_line

MODEL_WITHIN_S = 10.0
MOST_OF_STREAM = 4 << 20  # bytes


@dataclass(slots=True)
class Events:
    """The events of a stream that was read to its end, or up to the limits of time and size for a short answer."""

    status: int
    chunks: list[Document] = field(default_factory=list)  # the JSON of each, without the final ``[DONE]``
    times_s: list[float] = field(default_factory=list)  # when each arrived, in seconds since the request
    done: bool = False  # whether the stream ended with ``[DONE]``


class Server(Control):
    """A server and the model to be checked.

    Args:
        url: of the API, with or without ``/v1``.
        model: its name; by default the first one that the server lists.
        timeout: seconds after which a request that has not ended has failed.

    Raises:
        ValueError: the address or the key cannot be used, or nothing answers there; one line for the user.
    """

    def __init__(self, url: str, *, api_key: str | None = None, model: str | None = None, timeout: float = 60) -> None:
        super().__init__(url, api_key, timeout)
        with ExitStack() as opened:
            opened.callback(super().close)
            # Ignores the environment's proxies: they cannot reach a server on this machine.
            self._streams = opened.enter_context(httpx.Client(headers=self.headers, timeout=timeout, trust_env=False))
            try:
                self.models = self._list_models()
            except httpx.HTTPError as error:
                raise ValueError(one_line(f"nothing answers at {self.root}/v1: {error}")) from None
            if model is None and not self.models:
                raise ValueError(f"{self.root}/v1/models lists no model: name one with --model")
            self.model = model or self.models[0]
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def _list_models(self) -> list[str]:
        reply = self.get("/v1/models", MODEL_WITHIN_S)
        if reply.status in (401, 403):
            raise ValueError(f"{self.root} asks for a key: give it with --api-key")
        return [card.id for card in models_in(reply)]

    def chat(self, content: str = "What is a cache?", **fields: Any) -> Reply:
        return self.post("/v1/chat/completions", self._chat_body(content, fields))

    def complete(self, prompt: Any = "Once upon a time", **fields: Any) -> Reply:
        return self.post("/v1/completions", {"model": self.model, "prompt": prompt, "max_tokens": 8, **fields})

    def _chat_body(self, content: str, fields: Mapping[str, Any]) -> dict[str, object]:
        messages = [{"role": "user", "content": content}]
        return {"model": self.model, "messages": messages, "max_tokens": 8, **fields}

    def stream_chat(self, **fields: Any) -> Events:
        """Ask one question and read the stream of its answer."""
        began = time.monotonic()
        parser, size = EventParser(), 0
        with self.open_stream("What is a cache?", **fields) as response:
            events = Events(response.status_code)
            for portion in response.iter_bytes():
                time_s = time.monotonic() - began
                size += len(portion)
                if size > MOST_OF_STREAM or time_s > self._reply_s:
                    break
                for data in parser.feed(portion):
                    if data == b"[DONE]":
                        events.done = True
                        return events
                    events.chunks.append(tolerant_json(data))
                    events.times_s.append(time_s)
            events.done = parser.end() == [b"[DONE]"]
        return events

    def open_stream(self, content: str, **fields: Any) -> AbstractContextManager[httpx.Response]:
        """Open a stream; leaving the ``with`` block closes its connection."""
        body = {**self._chat_body(content, fields), "stream": True}
        return self._streams.stream("POST", f"{self.root}/v1/chat/completions", json=body)
