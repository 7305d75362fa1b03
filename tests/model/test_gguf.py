"""Models in GGUF files: what is read, which of several files is used, and how a bad one is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

pytest.importorskip("gguf", reason="writes the files: pip install 'roseplay[gguf]'")

from roseplay import Engine, SamplingParams
from roseplay.config import EngineConfig
from roseplay.core.progress import Progress
from roseplay.kernels.cpu.products import block_kinds, choose
from roseplay.kernels.gated_mlp import GatedMLP
from roseplay.kernels.merge import MergedPart
from roseplay.model import gguf, gguf_header, gguf_hub, gguf_reading
from roseplay.model.block_tensor import BlockTensor
from roseplay.model.errors import UnsupportedModelError
from roseplay.model.ggml_blocks import FORMATS
from roseplay.model.loader import load_model
from roseplay.model.runner import ModelRunner
from roseplay.model.source import find_source
from roseplay.model.tokenizer import load_tokenizer
from tests.gguf_files import small_vocabulary, write_gguf, write_out, write_tiny_chat
from tests.hub import Hub
from tests.model.families import base, tiny_model
from tests.model.harness import (
    BLOCK_SIZE,
    PLAIN,
    Driver,
    accelerator_with,
    eager_logits,
    random_tokens,
    refusal,
    reporter_of_all,
)
from tests.pairwise import pairwise

with contextlib.suppress(ImportError):  # Numba is an extra
    from roseplay.kernels.cpu.quants.linear import BlockEmbedding, BlockLinear

SHAPE = base(
    vocab_size=len(small_vocabulary().tokens),
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    tie_word_embeddings=True,
)
CONFIGS = {
    "llama": lambda: tf.LlamaConfig(**SHAPE),
    "qwen3": lambda: tf.Qwen3Config(**{**SHAPE, "tie_word_embeddings": False}, head_dim=128),
    "gemma2": lambda: tf.Gemma2Config(**SHAPE, head_dim=16, sliding_window=8),
    "gemma3_text": lambda: tf.Gemma3TextConfig(**SHAPE, head_dim=16, sliding_window=8),
    "qwen2": lambda: tf.Qwen2Config(**SHAPE),
    "phi3": lambda: tf.Phi3Config(**SHAPE),
    "starcoder2": lambda: tf.Starcoder2Config(**SHAPE),
    "gpt2": lambda: tf.GPT2Config(vocab_size=SHAPE["vocab_size"], n_embd=64, n_layer=2, n_head=4),
    # transformers reads no other size of its experts
    "qwen3_moe": lambda: tf.Qwen3MoeConfig(
        **SHAPE, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=768
    ),
}
needs_blocks = pytest.mark.skipif(not block_kinds(), reason="this CPU computes with no blocks")
FLOAT32 = EngineConfig(device="cpu", dtype="float32", num_blocks=32, block_size=BLOCK_SIZE, **PLAIN)


def written(path: Path, architecture: str = "llama", **options: Any) -> Path:
    write_gguf(path, tiny_model(CONFIGS[architecture]()), small_vocabulary(), **options)
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("gguf") / "Tiny-Llama.Q8_0.gguf", kind="Q8_0")


def by_transformers(path: Path) -> tf.PreTrainedModel:
    """The model that transformers and the package gguf read from the file, without any of our code."""
    plain = tf.GgufConfig(dequantize=True)
    return tf.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, quantization_config=plain, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [("llama", "F32"), ("llama", "Q4_1"), ("llama", "Q5_0"), ("qwen3", "F16"), ("qwen3", "Q4_0"), ("qwen3", "Q5_1"),
     ("gemma2", "BF16"), ("gemma2", "Q8_0")],
)  # fmt: skip
def test_logits_are_those_of_transformers_over_the_same_file(architecture: str, kind: str, tmp_path: Path):
    path = written(tmp_path / f"model.{kind}.gguf", architecture, kind=kind)
    loaded = load_model(str(path), FLOAT32)
    assert loaded.config.model_type == architecture
    assert f"({kind}" in loaded.choices[0].chosen and "converted to float32" in loaded.choices[0].chosen
    tokens = random_tokens(24, SHAPE["vocab_size"], seed=1)
    driver = Driver(ModelRunner(loaded, FLOAT32), [tokens])
    expected = eager_logits(by_transformers(path), tokens)
    driver.step({0: 9})
    assert torch.allclose(driver.step({0: 15})[0], expected[-1], atol=2e-4, rtol=1e-4)
    if kind == "F32":
        assert torch.allclose(expected, eager_logits(tiny_model(CONFIGS[architecture]()), tokens), atol=1e-4)


BLOCKS = EngineConfig(device="cpu", num_blocks=32, block_size=BLOCK_SIZE, threads=1)


@pytest.fixture
def float32_cpu() -> Iterator[None]:
    """A CPU that is not made for bfloat16, with products that do not depend on measurements."""
    unmeasured = {"choose_products": lambda dtype, sizes, kind: choose(dtype, (), kind)}
    with accelerator_with(multiplies_bfloat16=lambda: False, **unmeasured):
        yield


@needs_blocks
@pytest.mark.usefixtures("float32_cpu")
@pytest.mark.parametrize(
    ("architecture", "kind", "own_head"),
    [("llama", "Q4_0", False), ("llama", "Q4_K", True), ("qwen3", "Q5_K", True), ("gemma2", "Q6_K", True),
     ("gemma2", "Q5_0", False)],
)  # fmt: skip
def test_blocks_are_computed_with_as_they_are_stored(architecture: str, kind: str, own_head: bool, tmp_path: Path):
    """Within what rounding x to 8 bits costs, of transformers' logits; and no matrix is in memory as floats."""
    config = CONFIGS[architecture]()
    config.update({"hidden_size": 256, "intermediate_size": 512, "tie_word_embeddings": not own_head})
    config.head_dim = 128 if architecture == "qwen3" else 64  # transformers reads no other from a file of Qwen3
    path = tmp_path / "model.gguf"
    write_gguf(path, tiny_model(config), small_vocabulary(), kind=kind)
    loaded = load_model(str(path), BLOCKS)
    assert f"{kind} as stored" in loaded.choices[0].chosen
    assert max(p.dim() for p in loaded.model.parameters() if not p.is_meta) == 1
    embedding = loaded.model.get_input_embeddings()
    tied = loaded.config.tie_word_embeddings  # also with its own head, gguf names none for Gemma 2
    assert isinstance(embedding, BlockEmbedding) and (embedding.strips is loaded.model.lm_head.strips) == tied
    merged = (MergedPart, GatedMLP)
    layers = (m.merged.linear if isinstance(m, merged) else m for m in loaded.model.modules())
    strips = {id(layer.strips): layer.strips.packed.numel() for layer in layers if isinstance(layer, BlockLinear)}
    norms = sum(parameter.nbytes for parameter in loaded.model.parameters() if not parameter.is_meta)
    assert loaded.weight_bytes == sum(strips.values()) + norms
    assert not any(isinstance(module, torch.nn.Linear) for module in loaded.model.modules())
    plain = load_model(str(path), dataclasses.replace(BLOCKS, dtype="float32"))
    assert loaded.num_parameters == plain.num_parameters and loaded.weight_bytes < 0.35 * plain.weight_bytes
    tokens = random_tokens(24, SHAPE["vocab_size"], seed=1)
    driver = Driver(ModelRunner(loaded, BLOCKS), [tokens])
    expected = eager_logits(by_transformers(path), tokens)[-1]
    driver.step({0: 9})
    logits = driver.step({0: 15})[0]
    assert float((logits - expected).norm() / expected.norm()) < 0.03
    assert int(logits.argmax()) == int(expected.argmax())


def as_llama_cpp_does(name: str) -> str:
    """As files of the type Q4_K_M, whose matrices are more exact where it pays, in blocks of 32."""
    if name.startswith(("position", "token_types")) or "gate_inp" in name:
        return "F32"
    if "ffn_gate" in name or "ffn_up" in name:
        return "Q4_0"
    return "Q5_1" if name.startswith("token_embd") or "attn_v" in name or "ffn_down" in name else "Q4_1"


def plain_head(name: str) -> str:
    if name.startswith(("position", "token_types")) or "gate_inp" in name:
        return "F32"
    return "F16" if name.startswith("output.") or "attn_q" in name or "ffn_up" in name else "Q8_0"


@needs_blocks
@pytest.mark.parametrize(
    ("architecture", "kind", "own_head"),
    [("llama", as_llama_cpp_does, False), ("llama", plain_head, True), ("qwen2", as_llama_cpp_does, True),
     ("phi3", as_llama_cpp_does, True), ("gemma3_text", plain_head, False), ("starcoder2", as_llama_cpp_does, True),
     ("gpt2", as_llama_cpp_does, False), ("gpt2", plain_head, True), ("qwen3_moe", as_llama_cpp_does, True)],
)  # fmt: skip
@pytest.mark.usefixtures("float32_cpu")
def test_a_file_may_have_several_types_of_blocks_and_plain_weights(
    architecture: str, kind: Any, own_head: bool, tmp_path: Path
):
    config = CONFIGS[architecture]()
    config.update({"tie_word_embeddings": not own_head})
    path = tmp_path / "model.gguf"
    write_gguf(path, tiny_model(config), small_vocabulary(), kind=kind)
    loaded = load_model(str(path), BLOCKS)
    assert loaded.config.tie_word_embeddings is not own_head and loaded.model.device.type == "cpu"
    assert not any(isinstance(parameter, BlockTensor) for parameter in loaded.model.parameters())
    if sys.platform == "linux":
        assert str(path) not in Path("/proc/self/maps").read_text()  # it may be overwritten
    chosen = loaded.choices[0].chosen
    left = chosen.split("), ")[1].split(" as stored")[0].split(", ")
    assert set(left) <= ({"Q8_0"} if kind is plain_head else {"Q4_0", "Q4_1", "Q5_1"}) and left
    assert ("experts and the rest in" in chosen) == (architecture == "qwen3_moe")
    tokens = random_tokens(33, SHAPE["vocab_size"], seed=1)
    expected = eager_logits(by_transformers(path), tokens)
    runner = ModelRunner(loaded, BLOCKS)
    layers = next(choice.chosen for choice in runner.info().choices if choice.part == "linear layers")
    assert architecture in ("qwen3_moe", "gpt2") or all(f"{kind} blocks" in layers for kind in left)
    chunks, whole = Driver(runner, [tokens]), Driver(runner, [tokens, tokens[:8], tokens[:9]])
    for count in (1, 7, 8):
        chunks.step({0: count})
    logits, together = chunks.step({0: 17})[0], whole.step({0: 33, 1: 8, 2: 9})
    for found, last in ((logits, 32), (together[0], 32), (together[1], 7), (together[2], 8)):
        assert float((found - expected[last]).norm() / expected[last].norm()) < 0.05  # few numbers: 0.03 above
    torch.testing.assert_close(logits, together[0], rtol=0, atol=1e-4)


@needs_blocks
def test_a_files_blocks_stay_where_its_plain_layers_are_rounded(tmp_path: Path):
    path = tmp_path / "model.gguf"
    write_gguf(path, tiny_model(CONFIGS["qwen2"]()), small_vocabulary(), kind=plain_head)
    loaded = load_model(str(path), dataclasses.replace(BLOCKS, quantization="q4"))
    layers = (m.merged.linear if isinstance(m, MergedPart) else m for m in loaded.model.modules())
    kinds = {layer.strips.kind for layer in layers if isinstance(layer, BlockLinear)}
    assert kinds == {"Q8_0", "Q4_1"} and "Q8_0 as stored" in loaded.choices[0].chosen


@pytest.mark.parametrize("settings", [{"pack_weights": False}, {"dtype": "bfloat16"}])
def test_no_weight_stays_in_blocks_without_products_for_it(settings: dict[str, Any], file: Path):
    loaded = load_model(str(file), dataclasses.replace(BLOCKS, **settings))
    assert "converted to" in loaded.choices[0].chosen
    assert not any(isinstance(parameter, BlockTensor) for parameter in loaded.model.parameters())


@needs_blocks
def test_an_embedding_that_is_not_replaced_is_dequantized(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(BlockEmbedding, "of", lambda plain, strips: None)
    model = load_model(str(file), BLOCKS).model
    weight = by_transformers(file).get_input_embeddings().weight
    assert not isinstance(model.get_input_embeddings().weight, BlockTensor)
    assert torch.equal(model.get_input_embeddings().weight, weight.to(model.dtype))
    assert isinstance(model.lm_head, BlockLinear)


@needs_blocks
def test_what_transformers_converts_by_its_own_code_is_not_left_in_blocks(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gguf_reading, "is_gguf_arch_supported", lambda name: True)
    loaded = load_model(str(file), BLOCKS)
    assert "Q8_0" in loaded.choices[0].chosen and "as stored" not in loaded.choices[0].chosen
    assert not isinstance(loaded.model.get_input_embeddings(), BlockEmbedding)


@pytest.mark.parametrize(("kind", "expected"), [("F32", "float32"), ("BF16", "bfloat16"), ("Q4_0", "bfloat16")])
def test_the_number_format_follows_the_types_of_the_file(kind: str, expected: str, tmp_path: Path):
    with accelerator_with(multiplies_bfloat16=lambda: True):
        loaded = load_model(str(written(tmp_path / "model.gguf", kind=kind)), EngineConfig(device="cpu", **PLAIN))
    assert str(loaded.dtype) == f"torch.{expected}"


# -- which file


def test_it_is_named_by_its_file_and_found_by_its_directory(file: Path, tmp_path: Path):
    assert load_model(str(file), FLOAT32).name == "Tiny-Llama.Q8_0"
    assert load_model(str(file.parent), FLOAT32).name == "Tiny-Llama.Q8_0"
    blob = tmp_path / "sha256-abcdef"  # Ollama's file names
    shutil.copy(file, blob)
    assert load_model(str(blob), FLOAT32).name == "sha256-abcdef"


def test_of_several_in_a_directory_one_has_to_be_named(file: Path, tmp_path: Path):
    for name in ("a.Q4_0.gguf", "a.Q8_0.gguf", "mmproj-a.gguf"):
        shutil.copy(file, tmp_path / name)
    message = refusal(tmp_path)
    assert f"{tmp_path}/a.Q4_0.gguf, {tmp_path}/a.Q8_0.gguf" in message and "mmproj" not in message


def test_a_split_model_is_one_model(tmp_path: Path):
    whole = written(tmp_path / "whole.gguf", kind="Q8_0")
    (tmp_path / "parts").mkdir()
    written(tmp_path / "parts" / "model.gguf", kind="Q8_0", tensors_a_part=9)
    parts = sorted((tmp_path / "parts").iterdir())
    assert len(parts) == 3
    expected = load_model(str(whole), FLOAT32).model.state_dict()
    for given in (parts[0], parts[2], tmp_path / "parts"):
        loaded = load_model(str(given), FLOAT32)
        assert loaded.name == "model"
        found = loaded.model.state_dict()
        assert all(torch.equal(found[key], expected[key]) for key in expected)
    if block_kinds():
        heads = [load_model(str(given), BLOCKS).model.lm_head.strips for given in (whole, parts[1])]
        assert torch.equal(heads[0].packed, heads[1].packed)
    parts[1].rename(tmp_path / "elsewhere.gguf")
    assert f"1 of its 3 parts are missing, {parts[1].name}" in refusal(parts[0])
    shutil.copy(parts[0], tmp_path / "lone.gguf")
    assert "it is one of 3 parts" in refusal(tmp_path / "lone.gguf")


def test_the_hubs_cache_is_searched_by_quantization_and_by_file(file: Path, hub: Hub):
    snapshot = hub.add("org/Tiny-GGUF")
    for name in ("Tiny-Q4_K_M.gguf", "Tiny-Q8_0.gguf", "UD/Tiny-IQ2_XS-00001-of-00002.gguf"):
        target = snapshot / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)

    def found(model: str) -> str | None:
        return gguf_hub.on_this_machine(find_source(model)).gguf

    assert found("org/Tiny-GGUF:Q8_0") == found("org/Tiny-GGUF:q8_0") == "Tiny-Q8_0.gguf"
    assert found("org/Tiny-GGUF/Tiny-Q4_K_M.gguf") == found("org/Tiny-GGUF:Tiny-Q4_K_M.gguf") == "Tiny-Q4_K_M.gguf"
    assert load_model("org/Tiny-GGUF:Q8_0", FLOAT32).name == "org/Tiny-GGUF:Q8_0"
    for absent in ("org/Tiny-GGUF:Q4_K", "org/Tiny-GGUF:iq2_xs", "org/Tiny-GGUF", "org/other:Q8_0"):
        with pytest.raises(UnsupportedModelError, match="cannot be reached"):
            found(absent)


def test_an_engine_answers_from_a_file_as_from_a_directory(tmp_path: Path):
    write_tiny_chat(tmp_path / "tiny-chat.gguf")
    chat, params = [{"role": "user", "content": "What is TTFT?"}], SamplingParams(max_new_tokens=16)
    answers = []
    for model in ("tiny-chat", str(tmp_path / "tiny-chat.gguf")):
        with Engine(model, dtype="float32", num_blocks=32, threads=1, **PLAIN) as engine:
            stream = engine.submit(chat, params).result(60)
            answers.append((engine.info.model, stream.text, stream.token_ids))
    assert answers[0] == answers[1] and answers[0][1]


# -- what else is in the file


def test_tokenizer_template_and_ends_come_from_the_file(file: Path, tmp_path: Path):
    ours = load_tokenizer(str(file), FLOAT32)
    theirs = tf.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    for text in ("hello world, the ünïcode 🌹\n\n  in  it 2024", "<|im_start|>user\nhello<|im_end|>"):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == text
    chat = [{"role": "user", "content": "hello"}]
    assert ours.apply_chat_template(chat, tokenize=False, add_generation_prompt=True).endswith(
        "<|im_start|>assistant\n"
    )
    assert (ours.eos_token, ours.pad_token, ours.bos_token) == ("<|im_end|>", "<|endoftext|>", "<|im_start|>")
    assert load_model(str(file), FLOAT32).eos_token_ids == {0, 2}
    bare = tmp_path / "bare.gguf"
    write_gguf(bare, tiny_model(CONFIGS["llama"]()))
    assert load_tokenizer(str(bare), FLOAT32) is None


SPACE, FLAGS = "\u2581", (None, True, False)
PIECES = ["<unk>", "<s>", "</s>", SPACE, *"hetxyz", f"{SPACE}t", "he", f"{SPACE}the", "the", "<0x0A>"]


def pieces_file(path: Path, architecture: str, flags: dict[str, bool]) -> Path:
    """A file with a SentencePiece vocabulary and a weight that nothing reads."""
    import gguf as package

    writer = package.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(PIECES)
    writer.add_token_scores([0.0] * 3 + [-float(number) for number in range(len(PIECES), 3, -1)])
    writer.add_token_types([2, 3, 3] + [1] * (len(PIECES) - 4) + [6])
    for name, number in (("bos", 1), ("eos", 2), ("unknown", 0)):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", number)
    for name, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.add_{name}", value)
    writer.add_tensor("token_embd.weight", np.zeros((len(PIECES), 32), np.float32))
    write_out(writer)
    return path


@pytest.mark.parametrize("architecture", ["llama", "phi3", "gemma2"])
@pytest.mark.parametrize("space_prefix", FLAGS)
def test_a_text_begins_with_a_space_unless_the_file_says_otherwise(
    architecture: str, space_prefix: bool | None, tmp_path: Path
):
    """Gemma's never does."""
    flags = {} if space_prefix is None else {"space_prefix": space_prefix}
    tokenizer = load_tokenizer(str(pieces_file(tmp_path / "model.gguf", architecture, flags)), FLOAT32)
    begins = architecture != "gemma2" and space_prefix is not False
    ids = tokenizer.encode("the thex", add_special_tokens=False)
    first = [f"{SPACE}the"] if begins else ["the"]
    assert tokenizer.convert_ids_to_tokens(ids) == [*first, f"{SPACE}the", "x"]
    for text in ("the thex", " the", "the  x ", "\nthe"):
        if text[0] != " " or not begins:
            assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize(
    ("bos", "eos", "space_prefix"),
    [pytest.param(*case.values()) for case in pairwise({"bos": FLAGS, "eos": FLAGS, "space_prefix": FLAGS[1:]})],
)
def test_a_prompt_begins_and_ends_with_the_tokens_that_the_file_says(
    bos: bool | None, eos: bool | None, space_prefix: bool, tmp_path: Path
):
    flags = {"bos_token": bos, "eos_token": eos, "space_prefix": space_prefix}
    path = pieces_file(tmp_path / "model.gguf", "llama", {key: flag for key, flag in flags.items() if flag is not None})
    tokenizer = load_tokenizer(str(path), FLOAT32)
    found = tokenizer.convert_ids_to_tokens(tokenizer.encode("the"))
    expected = [f"{SPACE}the" if space_prefix else "the"]
    assert found == ["<s>"] * (bos is not False) + expected + ["</s>"] * bool(eos)


def test_sampling_values_come_from_the_file(tmp_path: Path):
    given = {"general.sampling.temp": 0.5, "general.sampling.top_k": 20, "general.sampling.penalty_repeat": 1.25}
    path = written(tmp_path / "model.gguf", more=given)
    expected = {"temperature": 0.5, "top_k": 20, "repetition_penalty": 1.25}
    assert load_model(str(path), FLOAT32).sampling_defaults == expected


@pytest.mark.parametrize(
    ("tokens", "ends"), [(["a", "<|end|>", "<|return|>"], {2}), (["<|end|>", "a", "<|eot_id|>"], {0, 2})]
)
def test_control_tokens_end_an_answer_by_their_names(tokens: list[str], ends: set[int]):
    """GPT-OSS ends its reasoning with <|end|>, not its answer."""
    values = {"tokens": gguf_header.Value(tokens, 8, True), "token_type": gguf_header.Value([3, 3, 3], 5, True)}
    metadata = {f"tokenizer.ggml.{name}": value for name, value in values.items()}
    assert gguf_reading._named_ends(gguf_header.GgufHeader(Path(), metadata, (), 32)) == ends


def test_stretched_positions_that_are_not_read_are_told(tmp_path: Path):
    path = written(tmp_path / "model.gguf", more={"llama.rope.scaling.type": "linear"})
    assert [choice.part for choice in load_model(str(path), FLOAT32).choices] == ["checkpoint", "positions"]


# -- the start


@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_bytes_of_the_file_are_counted_while_it_is_read(dtype: str, file: Path):
    sent: list[Progress] = []
    load_model(str(file), dataclasses.replace(BLOCKS, dtype=dtype), reporter_of_all(sent))
    counts = [progress.done for progress in sent if progress.stage == "weights"]
    stored = gguf.open_gguf(file, name="").stored_bytes
    assert counts[0] == 0 and counts[-1] == stored < file.stat().st_size
    assert len(set(counts)) > 10


def test_memory_is_checked_before_anything_is_converted(file: Path):
    sent: list[Progress] = []
    numbers = sum(parameter.numel() for parameter in tiny_model(CONFIGS["llama"]()).parameters())
    with pytest.raises(UnsupportedModelError, match="GiB in float32"):
        load_model(str(file), FLOAT32, reporter_of_all(sent), free_bytes=lambda: 3 * numbers)
    assert not any(progress.done for progress in sent)


@needs_blocks
def test_blocks_need_no_more_memory_than_in_the_file(file: Path):
    stored = gguf.open_gguf(file, name="").stored_bytes
    assert load_model(str(file), BLOCKS, free_bytes=lambda: stored).weight_bytes < 1.1 * stored  # outputs are padded
    assert "GiB in float32" in refusal(file, stored, dtype="float32")
    experts = gguf_header.StoredTensor("blk.0.ffn_up_exps.weight", (2, 8, 32), 8, 0)
    model = gguf.GgufModel((gguf_header.GgufHeader(Path(), {}, (experts,), 32),))
    assert model.converted_bytes(2, FORMATS) == 4 * 512  # which are not left in blocks


# -- refusals


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda content: content[:90_000], "is truncated, 90,000 of"),
        (lambda content: content[:-1], "is truncated"),
        (lambda content: content[:5_000], "its header is truncated or damaged"),
        (lambda content: content[:4], "its header is truncated or damaged"),
        (lambda content: content.replace(b"<|spare|>", b"\xff|spare|>"), "its header is truncated or damaged"),
        (lambda content: b"a model, they said", "is a file, but not a GGUF file"),
        (lambda content: b"", "is a file, but not a GGUF file"),
        (lambda content: content[:4] + b"\1\0\0\0" + content[8:], "version 1 of the format"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(change: Any, why: str, file: Path, tmp_path: Path):
    (tmp_path / "changed.gguf").write_bytes(change(file.read_bytes()))
    assert why in refusal(tmp_path / "changed.gguf")


@pytest.mark.parametrize(
    ("dtype", "kind", "name", "at", "number"),
    [("auto", "Q8_0", "attn_v", 0, b"\0\x7c"), ("float32", "Q8_0", "ffn_down", 0, b"\xff\xff"),
     ("auto", "Q4_1", "attn_q", 0, b"\0\xfc"), ("auto", "Q4_1", "token_embd", 2, b"\0\x7e"),
     ("float32", "Q4_1", "attn_q", 2, b"\0\x7e"), ("auto", "Q5_K", "ffn_up", 2, b"\0\x7c"),
     ("auto", "Q6_K", "attn_v", 208, b"\1\x7c"), ("float32", "Q6_K", "attn_v", 208, b"\1\x7c"),
     ("auto", "F16", "attn_k", 0, b"\0\x7c"), ("float32", "F32", "ffn_gate", 2, b"\x80\x7f")],
)  # fmt: skip
def test_a_weight_whose_scales_are_damaged_is_named(
    dtype: str, kind: str, name: str, at: int, number: bytes, tmp_path: Path
):
    """In the last block of the file's tensor, whether or not it is left in blocks."""
    import gguf as package

    config = CONFIGS["llama"]()
    config.update({"hidden_size": 256, "intermediate_size": 512, "head_dim": 64})
    write_gguf(tmp_path / "model.gguf", tiny_model(config), small_vocabulary(), kind=kind)
    load_model(str(tmp_path / "model.gguf"), dataclasses.replace(BLOCKS, dtype=dtype))
    header = gguf_header.read_header(tmp_path / "model.gguf")
    tensor = next(tensor for tensor in header.tensors if name in tensor.name)
    numbers, size = package.GGML_QUANT_SIZES[package.GGMLQuantizationType[kind]]
    content = bytearray((tmp_path / "model.gguf").read_bytes())
    place = tensor.offset + (tensor.numel // numbers - 1) * size + at
    content[place : place + 2] = number
    (tmp_path / "model.gguf").write_bytes(content)
    found = refusal(tmp_path / "model.gguf", dtype=dtype)
    part = {"attn_v": "v_proj", "attn_q": "q_proj", "attn_k": "k_proj", "token_embd": "embed_tokens"}.get(
        name, name[4:]
    )
    assert (
        f"{part}{'_proj' * ('ffn' in name)}.weight has infinite numbers or NaN" in found
        and "download it again" in found
    )


def test_files_that_are_not_read_here_are_refused(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert "there is no such directory or file" in refusal("no/such.gguf")
    assert "architecture nonesuch" in refusal(written(tmp_path / "other.gguf", named="nonesuch"))
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "pip install 'roseplay[gguf]'" in refusal(file)


@pytest.mark.parametrize(("number", "named"), [(15, "Q8_K"), (99, "number 99")])
def test_a_type_that_cannot_be_converted_is_named(number: int, named: str, file: Path, tmp_path: Path):
    header = gguf_header.read_header(file)
    content = file.read_bytes()
    tensor = header.tensors[0]
    kind = content.index(tensor.name.encode()) + len(tensor.name) + 4 + 8 * len(tensor.shape)
    assert content[kind] == tensor.type
    (tmp_path / "other.gguf").write_bytes(content[:kind] + bytes([number]) + content[kind + 1 :])
    assert f"{tensor.name} has the type {named}" in refusal(tmp_path / "other.gguf")


def test_weights_at_another_alignment_are_the_same(file: Path, tmp_path: Path):
    wide = written(tmp_path / "wide.gguf", kind="Q8_0", alignment=512)
    assert all(tensor.offset % 512 == 0 for tensor in gguf_header.read_header(wide).tensors)
    found, expected = (load_model(str(path), FLOAT32).model.state_dict() for path in (wide, file))
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    narrow = bytearray(wide.read_bytes())
    at = narrow.index(b"general.alignment") + len(b"general.alignment") + 4
    narrow[at : at + 4] = (8).to_bytes(4, "little")
    wide.write_bytes(narrow)
    assert "does not begin where the one before it ends" in refusal(wide)


def test_rows_of_a_type_are_whole_blocks(file: Path, tmp_path: Path):
    content, name = bytearray(file.read_bytes()), b"blk.0.attn_q.weight"
    at = content.index(name) + len(name) + 4
    content[at : at + 16] = (16).to_bytes(8, "little") + (256).to_bytes(8, "little")
    (tmp_path / "model.gguf").write_bytes(content)
    assert "blk.0.attn_q.weight has rows of 16 numbers, not whole blocks" in refusal(tmp_path / "model.gguf")


def test_a_header_without_weights_is_refused(tmp_path: Path):
    import gguf as package

    writer = package.GGUFWriter(tmp_path / "empty.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert "it has no weights" in refusal(tmp_path / "empty.gguf")
