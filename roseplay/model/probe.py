"""Probing a family that no test covers: a small random model, packed and paged, is compared with eager attention.

Some models express their attention pattern only in a mask, which we do not build: they would run and compute wrong tokens.
Where a model differs, the patterns in its config are tried. The small model has few layers, and prompts longer than its
small windows.
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
from roseplay.model.attention.pattern import adopt_config_patterns
from roseplay.model.batch import build_batch
from roseplay.model.forward import PackedForward
from roseplay.model.kv_cache import KVCache
from roseplay.model.layout import record_layout
from roseplay.model.shrink import VOCABULARY, WINDOW, shrink
from roseplay.model.support import refuse

MOST_PARAMETERS = 400_000_000
BLOCK_SIZE = 4
# Largest accepted difference of logits, relative to their standard deviation. Rounding causes 1e-6, a missing window 1e-1.
TOLERANCE = 1e-3


def probe(config: Any, *, name: str, build: Callable[[Any], PreTrainedModel]) -> bool:
    """Returns whether the model needs the patterns in its config (see ``adopt_config_patterns``).

    Raises ``UnsupportedModelError`` when a small copy differs from eager attention. Where no small copy can be made, the
    error is marked ``untried``: it is not the family that is known to fail.

    Args:
        build: makes a float32 model with eager attention from a config.
    """
    failures: list[str] = []
    for widths in (True, False):
        try:
            model = _build(shrink(config, widths=widths), build)
            expected = eager_logits(model)
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}")
            continue
        if not agrees_with_its_cache(model, expected[0]):
            raise refuse(
                name, f"{config.model_type} computes something else in transformers with a cache than without one"
            )
        try:
            difference = compare_with_eager(model, expected)
            if difference < TOLERANCE:
                return False
            adopt_config_patterns(model)
            if compare_with_eager(model, expected) < TOLERANCE:
                return True
        except Exception as error:
            raise refuse(name, f"{config.model_type} does not run on paged attention ({error})") from error
        raise refuse(
            name,
            f"{config.model_type} computes something else on paged attention (logits differ by {difference:.2g})",
        )
    raise refuse(
        name,
        f"{config.model_type} is not among the families known to work, and no small copy of it can be made to try it"
        f" ({failures[0]}); the family itself may work",
        untried=True,
    )


def _build(config: Any, build: Callable[[Any], PreTrainedModel]) -> PreTrainedModel:
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in build(copy.deepcopy(config)).parameters())
    if size > MOST_PARAMETERS:
        raise RuntimeError(f"its small copy has {size:,} parameters")
    model = build(config).eval()
    randomise(model)
    return model


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


def _prompts() -> list[list[int]]:
    """Two prompts of different lengths, several windows long."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, VOCABULARY - 16, (n,), generator=generator).tolist() for n in (5 * WINDOW, 3 * WINDOW - 1)]


@torch.inference_mode()
def eager_logits(model: PreTrainedModel) -> list[torch.Tensor]:
    """The logits ``[tokens, vocabulary]`` of each prompt, as transformers computes them."""
    model.set_attn_implementation("eager")
    return [model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0] for prompt in _prompts()]


@torch.inference_mode()
def agrees_with_its_cache(model: PreTrainedModel, expected: torch.Tensor) -> bool:
    """Whether a decode with transformers' own cache gives the last of the ``eager_logits`` of the first prompt. Where it does
    not, as in families whose cache drops tokens that their mask shows (Moshi), there is nothing to be equal to."""
    tokens = torch.tensor([_prompts()[0]])
    for positions in ({}, {"position_ids": torch.tensor([[tokens.shape[1] - 1]])}):
        try:
            cache = model(input_ids=tokens[:, :-1], use_cache=True).past_key_values
            logits = model(input_ids=tokens[:, -1:], past_key_values=cache, use_cache=True, **positions).logits[0, -1]
        except Exception:  # it has no such cache, and generate() none either
            return True
        if (logits - expected[-1]).abs().max() < TOLERANCE * expected[-1].std():
            return True
    return False


@torch.inference_mode()
def compare_with_eager(model: PreTrainedModel, eager: list[torch.Tensor]) -> float:
    """The largest difference between paged and eager logits, relative to the standard deviation of these.

    Computes the longer prompt in two chunks, then a decode of each.
    """
    prompts = _prompts()
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
