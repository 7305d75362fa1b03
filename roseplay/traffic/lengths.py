"""A prompt's length in tokens: counted if the engine tokenizes, estimated if a server does."""

from __future__ import annotations

from roseplay.engine.engine_like import HasTokenizer, Prompt
from roseplay.engine.prompts import encode_prompt

CHARACTERS_PER_TOKEN = 4  # about right for English
_MESSAGE_TOKENS = 6  # added to each message by a chat template


def prompt_length(prompt: Prompt, engine: HasTokenizer) -> int:
    """Returns the number of tokens in a prompt. Raises ``ValueError`` if the engine tokenizes and cannot encode it."""
    if engine.info.tokenizes:
        return len(encode_prompt(prompt, engine.tokenizer, engine.info.vocab_size))
    if isinstance(prompt, str):
        return estimated_tokens(prompt)
    texts = [None if isinstance(part, int) else str(part.get("content", "")) for part in prompt]
    return sum(1 if text is None else estimated_tokens(text) + _MESSAGE_TOKENS for text in texts)


def estimated_tokens(text: str) -> int:
    """Returns the estimated number of tokens in a text whose tokenizer is not available."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)
