"""Text and chat messages to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def encode_prompt(prompt: Any, tokenizer: Any | None, vocab_size: int) -> list[int]:
    """Token ids of a prompt: text, chat messages, or ids already.

    A chat template says itself where the beginning-of-sequence token goes, so none is added to what it wrote.

    Raises:
        ValueError: empty prompt, ids outside the vocabulary, malformed messages, or text without a tokenizer.
    """
    if isinstance(prompt, str):
        token_ids = _tokenize(_need(tokenizer), prompt)
    elif isinstance(prompt, Sequence) and prompt and all(isinstance(message, Mapping) for message in prompt):
        text = render_chat(prompt, _need(tokenizer))
        token_ids = _tokenize(_need(tokenizer), text, add_special_tokens=False)
    elif isinstance(prompt, Sequence):
        token_ids = _check_ids(prompt, vocab_size)
    else:
        raise ValueError(f"a prompt is text, chat messages or token ids, not {type(prompt).__name__}")
    if not token_ids:
        raise ValueError("the prompt is empty: give at least one token")
    return token_ids


def render_chat(messages: Sequence[Mapping[str, Any]], tokenizer: Any) -> str:
    """Chat messages as the model's template writes them; plain paragraphs for a model without one."""
    for message in messages:
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise ValueError('a chat message is {"role": "user", "content": "…"}, both text')
    if getattr(tokenizer, "chat_template", None) is None:
        return "\n\n".join(str(message["content"]) for message in messages)
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages], add_generation_prompt=True, tokenize=False
        )
    except Exception as error:  # templates raise whatever their author chose
        raise ValueError(f"the model's chat template refused the messages: {error}") from None
    assert isinstance(text, str)
    return text


def _tokenize(tokenizer: Any, text: str, **options: Any) -> list[int]:
    try:
        return list(tokenizer(text, **options)["input_ids"])
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in the tokenizer's library is no Exception
        raise ValueError(f"the tokenizer failed on this prompt ({type(error).__name__}: {error})") from error


def _need(tokenizer: Any | None) -> Any:
    if tokenizer is None:
        raise ValueError("this model has no tokenizer: give the prompt as token ids")
    return tokenizer


def _check_ids(prompt: Sequence[Any], vocab_size: int) -> list[int]:
    for token in prompt:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise ValueError(f"token id {token!r} is not an integer from 0 to {vocab_size - 1}")
    return [int(token) for token in prompt]  # plain ones, whatever was derived from int: they cross to another process
