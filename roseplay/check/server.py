"""A server as its clients see it: requests, and streams with the time of each event."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from roseplay.json_text import tolerant_json

MODEL_WITHIN_S = 10.0


class ServerError(Exception):
    """The server cannot be reached, or answers nothing that could be checked; one line for the user."""


@dataclass(slots=True)
class Reply:
    """What came back: ``document`` is None where the body is no JSON object."""

    status: int
    document: dict[str, Any] | None
    headers: Mapping[str, str]

    @property
    def ok(self) -> bool:
        return self.status == 200 and self.document is not None

    @property
    def refusal(self) -> str:
        """What the server said of a refusal, or its status."""
        error = (self.document or {}).get("error")
        said = error.get("message") if isinstance(error, dict) else error
        return f"{self.status}: {said}" if said else f"status {self.status}"


@dataclass(slots=True)
class Events:
    """The events of a stream that was read to its end.

    Attributes:
        chunks: the JSON of each, without the last line ``[DONE]``.
        times_s: when each came, from the request on.
        done: whether the stream ended with ``[DONE]``.
    """

    status: int
    chunks: list[dict[str, Any]] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    done: bool = False

    @property
    def text(self) -> str:
        return "".join(_delta(choice) for chunk in self.chunks for choice in chunk.get("choices", []))


def _delta(choice: Mapping[str, Any]) -> str:
    text = choice.get("text")
    return str(text if text is not None else (choice.get("delta") or {}).get("content") or "")


class Server:
    """A server and the model of it that is asked.

    Args:
        url: of the API, with or without ``/v1``.
        model: its name; by default the first one that the server lists.
        timeout: seconds without a byte after which a request has failed.

    Raises:
        ServerError: nothing answers there.
    """

    def __init__(self, url: str, *, api_key: str | None = None, model: str | None = None, timeout: float = 60) -> None:
        self.root = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            # Without the environment's proxies: a server on this machine is none of theirs.
            self._client = httpx.Client(headers=headers, timeout=timeout, trust_env=False)
            self.models = self._list_models()
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise ServerError(f"nothing answers at {self.root}/v1: {error}") from None
        if model is None and not self.models:
            raise ServerError(f"{self.root}/v1/models names no model: say which with --model")
        self.model = model or self.models[0]

    def close(self) -> None:
        self._client.close()

    def _list_models(self) -> list[str]:
        reply = self.get("/v1/models", timeout=MODEL_WITHIN_S)
        if reply.status in (401, 403):
            raise ServerError(f"{self.root} asks for a key: give it with --api-key")
        found = (reply.document or {}).get("data")
        return [str(one["id"]) for one in found if "id" in one] if isinstance(found, list) else []

    def get(self, path: str, **options: Any) -> Reply:
        return _reply(self._client.get(self.root + path, **options))

    def text(self, path: str) -> tuple[int, str]:
        """Returns the status and the text of a page."""
        response = self._client.get(self.root + path)
        return response.status_code, response.text

    def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        return _reply(self._client.post(self.root + path, json=dict(body)))

    def chat(self, content: str = "What is a cache?", **fields: Any) -> Reply:
        """Ask one question."""
        return self.post("/v1/chat/completions", self._chat_body(content, fields))

    def complete(self, prompt: Any = "Once upon a time", **fields: Any) -> Reply:
        """Have one prompt continued."""
        return self.post("/v1/completions", {"model": self.model, "prompt": prompt, "max_tokens": 8, **fields})

    def _chat_body(self, content: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        messages = [{"role": "user", "content": content}]
        return {"model": self.model, "messages": messages, "max_tokens": 8, **fields}

    def stream_chat(self, content: str = "What is a cache?", **fields: Any) -> Events:
        """Ask one question and read the stream of its answer."""
        began = time.monotonic()
        with self.open_stream(content, **fields) as response:
            events = Events(response.status_code)
            for line in response.iter_lines():
                data = line.removeprefix("data:").strip()
                if not line.startswith("data:"):
                    continue
                if data == "[DONE]":
                    events.done = True
                    break
                events.chunks.append(tolerant_json(data.encode()))
                events.times_s.append(time.monotonic() - began)
        return events

    @contextmanager
    def open_stream(self, content: str, **fields: Any) -> Iterator[httpx.Response]:
        """A stream that is still open; leaving the block closes its connection."""
        body = {**self._chat_body(content, fields), "stream": True}
        with self._client.stream("POST", f"{self.root}/v1/chat/completions", json=body) as response:
            yield response


def _reply(response: httpx.Response) -> Reply:
    try:
        document = tolerant_json(response.content)
    except ValueError:
        document = None
    return Reply(response.status_code, document if isinstance(document, dict) else None, response.headers)
