"""Encodes text and chat messages as token ids."""

from __future__ import annotations

import copy
import inspect
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_STAND_IN = re.compile("\uf8fe([0-9]+)\uf8ff")  # private-use characters, which ordinary text does not contain
_PLAIN: weakref.WeakKeyDictionary[Any, Any] = (
    weakref.WeakKeyDictionary()
)  # tokenizers' copies that read control tokens as text

_MARK, _RESULT = "what-the-message-says", "what-the-tool-says"
_CALL = {"id": "call00000", "type": "function", "function": {"name": _MARK, "arguments": {}}}
_ASKED = {"role": "user", "content": "?"}
# Messages with which it is tried what a chat template takes, and what each tokenizer's template made of them.
_PROBES: dict[str, list[dict[str, Any]]] = {
    "system": [{"role": "system", "content": _MARK}, _ASKED],
    "tools": [
        _ASKED,
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "call00000", "content": _RESULT},
    ],
}
_PROBED: weakref.WeakKeyDictionary[Any, tuple[Any, dict[str, str]]] = weakref.WeakKeyDictionary()


def encode_prompt(prompt: Any, tokenizer: Any | None, vocab_size: int, options: Mapping[str, Any] = {}) -> list[int]:
    """Returns the token ids of a prompt, which is text, chat messages or token ids.

    A chat template places the beginning-of-sequence token itself, so none is added to its text. Only the template can
    write control tokens: in a message their names are plain text. In a prompt given as text, their names stand for the
    control tokens.

    Args:
        options: of the tokenizer for text, such as ``add_special_tokens``; of the chat template for messages, such as
            ``continue_final_message``, and values of its variables.

    Raises:
        ValueError: empty prompt, ids outside the vocabulary, malformed messages, or text without a tokenizer.
    """
    if isinstance(prompt, str):
        token_ids = _tokenize(_need(tokenizer), prompt, **options)
    elif isinstance(prompt, Sequence) and prompt and all(isinstance(message, Mapping) for message in prompt):
        token_ids = _encode_chat(prompt, _need(tokenizer), options)
    elif isinstance(prompt, Sequence):
        token_ids = _check_ids(prompt, vocab_size)
    else:
        raise ValueError(f"a prompt is text, chat messages or token ids, not {type(prompt).__name__}")
    if not token_ids:
        raise ValueError("the prompt is empty: give at least one token")
    return token_ids


def _encode_chat(messages: Sequence[Mapping[str, Any]], tokenizer: Any, template: Mapping[str, Any]) -> list[int]:
    """Returns the token ids of chat messages, with names of control tokens in their texts encoded as plain text."""
    names = [t.content for t in getattr(tokenizer, "added_tokens_decoder", {}).values() if t.special and t.content]
    named = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)")
    texts: list[str] = []
    _with_texts(messages, texts.append)
    if not any(map(named.search, texts)):
        return _tokenize(tokenizer, render_chat(messages, tokenizer, template), add_special_tokens=False)
    if any(map(_STAND_IN.search, texts)):
        raise ValueError("a message has a control token's name and the characters U+F8FE and U+F8FF: leave one out")
    literals: list[str] = []

    def stand_in(found: re.Match[str]) -> str:
        literals.append(found.group())
        return f"\uf8fe{len(literals) - 1}\uf8ff"

    replaced = [
        {**_with_texts(message, lambda text: named.sub(stand_in, text)), "role": message.get("role")}
        for message in messages
    ]
    token_ids: list[int] = []
    for position, part in enumerate(_STAND_IN.split(render_chat(replaced, tokenizer, template))):
        if position % 2:
            token_ids += _encode_literally(tokenizer, literals[int(part)])
        elif part:
            token_ids += _tokenize(tokenizer, part, add_special_tokens=False)
    return token_ids


def _with_texts(value: Any, change: Callable[[str], Any]) -> Any:
    """Returns a message with all of its texts changed, also those in the arguments of tool calls."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_with_texts(name, change): _with_texts(part, change) for name, part in value.items()}
    return [_with_texts(part, change) for part in value] if isinstance(value, list | tuple) else value


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


def render_chat(messages: Sequence[Mapping[str, Any]], tokenizer: Any, template: Mapping[str, Any]) -> str:
    """Returns chat messages as text by the model's chat template, or as plain paragraphs if it has none."""
    for message in messages:
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise ValueError('a chat message is {"role": "user", "content": "…"}, both text')
    templated = getattr(tokenizer, "chat_template", None) is not None
    calls = any(message.get("tool_calls") or message["role"] == "tool" for message in messages)
    if calls and not (templated and _takes_tool_calls(tokenizer)):
        raise ValueError(
            "the model's chat template has no place for tool_calls and for messages with the role tool: leave them out,"
            " or send them as text"
        )
    if not templated:
        return "\n\n".join(str(message["content"]) for message in messages)
    try:
        given = [dict(message) for message in messages]
        text = tokenizer.apply_chat_template(given, **{"add_generation_prompt": True, "tokenize": False, **template})
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
    return _MARK in _probed(tokenizer, "system")


def _takes_tool_calls(tokenizer: Any) -> bool:
    """Returns whether tool calls and, after them, their results enter the prompt."""
    calls, result, _ = _probed(tokenizer, "tools").partition(_RESULT)
    return bool(result) and _MARK in calls


def _probed(tokenizer: Any, probe: str) -> str:
    """Returns what the chat template makes of some messages, which is kept; nothing if it refuses them."""
    template, texts = _PROBED.get(tokenizer, (None, {}))
    if template != tokenizer.chat_template:
        template, texts = _PROBED[tokenizer] = tokenizer.chat_template, {}
    if probe not in texts:
        try:
            written = tokenizer.apply_chat_template(_PROBES[probe], add_generation_prompt=True, tokenize=False)
        except Exception:  # templates raise whatever their author chose
            written = ""
        texts[probe] = str(written)
    return texts[probe]


def template_has(tokenizer: Any | None, name: str) -> bool:
    """Returns whether the model's chat template has a variable of this name that a request may set."""
    template = getattr(tokenizer, "chat_template", None)
    if template is None or tokenizer is None or name in inspect.signature(tokenizer.apply_chat_template).parameters:
        return False
    return name != "messages" and re.search(rf"\b{re.escape(name)}\b", str(template)) is not None


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
