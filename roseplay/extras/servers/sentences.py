"""A server's refusals and failures, each as one line for people."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

import httpx

from roseplay.formats.json_text import tolerant_json
from roseplay.formats.text import one_line

MOST_REFUSAL = 1 << 16  # bytes of a refusal that are read: the reason comes first
_TITLE = re.compile(r"<title[^<>]*>([^<]+)", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]*>?")


class RefusedError(Exception):
    """The server refused a request; the message is the server's own, if it sent one.

    Args:
        status: HTTP status; 200 if the refusal came as an event of the stream.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def object_in(body: bytes) -> dict[str, Any] | None:
    """Returns the JSON object in a reply or an event; ``None`` if it is anything else."""
    try:
        document = tolerant_json(body)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def refusal(status: int, body: bytes) -> RefusedError:
    """Returns the error for a reply that is not an answer."""
    said = sentence_in(object_in(body))
    if said is None:
        known = "the server does not accept the key" if status in (401, 403) else None
        said = with_text(known or f"the server replied with status {status}", body)
    return RefusedError(status, said)


def with_text(sentence: str, body: bytes) -> str:
    """Returns a sentence with what a body says: the title of a page if it has one, or else its text."""
    text = body[:MOST_REFUSAL].decode("utf-8", "replace")
    title = _TITLE.search(text)
    said = one_line(html.unescape(title[1] if title else _TAG.sub(" ", text)))
    return f"{sentence}: {said}" if said else sentence


def sentence_in(document: Mapping[str, Any] | None) -> str | None:
    """Returns the message in an error's JSON, in OpenAI's, FastAPI's or a plain format."""
    for name in ("error", "detail", "message"):
        said = (document or {}).get(name)
        if isinstance(said, list) and said and isinstance(said[0], dict):
            said = _fault(said[0])
        if isinstance(said, dict):
            said = said.get("message")
        if isinstance(said, str) and said.strip():
            return one_line(said)
    return None


def _fault(fault: Mapping[str, Any]) -> str | None:
    """Returns a validation error of FastAPI's with the field that it concerns."""
    place, said = fault.get("loc"), fault.get("msg")
    field = ".".join(str(part) for part in place[1:]) if isinstance(place, list) else ""
    return f"{field}: {said}" if field and isinstance(said, str) else said


def failure(error: Exception, root: str) -> str:
    """Returns what is wrong with a server that did not reply, or not completely."""
    match error:
        case httpx.ConnectTimeout():
            return f"{root} did not accept a connection in time"
        case httpx.ConnectError():
            return f"nothing answers at {root} ({one_line(error) or 'no connection'})"
        case httpx.TimeoutException():
            return f"{root} did not answer in time"
        case httpx.ReadError() | httpx.RemoteProtocolError() | httpx.WriteError():
            return f"{root} closed the connection before the end of its answer"
        case httpx.LocalProtocolError():
            return f"a request to {root} could not be sent"  # its message has the headers
    return f"the request to {root} failed ({type(error).__name__}: {one_line(error)})"
