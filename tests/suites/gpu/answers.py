"""Small models, their prompts, and whether two of their answers agree up to rounding."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from roseplay.config import EngineConfig, SamplingParams
from roseplay.core.request import Request
from roseplay.core.step import Step, StepEntry
from roseplay.engine.client import Engine
from roseplay.engine.stream import Stream
from roseplay.model.attention.interface import Paged, make_backend
from roseplay.model.batch import build_batch
from roseplay.model.forward import PackedForward
from roseplay.model.kv_cache import KVCache
from roseplay.model.loader import load_model
from roseplay.model.sampler import draw

# If the best two log-probabilities are closer than this, rounding may decide between them.
TIE = 1e-3
VOCABULARY = 512
# Random weights large enough that logits differ by more than rounding errors.
_SIZE = {
    "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 512,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "initializer_range": 0.15,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _SIZE,
    "gpt2": {
        "vocab_size": VOCABULARY, "n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": 512, "bos_token_id": 0,
        "eos_token_id": 1, "initializer_range": 0.15,
    },
    "qwen3": _SIZE,
    "gemma2": {**_SIZE, "sliding_window": 24},
    "gpt_oss": {**_SIZE, "sliding_window": 24, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_5_text": {
        **_SIZE, "layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    },
    "lfm2": {**_SIZE, "layer_types": ["conv", "full_attention", "conv"]},
    "bamba": {
        **_SIZE, "attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_n_groups": 2,
        "mamba_d_state": 16, "mamba_chunk_size": 32,
    },
}  # fmt: skip
GREEDY = SamplingParams(max_new_tokens=24, ignore_eos=True, logprobs=2)
SAMPLED = [
    SamplingParams(max_new_tokens=24, ignore_eos=True, temperature=1.0, seed=5, top_p=0.9),
    SamplingParams(max_new_tokens=24, ignore_eos=True, temperature=0.8, seed=6, top_k=40, repetition_penalty=1.2),
    SamplingParams(max_new_tokens=24, ignore_eos=True, temperature=1.2, seed=7, min_p=0.05, presence_penalty=0.5),
    SamplingParams(max_new_tokens=24, temperature=1.0, seed=8, min_new_tokens=24, logit_bias={1: 30, 7: 4}),
    SamplingParams(max_new_tokens=24, ignore_eos=True, temperature=1.0, seed=9, allowed_token_ids=tuple(range(5, 90))),
]


def small_model(family: str, folder: Path) -> str:
    """Write the config of a small model; returns its directory."""
    (folder / "config.json").write_text(json.dumps({"model_type": family, **FAMILIES[family]}))
    return str(folder)


def engine_config(device: str, attention: str | None = None, **changes: Any) -> EngineConfig:
    """The settings that all engines here share; ``attention`` defaults to the device's own."""
    attention = attention or ("auto" if device == "cuda" else "reference")
    common: dict[str, Any] = {"block_size": 16, "num_blocks": 400, "max_model_len": 512, "dtype": "float32"}
    return EngineConfig(device=device, attention=attention, random_weights=True, worker="thread", **common, **changes)


def prompts(count: int = 12) -> list[list[int]]:
    """Lengths around blocks and windows, some with a common prefix."""
    rng = random.Random(11)
    head = [rng.randrange(2, VOCABULARY) for _ in range(40)]
    lengths = [1, 15, 16, 17, 33, 48, 100, 200, 5, 64]
    made = [[rng.randrange(2, VOCABULARY) for _ in range(lengths[i % len(lengths)])] for i in range(count - 2)]
    return [*made, [*head, 3], [*head, 4, 5]]


def answers(engine: Engine, params: list[SamplingParams]) -> list[Stream]:
    """The answers to all prompts, submitted together, with ``params`` used in turn."""
    streams = [engine.submit(prompt, params[i % len(params)]) for i, prompt in enumerate(prompts())]
    for stream in streams:
        assert not stream.result(timeout=120).error, stream.error
    return streams


def same_until_a_tie(right: Stream, found: Stream) -> bool:
    """Whether two greedy answers agree up to a position where the best two tokens are equally likely up to rounding."""
    for index, (a, b) in enumerate(zip(right.token_ids, found.token_ids, strict=True)):
        if a != b:
            (_, best), (_, second) = right.logprobs[index].top[:2]
            return best - second <= TIE
    return True


def agree_but_for_rounding(
    logits_of: Callable[[list[int]], torch.Tensor],
    prompt: list[int],
    params: SamplingParams,
    right: list[int],
    found: list[int],
) -> bool:
    """Whether two answers agree up to a position where logits that differ by rounding may draw either token.

    After that position they continue from different tokens and cannot be compared.
    """
    for index, (a, b) in enumerate(zip(right, found, strict=True)):
        if a == b:
            continue
        request = Request(0, prompt, params)
        request.token_ids += right[:index]
        logits = logits_of(request.token_ids)
        drawn = []
        for better, worse in ((a, b), (b, a)):
            nudged = logits.clone()
            nudged[0, better] += TIE
            nudged[0, worse] -= TIE
            drawn += draw(nudged, [request]).tolist()
        return drawn == [a, b]
    return True


class LogitsOf:
    """The raw logits after some tokens, computed alone and with the reference attention."""

    def __init__(self, folder: str, config: EngineConfig) -> None:
        self._loaded = load_model(folder, config)
        self._blocks = -(-self._loaded.max_model_len // config.block_size) + 1
        self._cache = KVCache(
            self._loaded.kv_shapes,
            num_blocks=self._blocks,
            block_size=config.block_size,
            dtype=self._loaded.dtype,
            device=self._loaded.device,
        )
        self._backend = make_backend("reference", self._cache)
        self._forward = PackedForward(self._loaded.model)

    def __call__(self, tokens: list[int]) -> torch.Tensor:
        """float32 ``[1, vocabulary]``"""
        request = Request(0, tokens, SamplingParams())
        request.block_table = list(range(1, self._blocks))
        batch = build_batch(
            Step(0, [StepEntry(request, 0, len(tokens))]),
            [0],
            num_blocks=self._blocks,
            block_size=self._cache.block_size,
            vocab_size=self._loaded.num_embeddings,
            device=self._loaded.device,
        )
        assert batch is not None  # there are tokens to compute
        with torch.inference_mode():
            return self._forward(Paged(self._backend, batch)).float().cpu()
