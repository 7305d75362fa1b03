"""Answers in OpenAI's format: complete ones, and streams of chunks."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NotRequired, TypedDict

from roseplay.core.request import FinishReason
from roseplay.engine.request_metrics import RequestMetrics
from roseplay.engine.stream import Chunk, Stream
from roseplay.formats.json_text import encode
from roseplay.serve.bodies import Usage
from roseplay.serve.errors import ApiError
from roseplay.serve.logprobs import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    TokenTexts,
    chat_logprobs,
    completion_logprobs,
    of_prompt_tokens,
)
from roseplay.serve.prompt_text import PromptText
from roseplay.serve.submitting import cancel_all
from roseplay.traffic.metrics import ms

_DONE = b"data: [DONE]\n\n"
_IN_THREAD_FROM = 2000  # log-probabilities of an answer; encoding this many takes a few milliseconds


class Choice(TypedDict, total=False):
    """One of several answers, or a piece of it; the last two are of its prompt, as vLLM gives them."""

    index: int
    text: str
    message: dict[str, str | None]
    delta: dict[str, str]
    logprobs: ChatLogprobs | CompletionLogprobs | None
    finish_reason: str | None
    token_ids: list[int] | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None


class TokenCounts(TypedDict):
    """The tokens of a request; ``cached_tokens`` are those that were not computed for it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: NotRequired[dict[str, int]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The streams of one API request, and how its answer is labelled."""

    streams: Sequence[Stream]
    model: str
    chat: bool  # whether it answers a chat; otherwise a completion
    answers_each: int  # how many consecutive streams answer the same prompt
    tokenizer: Any | None  # gives the texts of tokens
    # The texts with which the answers to each prompt begin; empty if they repeat nothing.
    prompts: Sequence[PromptText] = ()
    prompt_only: bool = False  # only the prompts were asked for; what was sampled after them is not shown
    shows_ids: bool = False  # whether the ids of the tokens of prompts and answers are shown
    ids_as_texts: bool = False  # whether log-probabilities name tokens by their ids
    # How many of the likeliest tokens are shown for each token of a prompt; None if none is.
    prompt_logprobs: int | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def completion_id(self) -> str:
        """The answer's ID as the client sees it."""
        return f"{'chatcmpl' if self.chat else 'cmpl'}-{self.id}"

    async def whole(self) -> bytes:
        """Wait for all streams and return the answer as JSON. Raises ``ApiError`` if one failed or was stopped."""
        for stream in self.streams:
            async for _ in stream:
                pass
            _raise_if_failed(stream)
        return await _built(self._document, self.streams)

    def _document(self) -> bytes:
        # Choice by choice: no other thread runs while the encoder does.
        choices = b",".join(encode(self._choice(number)) for number in range(len(self.streams)))
        of_prompt: Choice = self._of_prompt(0) if self.chat else {}
        end = encode({**of_prompt, **self._figures()})
        return encode(self._head())[:-1] + b',"choices":[' + choices + b"]," + end[1:]

    async def events(self, usage: Usage) -> AsyncGenerator[bytes]:
        """Yields server-sent events as tokens arrive; if a stream fails, an ``error`` ends the answer."""
        events = _Events(self, usage)
        to_begin = set(range(len(self.streams)))
        try:
            async with aclosing(_merged(self.streams)) as chunks:
                async for number, chunk, ended in chunks:
                    if ended and not chunk.token_ids:
                        _raise_if_failed(self.streams[number])
                    if number in to_begin:  # with the first token: clients time it by the first choice
                        to_begin.remove(number)
                        if self.prompts:  # their log-probabilities are known by now
                            yield await _built(partial(events.prompt, number), [self.streams[number]])
                    if ended or not self.prompt_only:
                        yield events.text(number, chunk, self._finish_reason(number) if ended else None)
                    if ended:
                        _raise_if_failed(self.streams[number])
            if usage != "none":
                yield _event({**self._head(streaming=True), "choices": [], **self._figures()})
        except ApiError as error:
            cancel_all(self.streams)
            yield _event(error.document())
        yield _DONE

    def _head(self, *, streaming: bool = False) -> dict[str, str | int]:
        kind = ("chat.completion.chunk" if streaming else "chat.completion") if self.chat else "text_completion"
        return {"id": self.completion_id, "object": kind, "created": self.created, "model": self.model}

    def _choice(self, number: int) -> Choice:
        text = self._prompt(number) + ("" if self.prompt_only else self.streams[number].text)
        end = 0 if self.prompt_only else len(self.streams[number].token_ids)
        choice: Choice = {"index": number}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        choice["logprobs"] = self._logprobs(number, 0, end, of_prompt=True)
        choice["finish_reason"] = self._finish_reason(number)
        choice["token_ids"] = self.streams[number].token_ids[:end] if self.shows_ids else None
        return choice if self.chat else {**choice, **self._of_prompt(number)}

    def _of_prompt(self, number: int) -> Choice:
        """Returns what is told of a prompt, null where it is not wanted."""
        stream, most = self.streams[number], self.prompt_logprobs
        return {
            "prompt_token_ids": stream.prompt_token_ids if self.shows_ids else None,
            "prompt_logprobs": None if most is None else of_prompt_tokens(self._texts(number), stream, most),
        }

    def _finish_reason(self, number: int) -> str:
        return str(FinishReason.LENGTH if self.prompt_only else self.streams[number].finish_reason)

    def _prompt(self, number: int) -> str:
        """Returns the part of its prompt that the answer repeats."""
        return self.prompts[number // self.answers_each].text if self.prompts else ""

    def _texts(self, number: int) -> TokenTexts:
        prompt = self.prompts[number // self.answers_each] if self.prompts else None
        return TokenTexts(self.streams[number], self.tokenizer, prompt, ids_as_texts=self.ids_as_texts)

    def _logprobs(
        self, number: int, begin: int, end: int, *, of_prompt: bool = False
    ) -> ChatLogprobs | CompletionLogprobs | None:
        """Returns the log-probabilities of the answer's tokens ``begin`` to ``end - 1``, if they were asked for.

        Args:
            of_prompt: put those of the prompt before them, if the answer repeats it.
        """
        stream = self.streams[number]
        if stream.params.logprobs is None:
            return None
        if self.chat:
            return chat_logprobs(self._texts(number), stream, begin, end)
        before = bool(self.prompts) and of_prompt
        return completion_logprobs(self._texts(number), stream, begin, end, of_prompt=before)

    def _figures(self) -> dict[str, object]:
        return {"usage": self.usage(), "metrics": metrics_of(self.streams[0].metrics)}

    def usage(self) -> TokenCounts:
        """Returns the token counts; each prompt counts once, however many answers it has."""
        firsts = [stream.metrics for stream in self.streams[:: self.answers_each]]
        prompt = sum(metrics.prompt_tokens for metrics in firsts)
        completion = 0 if self.prompt_only else sum(stream.metrics.completion_tokens for stream in self.streams)
        cached = sum(metrics.saved_tokens for metrics in firsts)
        return {**_counts(prompt, completion), "prompt_tokens_details": {"cached_tokens": cached}}


def _counts(prompt: int, completion: int) -> TokenCounts:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def metrics_of(metrics: RequestMetrics) -> dict[str, float | None]:
    """Returns a request's times under vLLM's names (``--enable-per-request-metrics``)."""
    rate = metrics.completion_tokens / metrics.e2e_s if metrics.e2e_s else None
    return {
        "time_to_first_token_ms": ms(metrics.ttft_s, 3),
        "generation_time_ms": ms(metrics.decode_s, 3),
        "queue_time_ms": ms(metrics.queue_s, 3),
        "mean_itl_ms": ms(metrics.tpot_s, 3),
        "tokens_per_second": None if rate is None else round(rate, 3),
    }


def _raise_if_failed(stream: Stream) -> None:
    if stream.finish_reason is FinishReason.ERROR:
        raise ApiError(500, stream.error or "the request failed", code="request_failed")
    if stream.finish_reason is FinishReason.ABORT:
        raise ApiError(503, stream.error or "the request was stopped before its end", code="request_stopped")


async def _built(build: Callable[[], bytes], streams: Sequence[Stream]) -> bytes:
    """Returns the result of ``build``, called in a thread if it takes long, so as not to delay other requests."""
    values = sum(
        (len(stream.logprobs) + len(stream.prompt_logprobs)) * (1 + (stream.params.logprobs or 0)) for stream in streams
    )
    return build() if values < _IN_THREAD_FROM else await asyncio.to_thread(build)


def _event(document: Mapping[str, object]) -> bytes:
    return b"data: " + encode(document) + b"\n\n"


class _Events:
    """Writes the events of one answer. There is one for each token, so their common parts are encoded only once."""

    def __init__(self, answer: Answer, usage: Usage) -> None:
        self._answer = answer
        self._sent = [0] * len(answer.streams)  # tokens
        self._begun = [False] * len(answer.streams)
        self._told = False  # the chat's prompt
        self._counts = usage == "all"
        self._plain = answer.streams[0].params.logprobs is None and not (self._counts or answer.shows_ids)
        self._head = b"data: " + encode(answer._head(streaming=True))[:-1] + b',"choices":['
        self._tail = (b"]}" if usage == "none" else b'],"usage":null}') + b"\n\n"
        before, after = (b'"delta":{"content":', b"}") if answer.chat else (b'"text":', b"")
        self._before_text = [
            self._head + b'{"index":' + str(number).encode() + b"," + before for number in range(len(answer.streams))
        ]
        self._after_text = after + b',"logprobs":null,"finish_reason":null}' + self._tail

    def prompt(self, number: int) -> bytes:
        """Returns the event with the text that an answer repeats."""
        answer = self._answer
        choice = self._choice(number, answer._prompt(number), [])
        if not answer.chat:
            choice["logprobs"] = answer._logprobs(number, 0, 0, of_prompt=True)
        return self._written(number, choice)

    def text(self, number: int, chunk: Chunk, finish_reason: str | None = None) -> bytes:
        """Returns the event with an answer's next tokens; the last one has the finish reason."""
        if self._plain and chunk.text and self._begun[number] and finish_reason is None:
            return self._before_text[number] + encode(chunk.text) + self._after_text
        piece = Chunk("", [], []) if self._answer.prompt_only else chunk
        begin = self._sent[number]
        self._sent[number] = end = begin + len(piece.token_ids)
        choice = self._choice(number, piece.text, piece.token_ids)
        if piece.token_ids:
            choice["logprobs"] = self._answer._logprobs(number, begin, end)
        choice["finish_reason"] = finish_reason
        return self._written(number, choice)

    def _choice(self, number: int, text: str, token_ids: list[int]) -> Choice:
        """Returns a choice with some tokens; the first one of a number also has its role or its prompt's tokens."""
        answer, first = self._answer, not self._begun[number]
        self._begun[number] = True
        choice: Choice = {"index": number}
        if answer.chat:
            choice["delta"] = {"role": "assistant", "content": text} if first else {"content": text} if text else {}
        else:
            choice["text"] = text
        if answer.shows_ids:
            choice["token_ids"] = token_ids
            if first and not answer.chat:
                choice["prompt_token_ids"] = answer.streams[number].prompt_token_ids
        choice["logprobs"] = choice["finish_reason"] = None
        return choice

    def _written(self, number: int, choice: Choice) -> bytes:
        """Returns the event of a choice, with its token count so far if every event has usage."""
        tail = self._tail
        if self._counts:
            usage = _counts(self._answer.streams[number].metrics.prompt_tokens, self._sent[number])
            tail = b'],"usage":' + encode(usage) + b"}\n\n"
        if self._answer.chat and self._answer.shows_ids and not self._told:  # a chat's answers have one prompt
            self._told = True
            tail = b'],"prompt_token_ids":' + encode(self._answer.streams[0].prompt_token_ids) + tail[1:]
        return self._head + encode(choice) + tail


async def _merged(streams: Sequence[Stream]) -> AsyncGenerator[tuple[int, Chunk, bool]]:
    """Yields (stream's index, chunk, whether the stream ends with it) from all streams as chunks arrive.

    The last chunk has no tokens if the request ended without one.
    """

    async def chunks(number: int, stream: Stream) -> AsyncGenerator[tuple[int, Chunk, bool]]:
        ended = False
        async for chunk in stream:
            ended = stream.exhausted
            yield number, chunk, ended
        if not ended:
            yield number, Chunk("", [], []), True

    if len(streams) == 1:  # by far the most frequent case: no task and no queue in between
        async with aclosing(chunks(0, streams[0])) as only:
            async for arrival in only:
                yield arrival
        return
    arrived: asyncio.Queue[tuple[int, Chunk, bool]] = asyncio.Queue()

    async def follow(number: int, stream: Stream) -> None:
        async with aclosing(chunks(number, stream)) as its_own:
            async for arrival in its_own:
                arrived.put_nowait(arrival)

    tasks = [asyncio.ensure_future(follow(number, stream)) for number, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            arrival = await arrived.get()
            left -= arrival[2]
            yield arrival
    finally:
        for task in tasks:
            task.cancel()
