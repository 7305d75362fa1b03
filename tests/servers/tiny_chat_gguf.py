"""Writes tiny-chat as a GGUF file for llama.cpp: ``python -m tests.servers.tiny_chat_gguf FILE`` (needs the package gguf)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from roseplay.model.source import embedded_model

# llama.cpp's names of a layer's weights, by transformers'.
LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def write(path: Path) -> None:
    """Write the model in float32, with its tokenizer and chat template."""
    import gguf

    source = embedded_model()
    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny-chat")
    _add_shape(writer, config)
    _add_tokenizer(writer, source, config)
    for name, tensor in load_file(source / "model.safetensors").items():
        new, values = _named(name, tensor.float(), config)
        writer.add_tensor(new, values.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _add_tokenizer(writer: Any, source: Path, config: dict[str, Any]) -> None:
    import gguf

    described = json.loads((source / "tokenizer.json").read_text())
    vocabulary = {
        **described["model"]["vocab"],
        **{token["content"]: token["id"] for token in described["added_tokens"]},
    }
    by_id = {number: token for token, number in vocabulary.items()}
    control = {token["id"] for token in described["added_tokens"]}
    size = config["vocab_size"]
    kinds = [
        gguf.TokenType.CONTROL
        if number in control
        else gguf.TokenType.NORMAL
        if number in by_id
        else gguf.TokenType.UNUSED
        for number in range(size)
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("starcoder")  # it splits digits singly, as tiny-chat's does
    writer.add_token_list([by_id.get(number, f"[unused{number}]") for number in range(size)])
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in described["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)  # the template writes it
    writer.add_chat_template((source / "chat_template.jinja").read_text())


def _named(name: str, tensor: torch.Tensor, config: dict[str, Any]) -> tuple[str, torch.Tensor]:
    """Returns a tensor under llama.cpp's name; queries and keys have its order of rotary dimensions."""
    if name in WHOLE:
        return WHOLE[name], tensor
    _, _, layer, rest = name.split(".", 3)
    part = rest.removesuffix(".weight")
    heads = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}.get(part)
    if heads is not None:
        rows, columns = tensor.shape
        tensor = (
            tensor.view(config[heads], 2, rows // config[heads] // 2, columns).transpose(1, 2).reshape(rows, columns)
        )
    return f"blk.{layer}.{LAYER[part]}.weight", tensor


if __name__ == "__main__":
    write(Path(sys.argv[1]))
