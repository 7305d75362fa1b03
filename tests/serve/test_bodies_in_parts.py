"""Bodies that are too large, come too slowly or not at all, in front of an application that echoes them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from roseplay.serve.body_limits import BodyLimits


async def repeat(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    body = await request.body()
    left = await receive() if body == b"wait" else None
    await Response(repr(left).encode() if left else body)(scope, receive, send)


def part(body: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


def asked(
    *parts: Message, method: str = "POST", path: str = "/v1/x", length: str = "", hangs: bool = False, **limits: Any
) -> tuple[int, bytes, list[Message]]:
    """Status and body of the reply, and the parts that were not read; the limit is ten bytes."""
    left, sent = list(parts), list[Message]()
    headers = [(b"content-length", length.encode())] if length else []
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": b""}

    async def receive() -> Message:
        if hangs and not left:
            await asyncio.Event().wait()
        return left.pop(0) if left else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    app = BodyLimits(repeat, lambda path: 10)
    vars(app).update(limits)
    asyncio.run(app(scope, receive, send))
    if not sent:
        return 0, b"", left
    assert (sent[0]["status"] >= 400) == ((b"connection", b"close") in sent[0]["headers"])
    return sent[0]["status"], sent[1]["body"], left


def test_a_body_arrives_whole_and_then_what_follows() -> None:
    assert asked(part(b"01234", True), part(b"56789")) == (200, b"0123456789", [])
    assert asked(part(b"")) == (200, b"", [])
    assert asked(part(b"0123456789"), length="10") == (200, b"0123456789", [])
    assert b"http.disconnect" in asked(part(b"wait"))[1]


def test_a_body_beyond_the_limit_is_read_to_its_end_and_refused() -> None:
    status, body, left = asked(part(b"0123456", True), part(b"7890", True), part(b"more", True), part(b"end"))
    assert (status, left) == (413, [])
    assert json.loads(body)["error"]["message"] == "the body is too large: send at most 10 bytes"
    assert asked(part(b"01234567890"))[0] == 413


def test_an_announced_length_is_enough_to_refuse() -> None:
    assert asked(part(b"short"), length="11")[0] == 413
    assert asked(part(b"short"), length="many")[0] == asked(part(b"short"), length="9" * 20)[0] == 200
    assert json.loads(asked(part(b"short"), length="11", path="/elsewhere")[1]) == {
        "detail": "the body is too large: send at most 10 bytes"
    }


def test_no_more_of_a_refused_body_is_read_than_allowed() -> None:
    status, _, left = asked(part(b"x" * 11, True), *[part(b"1234", True)] * 5, discarded=8)
    assert (status, len(left)) == (413, 3)


def test_a_slow_body_is_refused() -> None:
    status, body, _ = asked(part(b"0", True), hangs=True, within_s=0.01)
    assert (status, json.loads(body)["error"]["message"]) == (408, "the body did not arrive within 0.01 s")
    assert asked(part(b"x" * 11, True), hangs=True, discard_within_s=0.01)[0] == 413


def test_a_client_that_leaves_is_not_answered() -> None:
    assert asked(part(b"0", True))[0] == 0


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_methods_without_a_body_are_not_waited_for(method: str) -> None:
    with pytest.raises(ClientDisconnect):  # only the application reads the body
        asked(part(b"0", True), method=method)


def test_what_is_no_request_goes_through() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def nothing(*args: Any) -> Any:
        raise AssertionError

    asyncio.run(BodyLimits(app)({"type": "lifespan"}, nothing, nothing))
    assert seen == ["lifespan"]
