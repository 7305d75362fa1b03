"""Encodes text and chat messages as token ids."""

from __future__ import annotations

import copy
import functools
import inspect
import json
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken

# Private-use characters, which ordinary text does not contain, stand for control tokens' names. A reader is a copy of a
# tokenizer with a token for each of them, and by that token's id the name and its token ids as plain text.
_STAND_IN = re.compile("[\U00100000-\U0010ffff]")
_Reader = tuple[Any, dict[int, tuple[str, list[int]]]]
_READERS: weakref.WeakKeyDictionary[Any, tuple[dict[str, str], _Reader]] = weakref.WeakKeyDictionary()

_MARK, _ARGUMENT, _RESULT = "what-the-message-says", "what-the-call-says", "what-the-tool-says"
_CALL = {"id": "call00000", "type": "function", "function": {"name": _MARK, "arguments": {_ARGUMENT: 1}}}
_ASKED = {"role": "user", "content": "?"}
_ROLES = ("system", "user", "assistant", "tool")
# Messages with which it is tried what a chat template takes, and what each tokenizer's template made of them.
_SYSTEM: list[dict[str, Any]] = [{"role": "system", "content": _MARK}, _ASKED]
_TOOLS: list[dict[str, Any]] = [
    _ASKED,
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call00000", "content": _RESULT},
]
_PROBED: weakref.WeakKeyDictionary[Any, tuple[Any, dict[str, str]]] = weakref.WeakKeyDictionary()
# Forms of messages with tool calls: whether the arguments are text, and the content of a message that has none.
_FORMS: list[tuple[bool, str | None]] = [(False, ""), (False, None), (True, ""), (True, None)]


def encode_prompt(prompt: Any, tokenizer: Any | None, vocab_size: int, options: Mapping[str, Any] = {}) -> list[int]:
    """Returns the token ids of a prompt, which is text, chat messages or token ids.

    A chat template places the beginning-of-sequence token itself, so none is added to its text. Only the template can
    write control tokens: in a message their names are plain text. In a prompt given as text, their names stand for the
    control tokens.

    Args:
        options: ``add_special_tokens``, by default true for text and false for messages; of the chat template for
            messages, such as ``continue_final_message``, and values of its variables.

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


def encode_bad_words(words: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Returns the tokens of texts that an answer must not contain: each as the beginning of a text and, if that is other
    tokens of the same number, after a space. As in vLLM.

    Raises:
        ValueError: there is no tokenizer, or a text has no tokens.
    """
    encoded = []
    for word in words:
        first, after_space = (
            _tokenize(_need(tokenizer), before + word.lstrip(), add_special_tokens=False) for before in ("", " ")
        )
        if not first:
            raise ValueError(f"bad_words has {word!r}, which has no tokens: leave it out")
        encoded.append(first)
        if len(after_space) == len(first) and after_space[0] != first[0]:
            encoded.append(after_space)
    return encoded


def _encode_chat(messages: Sequence[Mapping[str, Any]], tokenizer: Any, template: Mapping[str, Any]) -> list[int]:
    """Returns the token ids of a chat, with control tokens' names in messages and variables encoded as plain text."""
    template = dict(template)
    add_special_tokens = bool(template.pop("add_special_tokens", False))
    special = {token: t.content for token, t in getattr(tokenizer, "added_tokens_decoder", {}).items() if t.special}
    names = sorted(filter(None, special.values()), key=len, reverse=True)
    named = re.compile("|".join(map(re.escape, names)) or "(?!)")
    texts: list[str] = []
    _with_texts([messages, *template.values()], texts.append)
    if not any(map(named.search, texts)):
        rendered = render_chat(messages, tokenizer, template)
        return _tokenize(tokenizer, rendered, add_special_tokens=add_special_tokens)
    if any(map(_STAND_IN.search, texts)):
        raise ValueError("the chat has a control token's name and a character from U+100000 on: leave one out")
    stand_ins = {name: chr(0x100000 + number) for number, name in enumerate(names)}
    replace = functools.partial(named.sub, lambda name: stand_ins[name.group()])
    replaced = [{**_with_texts(message, replace), "role": message.get("role")} for message in messages]
    variables = {name: _with_texts(value, replace) for name, value in template.items()}
    text = render_chat(replaced, tokenizer, variables)
    reader, plain = _reader(tokenizer, stand_ins)
    token_ids: list[int] = []
    for token in _tokenize(reader, text, add_special_tokens=add_special_tokens):
        name, of_name = plain.get(token, ("", (token,)))
        if name and not special.keys().isdisjoint(of_name):
            raise ValueError(
                f"the chat has {name!r}, which this tokenizer cannot distinguish from its control token: leave it out"
            )
        token_ids += of_name
    return token_ids


def _with_texts(value: Any, change: Callable[[str], Any]) -> Any:
    """Returns a message with all of its texts changed, also those in the arguments of tool calls."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_with_texts(name, change): _with_texts(part, change) for name, part in value.items()}
    return [_with_texts(part, change) for part in value] if isinstance(value, list | tuple) else value


def _reader(tokenizer: Any, stand_ins: dict[str, str]) -> _Reader:
    """Returns a tokenizer's reader for the stand-ins of these names."""
    if tokenizer not in _READERS or _READERS[tokenizer][0] != stand_ins:
        # A copy, since a tokenizer keeps this option between calls, and other threads use it at the same time.
        reader = copy.deepcopy(tokenizer)
        read = functools.partial(_tokenize, reader, add_special_tokens=False, split_special_tokens=True)
        reader.add_tokens([AddedToken(stand_in, normalized=False) for stand_in in stand_ins.values()])
        # Names are read behind a stand-in, since some tokenizers put a space before a text.
        plain = {s: (name, read(s + name)[len(read(s)) :]) for name, s in stand_ins.items()}
        ids = {reader.convert_tokens_to_ids(stand_in): text for stand_in, text in plain.items()}
        _READERS[tokenizer] = stand_ins, (reader, ids)
    return _READERS[tokenizer][1]


def render_chat(messages: Sequence[Mapping[str, Any]], tokenizer: Any, template: Mapping[str, Any]) -> str:
    """Returns chat messages as text by the model's chat template, or as plain paragraphs if it has none."""
    for message in messages:
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise ValueError('a chat message is {"role": "user", "content": "…"}, both text')
    templated = getattr(tokenizer, "chat_template", None) is not None
    calls = any(message.get("tool_calls") or message["role"] == "tool" for message in messages)
    forms = [form for form in _FORMS if not calls or (templated and _takes_tool_calls(tokenizer, form))]
    if not forms:
        raise ValueError(
            "the model's chat template has no place for tool_calls and for messages with the role tool: leave them out,"
            " or send them as text"
        )
    if not templated:
        return "\n\n".join(str(message["content"]) for message in messages)
    try:
        given = _in_form(messages, *forms[0])
        text = tokenizer.apply_chat_template(given, **{"add_generation_prompt": True, "tokenize": False, **template})
    except Exception as error:  # templates raise whatever their author chose
        advice = ""
        if any(message["role"] == "system" for message in messages) and not takes_system_role(tokenizer):
            advice = "; it takes no system message: put its text into the first user message"
        raise ValueError(f"the model's chat template refused the messages: {error}{advice}") from None
    assert isinstance(text, str)
    for message in messages:
        if message["role"] not in _ROLES and message["content"].strip() not in text:
            raise ValueError(f"the model's chat template leaves out messages with the role {message['role']!r}")
    return text


def takes_system_role(tokenizer: Any | None) -> bool:
    """Returns whether system messages enter the prompt; some chat templates raise an error, others drop them."""
    if getattr(tokenizer, "chat_template", None) is None:
        return True
    return _MARK in _probed(tokenizer, _SYSTEM)


def _takes_tool_calls(tokenizer: Any, form: tuple[bool, str | None]) -> bool:
    """Returns whether tool calls in a form and, after them, their results enter the prompt."""
    calls, result, _ = _probed(tokenizer, _in_form(_TOOLS, *form)).partition(_RESULT)
    # A template for arguments as text writes an object as Python does.
    return bool(result) and _MARK in calls and _ARGUMENT in calls and str({_ARGUMENT: 1}) not in calls


def _in_form(messages: Sequence[Mapping[str, Any]], as_text: bool, no_content: str | None) -> list[dict[str, Any]]:
    formed = [dict(message) for message in messages]
    for message in formed:
        if message.get("tool_calls"):
            message["content"] = message["content"] or no_content
            message["tool_calls"] = copy.deepcopy(message["tool_calls"])
            for call in message["tool_calls"] if as_text else ():
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return formed


def _probed(tokenizer: Any, messages: list[dict[str, Any]]) -> str:
    """Returns what the chat template makes of some messages, which is kept; nothing if it refuses them."""
    template, texts = _PROBED.get(tokenizer, (None, {}))
    if template != tokenizer.chat_template:
        template, texts = _PROBED[tokenizer] = tokenizer.chat_template, {}
    probe = str(messages)
    if probe not in texts:
        try:
            written = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception:  # templates raise whatever their author chose
            written = ""
        texts[probe] = str(written)
    return texts[probe]


def template_has(tokenizer: Any | None, name: str) -> bool:
    """Returns whether the model's chat template has a variable of this name that a request may set."""
    if tokenizer is None or getattr(tokenizer, "chat_template", None) is None:
        return False
    given = {"messages", *tokenizer.special_tokens_map, *inspect.signature(tokenizer.apply_chat_template).parameters}
    return name not in given and name in _variables(tokenizer.get_chat_template())


@functools.lru_cache
def _variables(template: str) -> set[str]:
    """Returns the variables that a chat template reads and does not set itself. Raises ``ValueError`` if it is wrong."""
    from jinja2 import Environment, TemplateError, meta  # takes 0.2 s

    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    # Transformers adds these and a tag.
    environment.globals |= dict.fromkeys(("raise_exception", "strftime_now"))
    template = re.sub(r"{%[-+]?\s*(end)?generation\s*[-+]?%}", "", template)
    try:
        return meta.find_undeclared_variables(environment.parse(template))
    except TemplateError as error:
        raise ValueError(f"the model's chat template is wrong: {error}") from None


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
            raise ValueError(f"token id {token!r} is out of vocabulary: use integers from 0 to {vocab_size - 1}")
    return [int(token) for token in prompt]  # plain integers rather than subclasses, because they are pickled
