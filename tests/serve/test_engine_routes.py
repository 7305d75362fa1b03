"""vLLM's routes of an engine, and how paths and methods that are not served are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import roseplay
from roseplay.engine.client import Engine
from roseplay.serve.bodies import CountedText
from roseplay.serve.submitting import tokenize

CHAT: list[Any] = [{"role": "user", "content": "What is a KV cache?"}]


def test_texts_and_chats_are_tokenized_and_back(address: str, engine: Engine) -> None:
    tokenizer: Any = engine.tokenizer
    ids = tokenizer("Hello <|end|>")["input_ids"]
    told = httpx.post(f"{address}/tokenize", json={"prompt": "Hello <|end|>", "return_token_strs": True}).json()
    names = tokenizer.convert_ids_to_tokens(ids)
    length = engine.info.max_model_len
    assert told == {"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": names}
    bare = {"prompt": "Hello", "add_special_tokens": False, "model": "tiny-chat"}
    plain = httpx.post(f"{address}/tokenize", json=bare).json()
    assert plain["tokens"] == tokenizer("Hello", add_special_tokens=False)["input_ids"] and plain["token_strs"] is None
    chat = httpx.post(f"{address}/tokenize", json={"messages": CHAT, "model": "tiny-chat"}).json()["tokens"]
    assert chat == tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    open_chat = {"messages": CHAT, "continue_final_message": True}
    assert len(httpx.post(f"{address}/tokenize", json=open_chat).json()["tokens"]) == len(chat) - 2, (
        "<|end|><|assistant|>"
    )
    back = httpx.post(f"{address}/detokenize", json={"model": "tiny-chat", "tokens": ids})
    assert back.json() == {"prompt": "Hello <|end|>"}
    assert httpx.get(f"{address}/version").json() == {"version": roseplay.__version__}


def test_a_text_is_tokenized_without_special_tokens_if_asked() -> None:
    class Tokenizer:
        def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return {"input_ids": [9] * add_special_tokens + [int(word) for word in text.split()]}

    engine: Any = SimpleNamespace(tokenizer=Tokenizer(), info=SimpleNamespace(vocab_size=10, max_model_len=5))
    for special, expected in ((True, [9, 3, 4]), (False, [3, 4])):
        assert tokenize(engine, CountedText(prompt="3 4", add_special_tokens=special))["tokens"] == expected


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", "/tokenize", {}, 400, "prompt"),
        ("POST", "/tokenize", {"prompt": ["a"]}, 400, "prompt"),
        ("POST", "/tokenize", {"messages": []}, 400, "messages"),
        ("POST", "/tokenize", {"prompt": "a", "messages": CHAT}, 400, "prompt"),
        ("POST", "/tokenize", {"prompt": "a", "model": "gpt-9"}, 404, "model"),
        ("POST", "/tokenize", [], 400, None),
        ("POST", "/detokenize", {"tokens": [10**9]}, 400, "tokens"),
        ("POST", "/detokenize", {"tokens": [1], "model": "gpt-9"}, 404, "model"),
        ("POST", "/chat/completions", {"model": "tiny-chat", "messages": CHAT}, 404, None),
        ("GET", "/nothing", None, 404, None),
        ("POST", "/", None, 404, None),
        *((method, path, None, 405, None) for method, path in [
            ("GET", "/tokenize"), ("POST", "/version"), ("DELETE", "/metrics"), ("POST", "/health"), ("GET", "/reset_prefix_cache"),
        ]),
    ],
)  # fmt: skip
def test_errors_have_openais_shape(
    address: str, method: str, path: str, body: Any, status: int, param: str | None
) -> None:
    reply = httpx.request(method, f"{address}{path}", **({} if body is None else {"json": body}))
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["param"] == param
    assert ("allow" in reply.headers) is (status == 405)
