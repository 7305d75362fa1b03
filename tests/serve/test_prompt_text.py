"""The text of an echoed prompt, and where its tokens end."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from roseplay.engine.client import Engine
from roseplay.serve.prompt_text import prompt_text


@pytest.fixture
def lowercasing() -> PreTrainedTokenizerFast:
    """A tokenizer of lower-case words that adds a token at the beginning of each prompt."""
    tokenizer = Tokenizer(models.WordLevel({"[BOS]": 0, "hello": 1, "world": 2, "[UNK]": 3}, "[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="[BOS]", unk_token="[UNK]")


def test_a_text_is_repeated_as_it_was_sent(lowercasing: PreTrainedTokenizerFast) -> None:
    found = prompt_text("Hello  WORLD ", [0, 1, 2], lowercasing)
    assert (found.text, found.ends) == ("Hello  WORLD ", [0, 5, 13])


def test_token_ids_are_decoded(lowercasing: PreTrainedTokenizerFast) -> None:
    for prompt in ([0, 1, 2], "Hello  WORLD "):
        found = prompt_text(prompt, [1, 2] if isinstance(prompt, str) else prompt, lowercasing)
        assert found.text.split()[-2:] == ["hello", "world"]
        assert (len(found.ends), found.ends[-1]) == (2 if isinstance(prompt, str) else 3, len(found.text))


def test_without_a_tokenizer_there_is_no_text() -> None:
    found = prompt_text([1, 2], [1, 2], None)
    assert (found.text, found.ends) == ("", [0, 0])


class Offsets:
    """A tokenizer whose tokens 0, 1 and so on cover these parts of a text."""

    is_fast = True

    def __init__(self, covered: list[tuple[int, int]]) -> None:
        self._covered = covered

    def __call__(self, text: str, **options: Any) -> dict[str, Any]:
        return {"input_ids": list(range(len(self._covered))), "offset_mapping": self._covered}


def test_texts_of_prompts_from_what_tokens_cover() -> None:
    """A beginning that the tokenizer adds, dropped spaces, a character of several tokens, an added end."""
    text = " a  日b "
    covered = [(0, 0), (1, 2), (4, 5), (4, 5), (4, 5), (5, 6), (0, 0)]
    tokenizer = Offsets(covered)
    found = prompt_text(text, list(range(len(covered))), tokenizer)
    parts = [text[a:b] for a, b in zip([0, *found.ends], found.ends, strict=False)]
    assert parts == ["", " a", "  ", "", "日", "b", " "]
    assert prompt_text("", [0], Offsets([(0, 0)])).ends == [0]


def test_texts_of_prompts_with_a_slow_tokenizer(engine: Engine) -> None:
    tokenizer: Any = engine.tokenizer

    class Slow:
        is_fast, backend_tokenizer, encode, decode = False, None, tokenizer.encode, tokenizer.decode

    for prompt in ("日本語 🙂 é!", "<|user|>Hi<|end|> there\n\n  twice  ", "x"):
        token_ids = tokenizer(prompt)["input_ids"]
        slow, fast = prompt_text(prompt, token_ids, Slow()), prompt_text(prompt, token_ids, tokenizer)
        assert slow.text == prompt == fast.text
        assert slow.ends == fast.ends == prompt_text(token_ids, token_ids, tokenizer).ends
