from __future__ import annotations

import pytest

from roseplay.traffic.prompts import KINDS, PromptMix, TextPrompts, TokenPrompts, prompt_source
from tests.fake_engine import FakeEngine


class Words:
    """A tokenizer with two tokens for each word longer than four letters, and one for each other word."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids = [hash(part) for word in text.split() for part in ([word[:4], word[4:]] if len(word) > 4 else [word])]
        return [0, *ids] if add_special_tokens else ids


def test_text_repeats_and_ends_like_the_write_ups_prompts() -> None:
    source = TextPrompts("Hello")
    assert source.prompt(0) == "Hello"
    assert source.prompt(7, repeats=3) == "Hello Hello Hello"
    assert source.prompt(7, repeats=2, unique=True) == "Hello Hello [7]"


def test_short_and_long_take_turns() -> None:
    prompts = PromptMix(repeats=(1, 1, 1, 64)).prompts(TextPrompts("Hello"), 8)
    assert [prompt.count("Hello") for prompt in prompts] == [1, 1, 1, 64, 1, 1, 1, 64]
    assert len(set(prompts)) == 8


def test_equal_prompts_are_equal_whatever_bodies_there_are() -> None:
    assert len(set(KINDS["equal"].prompts(TextPrompts(["a", "b"]), 8))) == 1


def test_several_bodies_differ_by_themselves_as_long_as_they_last() -> None:
    prompts = KINDS["unique"].prompts(TextPrompts(["What is TTFT?", "What is ITL?"]), 4)
    assert prompts == ["What is TTFT?", "What is ITL?", "What is TTFT? [2]", "What is ITL? [3]"]


def test_chat_prompts_are_messages() -> None:
    assert TextPrompts("Hi", chat=True).prompt(0) == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("num_tokens", [1, 7, 512])
def test_a_head_of_text_is_as_long_as_asked_for(num_tokens: int) -> None:
    source = TextPrompts("Hello", tokenizer=Words(), seed=3)
    head = source.head(num_tokens)
    assert len(Words().encode(head, add_special_tokens=False)) in (num_tokens, num_tokens + 1)
    assert len(Words().encode(head.rsplit(" ", 1)[0] if " " in head else "", add_special_tokens=False)) < num_tokens
    prompts = PromptMix(head_tokens=num_tokens).prompts(source, 4)
    assert all(prompt.startswith(f"{head} Hello [") for prompt in prompts)
    assert len(set(prompts)) == 4


def test_a_head_of_text_needs_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="tokenizer"):
        TextPrompts("Hello").prompt(0, head_tokens=4)


def test_token_prompts_have_exact_lengths() -> None:
    source = TokenPrompts(1000, body_tokens=2, tail_tokens=3)
    assert len(source.prompt(0)) == 2
    assert len(source.prompt(0, repeats=64)) == 128
    assert len(source.prompt(0, repeats=64, unique=True, head_tokens=512)) == 512 + 128 + 3
    assert all(0 <= token < 1000 for token in source.prompt(5, repeats=9, unique=True, head_tokens=50))


def test_token_prompts_share_a_head_and_nothing_after_it() -> None:
    prompts = KINDS["shared_head"].prompts(TokenPrompts(50_000, body_tokens=1), 32)
    assert len({tuple(prompt) for prompt in prompts}) == 32
    assert len({tuple(prompt[:513]) for prompt in prompts}) == 1  # the head and the body
    assert len({prompt[513] for prompt in prompts}) == 32


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "source", [lambda s: TokenPrompts(100, seed=s), lambda s: TextPrompts("x", tokenizer=Words(), seed=s)]
)
def test_the_same_seed_makes_the_same_prompts(kind: str, source) -> None:
    assert KINDS[kind].prompts(source(1), 9) == KINDS[kind].prompts(source(1), 9)


def test_another_seed_makes_other_token_ids() -> None:
    assert TokenPrompts(1000, body_tokens=8, seed=1).prompt(0) != TokenPrompts(1000, body_tokens=8, seed=2).prompt(0)


def test_too_many_requests_for_the_tail_are_refused_and_not_made_equal() -> None:
    source = TokenPrompts(2, tail_tokens=3)
    assert len({tuple(source.prompt(index, unique=True)) for index in range(8)}) == 8
    with pytest.raises(ValueError, match="tail"):
        source.prompt(8, unique=True)


def test_the_write_ups_mix_has_the_write_ups_number_of_tokens() -> None:
    source = prompt_source(FakeEngine(tokenizer=None), "Hello")
    assert sum(map(len, KINDS["unique"].prompts(source, 32))) == 128
    assert sum(map(len, KINDS["mix"].prompts(source, 32))) == 632


@pytest.mark.parametrize(
    "call",
    [
        lambda: TextPrompts(""),
        lambda: TextPrompts([]),
        lambda: TokenPrompts(1),
        lambda: TokenPrompts(9, body_tokens=0),
        lambda: PromptMix(repeats=()),
        lambda: PromptMix(repeats=(1, 0)),
        lambda: PromptMix(head_tokens=-1),
    ],
)
def test_nonsense_is_refused(call) -> None:
    with pytest.raises(ValueError):
        call()
