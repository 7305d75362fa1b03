"""``echo`` of completions: the prompt is returned with its tokens' log-probabilities, as text-scoring programs need."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason
from roseplay.core.step import TokenLogprobs
from roseplay.engine.client import Engine
from roseplay.engine.detokenizer import make_decoder
from roseplay.engine.stream import Stream
from roseplay.serve.answers import Answer
from roseplay.serve.bodies import CompletionBody
from roseplay.serve.errors import ApiError
from roseplay.serve.logprobs import TokenTexts
from roseplay.serve.prompt_text import PromptText
from roseplay.serve.submitting import prepare_completion
from tests.pairwise import pairwise

MODEL = "tiny-chat"
PROMPTS = ["What is a KV cache? It holds", "日本語 🙂 é!", "<|user|>Hi<|end|> there\n\n  twice  ", "x"]


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def scored(engine: Engine, prompt: Any, most: int, top: int) -> Stream:
    """The engine's own answer."""
    return engine.submit(prompt, SamplingParams(max_new_tokens=most, logprobs=top, prompt_logprobs=top)).result(60)


@pytest.mark.parametrize(
    ("prompt", "as_ids", "top"),
    [pytest.param(*case.values()) for case in pairwise({"prompt": PROMPTS, "as_ids": [False, True], "top": [0, 1, 3]})],
)
def test_tokens_of_prompt_and_answer(
    client: openai.OpenAI, engine: Engine, prompt: str, as_ids: bool, top: int
) -> None:
    ours = scored(engine, prompt, 6, top)
    sent: Any = ours.prompt_token_ids if as_ids else prompt
    found = client.completions.create(model=MODEL, prompt=sent, max_tokens=6, temperature=0, logprobs=top, echo=True)
    (choice,) = found.choices
    assert choice.text == prompt + ours.text
    logprobs: Any = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:i])) for i in range(len(logprobs.tokens))]
    own = [*ours.prompt_logprobs[1:], *ours.logprobs]
    assert len(logprobs.tokens) == len(own) + 1
    assert (logprobs.token_logprobs[0], logprobs.top_logprobs[0]) == (None, None)
    assert logprobs.token_logprobs[1:] == pytest.approx([one.logprob for one in own if one], abs=0.02)
    ids = [*ours.prompt_token_ids[1:], *ours.token_ids]
    each = zip(logprobs.tokens[1:], logprobs.top_logprobs[1:], own, ids, strict=True)
    for text, likeliest, one, token_id in each:
        assert one is not None and len(likeliest) <= top + (token_id not in dict(one.top))
        assert likeliest[text] == pytest.approx(one.logprob, abs=0.02)  # so lm-eval sees whether it is the likeliest
    assert found.usage is not None
    assert found.usage.prompt_tokens == len(ours.prompt_token_ids)
    assert found.usage.completion_tokens == len(ours.token_ids)


@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("most", [0, 5])
def test_a_stream_begins_with_the_prompt(client: openai.OpenAI, most: int, logprobs: int | None) -> None:
    asked: Any = {"model": MODEL, "prompt": PROMPTS[:2], "max_tokens": most, "n": 2, "temperature": 0, "echo": True}
    asked["logprobs"] = logprobs
    whole = client.completions.create(**asked)
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    for number, choice in enumerate(whole.choices):
        mine = [chunk.choices[0] for chunk in chunks[:-1] if chunk.choices[0].index == number]
        assert mine[0].text == PROMPTS[number // 2]
        assert "".join(part.text for part in mine) == choice.text
        assert [part.finish_reason for part in mine] == [None] * (len(mine) - 1) + [choice.finish_reason]
        if logprobs is None:
            assert choice.logprobs is None and all(part.logprobs is None for part in mine)
            continue
        blocks: list[Any] = [part.logprobs for part in mine if part.logprobs is not None]
        assert choice.logprobs is not None
        for name in ("tokens", "text_offset"):
            assert [value for block in blocks for value in getattr(block, name)] == getattr(choice.logprobs, name)
        assert "".join(blocks[0].tokens) == PROMPTS[number // 2]
        assert blocks[0].token_logprobs[0] is None


def test_no_tokens_give_the_prompt_alone(client: openai.OpenAI, engine: Engine) -> None:
    found = client.completions.create(model=MODEL, prompt=PROMPTS, max_tokens=0, logprobs=1, echo=True)
    assert [choice.text for choice in found.choices] == PROMPTS
    assert {choice.finish_reason for choice in found.choices} == {"length"}
    for choice in found.choices:
        assert choice.logprobs is not None and "".join(choice.logprobs.tokens or []) == choice.text
    assert found.usage is not None
    assert (found.usage.completion_tokens, found.usage.total_tokens) == (0, found.usage.prompt_tokens)


@pytest.mark.parametrize(
    ("prompts", "tokens", "n", "most", "counted"),
    [
        pytest.param(1, 512, 64, 15, None, id="as many as allowed"),
        pytest.param(1, 400, 64, 20, "400 prompt tokens times n = 64 times 21 .* = 537,600", id="many answers"),
        pytest.param(32, 400, 2, 20, "12,800 prompt tokens times n = 2 times 21 .* = 537,600", id="many prompts"),
        pytest.param(1, 512 * 16 + 1, 64, 0, "= 524,352: send at most 524,288", id="one too many"),
    ],
)
def test_more_log_probabilities_of_prompts_than_one_answer_holds_are_refused(
    engine: Engine, prompts: int, tokens: int, n: int, most: int, counted: str | None
) -> None:
    body = CompletionBody(model=MODEL, prompt=[[5] * tokens] * prompts, n=n, logprobs=most, echo=True, max_tokens=0)
    if counted is None:
        assert len(prepare_completion(engine, body)) == prompts * n
        return
    with pytest.raises(ApiError, match=counted) as refused:
        prepare_completion(engine, body)
    assert (refused.value.status, refused.value.param) == (400, "logprobs")


@pytest.mark.parametrize("stream", [False, True])
def test_others_are_answered_while_a_large_answer_is_built(stream: bool) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class HeldTokenizer:
        """Its texts of tokens come when a test says so."""

        convert_ids_to_tokens = staticmethod(str)

        def encode(self, text: str, **options: Any) -> list[int]:
            return []

        def decode(self, token_ids: list[int], **options: Any) -> str:
            begun.set()
            assert go_on.wait(60)
            return "x" * len(token_ids)

    params = SamplingParams(logprobs=20, prompt_logprobs=20)
    asked = Stream(0, [5] * 100, params, lambda _: True, 0)
    asked.prompt_logprobs = [None, *[TokenLogprobs(-1.0, [(6, -1.0)])] * 99]
    asked.finish(FinishReason.LENGTH, 0)
    prompt = PromptText("x" * 100, list(range(1, 101)))
    answer = Answer([asked], MODEL, False, 1, HeldTokenizer(), [prompt], prompt_only=True)

    async def build() -> bytes:
        async def events() -> bytes:
            return b"".join([event async for event in answer.events("none")])

        building = asyncio.ensure_future(events() if stream else answer.whole())
        await asyncio.to_thread(begun.wait, 60)  # a loop that builds the answer itself would not get on
        go_on.set()
        return await building

    assert len(asyncio.run(asyncio.wait_for(build(), 60))) > 100 * 10


def test_a_text_is_scored_the_same_whatever_is_cached(client: openai.OpenAI, engine: Engine) -> None:
    """As lm-eval sends it: token ids, and one token more than it uses."""
    ids = engine.submit(PROMPTS[0], SamplingParams(max_new_tokens=1)).result(60).prompt_token_ids
    asked: Any = {"model": MODEL, "prompt": [ids, ids], "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True}
    engine.clear_cache()
    cold, warm = [client.completions.create(**asked, seed=1234) for _ in range(2)]
    scores = [choice.logprobs.token_logprobs[:-1] for choice in [*cold.choices, *warm.choices] if choice.logprobs]
    assert len(scores) == 4 and len(scores[0]) == len(ids)
    assert all(score[1:] == pytest.approx(scores[0][1:], abs=0.02) for score in scores)


def test_without_log_probabilities_the_prompt_may_be_cached(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "prompt": PROMPTS[0], "max_tokens": 4, "temperature": 0, "echo": True}
    client.completions.create(**asked)
    again = client.completions.create(**asked)
    assert again.usage is not None and again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens
    assert again.choices[0].text.startswith(PROMPTS[0]) and again.choices[0].logprobs is None


def test_a_character_that_the_prompt_leaves_incomplete_is_the_answers(client: openai.OpenAI, engine: Engine) -> None:
    ids = engine.tokenizer("a 日")["input_ids"]
    found = client.completions.create(model=MODEL, prompt=ids[:-1], max_tokens=4, logprobs=0, echo=True)
    logprobs: Any = found.choices[0].logprobs
    assert found.choices[0].text.startswith("a ")
    assert "".join(logprobs.tokens) == found.choices[0].text
    alone = client.completions.create(model=MODEL, prompt=ids[:-1], max_tokens=0, echo=True)
    assert alone.choices[0].text == "a "


def test_the_last_token_has_what_was_held_back_until_the_end(engine: Engine) -> None:
    tokenizer: Any = engine.tokenizer
    stream = Stream(0, [1], SamplingParams(logprobs=0), lambda _: True, 0, decoder=make_decoder(tokenizer, [1]))
    for token_id in tokenizer("a日")["input_ids"][:-1]:
        stream.push(token_id, 0)
    stream.finish(FinishReason.LENGTH, 0)
    texts = TokenTexts(stream, tokenizer)
    assert stream.text.startswith("a\ufffd")
    assert "".join(texts.of_answer(number) for number in range(len(stream.token_ids))) == stream.text
