"""Log-probabilities as OpenAI's API writes them."""

from __future__ import annotations

from typing import Any

from roseplay.engine.stream import Stream


class TokenTexts:
    """The texts of the tokens of one answer.

    Those of the answer's own tokens together are its text: a character that several tokens make up is the last one's.
    """

    def __init__(self, stream: Stream, tokenizer: Any | None) -> None:
        self._stream, self._tokenizer = stream, tokenizer

    def of_answer(self, number: int) -> str:
        """The text that the answer's token ``number`` adds to it."""
        ends = self._stream.text_ends
        return self._stream.text[ends[number - 1] if number else 0 : ends[number]]

    def offset(self, number: int) -> int:
        """Where that text begins in the answer's."""
        return self._stream.text_ends[number - 1] if number else 0

    def of_id(self, token_id: int) -> str:
        """The text of a token by itself."""
        if self._tokenizer is None:
            return f"token_id:{token_id}"
        text = self._tokenizer.decode([token_id])
        return text if isinstance(text, str) else "".join(text)


def chat_logprobs(texts: TokenTexts, stream: Stream, begin: int, end: int) -> dict[str, Any]:
    """The ``logprobs`` of a chat's choice for its tokens ``begin`` to ``end - 1``."""
    content = []
    for number in range(begin, end):
        found, top = stream.logprobs[number], stream.params.logprobs or 0
        content.append(
            {
                **_entry(texts.of_answer(number), found.logprob),
                "top_logprobs": [_entry(texts.of_id(token_id), logprob) for token_id, logprob in found.top[:top]],
            }
        )
    return {"content": content, "refusal": None}


def completion_logprobs(texts: TokenTexts, stream: Stream, begin: int, end: int) -> dict[str, Any]:
    """The ``logprobs`` of a completion's choice for its tokens ``begin`` to ``end - 1``."""
    numbers, top = range(begin, end), stream.params.logprobs or 0
    return {
        "tokens": [texts.of_answer(number) for number in numbers],
        "token_logprobs": [stream.logprobs[number].logprob for number in numbers],
        "top_logprobs": [
            {texts.of_id(token_id): logprob for token_id, logprob in stream.logprobs[number].top[:top]}
            for number in numbers
        ],
        "text_offset": [texts.offset(number) for number in numbers],
    }


def _entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}
