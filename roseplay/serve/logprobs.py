"""Log-probabilities as OpenAI's API writes them."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from roseplay.core.step import TokenLogprobs
from roseplay.engine.detokenizer import token_bytes
from roseplay.engine.stream import Stream
from roseplay.serve.prompt_text import PromptText

LEAST = -9999.0  # stands for minus infinity, which JSON does not have


class TokenLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: NotRequired[list[TokenLogprob]]  # of a sampled one


class ChatLogprobs(TypedDict):
    content: list[TokenLogprob]
    refusal: None


class CompletionLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(TypedDict):
    logprob: float
    rank: int | None
    decoded_token: str


class TokenTexts:
    """The texts of the tokens of one answer, and of its prompt if the answer repeats it.

    Those of the answer's own tokens join to its text: a character made of several tokens belongs to the last one. With
    ``ids_as_texts``, all are ``token_id:`` and the token's id instead, as in vLLM.
    """

    def __init__(
        self, stream: Stream, tokenizer: Any | None, prompt: PromptText | None = None, *, ids_as_texts: bool = False
    ) -> None:
        self._stream, self._tokenizer, self._prompt = stream, tokenizer, prompt or PromptText("", [])
        self._ids_as_texts = ids_as_texts
        self._raw: dict[int, bytes | None] = {}

    def of_answer(self, number: int) -> str:
        """Returns the text that token ``number`` adds to the answer; the last one's includes what was held back."""
        stream, ends = self._stream, self._stream.text_ends
        if self._ids_as_texts:
            return self.of_id(stream.token_ids[number])
        is_last = stream.finished and number == len(ends) - 1
        return stream.text[ends[number - 1] if number else 0 : None if is_last else ends[number]]

    def offset(self, number: int) -> int:
        """Returns where that text begins in prompt and answer."""
        return len(self._prompt.text) + (self._stream.text_ends[number - 1] if number else 0)

    def of_prompt(self, number: int) -> str:
        """Returns the text that token ``number`` adds to the prompt."""
        if self._ids_as_texts:
            return self.of_id(self._stream.prompt_token_ids[number])
        return self._prompt.text[self.prompt_offset(number) : self._prompt.ends[number]]

    def prompt_offset(self, number: int) -> int:
        """Returns where that text begins."""
        return self._prompt.ends[number - 1] if number else 0

    def of_id(self, token_id: int) -> str:
        """Returns the text of a token by itself; a part of a character is written as bytes: ``\\xe6\\x97``."""
        raw = None if self._ids_as_texts else self._bytes(token_id)
        return f"token_id:{token_id}" if raw is None else raw.decode(errors="backslashreplace")

    def entry(self, token_id: int, logprob: float, text: str | None = None) -> TokenLogprob:
        """Returns a token for a chat's ``logprobs``; ``text`` is what a sampled one adds to the answer. The bytes of those
        joined are the answer's text, except for parts of characters that a stop has removed."""
        raw = self._bytes(token_id)
        whole = raw is not None and raw.decode(errors="ignore").encode() == raw  # characters
        if text is not None and whole and not self._ids_as_texts:
            raw = text.encode()
        token = self.of_id(token_id) if text is None else text
        return {"token": token, "logprob": _finite(logprob), "bytes": None if raw is None else list(raw)}

    def _bytes(self, token_id: int) -> bytes | None:
        if self._tokenizer is not None and token_id not in self._raw:
            self._raw[token_id] = token_bytes(self._tokenizer, token_id)
        return self._raw.get(token_id)


def chat_logprobs(texts: TokenTexts, stream: Stream, begin: int, end: int) -> ChatLogprobs:
    """Returns the ``logprobs`` of a chat's choice for its tokens ``begin`` to ``end - 1``."""
    content: list[TokenLogprob] = []
    for number in range(begin, end):
        logprobs, own_id, text = stream.logprobs[number], stream.token_ids[number], texts.of_answer(number)
        top = [
            texts.entry(token_id, logprob, text if token_id == own_id else None)
            for token_id, logprob in _shown(stream, number)
        ]
        content.append({**texts.entry(own_id, logprobs.logprob, text), "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(
    texts: TokenTexts, stream: Stream, begin: int, end: int, *, of_prompt: bool
) -> CompletionLogprobs:
    """Returns the ``logprobs`` of a completion's choice for its tokens ``begin`` to ``end - 1``.

    Args:
        of_prompt: put the prompt's tokens before these; its first one has none, since nothing predicts it.
    """
    rows: list[tuple[str, int, int, TokenLogprobs | None, list[tuple[int, float]]]] = []
    if of_prompt:
        for number, (found, token_id) in enumerate(zip(stream.prompt_logprobs, stream.prompt_token_ids, strict=True)):
            top = found.top[: stream.params.logprobs] if found else []
            rows.append((texts.of_prompt(number), texts.prompt_offset(number), token_id, found, top))
    for number in range(begin, end):
        token = stream.token_ids[number], stream.logprobs[number], _shown(stream, number)
        rows.append((texts.of_answer(number), texts.offset(number), *token))
    return {
        "tokens": [text for text, *_ in rows],
        "token_logprobs": [_finite(found.logprob) if found else None for *_, found, _ in rows],
        "top_logprobs": [
            _top(texts, top, found.logprob, token_id, text) if found else None for text, _, token_id, found, top in rows
        ],
        "text_offset": [offset for _, offset, *_ in rows],
    }


def of_prompt_tokens(texts: TokenTexts, stream: Stream, most: int) -> list[dict[str, PromptLogprob] | None]:
    """Returns vLLM's ``prompt_logprobs``: for each token of the prompt its own log-probability and those of the ``most``
    likeliest ones, by token id. The rank of one that is not among the likeliest is null. The first token has none.
    """
    written: list[dict[str, PromptLogprob] | None] = []
    for found, token_id in zip(stream.prompt_logprobs, stream.prompt_token_ids, strict=True):
        shown: dict[int, tuple[float, int | None]] = {token_id: (found.logprob, None)} if found else {}
        for rank, (token, logprob) in enumerate(found.top if found else (), 1):
            if rank <= most or token == token_id:
                shown[token] = logprob, rank
        entries: dict[str, PromptLogprob] = {
            str(token): {"logprob": _finite(logprob), "rank": rank, "decoded_token": texts.of_id(token)}
            for token, (logprob, rank) in shown.items()
        }
        written.append(entries or None)
    return written


def _shown(stream: Stream, number: int) -> list[tuple[int, float]]:
    """Returns the likeliest tokens in a token's place, or those that the request names, and then the token itself too."""
    found, token_id = stream.logprobs[number], stream.token_ids[number]
    if not stream.params.logprob_token_ids:
        return found.top[: stream.params.logprobs or 0]
    return [*found.top, *([] if token_id in dict(found.top) else [(token_id, found.logprob)])]


def _top(
    texts: TokenTexts, others: list[tuple[int, float]], logprob: float, token_id: int, text: str
) -> dict[str, float]:
    """Returns tokens by text, and first the token itself, as ``text``: programs look it up there."""
    top = {text: _finite(logprob)}
    for other, found in others:  # of two with the same text, the likelier one is kept
        if other != token_id:
            top.setdefault(texts.of_id(other), _finite(found))
    return top


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
