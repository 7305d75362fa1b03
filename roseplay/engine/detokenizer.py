"""Decodes token ids to text, one token at a time: never half a character, never half a stop string.

The stepwise decoding is the ``tokenizers`` library's ``DecodeStream``.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Protocol

from tokenizers.decoders import DecodeStream
from tokenizers.pre_tokenizers import ByteLevel

CONTEXT_TOKENS = 6
MAX_INCOMPLETE_TOKENS = 3
REPLACEMENT = "\ufffd"  # stands for bytes that are no character
# A byte-level vocabulary has a letter for each byte: the byte's own if it can be printed, else a further one, in order.
_LETTERS = sorted(ByteLevel.alphabet())
_BYTES = dict(zip(_LETTERS, sorted(range(256), key=lambda byte: chr(byte) not in _LETTERS), strict=True))
_FALLBACK = re.compile("<0x([0-9A-F]{2})>")  # a byte in SentencePiece's vocabularies


class Decoder(Protocol):
    def push(self, token_id: int) -> str:
        """Returns the text that this token completes; empty while a character is incomplete."""

    def flush(self) -> str:
        """Returns the text left at the end: U+FFFD for an incomplete character, else nothing."""


def split_context(tokenizer: Any, prompt_token_ids: list[int]) -> tuple[list[int], list[int]]:
    """Returns the prompt's last tokens in two parts: those of whole characters, and those of an incomplete one.

    A character has at most four bytes, and a token at least one. A prompt that really ends in U+FFFD cannot be
    distinguished from one that ends in an incomplete character, and gives no context.
    """
    context = prompt_token_ids[-CONTEXT_TOKENS:]
    for cut in range(MAX_INCOMPLETE_TOKENS + 1):
        whole = context[: len(context) - cut]
        if not tokenizer.decode(whole, skip_special_tokens=True).endswith(REPLACEMENT):
            return whole, context[len(whole) :]
        if whole[-3:] == tokenizer.encode(REPLACEMENT, add_special_tokens=False)[-3:]:
            break
    return [], []


def token_bytes(tokenizer: Any, token_id: int) -> bytes | None:
    """Returns the bytes that a token adds to a text, which may be a part of a character; for a control token, its name.

    ``None`` if there is no such token, or if the tokenizer does not tell its bytes.
    """
    if (name := tokenizer.convert_ids_to_tokens(token_id)) is None:
        return None
    decode = partial(tokenizer.decode, clean_up_tokenization_spaces=False)
    before = tokenizer.encode("a", add_special_tokens=False)  # at the beginning of a text, spaces may be dropped
    start, text = decode(before), decode([*before, token_id])
    text = text[len(start) :] if text.startswith(start) else decode([token_id])
    if REPLACEMENT not in text:
        return text.encode()
    if byte := _FALLBACK.fullmatch(name):
        raw = bytes.fromhex(byte[1])
    else:
        raw = text.encode() if REPLACEMENT in name else bytes(_BYTES.get(letter, 0) for letter in name)
    return raw if raw.decode(errors="replace") == text else None


class StreamDecoder:
    """Decoder for tokenizers with a ``tokenizers`` backend. The prompt's end is its context, for leading spaces.

    A character that the prompt leaves incomplete and the answer completes belongs to the answer.
    """

    def __init__(self, tokenizer: Any, prompt_token_ids: list[int], skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._skip = skip_special_tokens
        context, rest = split_context(tokenizer, prompt_token_ids)
        self._stream = DecodeStream(ids=context, skip_special_tokens=self._skip)
        self._pending: list[int] = []
        for token_id in rest:
            self._stream.step(self._backend, token_id)

    def push(self, token_id: int) -> str:
        self._pending.append(token_id)
        try:
            text = self._stream.step(self._backend, token_id)
        except Exception:  # the backend found no common prefix: decode what there is and start again
            text = self.flush()
            self._stream = DecodeStream(skip_special_tokens=self._skip)
            return text
        if text:
            self._pending.clear()
        return text or ""

    def flush(self) -> str:
        pending, self._pending = self._pending, []
        return self._tokenizer.decode(pending, skip_special_tokens=self._skip) if pending else ""


class PlainDecoder:
    """Decoder for tokenizers without such a backend: decodes a short window for each token and returns what is new."""

    def __init__(self, tokenizer: Any, prompt_token_ids: list[int], skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        context, rest = split_context(tokenizer, prompt_token_ids)
        self._ids = context + rest
        self._shown = self._decode(context)

    def _decode(self, ids: list[int]) -> str:
        text = self._tokenizer.decode(ids, skip_special_tokens=self._skip)
        assert isinstance(text, str)
        return text

    def push(self, token_id: int) -> str:
        self._ids.append(token_id)
        text = self._decode(self._ids)
        if text.endswith(REPLACEMENT) or not text.startswith(self._shown):
            return ""
        new = text[len(self._shown) :]
        self._ids = self._ids[-CONTEXT_TOKENS:]
        self._shown = self._decode(self._ids)
        return new

    def flush(self) -> str:
        text = self._decode(self._ids)
        new, self._shown = text[len(self._shown) :], text
        return new


class NoDecoder:
    """Decoder for models without a tokenizer: there is no text."""

    def push(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


def make_decoder(tokenizer: Any | None, prompt_token_ids: list[int], *, skip_special_tokens: bool = True) -> Decoder:
    """Returns a decoder for the tokens that follow a prompt.

    Args:
        skip_special_tokens: whether control tokens have no text; otherwise their text is their name.
    """
    if tokenizer is None:
        return NoDecoder()
    if getattr(tokenizer, "backend_tokenizer", None) is not None:
        return StreamDecoder(tokenizer, prompt_token_ids, skip_special_tokens)
    return PlainDecoder(tokenizer, prompt_token_ids, skip_special_tokens)


class StopStrings:
    """Passes text on until a stop string appears, holding back what may be the beginning of one.

    Args:
        shown: whether the text ends with the stop string, rather than before it.
    """

    def __init__(self, stop: tuple[str, ...], *, shown: bool = False) -> None:
        self._stop = stop
        self._shown = shown
        self._held = ""
        self.hit = False

    def push(self, text: str) -> str:
        """Returns the text that may be shown; sets ``hit`` if a stop string ended it."""
        if not self._stop:
            return text
        text = self._held + text
        matches = [(at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if matches:
            self.hit, self._held = True, ""
            at, stop = min(matches)
            return text[: at + len(stop) if self._shown else at]
        keep = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Returns the length of the longest suffix of ``text`` that is a prefix of ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[len(text) - length :]):
            return length
    return 0
