"""Encodes text and chat messages as token ids."""

from __future__ import annotations

import copy
import re
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

_STAND_IN = re.compile("\uf8fe([0-9]+)\uf8ff")  # private-use characters, which ordinary text does not contain
_PLAIN: weakref.WeakKeyDictionary[Any, Any] = (
    weakref.WeakKeyDictionary()
)  # tokenizers' copies that read control tokens as text

_MARK = "what-the-system-says"
_TAKES_SYSTEM: weakref.WeakKeyDictionary[Any, tuple[Any, bool]] = weakref.WeakKeyDictionary()  # of a template


def encode_prompt(prompt: Any, tokenizer: Any | None, vocab_size: int) -> list[int]:
    """Returns the token ids of a prompt, which is text, chat messages or token ids.

    A chat template places the beginning-of-sequence token itself, so none is added to its text. Only the template can
    write control tokens: in a message's content their names are plain text. In a prompt given as text, their names
    stand for the control tokens.

    Raises:
        ValueError: empty prompt, ids outside the vocabulary, malformed messages, or text without a tokenizer.
    """
    if isinstance(prompt, str):
        token_ids = _tokenize(_need(tokenizer), prompt)
    elif isinstance(prompt, Sequence) and prompt and all(isinstance(message, Mapping) for message in prompt):
        token_ids = _encode_chat(prompt, _need(tokenizer))
    elif isinstance(prompt, Sequence):
        token_ids = _check_ids(prompt, vocab_size)
    else:
        raise ValueError(f"a prompt is text, chat messages or token ids, not {type(prompt).__name__}")
    if not token_ids:
        raise ValueError("the prompt is empty: give at least one token")
    return token_ids


def _encode_chat(messages: Sequence[Mapping[str, Any]], tokenizer: Any) -> list[int]:
    """Returns the token ids of chat messages, with names of control tokens in their content encoded as plain text."""
    names = [t.content for t in getattr(tokenizer, "added_tokens_decoder", {}).values() if t.special and t.content]
    named = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)")
    contents = [message.get("content") for message in messages]
    if not any(isinstance(content, str) and named.search(content) for content in contents):
        return _tokenize(tokenizer, render_chat(messages, tokenizer), add_special_tokens=False)
    if any(isinstance(content, str) and _STAND_IN.search(content) for content in contents):
        raise ValueError("a message has a control token's name and the characters U+F8FE and U+F8FF: leave one out")
    literals: list[str] = []

    def stand_in(found: re.Match[str]) -> str:
        literals.append(found.group())
        return f"\uf8fe{len(literals) - 1}\uf8ff"

    replaced = [
        {**message, "content": named.sub(stand_in, content) if isinstance(content, str) else content}
        for message, content in zip(messages, contents, strict=True)
    ]
    token_ids: list[int] = []
    for position, part in enumerate(_STAND_IN.split(render_chat(replaced, tokenizer))):
        if position % 2:
            token_ids += _encode_literally(tokenizer, literals[int(part)])
        elif part:
            token_ids += _tokenize(tokenizer, part, add_special_tokens=False)
    return token_ids


def _encode_literally(tokenizer: Any, name: str) -> list[int]:
    """Returns the token ids of a control token's name as plain text."""
    plain = _PLAIN.get(tokenizer)
    if plain is None:
        # A copy, since a tokenizer keeps this option between calls, and other threads use it at the same time.
        plain = _PLAIN[tokenizer] = copy.deepcopy(tokenizer)
    token_ids = _tokenize(plain, name, add_special_tokens=False, split_special_tokens=True)
    if any(token.special for number, token in tokenizer.added_tokens_decoder.items() if number in token_ids):
        raise ValueError(
            f"a message has {name!r}, which this tokenizer cannot distinguish from its control token: leave it out"
        )
    return token_ids


def render_chat(messages: Sequence[Mapping[str, Any]], tokenizer: Any) -> str:
    """Returns chat messages as text by the model's chat template, or as plain paragraphs if it has none."""
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
        advice = ""
        if any(message["role"] == "system" for message in messages) and not takes_system_role(tokenizer):
            advice = "; it takes no system message: put its text into the first user message"
        raise ValueError(f"the model's chat template refused the messages: {error}{advice}") from None
    assert isinstance(text, str)
    return text


def takes_system_role(tokenizer: Any | None) -> bool:
    """Returns whether system messages enter the prompt; some chat templates raise an error, others drop them."""
    if getattr(tokenizer, "chat_template", None) is None:
        return True
    assert tokenizer is not None
    template, takes = _TAKES_SYSTEM.get(tokenizer, (None, False))
    if template != tokenizer.chat_template:
        messages = [{"role": "system", "content": _MARK}, {"role": "user", "content": "?"}]
        try:
            takes = _MARK in tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception:  # templates raise whatever their author chose
            takes = False
        _TAKES_SYSTEM[tokenizer] = (tokenizer.chat_template, takes)
    return takes


def _tokenize(tokenizer: Any, text: str, **options: Any) -> list[int]:
    try:
        return list(tokenizer(text, **options)["input_ids"])
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in the tokenizer's library is not an Exception
        raise ValueError(f"the tokenizer failed on this prompt ({type(error).__name__}: {error})") from error


def _need(tokenizer: Any | None) -> Any:
    if tokenizer is None:
        raise ValueError("this model has no tokenizer: give the prompt as token ids")
    return tokenizer


def _check_ids(prompt: Sequence[Any], vocab_size: int) -> list[int]:
    for token in prompt:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise ValueError(f"token id {token!r} is not an integer from 0 to {vocab_size - 1}")
    return [int(token) for token in prompt]  # plain integers rather than subclasses, because they are pickled
