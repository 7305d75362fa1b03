"""A prompt's length in tokens: counted if the engine tokenizes, estimated if a server does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roseplay.engine.engine_like import HasTokenizer, Prompt
from roseplay.engine.prompts import encode_prompt

CHARACTERS_PER_TOKEN = 4  # about right for English
_MESSAGE_TOKENS = 6  # added to each message by a chat template


def prompt_length(prompt: Prompt, engine: HasTokenizer) -> int:
    """Returns the number of tokens in text, chat messages or token ids.

    Raises:
        ValueError: the engine tokenizes and cannot encode the prompt.
    """
    if engine.info.tokenizes:
        return len(encode_prompt(prompt, engine.tokenizer, engine.info.vocab_size))
    return _estimated(prompt)


def estimated_tokens(text: str) -> int:
    """Returns the estimated number of tokens in a text whose tokenizer is not available."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def _estimated(prompt: str | Sequence[int | Mapping[str, Any]]) -> int:
    if isinstance(prompt, str):
        return estimated_tokens(prompt)
    return sum(1 if isinstance(part, int) else _of_message(part) for part in prompt)


def _of_message(message: Mapping[str, Any]) -> int:
    return estimated_tokens(str(message.get("content", ""))) + _MESSAGE_TOKENS
