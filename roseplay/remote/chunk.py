"""One chunk of a server's answer: its piece of text, its finish reason, and the server's token counts and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roseplay.core.request import FinishReason
from roseplay.engine.request_metrics import ServerTimes
from roseplay.formats.json_schema import FAR
from roseplay.remote.sentences import RefusedError, object_in, sentence_in, with_text

# All other finish reasons (eos_token, content_filter, …) count as a stop.
_REASONS = {
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
    "error": FinishReason.ERROR,
}


REQUEST_FAILED = "the server says that the request failed"
_MOST = 2**31 - 1  # tokens: the most that columns of the page and of recordings can hold


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request from the server; ``cached`` is None if it does not report it."""

    prompt: int
    completion: int
    cached: int | None


@dataclass(frozen=True, slots=True)
class AnswerChunk:
    """The content of a chunk.

    Attributes:
        text: a piece of the answer or its reasoning; "" for a token without text; None if there is no token.
        finish_reason: set in the last chunk that has a choice.
    """

    text: str | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    times: ServerTimes | None = None


def parse_chunk(data: bytes, *, whole: bool = False) -> AnswerChunk:
    """Parse the JSON of an event, or of a whole answer.

    Raises:
        RefusedError: it is an error, or not a JSON object; the message has the server's reason.
    """
    what = "an answer" if whole else "an event"
    document = object_in(data)
    if document is None:
        raise RefusedError(200, with_text(f"the server sent {what} that is not a JSON object", data))
    if document.get("error"):
        raise RefusedError(200, sentence_in(document) or REQUEST_FAILED)
    if "choices" not in document:
        reason = sentence_in(document)
        if whole or reason:
            raise RefusedError(200, reason or with_text("the server sent an answer without choices", data))
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    reason = choice.get("finish_reason") if choice else None
    return AnswerChunk(
        _text(choice, ended=reason is not None) if choice else None,
        _REASONS.get(reason, FinishReason.STOP) if isinstance(reason, str) else None,
        _usage(document),
        _times(document),
    )


def _text(choice: Mapping[str, Any], *, ended: bool) -> str | None:
    """Returns a chunk's text; None if it only ends or begins an answer, as a chat's first chunk with the role does."""
    part = choice.get("delta") or choice.get("message") or {}
    found = [choice.get("text")]
    if isinstance(part, dict):
        # Some servers give the same reasoning under both names.
        found += [part.get("reasoning_content") or part.get("reasoning"), part.get("content")]
        ended = ended or "role" in part
    text = "".join(one for one in found if isinstance(one, str))
    return text if text or not ended else None


def _usage(document: Mapping[str, Any]) -> Usage | None:
    usage = document.get("usage")
    if not isinstance(usage, dict):
        return None
    prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    cached = _count(_within(usage, "prompt_tokens_details").get("cached_tokens"))
    if cached is None:
        cached = _count(_within(document, "timings").get("cache_n"))  # llama.cpp
    return Usage(prompt, completion, cached)


def _times(document: Mapping[str, Any]) -> ServerTimes | None:
    """Returns times given under vLLM's names (``--enable-per-request-metrics``) or llama.cpp's."""
    metrics, timings = _within(document, "metrics"), _within(document, "timings")
    queue, first = _seconds(metrics.get("queue_time_ms")), _seconds(metrics.get("time_to_first_token_ms"))
    prefill, decode = None, _seconds(metrics.get("generation_time_ms"))
    if queue is not None and first is not None:
        prefill = max(0.0, first - queue)
    if timings:
        prefill, decode = _seconds(timings.get("prompt_ms")), _seconds(timings.get("predicted_ms"))
    times = ServerTimes(queue, prefill, decode)
    return None if times == ServerTimes() else times


def _within(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else None


def _seconds(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value / 1000 if is_number and 0 <= value <= FAR else None
