"""One chunk of a server's answer: its piece of text, its finish reason, and the server's token counts and times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from roseplay.core.request import FinishReason
from roseplay.engine.request_metrics import ServerTimes
from roseplay.extras.servers.sentences import RefusedError, object_in, sentence_in, with_text
from roseplay.extras.servers.shapes import Count, Maybe, Milliseconds, Text

# All other finish reasons (eos_token, content_filter, …) count as a stop.
_REASONS = {"length": FinishReason.LENGTH, "abort": FinishReason.ABORT, "error": FinishReason.ERROR}


REQUEST_FAILED = "the server says that the request failed"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request from the server; ``cached`` is None if it does not report it."""

    prompt: int
    completion: int
    cached: int | None


class _Details(BaseModel):
    cached_tokens: Count = None


class _Usage(BaseModel):
    prompt_tokens: Count = None
    completion_tokens: Count = None
    prompt_tokens_details: Maybe[_Details] = None


class _Metrics(BaseModel):
    """vLLM's times (``--enable-per-request-metrics``)."""

    queue_time_ms: Milliseconds = None
    time_to_first_token_ms: Milliseconds = None
    generation_time_ms: Milliseconds = None


class _Timings(BaseModel):
    """llama.cpp's times, and its number of cached tokens."""

    prompt_ms: Milliseconds = None
    predicted_ms: Milliseconds = None
    cache_n: Count = None


class _Message(BaseModel):
    role: Any = None
    content: Text = None
    reasoning: Text = None
    reasoning_content: Text = None  # some servers give the same reasoning under both names


class _Choice(BaseModel):
    text: Text = None
    delta: Maybe[_Message] = None
    message: Maybe[_Message] = None
    finish_reason: Text = None


class Chunk(BaseModel):
    error: Any = None
    choices: Maybe[list[Maybe[_Choice]]] = None
    usage: Maybe[_Usage] = None
    metrics: Maybe[_Metrics] = None
    timings: Maybe[_Timings] = None

    @property
    def _choice(self) -> _Choice | None:
        return self.choices[0] if self.choices else None

    @property
    def text(self) -> str | None:
        """A piece of the answer or its reasoning; "" for a token without text. None if the chunk only begins or ends an
        answer, as a chat's first chunk with the role does."""
        choice = self._choice
        if choice is None:
            return None
        message = choice.delta or choice.message or _Message()
        text = (choice.text or "") + (message.reasoning_content or message.reasoning or "") + (message.content or "")
        only_marks = choice.finish_reason is not None or "role" in message.model_fields_set
        return text if text or not only_marks else None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Set in the last chunk that has a choice."""
        choice = self._choice
        if choice is None or choice.finish_reason is None:
            return None
        return _REASONS.get(choice.finish_reason, FinishReason.STOP)

    @property
    def counts(self) -> Usage | None:
        """The request's tokens so far."""
        usage = self.usage
        if usage is None or usage.prompt_tokens is None or usage.completion_tokens is None:
            return None
        cached = None if usage.prompt_tokens_details is None else usage.prompt_tokens_details.cached_tokens
        if cached is None and self.timings is not None:
            cached = self.timings.cache_n
        return Usage(usage.prompt_tokens, usage.completion_tokens, cached)

    @property
    def times(self) -> ServerTimes | None:
        """What the server measured."""
        times = ServerTimes()
        if self.timings is not None:
            times = ServerTimes(None, _seconds(self.timings.prompt_ms), _seconds(self.timings.predicted_ms))
        elif self.metrics is not None:
            queue_s, first_s = _seconds(self.metrics.queue_time_ms), _seconds(self.metrics.time_to_first_token_ms)
            prefill_s = None if queue_s is None or first_s is None else max(0.0, first_s - queue_s)
            times = ServerTimes(queue_s, prefill_s, _seconds(self.metrics.generation_time_ms))
        return None if times == ServerTimes() else times


def parse_chunk(data: bytes, *, whole: bool = False) -> Chunk:
    """Parse the JSON of an event, or of a whole answer.

    Raises:
        RefusedError: it is an error, or not a JSON object; the message has the server's reason.
    """
    what = "an answer" if whole else "an event"
    if (document := object_in(data)) is None:
        raise RefusedError(200, with_text(f"the server sent {what} that is not a JSON object", data))
    chunk = Chunk.model_validate(document)
    if chunk.error:
        raise RefusedError(200, sentence_in(document) or REQUEST_FAILED)
    if "choices" not in document:
        reason = sentence_in(document)
        if whole or reason:
            raise RefusedError(200, reason or with_text("the server sent an answer without choices", data))
    return chunk


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000
