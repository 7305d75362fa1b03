"""Headers of GGUF files: what their values may be, what reading them costs, and that no bytes escape as another error."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from roseplay.model.gguf_header import GgufError, read_header
from roseplay.model.gguf_names import first_part, model_name, part_names

U8, U16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, F64 = 0, 2, 4, 5, 6, 7, 8, 9, 10, 12
FORMATS = {U8: "B", U16: "H", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", F64: "d"}
TOKENS = ["<s>", "</s>", "hello", "world"]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def number(kind: int, value: Any) -> bytes:
    """A value of the metadata; a list is an array of ``kind``."""
    of_one = text if kind == TEXT else lambda one: struct.pack("<" + FORMATS[kind], one)
    if isinstance(value, list):
        return struct.pack("<IIQ", ARRAY, kind, len(value)) + b"".join(map(of_one, value))
    return struct.pack("<I", kind) + of_one(value)


def tensor(name: str, shape: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


VALUES = {
    "general.architecture": number(TEXT, "llama"),
    "general.name": number(TEXT, "small"),
    "general.file_type": number(U32, 7),
    "llama.block_count": number(U32, 2),
    "llama.context_length": number(U32, 64),
    "llama.attention.head_count_kv": number(I32, [2, 2]),
    "llama.rope.freq_base": number(F32, 10_000.0),
    "tokenizer.ggml.tokens": number(TEXT, TOKENS),
    "tokenizer.ggml.scores": number(F32, [0.0, 0.0, -1.0, -2.0]),
    "tokenizer.ggml.eos_token_id": number(U32, 1),
    "tokenizer.ggml.add_bos_token": number(BOOL, False),
}
TENSORS = [tensor("token_embd.weight", [8, 4]), tensor("output_norm.weight", [8], offset=128)]


def content(values: dict[str, bytes] | None = None, tensors: Sequence[bytes] = TENSORS) -> bytes:
    """A file whose metadata is ``VALUES``, changed by ``values``, with 64 numbers as its weights."""
    values = {**VALUES, **(values or {})}
    entries = b"".join(text(key) + value for key, value in values.items())
    return struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(values)) + entries + b"".join(tensors) + bytes(320)


def refusal(file: Path, data: bytes) -> str:
    file.write_bytes(data)
    with pytest.raises(GgufError) as error:
        read_header(file)
    assert "\n" not in str(error.value) and len(str(error.value)) < 250
    return str(error.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_values_are_read_with_their_types(file: Path) -> None:
    file.write_bytes(content({"somebody.elses": number(TEXT, "x"), "tokenizer.huggingface.json": number(TEXT, "{}")}))
    header = read_header(file, ["tokenizer.ggml.tokens"])
    assert (header.architecture, header.get("llama.context_length"), header.alignment) == ("llama", 64, 32)
    assert header.get("llama.attention.head_count_kv") == [2, 2] and header.get("llama.rope.freq_base") == 10_000
    assert header.get("tokenizer.ggml.tokens") == TOKENS
    assert not {"somebody.elses", "tokenizer.huggingface.json"} & set(header.metadata)
    assert read_header(file).get("tokenizer.ggml.tokens") == 4
    assert [(one.name, one.shape, one.numel) for one in header.tensors] == [
        ("token_embd.weight", (4, 8), 32),
        ("output_norm.weight", (8,), 8),
    ]


@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
def test_weights_begin_at_the_stated_alignment(alignment: int, file: Path) -> None:
    file.write_bytes(content({"general.alignment": number(U32, alignment)}))
    begins = [one.offset for one in read_header(file).tensors]
    end = file.stat().st_size - 320
    assert begins == [-(-end // alignment) * alignment, -(-end // alignment) * alignment + 128]


BAD = [
    *[("general.alignment", number(I32, value)) for value in (0, 3, -32, 4, 48, 2**21)],
    ("general.alignment", number(TEXT, "32")),
    ("general.architecture", number(U32, 5)),
    ("general.architecture", number(TEXT, "x" * 65)),
    ("general.name", number(F32, 1.0)),
    ("general.file_type", number(U32, [7])),
    ("general.sampling.temp", number(F32, float("nan"))),
    ("general.sampling.top_p", number(F32, 1.5)),
    ("split.count", number(TEXT, "2")),
    ("split.count", number(U32, 1001)),
    ("tokenizer.chat_template", number(U32, 1)),
    ("tokenizer.ggml.tokens", number(TEXT, [])),
    ("tokenizer.ggml.tokens", number(U32, [1, 2])),
    ("tokenizer.ggml.scores", number(F32, [float("inf")])),
    ("tokenizer.ggml.add_bos_token", number(U32, 1)),
    ("tokenizer.ggml.eot_token_id", number(U32, [1, 2])),
    ("tokenizer.ggml.eot_token_id", number(TEXT, "</s>")),
    *[
        (f"tokenizer.ggml.{name}_token_id", number(I32, value))
        for name in ("bos", "eos", "eot", "eom", "unknown", "padding")
        for value in (-1, 4, 2**31 - 1)
        if value >= 0 or name not in ("unknown", "padding")
    ],
    ("llama.block_count", number(U32, 0)),
    ("llama.block_count", number(U32, 10_001)),
    ("llama.block_count", number(F32, 2.0)),
    ("llama.context_length", number(TEXT, "64")),
    ("llama.context_length", number(U64, 2**63)),
    ("llama.embedding_length", number(U32, 2**21)),
    ("llama.rope.freq_base", number(F64, float("nan"))),
    ("llama.feed_forward_length", number(U64, [2**63, 1])),
    ("tokenizer.ggml.scores", number(F32, [-float("inf")])),
]


@pytest.mark.parametrize(("key", "value"), BAD, ids=[f"{key}-{index}" for index, (key, _) in enumerate(BAD)])
def test_a_value_that_its_key_cannot_have_is_named(key: str, value: bytes, file: Path) -> None:
    assert f" as {key!r}" in refusal(file, content({key: value}))


def test_the_vocabulary_is_the_smaller_of_tokens_and_embeddings(file: Path) -> None:
    last = {"tokenizer.ggml.padding_token_id": number(U32, 3)}
    file.write_bytes(content(last))
    assert read_header(file).get("tokenizer.ggml.padding_token_id") == 3
    small = [tensor("token_embd.weight", [8, 3])]
    assert "its vocabulary has 3 tokens" in refusal(file, content(last, small))


@pytest.mark.parametrize("value", [number(I32, -1), number(U32, 2**32 - 1)])
@pytest.mark.parametrize("name", ["unknown", "padding"])
def test_a_vocabulary_may_lack_tokens_on_which_nothing_depends(name: str, value: bytes, file: Path) -> None:
    file.write_bytes(content({f"tokenizer.ggml.{name}_token_id": value}))
    assert read_header(file).get(f"tokenizer.ggml.{name}_token_id") is None


def test_thresholds_of_layers_may_be_infinite(file: Path) -> None:
    file.write_bytes(content({"llama.activation_sparsity_scale": number(F32, [1.5, -float("inf")])}))
    assert read_header(file).get("llama.activation_sparsity_scale") == [1.5, -float("inf")]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (content(tensors=[tensor("x", [2**63] * 300)]), "300 dimensions in a tensor; at most 4"),
        (content(tensors=[tensor("x", [2**63] * 4)]), "numbers in a tensor; at most"),
        (content(tensors=[tensor("x", [0, 5])]), "without numbers, which is not supported"),
        (content(tensors=[tensor("token_embd.weight", [])]), "without numbers, which is not supported"),
        (content(tensors=[tensor("x" * 257, [8])]), "257 bytes in a name; at most 256"),
        (content({"x" * 257: number(U32, 1)}), "257 bytes in a name"),
        (content({"general.name": number(TEXT, "x" * (2**20 + 1))}), "as 'general.name': use a text, length 0 to 1,000"),
        (content({"x.y": struct.pack("<IIQ", ARRAY, TEXT, 2**64 - 1)}), "names, texts and numbers; at most"),
        (content({"x.y": struct.pack("<IIQ", ARRAY, U64, 2**64 - 1)}), "truncated or damaged"),
        (content({"x.y": struct.pack("<II", 13, 1)}), "unknown type 13"),
        (content({"x.y": struct.pack("<IIQ", ARRAY, ARRAY, 1)}), "unknown type 9"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 2**16 + 1, 0), "65,537 tensors; at most 65,536"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**64 - 1), "truncated or damaged"),
    ],
)  # fmt: skip
def test_a_header_has_limits(data: bytes, reason: str, file: Path) -> None:
    assert reason in refusal(file, data)


@pytest.mark.parametrize("key", ["tokenizer.ggml.precompiled_charsmap", "llama.numbers", "other.numbers"])
def test_long_lists_take_no_memory_unless_they_are_asked_for(key: str, file: Path) -> None:
    size = 2**21
    file.write_bytes(content({key: struct.pack("<IIQ", ARRAY, U8, size) + bytes(size)}))
    tracemalloc.start()
    try:
        header = read_header(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size / 16
    assert header.get(key, size) == size


def test_many_short_lists_are_limited_together(file: Path) -> None:
    lists = {f"llama.{index}": struct.pack("<IIQ", ARRAY, U8, 4096) + bytes(4096) for index in range(2**21 // 4096)}
    assert "names, texts and numbers" in refusal(file, content(lists))


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The file with one to three changes: cut, bits flipped, or a type, count, value or some bytes replaced."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(4, len(changed))
        match rng.randrange(6):
            case 0:
                del changed[at:]
            case 1:
                changed[at] ^= 1 << rng.randrange(8)
            case 2:
                changed[at : at + 4] = struct.pack("<I", rng.randrange(14))
            case 3:
                changed[at : at + 8] = struct.pack("<Q", rng.choice((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)))
            case 4:
                del changed[at : at + rng.randrange(1, 9)]
            case 5:
                changed[at:at] = rng.randbytes(rng.randrange(1, 9))
        if len(changed) < 8:
            break
    return bytes(changed)


def test_damaged_headers_are_read_or_refused_in_one_line(file: Path) -> None:
    rng, data, refused = random.Random(5), content()[:-320], 0
    file.touch()
    opened = file.open("r+b", buffering=0)  # writing to it anew is slower than all else here
    for _ in range(5000):
        opened.seek(0)
        opened.truncate(opened.write(mutated(data, rng)))
        try:
            header = read_header(file, ["tokenizer.ggml.tokens"])
        except GgufError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 700
        else:
            vocabulary = header.get("tokenizer.ggml.tokens", TOKENS)
            assert 0 <= header.get("tokenizer.ggml.eos_token_id", 0) < len(vocabulary)
            assert all(1 <= one.numel <= 2**48 for one in header.tensors)
    opened.close()
    assert 2500 < refused < 4990


@pytest.mark.parametrize(
    "numbers", ["00001-of-00000", "00000-of-00002", "00003-of-00002", "00001-of-01001", "٠٠٠٠١-of-00002"]
)
def test_impossible_part_numbers_belong_to_the_name(numbers: str) -> None:
    name = f"x-{numbers}.gguf"
    assert (part_names(name), first_part(name), model_name(name)) == ([name], name, f"x-{numbers}")


def test_parts_are_named_from_any_of_them() -> None:
    names = ["a/x-00001-of-00002.GGUF", "a/x-00002-of-00002.GGUF"]
    for name in names:
        assert (part_names(name), first_part(name), model_name(name)) == (names, names[0], "x")
