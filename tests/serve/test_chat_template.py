"""What of a chat reaches the model's chat template: tool calls as history, its variables, how the prompt ends."""

from __future__ import annotations

import copy
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


def test_control_tokens_in_tool_calls_are_text(engine: Engine) -> None:
    tokenizer: Any = copy.deepcopy(engine.tokenizer)
    tokenizer.chat_template = WITH_CALLS
    body = ChatBody.model_validate({"model": "m", "messages": HISTORY, "max_tokens": 1})
    (prepared,) = prepare_chat(SimpleNamespace(tokenizer=tokenizer, info=engine.info), body)  # type: ignore[arg-type]
    assert prepared.token_ids.count(tokenizer.convert_tokens_to_ids("<|end|>")) == 3, "those of the template"


@pytest.mark.parametrize("template", [WITHOUT_CALLS, None, "{{ raise_exception('no') }}"])
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
    ):
        with pytest.raises(ApiError, match="the model's chat template does not use it") as refused:
            prompt(engine, WITHOUT_CALLS, LAST, **fields)
        assert (refused.value.status, refused.value.param) == (400, param)
