"""Fields and routes that vLLM adds to OpenAI's API: what they change in answers, streams and drawn tokens."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from roseplay.config import SamplingParams
from roseplay.engine.client import Engine

MODEL = "tiny-chat"
QUESTION = [{"role": "user", "content": "What is a KV cache?"}]
PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture
def post(address: str) -> Any:
    def send(path: str, **fields: Any) -> Any:
        about = {"prompt": PROMPT} if path == "completions" else {"messages": QUESTION}
        body = {"model": MODEL, "temperature": 0, "max_tokens": 6, **about, **fields}
        reply = httpx.post(f"{address}/v1/{path}", json=body, timeout=60)
        if "stream" not in fields or reply.status_code != 200:
            return reply.json() if reply.status_code == 200 else (reply.status_code, reply.json()["error"]["message"])
        lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
        assert lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]

    return send


def test_token_ids_of_prompts_and_answers(post: Any) -> None:
    whole = post("completions", return_token_ids=True)["choices"][0]
    assert whole["prompt_token_ids"] == PROMPT and len(whole["token_ids"]) == 6
    parts = [part["choices"][0] for part in post("completions", return_token_ids=True, stream=True)]
    assert [token for part in parts for token in part["token_ids"]] == whole["token_ids"]
    assert parts[0]["prompt_token_ids"] == PROMPT and not any("prompt_token_ids" in part for part in parts[1:])
    chat = post("chat/completions", return_token_ids=True)
    assert len(chat["choices"][0]["token_ids"]) == 6
    first, *others = post("chat/completions", return_token_ids=True, stream=True, n=2)
    assert first["prompt_token_ids"] == chat["prompt_token_ids"]
    assert not any("prompt_token_ids" in part for part in others)
    without = post("chat/completions")
    assert without["prompt_token_ids"] is without["choices"][0]["token_ids"] is without["prompt_logprobs"] is None


def test_a_prompt_is_cut_on_the_side_that_is_named(post: Any) -> None:
    def kept(**fields: Any) -> Any:
        return post("completions", return_token_ids=True, **fields)["choices"][0]["prompt_token_ids"]

    assert kept(truncate_prompt_tokens=2) == kept(truncate_prompt_tokens=2, truncation_side="left") == PROMPT[-2:]
    assert kept(truncate_prompt_tokens=2, truncation_side="right") == PROMPT[:2]
    assert kept(truncate_prompt_tokens=-1) == kept(truncate_prompt_tokens=99) == PROMPT


def test_prompt_logprobs_are_those_that_echo_gives(post: Any) -> None:
    answer = post("completions", prompt_logprobs=2, echo=True, logprobs=1)["choices"][0]
    first, *others = answer["prompt_logprobs"]
    assert first is None and len(others) == len(PROMPT) - 1
    echoed = answer["logprobs"]["token_logprobs"][1 : len(PROMPT)]
    for token, entries, logprob in zip(PROMPT[1:], others, echoed, strict=True):
        assert entries[str(token)]["logprob"] == pytest.approx(logprob)
        assert {1, 2} <= {entry["rank"] for entry in entries.values()} <= {1, 2, None} and 2 <= len(entries) <= 3
    assert all(len(top) <= 2 for top in answer["logprobs"]["top_logprobs"][1:])
    alone = post("completions", prompt_logprobs=2)["choices"][0]
    assert alone["logprobs"] is None and alone["prompt_logprobs"] == answer["prompt_logprobs"]
    assert len(post("chat/completions", prompt_logprobs=0)["prompt_logprobs"]) > 5


@pytest.mark.parametrize("drawn", [42, 500])
def test_log_probabilities_of_named_tokens(post: Any, drawn: int) -> None:
    named = {"logprob_token_ids": [100, 500], "allowed_token_ids": [drawn], "return_tokens_as_token_ids": True}
    answer = post("chat/completions", logprobs=True, max_tokens=2, **named)["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in answer] == [f"token_id:{drawn}"] * 2
    for entry in answer:
        tops = {top["token"]: top["logprob"] for top in entry["top_logprobs"]}
        assert set(tops) == {f"token_id:{token}" for token in (100, 500, drawn)}
        assert tops[entry["token"]] == entry["logprob"]
    several = post("completions", logprobs=3, max_tokens=1)["choices"][0]["logprobs"]["top_logprobs"][0]
    assert len(several) in (3, 4), "without named tokens, the likeliest ones"
    logprobs = post("completions", logprobs=3, max_tokens=1, **named)["choices"][0]["logprobs"]
    assert set(logprobs["top_logprobs"][0]) == {f"token_id:{token}" for token in (100, 500, drawn)}


def test_a_chat_repeats_the_message_that_it_continues(post: Any) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "It is a store"}]
    asked: dict[str, Any] = {"messages": messages, "continue_final_message": True}
    plain = post("chat/completions", **asked)["choices"][0]["message"]["content"]
    echoed = post("chat/completions", **asked, echo=True, logprobs=True)["choices"][0]
    assert echoed["message"]["content"] == "It is a store" + plain
    assert "".join(entry["token"] for entry in echoed["logprobs"]["content"]) == plain
    deltas = [part["choices"][0]["delta"] for part in post("chat/completions", **asked, echo=True, stream=True)]
    assert deltas[0] == {"role": "assistant", "content": "It is a store"}
    assert "".join(delta.get("content", "") for delta in deltas) == "It is a store" + plain


def test_several_chats_in_one_request(post: Any) -> None:
    others = [{"role": "user", "content": "Tell me a story about a fox."}]
    alone = [post("chat/completions", messages=chat)["choices"][0]["message"] for chat in (QUESTION, others)]
    batch = post("chat/completions/batch", messages=[QUESTION, others])
    assert [choice["message"] for choice in batch["choices"]] == alone
    assert [choice["index"] for choice in batch["choices"]] == [0, 1]
    assert batch["usage"]["completion_tokens"] == 12
    assert post("chat/completions/batch", messages=[QUESTION], n=2)[0] == 400
    assert post("chat/completions/batch", messages=[QUESTION], stream=True)[0] == 400
    assert post("chat/completions/batch", messages=[])[0] == 400


def test_the_template_gets_what_else_a_message_has(post: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{% for m in messages %}{{ m.role }} {{ m.mood | default('calm') }} {{ m.content }}\n{% endfor %}"
    monkeypatch.setattr(engine.tokenizer, "chat_template", template)
    answer = post(
        "chat/completions", messages=[{"role": "critic", "content": "x", "mood": "glad"}], return_token_ids=True
    )
    assert engine.tokenizer.decode(answer["prompt_token_ids"]) == "critic glad x\n"
    monkeypatch.setattr(engine.tokenizer, "chat_template", "{{ messages[0].role }}")
    status, message = post("chat/completions", messages=[{"role": "critic", "content": "x"}])
    assert status == 400 and "leaves out messages with the role 'critic'" in message


def test_usage_so_far_is_only_sent_with_usage(post: Any) -> None:
    parts = post("completions", stream=True, stream_options={"continuous_usage_stats": True})
    assert parts and not any(part.get("usage") for part in parts)


def test_a_seed_of_minus_one_is_none(post: Any) -> None:
    texts = {post("completions", seed=-1, temperature=3, max_tokens=12)["choices"][0]["text"] for _ in range(3)}
    assert len(texts) > 1


def test_the_tokens_of_a_prompt_stand_for_its_messages(post: Any) -> None:
    asked = {"kv_transfer_params": {"prompt_token_ids": PROMPT}, "return_token_ids": True}
    answer = post("chat/completions", **asked)
    assert answer["prompt_token_ids"] == PROMPT and answer["choices"][0]["message"]["content"]
    assert post("chat/completions/batch", messages=[QUESTION], **asked)[0] == 400
    assert "out of vocabulary" in post("chat/completions", kv_transfer_params={"prompt_token_ids": [2048]})[1]


def test_a_request_without_a_model_gets_the_one_that_is_served(address: str) -> None:
    answer = httpx.post(f"{address}/v1/completions", json={"prompt": "x", "max_tokens": 1}, timeout=60).json()
    assert answer["model"] == MODEL


def test_how_many_requests_are_unfinished(address: str, engine: Engine) -> None:
    stream = engine.submit(PROMPT, SamplingParams(max_new_tokens=1500, ignore_eos=True))
    assert httpx.get(f"{address}/load").json() == {"server_load": 1}
    stream.cancel()
    stream.result(30)
    assert httpx.get(f"{address}/load").json() == {"server_load": 0}


def test_an_answer_without_a_limit_ends_with_the_context(post: Any, engine: Engine) -> None:
    answer = post("chat/completions", max_tokens=None, ignore_eos=True)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == engine.info.max_model_len


def test_what_the_tokenizer_is(address: str, engine: Engine) -> None:
    info = httpx.get(f"{address}/tokenizer_info").json()
    assert info["tokenizer_class"] == type(engine.tokenizer).__name__
    assert info["chat_template"] == engine.tokenizer.chat_template
    assert info["model_max_length"] >= engine.info.max_model_len


def test_metrics_have_the_number_of_answers_once_for_each_prompt(post: Any, address: str) -> None:
    def counted() -> tuple[float, float]:
        lines = httpx.get(f"{address}/metrics").text.splitlines()
        return tuple(
            next(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:request_params_n_{end}"))
            for end in ("count", "sum")
        )  # type: ignore[return-value]

    before = counted()
    post("completions", prompt=[PROMPT, PROMPT], n=3)
    assert [after - earlier for after, earlier in zip(counted(), before, strict=True)] == [2, 6]


def test_a_request_from_which_nothing_can_be_drawn_ends_with_the_reason(post: Any) -> None:
    status, message = post(
        "completions", allowed_token_ids=[42], bad_words=["x"], structured_outputs={"choice": ["yes"]}
    )
    assert status == 500 and "no token is left that may be drawn" in message
    assert len(post("completions")["choices"][0]["text"]) > 0, "others are served"
