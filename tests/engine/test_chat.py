"""The embedded model through the engine: text in, text out."""

from __future__ import annotations

import pytest

from roseplay import Engine, SamplingParams
from roseplay.engine.prompts import encode_prompt

QUESTION = [{"role": "user", "content": "What is TTFT?"}]


def test_five_lines_of_use():
    with Engine("tiny-chat") as engine:
        stream = engine.submit(QUESTION, SamplingParams(max_new_tokens=64))
        for chunk in stream:
            assert len(chunk.token_ids) == len(chunk.times_ns)
        assert "first token" in stream.text.lower()
        assert stream.finish_reason in ("stop", "length")
        assert stream.metrics.ttft_s > 0


def test_the_chat_template_never_doubles_the_beginning(chat_engine):
    tokenizer = chat_engine.tokenizer
    ids = encode_prompt(QUESTION, tokenizer, chat_engine.info.vocab_size)
    if tokenizer.bos_token_id is not None:
        assert ids.count(tokenizer.bos_token_id) <= 1


def test_text_is_what_the_tokens_decode_to(chat_engine):
    stream = chat_engine.submit(QUESTION, SamplingParams(max_new_tokens=80)).result(60)
    assert stream.text == chat_engine.tokenizer.decode(stream.token_ids, skip_special_tokens=True)


def test_a_stop_string_ends_the_answer_and_what_follows_is_in_no_count(chat_engine):
    full = chat_engine.submit(QUESTION, SamplingParams(max_new_tokens=60)).result(60)
    stop = full.text[10:16]
    stream = chat_engine.submit(QUESTION, SamplingParams(max_new_tokens=60, stop=(stop,))).result(60)
    assert stream.text == full.text[: full.text.index(stop)]
    assert stream.finish_reason == "stop"
    assert stream.metrics.completion_tokens == len(stream.token_ids) < len(full.token_ids)
    assert stream.token_ids == full.token_ids[: len(stream.token_ids)]


def test_it_ends_its_answers(chat_engine):
    stream = chat_engine.submit(QUESTION, SamplingParams(max_new_tokens=512)).result(60)
    assert stream.finish_reason == "stop"
    assert stream.token_ids[-1] in chat_engine.tokenizer.convert_tokens_to_ids(chat_engine.tokenizer.all_special_tokens)


@pytest.mark.parametrize("messages", [[{"role": "user"}], [{"role": 1, "content": "x"}], [{"content": "x"}]])
def test_malformed_messages_are_refused(chat_engine, messages):
    with pytest.raises(ValueError, match="chat message"):
        chat_engine.submit(messages)


def test_multilingual_text_goes_through(chat_engine):
    stream = chat_engine.submit("naïve 日本語 🎉", SamplingParams(max_new_tokens=4)).result(60)
    assert chat_engine.tokenizer.decode(stream.prompt_token_ids, skip_special_tokens=True) == "naïve 日本語 🎉"
