"""Whether a GPU's steps are right, before anybody asks how fast they are: small models, and what they must answer."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseplay.config import EngineConfig, SamplingParams

if TYPE_CHECKING:
    from roseplay.engine.client import Engine
    from roseplay.engine.stream import Stream

# Where the best two log-probabilities are nearer than this, rounding may decide between them.
TIE = 1e-3
VOCABULARY = 512
_SIZE = {
    "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 512,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
# Random weights large enough that logits differ by more than rounding.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_SIZE, "initializer_range": 0.15},
    "gpt2": {
        "model_type": "gpt2", "vocab_size": VOCABULARY, "n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": 512,
        "bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.15,
    },
    "qwen3": {"model_type": "qwen3", **_SIZE, "initializer_range": 0.15},
    "gemma2": {"model_type": "gemma2", **_SIZE, "sliding_window": 24, "initializer_range": 0.15},
    "gpt_oss": {
        "model_type": "gpt_oss", **_SIZE, "sliding_window": 24, "num_local_experts": 4, "num_experts_per_tok": 2,
        "initializer_range": 0.15,
    },
}  # fmt: skip
GREEDY = SamplingParams(max_new_tokens=24, ignore_eos=True, logprobs=2)
SAMPLED = [
    SamplingParams(max_new_tokens=24, ignore_eos=True, temperature=1.0, seed=5, top_p=0.9),
    SamplingParams(max_new_tokens=24, ignore_eos=True, temperature=0.8, seed=6, top_k=40, repetition_penalty=1.2),
    SamplingParams(max_new_tokens=24, ignore_eos=True, temperature=1.2, seed=7, min_p=0.05, presence_penalty=0.5),
]
_BLOCKS: dict[str, Any] = {
    "block_size": 16,
    "num_blocks": 400,
    "max_model_len": 512,
    "dtype": "float32",
    "random_weights": True,
}


def prompts(count: int = 12) -> list[list[int]]:
    """Lengths around blocks and windows, some with a common head."""
    rng = random.Random(11)
    head = [rng.randrange(2, VOCABULARY) for _ in range(40)]
    lengths = [1, 15, 16, 17, 33, 48, 100, 200, 5, 64]
    made = [[rng.randrange(2, VOCABULARY) for _ in range(lengths[i % len(lengths)])] for i in range(count - 2)]
    return [*made, [*head, 3], [*head, 4, 5]]


@contextlib.contextmanager
def small_model(family: str) -> Iterator[str]:
    """A directory with a small model's config."""
    import json

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(FAMILIES[family]))
        yield folder


def check_family(family: str, device: str, attention: str) -> dict[str, Any]:
    """Greedy answers with everything on (graphs, overlap, ``attention``) against plain steps with the reference attention."""
    from roseplay.engine.client import Engine

    settings: dict[str, Any] = {**_BLOCKS, "device": device, "worker": "thread"}
    with small_model(family) as folder:
        with Engine(folder, attention="reference", cuda_graphs=False, overlap=False, **settings) as plain:
            right = answer(plain, [GREEDY])
        with Engine(folder, attention=attention, **settings) as engine:
            found = answer(engine, [GREEDY])
            graphs, why = engine.info.cuda_graphs, engine.info.no_cuda_graphs
            used = engine.info.attention
    wrong = [number for number, pair in enumerate(zip(right, found, strict=True)) if not same_until_a_tie(*pair)]
    return {"passed": not wrong, "wrong": wrong, "attention": used, "graphs": graphs, "no_graphs": why}


def check_switches(device: str, attention: str) -> dict[str, Any]:
    """The same answers, greedy and drawn, with overlap and graphs on and off, on one engine; but for rounding, since a padded
    step multiplies other matrices."""
    from roseplay.engine.client import Engine

    said: dict[str, list[list[int]]] = {}
    params = [GREEDY, *SAMPLED]
    with small_model("llama") as folder:
        config = EngineConfig(device=device, attention="reference", **_BLOCKS)
        with Engine(folder, device=device, attention=attention, worker="thread", **_BLOCKS) as engine:
            for overlap in (True, False):
                for graphs in (True, False):
                    engine.clear_cache()
                    engine.set_knobs(overlap=overlap, cuda_graphs=graphs)
                    name = f"overlap {'on' if overlap else 'off'}, graphs {'on' if graphs else 'off'}"
                    said[name] = [stream.token_ids for stream in answer(engine, params)]
        base = next(iter(said.values()))
        logits = LogitsOf(folder, config)
        asked = [(prompt, params[i % len(params)]) for i, prompt in enumerate(prompts())]
        differ = {name: sum(a != b for a, b in zip(tokens, base, strict=True)) for name, tokens in said.items()}
        wrong = {
            name: sum(
                not agree_but_for_rounding(logits, *request, *pair)
                for request, pair in zip(asked, zip(base, tokens, strict=True), strict=True)
            )
            for name, tokens in said.items()
        }
    return {"passed": not any(wrong.values()), "answers": len(base), "differ": differ, "wrong": wrong}


class LogitsOf:
    """The raw logits after some tokens, computed alone and with the reference attention."""

    def __init__(self, folder: str, config: EngineConfig) -> None:
        from roseplay.model.attention import make_backend
        from roseplay.model.forward import PackedForward
        from roseplay.model.kv_cache import KVCache
        from roseplay.model.loader import load_model

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

    def __call__(self, tokens: list[int]) -> Any:
        """float32 ``[1, vocabulary]``"""
        import torch

        from roseplay.core.request import Request
        from roseplay.core.step import Step, StepEntry
        from roseplay.model.attention import Paged
        from roseplay.model.batch import build_batch

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
        assert batch is not None  # it computes tokens
        with torch.inference_mode():
            return self._forward(Paged(self._backend, batch)).float().cpu()


def agree_but_for_rounding(
    logits_of: Callable[[list[int]], Any],
    prompt: list[int],
    params: SamplingParams,
    right: list[int],
    found: list[int],
) -> bool:
    """Whether two answers agree up to a place where logits that differ by rounding draw either token.

    Behind it they go on from other tokens, and say nothing about each other.
    """
    from roseplay.core.request import Request
    from roseplay.model.sampler import sample

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
            drawn += sample(nudged, [request])
        return drawn == [a, b]
    return True


def check_nothing_waits(device: str, attention: str) -> dict[str, Any]:
    """Steps of all kinds of sampling, launched while torch raises for whatever would wait for the device."""
    import roseplay.kernels  # noqa: F401
    from roseplay.core.request import Request
    from roseplay.core.step import Step, StepEntry
    from roseplay.kernels.cuda.graphs import waiting_is_an_error
    from roseplay.model.loader import load_model
    from roseplay.model.runner import ModelRunner

    with small_model("llama") as folder:
        config = EngineConfig(device=device, attention=attention, **_BLOCKS)
        runner = ModelRunner(load_model(folder, config), config)
    requests = [
        Request(i, prompt, p) for i, (prompt, p) in enumerate(zip(prompts(), [GREEDY, *SAMPLED] * 3, strict=True))
    ]
    for i, request in enumerate(requests):
        request.block_table = list(range(1 + 20 * i, 21 + 20 * i))
    launched, watched = 0, device.startswith("cuda")
    for graphs in (True, False):
        for number in range(3):
            starts = [0 if number == 0 else request.num_tokens - 1 for request in requests]
            entries = [
                StepEntry(request, start, request.num_tokens - start, samples=True, logits_entry=i)
                for i, (request, start) in enumerate(zip(requests, starts, strict=True))
            ]
            with waiting_is_an_error() if watched else contextlib.nullcontext():
                step = runner.launch(Step(number, entries, cuda_graphs=graphs))
            for request, token in zip(requests, step.result().token_ids, strict=True):
                assert token is not None
                request.token_ids.append(token)
            launched += 1
    return {"passed": True, "steps": launched, "watched": watched}


def answer(engine: Engine, params: list[SamplingParams]) -> list[Stream]:
    """All prompts at once, each with the next one of ``params``; raises ``RuntimeError`` when one fails."""
    asked = prompts()
    streams = [engine.submit(prompt, params[i % len(params)]) for i, prompt in enumerate(asked)]
    for stream in streams:
        result = stream.result(timeout=120)
        if result.error:
            raise RuntimeError(result.error)
    return streams


def same_until_a_tie(right: Stream, found: Stream) -> bool:
    """Whether two greedy answers agree up to a place where the best two tokens are equally likely, but for rounding."""
    for index, (a, b) in enumerate(zip(right.token_ids, found.token_ids, strict=True)):
        if a != b:
            (_, best), (_, second) = right.logprobs[index].top[:2]
            return best - second <= TIE
    return True
