"""Writes models as GGUF files: ``python -m tests.gguf_files FILE`` writes tiny-chat (needs the package gguf)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as tf

from roseplay.model.source import embedded_model

# llama.cpp's architecture names for transformers' model types, where they differ.
ARCHITECTURES = {"qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3"}


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level tokenizer."""

    tokens: Sequence[str]  # in the notation of GPT-2's tokenizer
    merges: Sequence[str]
    control: frozenset[int]  # ids of control tokens
    # Ids of special tokens, by GGUF's names: bos, eos, padding, unknown, eot.
    ids: dict[str, int] = field(default_factory=dict)
    chat_template: str | None = None
    pre: str = "default"  # llama.cpp's name for the way text is split before tokens are merged
    add_bos: bool = False


def small_vocabulary() -> Vocabulary:
    """Bytes, a few merges, and ChatML's tokens: 272 in all."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "Ġwor l", "Ġworl d", "t h", "th e", "i n"]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|spare|>"]
    tokens = [*special, *bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in merges)]
    template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return Vocabulary(tokens, merges, frozenset(range(4)), {"bos": 1, "eos": 2, "padding": 0, "unknown": 0}, template)


def write_gguf(
    path: Path,
    model: tf.PreTrainedModel,
    vocabulary: Vocabulary | None = None,
    *,
    kind: str | Callable[[str], str] = "F32",
    tensors_a_part: int = 0,
    named: str | None = None,
    more: dict[str, Any] | None = None,
    alignment: int = 32,
) -> None:
    """Write a model as llama.cpp's converter does for Llama, Qwen, Gemma, Phi-3, Starcoder2, Nemotron and GPT-2.

    Args:
        kind: type of the matrices, such as ``Q4_0``, or a function of their names in the file; those of a K-quant get
            random blocks.
        tensors_a_part: number of tensors per file, named with ``-00001-of-0000N``; 0 writes a single file.
        named: the architecture that the file states, in place of the model's own.
        more: additional metadata values.
        alignment: bytes; each tensor begins at a multiple of it.
    """
    import gguf

    config = model.config
    own = ARCHITECTURES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, named or own, split_max_tensors=tensors_a_part)
    writer.add_name(path.stem)
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    _add_shape(writer, config)
    if vocabulary is not None:
        _add_tokenizer(writer, vocabulary)
    for key, value in (more or {}).items():
        add = {float: writer.add_float32, int: writer.add_uint32, str: writer.add_string}[type(value)]
        add(key, value)
    known = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == own)
    names = gguf.get_tensor_name_map(known, config.num_hidden_layers)
    for name, values in _stored_tensors(model, names):
        of = kind if isinstance(kind, str) else kind(name)
        if values.ndim > 1 and of != "F32":
            quantized = gguf.GGMLQuantizationType[of]
            blocks = random_blocks(of, *values.shape) if of.endswith("_K") else gguf.quantize(values, quantized)
            writer.add_tensor(name, blocks, raw_dtype=quantized)
        else:
            writer.add_tensor(name, values)
    write_out(writer)


def write_out(writer: Any) -> None:
    """Write the file that a ``GGUFWriter`` has been given, and close it."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_blocks(kind: str, *shape: int) -> np.ndarray:
    """Blocks of a type with small random scales: uint8 ``[rows, bytes of a row]`` of a matrix, or of several."""
    import gguf

    chance = np.random.default_rng(prod(shape))
    numbers, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = chance.integers(0, 256, (*shape[:-1], shape[-1] // numbers, size), dtype=np.uint8)
    for at in {"Q6_K": (208,), "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,)}.get(kind, (0, 2)):
        blocks[..., at : at + 2] = chance.uniform(1e-5, 1e-4, (*blocks.shape[:-1], 1)).astype(np.float16).view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def _stored_tensors(model: tf.PreTrainedModel, names: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yields a model's weights with their names in the file."""
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        stem, _, suffix = name.rpartition(".")
        if stem.endswith("experts"):
            parts = dict(zip(("gate", "up"), tensor.chunk(2, 1), strict=True)) if "gate" in suffix else {"down": tensor}
            for part, values in parts.items():
                yield f"blk.{stem.split('.')[2]}.ffn_{part}_exps.weight", values.float().contiguous().numpy()
        else:
            values = _as_stored(stem, tensor.float(), model.config).contiguous().numpy()
            if stem.endswith("shared_expert_gate"):
                values = values[0]
            yield f"{names.get_name(stem)}.{suffix}", values


def _add_shape(writer: Any, config: Any) -> None:
    heads, inner = config.num_attention_heads, getattr(config, "intermediate_size", 4 * config.hidden_size)
    dim = getattr(config, "head_dim", config.hidden_size // heads)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", heads))
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    writer.add_rope_freq_base((getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10_000.0))
    names = ("rms_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_epsilon")
    epsilon = next(getattr(config, name) for name in names if hasattr(config, name))
    writer.add_layer_norm_rms_eps(epsilon)
    writer.add_layer_norm_eps(epsilon)
    writer.add_vocab_size(config.vocab_size)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if hasattr(config, "num_experts_per_tok"):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)


def _add_tokenizer(writer: Any, vocabulary: Vocabulary) -> None:
    import gguf

    kinds = [
        gguf.TokenType.CONTROL
        if number in vocabulary.control
        else gguf.TokenType.UNUSED
        if token.startswith("[unused")
        else gguf.TokenType.NORMAL
        for number, token in enumerate(vocabulary.tokens)
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(vocabulary.merges)
    for name, number in vocabulary.ids.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", number)
    writer.add_add_bos_token(vocabulary.add_bos)
    if vocabulary.chat_template is not None:
        writer.add_chat_template(vocabulary.chat_template)


def _as_stored(stem: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """Llama's queries and keys use llama.cpp's order of rotary dimensions; Gemma's norms are stored plus 1; GPT-2's
    matrices are transposed."""
    part = stem.rsplit(".", 1)[-1]
    if part in ("c_attn", "c_proj", "c_fc"):
        return tensor.T if config.model_type == "gpt2" and tensor.ndim == 2 else tensor
    if config.model_type == "llama" and part in ("q_proj", "k_proj"):
        heads = config.num_attention_heads if part == "q_proj" else config.num_key_value_heads
        rows, columns = tensor.shape
        return tensor.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)
    return tensor + 1 if config.model_type.startswith("gemma") and "norm" in part else tensor


def write_tiny_chat(path: Path, **options: Any) -> None:
    """Write tiny-chat in float32, with its tokenizer and chat template; ``options`` are those of ``write_gguf``."""
    source = embedded_model()
    model = tf.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    generation = model.generation_config
    ends = generation.eos_token_id
    described = json.loads((source / "tokenizer.json").read_text())
    added = {token["id"]: token["content"] for token in described["added_tokens"]}
    by_id = {number: token for token, number in described["model"]["vocab"].items()} | added
    vocabulary = Vocabulary(
        tokens=[by_id.get(number, f"[unused{number}]") for number in range(model.config.vocab_size)],
        merges=[" ".join(pair) for pair in described["model"]["merges"]],
        control=frozenset(added),
        ids={"bos": generation.bos_token_id, "eos": ends[0], "eot": ends[1], "padding": generation.pad_token_id},
        chat_template=(source / "chat_template.jinja").read_text(),
        pre="starcoder",  # splits digits one by one, as tiny-chat's tokenizer does
        add_bos=False,  # the template writes it
    )
    write_gguf(path, model, vocabulary, **options)


if __name__ == "__main__":
    write_tiny_chat(Path(sys.argv[1]))
