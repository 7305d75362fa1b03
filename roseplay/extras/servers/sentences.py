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
Document = Mapping[str, Any]  # a JSON object from a server; what is in it has yet to be checked
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


def object_in(body: bytes) -> Document | None:
    """Returns the JSON object in a reply or an event; ``None`` if it is anything else."""
    try:
        document = tolerant_json(body)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def refusal(status: int, body: bytes) -> RefusedError:
    """Returns the error for a reply that is not an answer."""
    if (sentence := sentence_in(object_in(body))) is None:
        reason = "the server does not accept the key" if status in (401, 403) else None
        sentence = with_text(reason or f"the server replied with status {status}", body)
    return RefusedError(status, sentence)


def with_text(sentence: str, body: bytes) -> str:
    """Returns a sentence with what a body says: the title of a page if it has one, or else its text."""
    text = body[:MOST_REFUSAL].decode("utf-8", "replace")
    title = _TITLE.search(text)
    excerpt = one_line(html.unescape(title[1] if title else _TAG.sub(" ", text)))
    return f"{sentence}: {excerpt}" if excerpt else sentence


def sentence_in(document: Document | None) -> str | None:
    """Returns the message in an error's JSON, in OpenAI's, FastAPI's or a plain format."""
    for name in ("error", "detail", "message"):
        value = (document or {}).get(name)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = _fault(value[0])
        if isinstance(value, dict):
            value = value.get("message")
        if isinstance(value, str) and value.strip():
            return one_line(value)
    return None


def _fault(fault: Document) -> str | None:
    """Returns a validation error of FastAPI's with the field that it concerns."""
    place, message = fault.get("loc"), fault.get("msg")
    field = ".".join(str(part) for part in place[1:]) if isinstance(place, list) else ""
    return f"{field}: {message}" if field and isinstance(message, str) else message


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
