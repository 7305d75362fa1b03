"""A model that is split over processes computes the same as the whole model; here, each process is a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as tf

from roseplay.config import EngineConfig, SamplingParams
from roseplay.core.request import Request
from roseplay.core.step import Step, StepEntry
from roseplay.model.attention.interface import Paged, default_backend, make_backend
from roseplay.model.batch import build_batch
from roseplay.model.forward import PackedForward
from roseplay.model.kv_cache import KVCache
from roseplay.model.loaded_model import LoadedModel
from roseplay.model.loader import load_model
from roseplay.model.ranks import Ranks
from tests.model.families import FAMILIES, VOCABULARY, tiny_model
from tests.model.harness import refusal

CONFIG = EngineConfig(device="cpu", dtype="float32", fuse_ops=False, pack_weights=False)
# Families with a plan for attention; other families' plans leave attention whole on every process.
SPLIT_ATTENTION = [
    "llama", "qwen2", "qwen3", "qwen3_moe", "mixtral", "mistral", "gemma2", "gemma3_text", "phi", "gpt_neox", "smollm3",
    "granite", "starcoder2", "cohere2", "glm4", "exaone4", "nemotron",
]  # fmt: skip
WHOLE_ATTENTION = ["phi3", "olmo2", "deepseek_v3"]


class Meeting:
    """Where the threads of a group exchange their tensors."""

    def __init__(self, size: int) -> None:
        self.barrier, self.parts = threading.Barrier(size), [torch.empty(0)] * size


class ThreadRanks(Ranks):
    """Ranks that are threads of one process."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__(rank, len(meeting.parts), torch.device("cpu"))
        self.meeting, self.joined = meeting, False

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._all(part)).sum(0) if self.joined else part

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._all(part) if self.joined else [part] * self.size, -1)

    def _all(self, part: torch.Tensor) -> list[torch.Tensor]:
        self.meeting.parts[self.rank] = part
        self.meeting.barrier.wait(20)
        parts = list(self.meeting.parts)
        self.meeting.barrier.wait(20)  # all have read them
        return parts


def load_parts(model: Any, size: int, config: EngineConfig = CONFIG) -> list[tuple[ThreadRanks, LoadedModel]]:
    meeting = Meeting(size)
    parts = [ThreadRanks(rank, meeting) for rank in range(size)]
    return [(ranks, load_model(model, config, ranks=ranks)) for ranks in parts]


@torch.inference_mode()
def logits_of(loaded: LoadedModel) -> torch.Tensor:
    """The logits of two prompts, the longer one in two chunks, and then of a decode of each."""
    cache = KVCache(loaded.kv_shapes, num_blocks=64, block_size=4, dtype=loaded.dtype, device=loaded.device)
    backend, forward = make_backend(default_backend(loaded.device), cache), PackedForward(loaded.model)
    generator = torch.Generator().manual_seed(4)
    requests = [
        Request(i, torch.randint(3, VOCABULARY, (length,), generator=generator).tolist(), SamplingParams())
        for i, length in enumerate((30, 11))
    ]
    requests[0].block_table, requests[1].block_table = list(range(1, 17, 2)), list(range(2, 10, 2))
    found, computed = [], [0, 0]
    for step_id, until in enumerate(((16, 9), (29, 10), (30, 11))):
        entries = [StepEntry(r, computed[i], until[i] - computed[i]) for i, r in enumerate(requests)]
        step = Step(step_id, entries)
        batch = build_batch(step, [0, 1], num_blocks=64, block_size=4, vocab_size=VOCABULARY, device=loaded.device)
        assert batch is not None
        found.append(forward(Paged(backend, batch)))
        computed = list(until)
    return torch.cat(found)


def together(parts: list[tuple[ThreadRanks, LoadedModel]], run: Callable[[LoadedModel], Any]) -> list[Any]:
    """The results of all ranks, which run at the same time."""
    results: list[Any] = [None] * len(parts)

    def one(rank: int) -> None:
        ranks, loaded = parts[rank]
        ranks.joined = True
        try:
            results[rank] = run(loaded)
        except BaseException:
            ranks.meeting.barrier.abort()
            raise

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("family", SPLIT_ATTENTION + WHOLE_ATTENTION)
def test_two_parts_compute_what_the_whole_does(family):
    check_two_parts(family, CONFIG)


@pytest.mark.slow
@pytest.mark.parametrize("family", SPLIT_ATTENTION + WHOLE_ATTENTION)
def test_kernels_take_the_parts_like_whole_layers(family):
    check_two_parts(family, EngineConfig(device="cpu", dtype="float32"))


def check_two_parts(family: str, config: EngineConfig) -> None:
    model = tiny_model(FAMILIES[family]())
    if family == "nemotron" and not model.config.base_model_tp_plan:
        pytest.skip("this version of transformers has no plan for it")
    whole = load_model(model, config)
    parts = load_parts(model, 2, config)
    expected = logits_of(whole)
    for found in together(parts, logits_of):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.std()))
    parts_of_heads = 2 if family in SPLIT_ATTENTION else 1
    for _, loaded in parts:
        assert (loaded.num_parameters, loaded.weight_bytes) == (whole.num_parameters, whole.weight_bytes)
        for layer, shape in loaded.kv_shapes.items():
            assert shape.num_kv_heads * parts_of_heads == whole.kv_shapes[layer].num_kv_heads


def test_a_part_holds_its_share_of_the_layers():
    model = tiny_model(tf.LlamaConfig(**{**FAMILIES["llama"]().to_dict(), "num_key_value_heads": 4}))
    whole = sum(weight.numel() for weight in model.model.layers.parameters() if weight.ndim == 2)
    for _, loaded in load_parts(model, 4, EngineConfig(device="cpu", pack_weights=False, fuse_ops=False)):
        held = sum(weight.numel() for weight in loaded.model.model.layers.parameters() if weight.ndim == 2)
        assert held == whole / 4
    assert sum(weight.numel() for weight in model.model.layers.parameters() if weight.ndim == 2) == whole


def test_an_output_layer_that_divides_is_gathered_in_order():
    model = tiny_model(tf.LlamaConfig(**{**FAMILIES["llama"]().to_dict(), "vocab_size": VOCABULARY + 1}))
    expected = logits_of(load_model(model, CONFIG))
    parts = load_parts(model, 2)
    assert type(parts[0][1].model.lm_head).__name__ == "GatheredLinear"
    for found in together(parts, logits_of):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "size", "why"),
    [
        ("gpt2", 2, "transformers has no tensor parallel plan for gpt2"),
        ("opt", 2, "no tensor parallel plan for opt"),
        ("gpt_oss", 2, "no tensor parallel plan for gpt_oss"),
        ("llama", 3, "its 4 attention heads cannot be divided by 3; set it to 2"),
        ("llama", 4, "its 2 key and value heads cannot be divided by 4; set it to 2"),
        ("gemma", 2, "its 1 key and value heads cannot be divided by 2; set it to 1"),
        ("olmo2", 32, "48 numbers of model.layers.0.mlp.gate_proj cannot be divided by 32"),
    ],
)
def test_what_cannot_be_split_is_refused_with_the_reason(family, size, why):
    reason = refusal(tiny_model(FAMILIES[family]()), ranks=ThreadRanks(0, Meeting(size)))
    assert why in reason and f"tensor_parallel_size is {size}" in reason


def test_a_plan_with_an_unknown_style_is_refused():
    model = tiny_model(FAMILIES["llama"]())
    model.tp_plan = {"model.layers.*.mlp.up_proj": "sequence_parallel"}
    assert "mlp.up_proj in a way that is not known here" in refusal(model, ranks=ThreadRanks(0, Meeting(2)))
