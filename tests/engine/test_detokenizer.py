"""Neither half a character nor half a stop string is ever shown."""

from __future__ import annotations

from itertools import pairwise

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from roseplay.engine.detokenizer import (
    PlainDecoder,
    StopStrings,
    StreamDecoder,
    make_decoder,
    split_context,
    token_bytes,
)
from roseplay.model.gguf_tokenizer import gguf_tokenizer
from roseplay.model.source import Source
from tests.gguf_files import write_out

BOTH = pytest.mark.parametrize("kind", [StreamDecoder, PlainDecoder])


@pytest.fixture(scope="module")
def byte_tokenizer():
    """One token per byte, so that every character beyond ASCII is split across tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@BOTH
@pytest.mark.parametrize("text", ["plain", "naïve café", "日本語のテスト", "👩‍👩‍👧 ok 🎉🎉", "a\u0301 mixed 中 end"])
def test_characters_are_never_cut(byte_tokenizer, kind, text):
    decoder = kind(byte_tokenizer, byte_tokenizer("prompt ")["input_ids"])
    pieces = [decoder.push(token) for token in byte_tokenizer(text)["input_ids"]]
    assert "".join(pieces) + decoder.flush() == text
    assert not any("\ufffd" in piece for piece in pieces)


@BOTH
def test_half_a_character_at_the_end_is_told_as_a_replacement(byte_tokenizer, kind):
    decoder = kind(byte_tokenizer, byte_tokenizer("p")["input_ids"])
    ids = byte_tokenizer("ab🎉")["input_ids"][:-1]
    text = "".join(decoder.push(token) for token in ids)
    assert text == "ab"
    assert set(decoder.flush()) == {"\ufffd"}


@pytest.fixture(scope="module")
def word_tokenizer():
    """Words with the preceding space, as in SentencePiece, and a special token with the id 3."""
    backend = Tokenizer(models.WordLevel({"\u2581a": 0, "\u2581b": 1, "\u2581c": 2, "<end>": 3}, unk_token="<end>"))
    backend.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


@BOTH
def test_an_answer_goes_on_where_its_prompt_ends(word_tokenizer, kind):
    decoder = kind(word_tokenizer, [0, 1])
    assert [decoder.push(token) for token in (2, 3, 0)] == [" c", "", " a"]
    assert decoder.flush() == ""
    decoder.push(3)
    assert decoder.flush() == ""  # a special token at the end adds nothing either


def test_a_stream_that_cannot_go_on_begins_anew(word_tokenizer):
    class Broken:
        def step(self, backend, token_id):
            raise ValueError("no common prefix")

    decoder = StreamDecoder(word_tokenizer, [0])
    decoder._stream = Broken()
    assert decoder.push(1) == "b"
    assert [decoder.push(token) for token in (3, 2)] == ["", "c"]


def test_a_replacement_character_is_known_without_special_tokens():
    class Tokenizer:
        def encode(self, text, add_special_tokens):
            return [5, 6, 7, 1] if add_special_tokens else [5, 6, 7]

        def decode(self, ids, skip_special_tokens):
            return "\ufffd" if ids[-1] > 4 else "a"

    assert split_context(Tokenizer(), [3, 5, 6, 7]) == ([], [])
    assert split_context(Tokenizer(), [3, 5, 6]) == ([3], [5, 6])


def test_a_tokenizer_with_a_fast_backend_decodes_with_it(byte_tokenizer):
    assert isinstance(make_decoder(byte_tokenizer, [1]), StreamDecoder)


def test_without_a_tokenizer_there_is_no_text():
    decoder = make_decoder(None, [1])
    assert decoder.push(5) + decoder.flush() == ""


def test_a_stop_string_across_tokens_is_cut():
    stop = StopStrings(("END", "###"))
    shown = "".join(stop.push(piece) for piece in ["Hello E", "N", "", "D and more"])
    assert (shown, stop.hit) == ("Hello ", True)


def test_what_only_begins_like_a_stop_string_is_shown_after_all():
    stop = StopStrings(("END",))
    assert [stop.push("an E"), stop.push("Nough"), stop.push(" EN")] == ["an ", "ENough", " "]
    assert (stop.flush(), stop.hit) == ("EN", False)


@settings(max_examples=300)
@given(
    text=st.text("abX", max_size=30),
    stops=st.lists(st.text("abX", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
def test_however_it_is_cut_the_text_ends_before_the_first_stop_string(text, stops, cuts):
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    filter_ = StopStrings(tuple(stops))
    shown = ""
    for start, end in pairwise(edges):
        shown += filter_.push(text[start:end])
        if filter_.hit:
            break
    if not filter_.hit:
        shown += filter_.flush()
    # The stop string that ends first decides, as a reader of the stream would see it.
    hits = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
    if not hits:
        assert shown == text
        assert not filter_.hit
    else:
        assert filter_.hit
        assert text.startswith(shown)
        assert all(stop not in shown for stop in stops)


@BOTH
@pytest.mark.parametrize("known_bytes", [1, 2, 3])
def test_a_prompt_that_ends_inside_a_character_is_not_repeated(byte_tokenizer, kind, known_bytes):
    prompt, answer = byte_tokenizer("some prompt ")["input_ids"], byte_tokenizer("🎉 yes")["input_ids"]
    decoder = kind(byte_tokenizer, prompt + answer[:known_bytes])
    text = "".join(decoder.push(token) for token in answer[known_bytes:])
    assert text + decoder.flush() == "🎉 yes"


@BOTH
def test_an_answer_without_tokens_has_no_text_of_the_prompt(byte_tokenizer, kind):
    decoder = kind(byte_tokenizer, byte_tokenizer("prompt 🎉")["input_ids"][:-2])
    assert not decoder.flush().strip("\ufffd")


@BOTH
def test_a_prompt_that_ends_in_a_replacement_character_holds_nothing_back(byte_tokenizer, kind):
    decoder = kind(byte_tokenizer, byte_tokenizer("what is \ufffd")["input_ids"])
    assert "".join(decoder.push(token) for token in byte_tokenizer("this?")["input_ids"]) == "this?"


def test_a_token_of_a_byte_level_vocabulary_has_its_bytes(byte_tokenizer):
    text = "naïve 日本語 🎉 \ufffd\n"
    assert b"".join(token_bytes(byte_tokenizer, token) for token in byte_tokenizer(text)["input_ids"]) == text.encode()
    assert {token_bytes(byte_tokenizer, token) for token in range(256)} == {bytes([byte]) for byte in range(256)}
    assert token_bytes(byte_tokenizer, 256) is None  # models may have more ids than tokens


def test_a_token_of_the_embedded_model_has_the_bytes_of_its_letters():
    tokenizer = AutoTokenizer.from_pretrained("assets/tiny-chat")
    of_letter = {letter: byte for byte, letter in bytes_to_unicode().items()}
    for name, token in tokenizer.get_vocab().items():
        control = token in tokenizer.added_tokens_decoder
        assert token_bytes(tokenizer, token) == (name.encode() if control else bytes(map(of_letter.get, name)))


@pytest.mark.parametrize("merges", [[("▁", "a")], []], ids=["words", "bytes alone"])
def test_a_token_of_a_sentencepiece_vocabulary_has_its_bytes(merges):
    """Of a run of bytes that is no text, the decoder makes U+FFFD for each byte, also for those before the token."""
    words = ["▁a", "▁b", "b", "\ufffd", "日", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", "a"] if merges else []
    backend = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    replaced, fallback = decoders.Replace("▁", " "), decoders.ByteFallback()
    backend.decoder = decoders.Sequence([replaced, fallback, decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    found = [token_bytes(tokenizer, token) for token in range(len(words))]
    assert found[1:5] == [b" b", b"b", "\ufffd".encode(), "日".encode()]
    assert found[5:261] == [bytes([byte]) for byte in range(256)]


def test_a_token_whose_bytes_are_not_known_has_none(byte_tokenizer):
    class Opaque:
        encode, decode = byte_tokenizer.encode, byte_tokenizer.decode

        def convert_ids_to_tokens(self, token_id):
            return "another notation"

    assert token_bytes(Opaque(), byte_tokenizer("é")["input_ids"][0]) is None
    assert token_bytes(Opaque(), byte_tokenizer("e")["input_ids"][0]) == b"e"


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_token_of_a_gguf_file_has_its_bytes(tmp_path, kind):
    letters = bytes_to_unicode() if kind == "gpt2" else {byte: f"<0x{byte:02X}>" for byte in range(256)}
    words = [*letters.values(), *("▁a", "▁H", "日") * (kind == "llama"), "<s>"]
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tokenizer_model(kind)
    writer.add_token_list(words)
    writer.add_token_scores([0.0] * len(words))
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(words) - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges([])
    writer.add_uint32("tokenizer.ggml.bos_token_id", len(words) - 1)
    writer.add_tensor("token_embd.weight", np.zeros((len(words), 32), np.float32))
    write_out(writer)
    tokenizer = gguf_tokenizer(Source("x", str(tmp_path), True, "x.gguf"), name="x")
    found = [token_bytes(tokenizer, token) for token in range(len(words))]
    assert found[:256] == [bytes([byte]) for byte in letters]
    assert found[256:] == [*(b" a", b" H", "日".encode()) * (kind == "llama"), b"<s>"]
