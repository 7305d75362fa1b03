"""One request to a server and its answer, from the socket to the stream."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx

from roseplay.clock import Clock
from roseplay.core.request import FinishReason
from roseplay.engine.request_metrics import ServerTimes
from roseplay.extras.servers.chunk import REQUEST_FAILED, Chunk, Usage, parse_chunk
from roseplay.extras.servers.lateness import Lateness
from roseplay.extras.servers.live import RemoteStreams
from roseplay.extras.servers.sentences import MOST_REFUSAL, RefusedError, failure, refusal
from roseplay.extras.servers.sse import LONGEST_EVENT, EventParser
from roseplay.extras.servers.stream import HttpStream

logger = logging.getLogger(__name__)

_DONE = b"[DONE]"
_ABOUT_USAGE = re.compile("stream_options|include_usage|continuous_usage_stats")
MOST_PER_TOKEN = 4 << 10  # bytes of an answer for each requested token
EVENTS_PER_TOKEN = 100  # the most: some servers send single characters, or empty events while a request waits


class Exchanges:
    """Sends requests and feeds their streams, each in its own coroutine.

    Args:
        root: the server's address, without ``/v1``.
        counts_chunks: see ``Dialect``.
        refusal_s: how long a refusal is read.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        root: str,
        live: RemoteStreams,
        clock: Clock,
        lateness: Lateness,
        *,
        counts_chunks: bool,
        refusal_s: float,
    ) -> None:
        # Options that ask for usage, best first; those that the server refuses are removed.
        in_chunks = [{"include_usage": True, "continuous_usage_stats": True}] if counts_chunks else []
        self._usage = [*in_chunks, {"include_usage": True}]
        self._client, self._root, self._live, self._clock, self._lateness = client, root, live, clock, lateness
        self._refusal_s = refusal_s

    async def run(self, stream: HttpStream, path: str, body: dict[str, object]) -> None:
        """Feed a stream until it has ended; any error ends it with a message of one line."""
        self._lateness.sent(stream.metrics.due_ns or stream.metrics.submitted_ns, self._clock.now_ns())
        try:
            reason = await self._answer(stream, path, body)
        except RefusedError as error:
            self._live.end(stream, FinishReason.ERROR, str(error))
        except (httpx.HTTPError, httpx.StreamError) as error:
            self._live.end(stream, FinishReason.ERROR, failure(error, self._root))
        except Exception as error:
            logger.exception("request %d failed", stream.request_id)
            self._live.end(stream, FinishReason.ERROR, failure(error, self._root))
        else:
            self._live.end(stream, reason)

    async def _answer(self, stream: HttpStream, path: str, body: dict[str, object]) -> FinishReason:
        for options in list(self._usage):
            try:
                return await self._ask(stream, path, {**body, "stream_options": options})
            except RefusedError as error:
                if error.status not in (400, 422) or not _ABOUT_USAGE.search(str(error)):
                    raise
                if options in self._usage:
                    self._usage.remove(options)
        return await self._ask(stream, path, body)

    async def _ask(self, stream: HttpStream, path: str, body: dict[str, object]) -> FinishReason:
        """Send the request and read its answer; returns its finish reason."""

        async def trace(event: str, info: Any) -> None:
            if event == "http11.send_request_body.complete":
                stream.metrics.sent_ns = self._clock.now_ns()
            elif event == "http11.receive_response_headers.complete":
                stream.metrics.first_byte_ns = self._live.heard_ns = self._clock.now_ns()

        url = f"{self._root}/v1{path}"
        named = {"X-Request-Id": self._live.name(stream)}
        async with self._client.stream("POST", url, json=body, headers=named, extensions={"trace": trace}) as response:
            if response.status_code != 200:
                raise refusal(response.status_code, await _refusal_of(response, self._refusal_s))
            reading = _Reading(stream, self._live)
            await self._read(_bounded(response, stream.params.max_new_tokens), reading)
        return reading.end()

    async def _read(self, portions: AsyncIterator[bytes], reading: _Reading) -> None:
        """Read events, or an answer or error that was sent instead of events or after them."""
        parser = EventParser()
        async for portion in portions:
            time_ns = self._live.heard_ns = self._clock.now_ns()
            for data in parser.feed(portion):
                reading.take_event(data, time_ns)
        for data in parser.end():
            reading.take_event(data, self._clock.now_ns())
        if parser.strays and reading.reason is None:
            reading.take(parse_chunk(bytes(parser.strays), whole=True), self._clock.now_ns())


async def _refusal_of(response: httpx.Response, timeout: float) -> bytes:
    """Returns the body of a refusal, or its beginning."""
    body = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            async for portion in response.aiter_bytes():
                body += portion
                if len(body) > MOST_REFUSAL:
                    break
    return body


async def _bounded(response: httpx.Response, tokens: int) -> AsyncIterator[bytes]:
    """Yields an answer's body; raises ``RefusedError`` if it is much longer than ``tokens`` tokens can be."""
    most = LONGEST_EVENT + MOST_PER_TOKEN * tokens
    size = 0
    async for portion in response.aiter_bytes():
        size += len(portion)
        if size > most:
            raise _endless(f"{most >> 20} MiB", tokens)
        yield portion


def _endless(most: str, tokens: int) -> RefusedError:
    return RefusedError(200, f"the server sent more than {most} for an answer of at most {tokens:,} tokens")


class _Reading:
    """The part of an answer that has been read; ``reason`` is None until it says why it ends."""

    def __init__(self, stream: HttpStream, live: RemoteStreams) -> None:
        self._stream, self._live = stream, live
        self._tokens = stream.params.max_new_tokens
        self._events = 0
        self.reason: FinishReason | None = None
        self._usage: Usage | None = None
        self._times: ServerTimes | None = None

    def take_event(self, data: bytes, time_ns: int) -> None:
        """Take an event; raises ``RefusedError`` if it is an error, or one of far too many."""
        self._events += 1
        most = EVENTS_PER_TOKEN * (EVENTS_PER_TOKEN + self._tokens)
        if self._events > most:
            raise _endless(f"{most:,} events", self._tokens)
        if data == _DONE:
            self.reason = self.reason or FinishReason.STOP
        elif data:
            self.take(parse_chunk(data), time_ns)

    def take(self, chunk: Chunk, time_ns: int) -> None:
        text, counts = chunk.text, chunk.counts
        if text is not None:
            known = self._stream.num_tokens
            new = 1 if counts is None else counts.completion - known
            counted = min(max(1, new), self._tokens - known)  # text beyond the tokens asked for has none
            if text or (new > 0 and counted > 0):
                self._live.push(self._stream, text, time_ns, counted)
        self.reason = chunk.finish_reason or self.reason
        self._usage = counts or self._usage
        self._times = chunk.times or self._times

    def end(self) -> FinishReason:
        """Returns why the answer ended; raises ``RefusedError`` if it was cut off."""
        self._live.correct(self._stream, self._usage, self._times)
        if self.reason is None:
            raise RefusedError(200, "the server ended the stream without saying why: the answer may not be whole")
        if self.reason is FinishReason.ERROR:
            raise RefusedError(200, REQUEST_FAILED)
        return self.reason
