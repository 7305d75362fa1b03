"""Probing a family that no test covers: a small random model, packed and paged, is compared with eager attention.

Some models express their attention pattern only in a mask, which we do not build, or share keys between layers: they would
run and compute wrong tokens. The small model has few layers, and prompts longer than its small windows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from roseplay.config import SamplingParams
from roseplay.core.request import Request
from roseplay.core.step import Step, StepEntry
from roseplay.model.attention import ATTENTION_NAME, Paged, default_backend, make_backend
from roseplay.model.batch import build_batch
from roseplay.model.forward import PackedForward
from roseplay.model.kv_cache import KVCache
from roseplay.model.layout import record_layout
from roseplay.model.support import refuse

VOCABULARY, WINDOW, MOST_LAYERS, MOST_PARAMETERS = 256, 8, 8, 400_000_000
BLOCK_SIZE = 4
# Largest accepted difference of logits, relative to their standard deviation. Rounding causes 1e-6, a missing window 1e-1.
TOLERANCE = 1e-3

_ALIASES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
}
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def probe(config: Any, *, name: str, build: Callable[[Any], PreTrainedModel]) -> None:
    """Raise ``UnsupportedModelError`` when a small copy differs from eager attention, or cannot be built or run.

    Args:
        build: makes a float32 model with eager attention from a config.
    """
    failures: list[str] = []
    for widths in (True, False):
        try:
            model = _build(shrink(config, widths=widths), build)
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}")
            continue
        try:
            difference = compare_with_eager(model)
        except Exception as error:
            raise refuse(name, f"{config.model_type} does not run on paged attention ({error})") from error
        if not difference < TOLERANCE:
            raise refuse(
                name,
                f"{config.model_type} computes something else on paged attention (logits differ by {difference:.2g})",
            )
        return
    raise refuse(
        name, f"{config.model_type} is not among the families known to work and could not be tried ({failures[0]})"
    )


def _build(config: Any, build: Callable[[Any], PreTrainedModel]) -> PreTrainedModel:
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in build(copy.deepcopy(config)).parameters())
    if size > MOST_PARAMETERS:
        raise RuntimeError(f"its small copy has {size:,} parameters")
    model = build(config).eval()
    randomise(model)
    return model


def shrink(config: Any, *, widths: bool) -> Any:
    """A copy of a config with few layers of each kind, a small vocabulary, small windows and, with ``widths``, few heads."""
    values = config.to_dict()
    for part in [values, *(v for v in values.values() if isinstance(v, dict) and _find(v, "layers"))]:
        _shrink_layers(part)
        if widths:
            _shrink_widths(part)
        for key, value in part.items():
            if key.endswith(("_token_id", "_token_index")):
                if isinstance(value, list) or (isinstance(value, int) and value >= VOCABULARY):
                    part[key] = VOCABULARY - 1
            elif ("window" in key or "chunk_size" in key) and "layers" not in key and _is_size(value):
                part[key] = min(value, WINDOW)
        if _is_size(part.get("vocab_size")):
            part["vocab_size"] = VOCABULARY
    values.pop("quantization_config", None)
    return type(config).from_dict(values)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _find(part: dict[str, Any], what: str) -> str | None:
    return next((name for name in _ALIASES[what] if _is_size(part.get(name))), None)


def _shrink_layers(part: dict[str, Any]) -> None:
    """Keep as few layers as have one of each kind, and at least four, so that layers of a kind are adjacent."""
    layers = _find(part, "layers")
    if layers is None:
        return
    old: int = part[layers]
    lists = {key: value for key, value in part.items() if isinstance(value, list) and len(value) == old > 1}
    firsts = [value.index(kind) + 1 for value in lists.values() for kind in {repr(v): v for v in value}.values()]
    patterns = [v for key, v in part.items() if ("pattern" in key or key.endswith("_step")) and _is_size(v)]
    new = min(old, MOST_LAYERS, max([4, *firsts, *patterns]))
    part[layers] = new
    part.update({key: value[:new] for key, value in lists.items()})
    for key in ("first_k_dense_replace", "max_window_layers"):
        if _is_size(part.get(key)):
            part[key] = min(part[key], 1)


def _shrink_widths(part: dict[str, Any]) -> None:
    heads, hidden = _find(part, "heads"), _find(part, "hidden")
    if heads is None or hidden is None:
        return
    old_heads: int = part[heads]
    kv_heads = part.get("num_key_value_heads") or old_heads
    head_dim = part.get("head_dim") or part[hidden] // old_heads
    new_kv = min(kv_heads, 2)
    part[heads] = new_kv * min(old_heads // kv_heads, 4)
    part[hidden] = part[heads] * head_dim
    if _is_size(part.get("num_key_value_heads")):
        part["num_key_value_heads"] = new_kv
    for key, value in part.items():
        if ("intermediate_size" in key or key in ("ffn_dim", "n_inner", "ffn_hidden_size")) and _is_size(value):
            part[key] = min(value, 64)
        elif key in _EXPERTS and _is_size(value):
            part[key] = min(value, max(8, 2 * (part.get("n_group") or 1)))
        elif key in ("num_experts_per_tok", "moe_k") and _is_size(value):
            part[key] = min(value, 4)


@torch.no_grad()
def randomise(model: PreTrainedModel, seed: int = 0) -> None:
    """Set random weights for which attention is far from uniform and every bias, norm and sink has an effect."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim >= 2:
            parameter.copy_(noise * 1.5 / max(parameter.shape[-2:]) ** 0.5)
        else:
            parameter.copy_(noise * 0.2 + (1.0 if parameter.mean() > 0.5 else 0.0))


@torch.inference_mode()
def compare_with_eager(model: PreTrainedModel) -> float:
    """The largest difference between paged and eager logits, relative to the standard deviation of these.

    Computes two prompts of different lengths, the longer one in two chunks, then a decode of each.
    """
    generator = torch.Generator().manual_seed(1)
    prompts = [
        torch.randint(4, VOCABULARY - 16, (n,), generator=generator).tolist() for n in (5 * WINDOW, 3 * WINDOW - 1)
    ]
    model.set_attn_implementation("eager")
    eager = [model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0] for prompt in prompts]

    model.set_attn_implementation(ATTENTION_NAME)
    shapes, _ = record_layout(model)
    cache = KVCache(shapes, num_blocks=64, block_size=BLOCK_SIZE, dtype=torch.float32, device=torch.device("cpu"))
    forward, backend = PackedForward(model), make_backend(default_backend(cache.device), cache)
    first, second = (Request(i, prompt, SamplingParams()) for i, prompt in enumerate(prompts))
    first.block_table, second.block_table = list(range(1, 31, 2)), list(range(2, 32, 2))
    ends = [(2 * WINDOW, len(prompts[1]) - 2), (len(prompts[0]) - 1, len(prompts[1]) - 1), tuple(map(len, prompts))]
    computed = [0, 0]
    difference = 0.0
    for step_id, until in enumerate(ends):
        entries = [StepEntry(r, computed[i], until[i] - computed[i]) for i, r in enumerate((first, second))]
        batch = build_batch(
            Step(step_id, entries),
            [0, 1],
            num_blocks=64,
            block_size=BLOCK_SIZE,
            vocab_size=VOCABULARY,
            device=cache.device,
        )
        assert batch is not None  # both entries compute tokens
        for i, logits in enumerate(forward(Paged(backend, batch))):
            expected = eager[i][until[i] - 1]
            difference = max(difference, float((logits - expected).abs().max() / expected.std()))
        computed = list(until)
    return difference
