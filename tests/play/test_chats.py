"""Chats: the history and what of it fits, editing, regenerating, settings, and the endpoints for all of these."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from gradio_client import Client

from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason
from roseplay.engine.client import Engine
from roseplay.play.answer_settings import NAMES
from roseplay.play.chats import MAX_TURNS, Chat, Turn, as_prompt
from roseplay.play.playground import Playground
from tests.play.conftest import poll
from tests.play.fake_engine import INFO, WORDS, FakeEngine
from tests.waiting import wait_until

TAB = "tab-of-a-test"
NO_MORE = [None] * 12  # a plain POST includes all of /chat's arguments


def as_ids(text: str) -> list[int]:
    """The prompt as an engine without a tokenizer gets it, with a token per byte."""
    return [1 + byte % (INFO.vocab_size - 1) for byte in text.encode()]


def send(playground: Playground, prompt: str, tokens: int = 4, **how: Any) -> int:
    params = SamplingParams(max_new_tokens=tokens)
    (request_id,) = playground.chats.send(prompt, lanes=[1], tab_id=TAB, params=params, **how)
    return request_id


def lane(playground: Playground, have: str = "", number: int = 1) -> dict[str, Any]:
    news = poll(playground, tab_id=TAB, have=have)["own"]["lanes"]
    return next((lane for lane in news if lane["lane"] == number), {})


# ---- history


def test_the_next_prompt_holds_the_conversation(engine: FakeEngine, playground: Playground) -> None:
    send(playground, "one", system="be brief")
    engine.step(9)
    second = send(playground, "two", system="be brief")
    answer = "".join(WORDS[:4])
    assert engine.streams[second].prompt_token_ids == as_ids(f"be brief\n\none\n\n{answer}\n\ntwo")


def test_a_stopped_answer_stays_as_far_as_it_came(engine: FakeEngine, playground: Playground) -> None:
    stopped = send(playground, "one", tokens=50)
    engine.step(3)
    second = send(playground, "two")  # this stops the first answer
    assert engine.streams[stopped].finish_reason == "abort"
    assert engine.streams[second].prompt_token_ids == as_ids("one\n\n" + "".join(WORDS[:3]) + "\n\ntwo")
    engine.step(2)
    first, _ = lane(playground)["turns"]
    assert (first["text"], first["state"]) == ("".join(WORDS[:3]), "stopped")


def test_a_failed_answer_and_an_empty_one_are_no_history(engine: FakeEngine, playground: Playground) -> None:
    failed = send(playground, "one")
    engine.step(2)
    engine.streams[failed].finish(FinishReason.ERROR, 0, "the step broke")
    send(playground, "two")  # stopped before its first token
    third = send(playground, "three")
    assert engine.streams[third].prompt_token_ids == as_ids("three")
    assert [turn["state"] for turn in lane(playground)["turns"]] == ["error", "stopped", "queued"]
    assert lane(playground)["turns"][0]["error"] == "the step broke"


def test_the_oldest_turns_are_left_out_when_they_no_longer_fit(engine: FakeEngine, playground: Playground) -> None:
    for letter in "abc":
        send(playground, letter * 500)
        engine.step(9)
    assert lane(playground)["turns"][-1]["left_out"] == 0
    last = send(playground, "d" * 500)
    prompt = engine.streams[last].prompt_token_ids
    assert len(prompt) + 4 <= INFO.max_model_len
    answer = "\n\n" + "".join(WORDS[:4]) + "\n\n"
    assert prompt == as_ids(answer.join(letter * 500 for letter in "bcd"))
    assert lane(playground)["turns"][-1]["left_out"] == 1
    with pytest.raises(ValueError, match="do not fit"):
        send(playground, "e" * 2046)
    assert lane(playground)["title"] == "d" * 500


def test_a_chat_is_bounded(engine: FakeEngine, playground: Playground) -> None:
    for number in range(MAX_TURNS + 3):
        send(playground, f"question {number}", tokens=1)
        engine.step()
    news = lane(playground)
    assert len(news["order"]) == len(news["turns"]) == MAX_TURNS
    assert news["turns"][0]["question"] == "question 3"
    chat = Chat()
    long = [Turn("x" * 90_000, "a model") for _ in range(3)]
    for turn in long:
        chat.append(chat.turns, turn)
    assert chat.turns == tuple(long[1:])


def test_a_tab_gets_only_what_it_lacks(engine: FakeEngine, playground: Playground) -> None:
    send(playground, "one")
    engine.step(2)
    have = lane(playground)["have"]
    engine.step(9)
    second = send(playground, "two")
    news = lane(playground, have)
    assert [turn["tokens_from"] for turn in news["turns"]] == [2, 0]
    assert news["turns"][0]["text"] == "".join(WORDS[2:4])
    assert news["order"][-1] == second
    engine.step()
    later = lane(playground, news["have"])
    assert (later["order"], [turn["rid"] for turn in later["turns"]]) == (None, [second])
    assert lane(playground, later["have"]) == {}
    # A tab that has received nothing since the first edition gets everything since.
    assert len(lane(playground, have)["turns"]) == 2
    assert len(lane(playground)["turns"]) == 2


def test_edit_takes_the_place_of_the_last_turn(engine: FakeEngine, playground: Playground) -> None:
    first = send(playground, "one")
    engine.step(9)
    second = send(playground, "two", tokens=50)
    have = lane(playground)["have"]
    third = send(playground, "deux", edit=True)
    assert engine.streams[second].finish_reason == "abort"
    news = lane(playground, have)
    assert (news["order"], news["title"]) == ([first, third], "deux")
    assert engine.streams[third].prompt_token_ids == as_ids("one\n\n" + "".join(WORDS[:4]) + "\n\ndeux")


def test_regenerate_asks_again_with_another_seed(engine: FakeEngine, playground: Playground) -> None:
    with pytest.raises(ValueError, match="there is no answer to generate again"):
        playground.chats.regenerate(lanes=[1, 2], tab_id=TAB)
    playground.chats.set_settings({"seed": 7}, lane=0, tab_id=TAB)
    (first,) = playground.chats.send("one", lanes=[2], tab_id=TAB)
    (again,) = playground.chats.regenerate(lanes=[1, 2], tab_id=TAB)
    streams = engine.streams
    assert streams[first].prompt_token_ids == streams[again].prompt_token_ids
    assert (streams[first].params.seed, streams[first].finish_reason) == (7, "abort")
    assert streams[again].params.seed != 7
    assert lane(playground, number=2)["order"] == [again]


def test_new_chat_clears_a_lane(engine: FakeEngine, playground: Playground) -> None:
    first = send(playground, "one")
    have = lane(playground)["have"]
    assert playground.chats.new_chat(lanes=[1, 2], tab_id=TAB) == 1
    assert engine.streams[first].finish_reason == "abort"
    news = lane(playground, have)
    assert (news["order"], news["turns"], news["rid"], news["title"]) == ([], [], None, "")
    assert lane(playground, news["have"]) == {}
    second = send(playground, "two")
    assert engine.streams[second].prompt_token_ids == as_ids("two")


def test_models_without_template_or_tokenizer_get_plain_text() -> None:
    messages = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    assert as_prompt(messages, SimpleNamespace(info=INFO, tokenizer=object())) == "one\n\ntwo"
    assert as_prompt(messages[:1], SimpleNamespace(info=INFO, tokenizer=None)) == as_ids("one")


def test_turn_two_is_served_from_the_prefix_cache_and_may_follow_a_structure() -> None:
    """On the real engine, which counts the tokens that it computes."""
    with Engine("tiny-chat", num_blocks=449, threads=1) as engine:
        playground = Playground(engine)

        def ask(prompt: str) -> dict[str, Any]:
            send(playground, prompt, tokens=48)
            wait_until(lambda: lane(playground).get("state") == "done")
            playground.tick()
            return lane(playground)

        first = ask("Explain the prefix cache of an engine that serves language models, please.")
        second = ask("And what is a KV block?")
        assert first["cached"] == 0
        assert 0 < second["cached"] < second["prompt"]
        whole_blocks = (first["prompt"] + first["tokens"]) // 16 * 16
        assert second["cached"] >= min(whole_blocks, first["prompt"] // 16 * 16)
        playground.chats.new_chat(lanes=[1], tab_id=TAB)
        assert ask("Something else: how are you doing today?")["cached"] < 16
        playground.chats.set_settings({"structured_outputs": '{"choice": ["foxes"]}'}, lane=0, tab_id=TAB)
        (request_id,) = playground.chats.send("Owls or foxes?", lanes=[1], tab_id=TAB)
        tracked = playground.requests.registry.get(request_id)
        assert tracked is not None and tracked.stream.result(60).text == "foxes"


# ---- settings


def test_settings_changed_at_once_are_all_kept(playground: Playground) -> None:
    changes = [{"temperature": 1.0}, {"top_k": 3}, {"min_p": 0.1}, {"seed": 4}, {"system": "x"}, {"stop": "y"}] * 20
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda change: playground.chats.set_settings(change, lane=0, tab_id=TAB), changes))
    assert len(playground.chats.own_settings(TAB, 0)) == 6


# ---- endpoints


def newest(engine: FakeEngine) -> Any:
    return engine.streams[max(engine.streams)]


def test_chat_takes_messages_and_settings(call: Any, live_engine: FakeEngine) -> None:
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    text = call("/chat", max_new_tokens=3, messages=messages, system="brief", top_p=0.5, stop=["nowhere"])
    assert text == "".join(WORDS[:3])
    stream = newest(live_engine)
    assert stream.prompt_token_ids == as_ids("brief\n\none\n\ntwo\n\nthree")
    assert (stream.params.top_p, stream.params.temperature, stream.params.stop) == (0.5, 0.0, ("nowhere",))
    assert call("/chat", max_new_tokens=2, messages=json.dumps(messages)) == "".join(WORDS[:2])


def test_chat_tells_what_has_come(client: Client) -> None:
    job = client.submit("hello", 160, api_name="/chat")
    assert job.result(timeout=60) == "".join(WORDS[i % len(WORDS)] for i in range(160))
    parts = job.outputs()
    assert len(parts) > 1
    assert all(job.result().startswith(part) for part in parts)


def test_a_plain_post_has_the_whole_answer(address: str) -> None:
    body = {"data": ["hello", 120]}  # what is left out has its default
    answer = httpx.post(f"{address}/gradio_api/run/chat", json=body, timeout=60).json()
    assert answer["data"] == ["".join(WORDS[i % len(WORDS)] for i in range(120))]


@pytest.mark.parametrize("way", ["stream", "plain"])
def test_a_client_that_leaves_ends_its_request(address: str, live_engine: FakeEngine, way: str) -> None:
    before, body = max(live_engine.streams, default=0), {"data": ["hello", 2000, *NO_MORE]}
    if way == "plain":
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{address}/gradio_api/run/chat", json=body, timeout=1)
    else:
        event = httpx.post(f"{address}/gradio_api/call/chat", json=body).json()["event_id"]
        with httpx.stream("GET", f"{address}/gradio_api/call/chat/{event}", timeout=30) as answer:
            next(answer.iter_lines())
    (request_id,) = [i for i in live_engine.streams if i > before]
    stream = live_engine.streams[request_id]
    wait_until(lambda: stream.finished)
    assert stream.finish_reason == "abort"


def test_lanes_from_a_program(call: Any, address: str, live_engine: FakeEngine) -> None:
    def sampling(**asked: Any) -> dict[str, Any]:
        return dict(httpx.post(f"{address}/ui/sampling", json={"tab": TAB, **asked}).json()["values"])

    assert sampling(changes={"temperature": 0.2})["temperature"] == 0.2
    now = sampling(changes={"max_new_tokens": 3}, lane=1)
    assert (now["temperature"], now["max_new_tokens"], sorted(now)) == (0.2, 3, sorted(NAMES))
    (first,) = call("/submit", "one", 1, tab=TAB)["ids"]
    wait_until(lambda: live_engine.streams[first].finished)
    assert live_engine.streams[first].params.max_new_tokens == 3
    (second,) = call("/submit", "two", 1, tab=TAB, temperature=0.9, min_p=0.2, system="kind")["ids"]
    params = live_engine.streams[second].params
    assert (params.temperature, params.min_p, params.max_new_tokens) == (0.9, 0.2, 3)
    assert live_engine.streams[second].prompt_token_ids == as_ids("kind\n\none\n\n" + "".join(WORDS[:3]) + "\n\ntwo")
    (third,) = call("/submit", "deux", 1, tab=TAB, edit=True)["ids"]
    assert live_engine.streams[third].prompt_token_ids == as_ids("one\n\n" + "".join(WORDS[:3]) + "\n\ndeux")
    (fourth,) = call("/regenerate", 1, TAB)["ids"]
    assert live_engine.streams[fourth].prompt_token_ids == live_engine.streams[third].prompt_token_ids
    assert call("/new_chat", 1, TAB) == 1
    assert call("/new_chat", tab=TAB) == 0
    assert sampling(lane=1, reset=True)["max_new_tokens"] == 256


class Tokenizer:
    """Of text that is a token per byte, after which a template may put something."""

    def __init__(self, end: str = "") -> None:
        self._end = end

    def __call__(self, text: str, **how: Any) -> dict[str, list[int]]:
        return {"input_ids": as_ids(text)}

    def decode(self, ids: list[int], **how: Any) -> str:
        return self._end


@pytest.mark.parametrize(
    ("end", "begins"), [("<think>", True), ("<think>\n\n", True), ("<think>\n\n</think>\n\n", False), ("so", False)]
)
def test_a_template_may_begin_the_thinking(engine: FakeEngine, playground: Playground, end: str, begins: bool) -> None:
    """The tab learns of it, and so does a recording."""
    engine.tokenizer = Tokenizer(end)
    playground.chats.send("What?", lanes=[1], tab_id=TAB)
    assert lane(playground)["turns"][0]["thinking"] is begins
    playground.tick()
    events = [event for line in playground.recording(TAB) for event in json.loads(line).get("requests", ())]
    assert [about.get("thinking", False) for _, kind, _, about in events if kind == "submitted"] == [begins]


def test_a_system_prompt_without_a_role_precedes_the_question(engine: FakeEngine, playground: Playground) -> None:
    class WithoutRole(Tokenizer):
        chat_template = "of Gemma's kind"

        def apply_chat_template(self, messages: list[dict[str, str]], **how: Any) -> str:
            if messages[0]["role"] == "system":
                raise RuntimeError("System role not supported")
            return " | ".join(message["content"] for message in messages)

    engine.tokenizer = WithoutRole()
    first = send(playground, "one", system="be brief")
    engine.step(9)
    assert engine.streams[first].prompt_token_ids == as_ids("be brief\n\none")
    second = send(playground, "two", system="be brief")
    assert engine.streams[second].prompt_token_ids == as_ids(f"be brief\n\none | {''.join(WORDS[:4])} | two")
    assert [turn["no_role"] for turn in lane(playground)["turns"]] == [True, True]
    playground.chats.new_chat(lanes=[1], tab_id=TAB)
    send(playground, "three")
    assert [turn["no_role"] for turn in lane(playground)["turns"]] == [False]
