"""The text of an echoed prompt, with a tokenizer that normalizes its input."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

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
