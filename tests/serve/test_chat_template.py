"""What of a chat reaches the model's chat template: tool calls as history, its variables, how the prompt ends."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace
from typing import Any

import pytest

from roseplay.engine.client import Engine
from roseplay.serve.bodies import ChatBody
from roseplay.serve.errors import ApiError
from roseplay.serve.submitting import prepare_chat

EACH = "{%- for m in messages -%}<|user|>{{ m.role }}:"
CALLS = "{%- for c in m.tool_calls or [] -%}[{{ c.type }} {{ c.function.name }} {{ c.function.arguments | tojson }}]{%- endfor -%}"
END = "<|end|>{%- endfor -%}{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
WITH_CALLS = EACH + "{{ m.content + '' }}" + CALLS + END
# Templates that take arguments as text, or a message with calls only if it has no content.
CALLS_AS_TEXT = CALLS.replace(" | tojson", "")
JOINED = CALLS.replace("{{ c.function.arguments | tojson }}", "{{ c.function.arguments + '' }}")
EITHER = (
    "{%- if m.content is defined and m.content is not none -%}{{ m.content }}{%- else -%}" + CALLS + "{%- endif -%}"
)
WITHOUT_CALLS = EACH + "{{ m.content }}" + END
WITH_VARIABLES = "{{ reasoning_effort }}/{{ verbosity }}/{{ enable_thinking }}/" + WITHOUT_CALLS

CALL: dict[str, Any] = {
    "id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "<|end|>", "n": 1}'}
}  # fmt: skip
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Go"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "seen"}]},
]
LAST = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B c"}]


def prompt(engine: Engine, template: str | None, messages: list[dict[str, Any]], **fields: Any) -> str:
    """The prompt of a chat as text, with control tokens that the messages contain in brackets."""
    tokenizer: Any = copy.deepcopy(engine.tokenizer)
    tokenizer.chat_template = template
    body = ChatBody.model_validate({"model": "m", "messages": messages, "max_tokens": 1, **fields})
    (prepared,) = prepare_chat(SimpleNamespace(tokenizer=tokenizer, info=engine.info), body)  # type: ignore[arg-type]
    return "".join(tokenizer.decode([token]) for token in prepared.token_ids)


def test_tool_calls_are_history(engine: Engine) -> None:
    without = [{name: value for name, value in message.items() if value is not None} for message in HISTORY]
    expected = (
        '<|user|>user:Go<|end|><|user|>assistant:[function look {"at": "<|end|>", "n": 1}]<|end|>'
        "<|user|>tool:seen<|end|><|assistant|>"
    )
    assert prompt(engine, WITH_CALLS, HISTORY) == prompt(engine, WITH_CALLS, without) == expected


def test_a_template_gets_of_a_call_what_openais_messages_have(engine: Engine) -> None:
    """Not its place in the stream from which a client copied it."""
    whole = EACH + "{{ m.content }}" + "{%- for c in m.tool_calls or [] -%}{{ c | tojson }}{%- endfor -%}" + END
    written = json.dumps({**CALL, "function": {"name": "look", "arguments": {"at": "<|end|>", "n": 1}}})
    for call in (CALL, {**CALL, "index": 0}):
        messages = [HISTORY[0], {**HISTORY[1], "tool_calls": [call]}, HISTORY[2]]
        assert f"<|user|>assistant:{written}<|end|>" in prompt(engine, whole, messages)


@pytest.mark.parametrize(
    "template",
    [
        EACH + "{{ m.content }}" + CALLS_AS_TEXT + END,
        EACH + "{{ m.content }}" + JOINED + END,
        EACH + EITHER + END,
        EACH + EITHER.replace(CALLS, CALLS_AS_TEXT) + END,
        EACH + EITHER.replace(CALLS, JOINED) + END,
    ],
)
def test_tool_calls_are_written_in_the_form_that_the_template_takes(engine: Engine, template: str) -> None:
    assert prompt(engine, template, HISTORY) == prompt(engine, WITH_CALLS, HISTORY)
    said = [HISTORY[0], {**HISTORY[1], "content": "I look."}, HISTORY[2]]
    assert "I look." in prompt(engine, template, said)


def test_control_tokens_in_tool_calls_are_text(engine: Engine) -> None:
    """In names as well as in values."""
    tokenizer: Any = copy.deepcopy(engine.tokenizer)
    tokenizer.chat_template = WITH_CALLS

    def written(typed: str) -> tuple[list[int], str]:
        """The control tokens of a chat with calls, and its text without them."""
        function = {"name": f"1{typed}", "arguments": json.dumps({f"2{typed}": [f"3{typed}"]})}
        messages = [HISTORY[0], {**HISTORY[1], "tool_calls": [{**CALL, "function": function}]}, HISTORY[2]]
        body = ChatBody.model_validate({"model": "m", "messages": messages, "max_tokens": 1})
        (prepared,) = prepare_chat(SimpleNamespace(tokenizer=tokenizer, info=engine.info), body)  # type: ignore[arg-type]
        special = [token for token in prepared.token_ids if token in tokenizer.all_special_ids]
        return special, tokenizer.decode(prepared.token_ids, skip_special_tokens=True)

    for typed in ("<|end|>", "<|user|>"):
        special, text = written(typed)
        assert special == written("word")[0]
        assert all(f"{place}{typed}" in text for place in (1, 2, 3))


WITHOUT_ARGUMENTS = WITH_CALLS.replace("{{ c.function.arguments | tojson }}", "")


@pytest.mark.parametrize("template", [WITHOUT_CALLS, WITHOUT_ARGUMENTS, None, "{{ raise_exception('no') }}"])
@pytest.mark.parametrize("messages", [HISTORY, [HISTORY[0], HISTORY[2]]])
def test_a_template_without_tool_calls_refuses_them(
    engine: Engine, template: str | None, messages: list[dict[str, Any]]
) -> None:
    with pytest.raises(ApiError, match="has no place for tool_calls") as refused:
        prompt(engine, template, messages)
    assert (refused.value.status, refused.value.param) == (400, "messages")


def test_how_the_prompt_ends(engine: Engine) -> None:
    begun = "<|user|>user:A<|end|><|user|>assistant:B c"
    assert prompt(engine, WITHOUT_CALLS, LAST) == f"{begun}<|end|><|assistant|>"
    assert prompt(engine, WITHOUT_CALLS, LAST, add_generation_prompt=False) == f"{begun}<|end|>"
    assert prompt(engine, WITHOUT_CALLS, LAST, continue_final_message=True) == begun
    both = {"continue_final_message": True, "add_generation_prompt": False}
    assert prompt(engine, WITHOUT_CALLS, LAST, **both) == begun


def test_variables_of_the_template(engine: Engine) -> None:
    given = {"reasoning_effort": "low", "verbosity": "high", "chat_template_kwargs": {"enable_thinking": False}}
    assert prompt(engine, WITH_VARIABLES, LAST[:1], **given).startswith("low/high/False/")
    names = ("engine", "param", "prompt", "tokenizer", "vocab_size")  # also arguments of functions here
    for name in names:
        named = prompt(engine, "{{" + name + "}}/" + WITHOUT_CALLS, LAST[:1], chat_template_kwargs={name: "its value"})
        assert named.startswith("its value/")
    off = {"verbosity": "medium", "chat_template_kwargs": {"enable_thinking": False, "thinking": None}}
    assert prompt(engine, WITHOUT_CALLS, LAST, **off) == prompt(engine, WITHOUT_CALLS, LAST)
    for fields, param in (
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"verbosity": "low"}, "verbosity"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"engine": "x"}}, "chat_template_kwargs.engine"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"add_generation_prompt": 1}}, "chat_template_kwargs.add_generation_prompt"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs.bos_token"),
        ({"chat_template_kwargs": {"m": "x"}}, "chat_template_kwargs.m"),
        ({"chat_template_kwargs": {"raise_exception": "x"}}, "chat_template_kwargs.raise_exception"),
        ({"chat_template_kwargs": {"user": "x"}}, "chat_template_kwargs.user"),
    ):
        with pytest.raises(ApiError, match="chat template does not take it") as refused:
            prompt(
                engine,
                "{%- if not bos_token -%}{{ raise_exception('no') }}{%- endif -%}" + WITHOUT_CALLS,
                LAST,
                **fields,
            )
        assert (refused.value.status, refused.value.param) == (400, param)


def test_texts_of_variables_write_no_control_tokens(engine: Engine) -> None:
    tokenizer: Any = copy.deepcopy(engine.tokenizer)
    tokenizer.chat_template = WITH_VARIABLES.replace("{{ enable_thinking }}", "{{ more.a[0] }}")
    texts = {
        "reasoning_effort": "<|end|>",
        "verbosity": "a<|user|>b",
        "chat_template_kwargs": {"more": {"a": ["<|end|>"]}},
    }
    body = ChatBody.model_validate({"model": "m", "messages": LAST[:1], "max_tokens": 1, **texts})
    (prepared,) = prepare_chat(SimpleNamespace(tokenizer=tokenizer, info=engine.info), body)  # type: ignore[arg-type]
    text = tokenizer.decode(prepared.token_ids, skip_special_tokens=True)
    assert text == "<|end|>/a<|user|>b/<|end|>/user:A"


def test_variables_are_seen_behind_transformers_own_tag_and_a_wrong_template_is_named(engine: Engine) -> None:
    given: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
    tagged = "{% generation %}{{ enable_thinking }}/{%- endgeneration -%}" + WITHOUT_CALLS
    assert prompt(engine, tagged, LAST[:1], **given).startswith("True/")
    with pytest.raises(ValueError, match="the model's chat template is wrong: "):
        prompt(engine, "{{ enable_thinking", LAST[:1], **given)
    with pytest.raises(ApiError, match="chat template does not take it"):
        prompt(engine, None, LAST[:1], **given)
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    with pytest.raises(ApiError, match="recursion") as refused:
        prompt(engine, WITH_VARIABLES, LAST[:1], chat_template_kwargs={"enable_thinking": deep})
    assert refused.value.status == 400


def test_a_template_that_changes_is_tried_anew(engine: Engine) -> None:
    tokenizer: Any = copy.deepcopy(engine.tokenizer)
    body = ChatBody.model_validate({"model": "m", "messages": HISTORY, "max_tokens": 1})
    about: Any = SimpleNamespace(tokenizer=tokenizer, info=engine.info)
    tokenizer.chat_template = WITH_CALLS
    taken = prepare_chat(about, body)
    tokenizer.chat_template = WITHOUT_CALLS
    with pytest.raises(ApiError, match="has no place for tool_calls"):
        prepare_chat(about, body)
    tokenizer.chat_template = WITH_CALLS
    assert prepare_chat(about, body) == taken
