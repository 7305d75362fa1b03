"""A tiny Llama with random weights and tiny-chat's tokenizer, which vLLM loads in seconds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from roseplay.model.source import embedded_model

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
POSITIONS = 4096


def write(directory: Path) -> None:
    """Writes the checkpoint, always the same.

    Special tokens get a logit of zero, below the others' best, so that an answer is text and as long as was asked for.
    """
    source = embedded_model()
    taken = json.loads((source / "config.json").read_text())
    tokens = {name: taken[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    shape = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,  # vLLM's attention for CPUs takes multiples of 32
        max_position_embeddings=POSITIONS,
        initializer_range=0.1,  # the default's logits lie so close together that an answer repeats one token
        tie_word_embeddings=False,
        **tokens,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(shape).to(torch.bfloat16)
    special = [token["id"] for token in json.loads((source / "tokenizer.json").read_text())["added_tokens"]]
    with torch.no_grad():
        model.lm_head.weight[special] = 0
    model.save_pretrained(directory)
    for name in TOKENIZER:
        shutil.copyfile(source / name, directory / name)
    settings = directory / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_max_length": POSITIONS}, indent=2) + "\n")
