"""The text of a prompt that an answer repeats (``echo``), and where each of its tokens ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roseplay.engine.detokenizer import make_decoder, split_context


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt's text; token i adds ``text[ends[i - 1] : ends[i]]``, so that all tokens join to the text.

    A character made of several tokens belongs to the last one.
    """

    text: str
    ends: list[int]


def prompt_text(prompt: str | list[int], token_ids: list[int], tokenizer: Any | None) -> PromptText:
    """Returns the text of a prompt sent as text or as token ids: the text itself, or what the ids decode to."""
    if tokenizer is None:
        return PromptText("", [0] * len(token_ids))
    if isinstance(prompt, str) and getattr(tokenizer, "is_fast", False):
        encoded = tokenizer(prompt, return_offsets_mapping=True)
        if list(encoded["input_ids"]) == token_ids:
            return PromptText(prompt, _ends(encoded["offset_mapping"], len(prompt)))
    return _decoded(token_ids, tokenizer)


def _ends(offsets: list[tuple[int, int]], length: int) -> list[int]:
    """Returns where tokens end, given the part of the text that each of them covers.

    Tokens that the tokenizer adds cover nothing; those that share a character each cover all of it. Text that no token
    covers, such as a space that the tokenizer drops, belongs to the next one.
    """
    following, starts = length, []
    for start, end in reversed(offsets):
        starts.append(following)
        following = start if start < end else following
    ends = [0]
    for (_, end), next_start in zip(offsets, reversed(starts), strict=True):
        ends.append(max(ends[-1], min(end, next_start)))
    return [*ends[1:-1], length]


def _decoded(token_ids: list[int], tokenizer: Any) -> PromptText:
    """Returns the text of token ids, with control tokens by name.

    The bytes of a character that the prompt leaves incomplete belong to the answer, which may complete it.
    """
    _, rest = split_context(tokenizer, token_ids)
    decoder = make_decoder(tokenizer, [], skip_special_tokens=False)
    text, ends = "", []
    for token_id in token_ids[: len(token_ids) - len(rest)]:
        text += decoder.push(token_id)
        ends.append(len(text))
    if ends:
        text += decoder.flush()
        ends[-1] = len(text)
    return PromptText(text, ends + [len(text)] * len(rest))
