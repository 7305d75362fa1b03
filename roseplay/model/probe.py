"""Probes a family that no test covers: compares a small random model on packed, paged batches with eager attention.

Some models express their attention pattern only in a mask, which we do not build, or cannot continue from a recurrent
state by several tokens at once: they would run, but compute wrong tokens. If a model differs, the probe tries again
with the patterns from its config, and token by token. The small model has few layers, and its prompts are longer than
its small windows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from roseplay.config import SamplingParams
from roseplay.core.request import Request
from roseplay.core.step import Step, StepEntry
from roseplay.model.attention.interface import ATTENTION_NAME, Paged, default_backend, make_backend
from roseplay.model.attention.pattern import adopt_config_patterns
from roseplay.model.batch import build_batch
from roseplay.model.errors import refuse
from roseplay.model.forward import PackedForward, cache_parameter
from roseplay.model.kv_cache import KVCache
from roseplay.model.layout import attach_states, record_layout
from roseplay.model.shrink import VOCABULARY, WINDOW, shrink
from roseplay.model.stateful import StatefulForward, keeps_states
from roseplay.model.states import StatePool, StateShapes

MOST_PARAMETERS = 400_000_000
BLOCK_SIZE = 4
# Largest accepted difference of logits, in standard deviations. Rounding causes 1e-6, a missing window 1e-1.
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Tried:
    """The adjustments that a model turned out to need."""

    patterns_from_config: bool = False  # whether to call ``adopt_config_patterns``
    one_by_one: bool = False  # whether its recurrent layers can continue from a state only token by token


def probe(config: Any, *, name: str, build: Callable[[Any], PreTrainedModel]) -> Tried:
    """Returns the adjustments with which a model of this config computes the same as transformers.

    Raises ``UnsupportedModelError`` if a small copy differs from eager attention even so. If no small copy can be made,
    the error is marked ``untried``, since the family itself may work.

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
            difference, tried = compare_with_eager(model, expected)
        except Exception as error:
            raise refuse(name, f"{config.model_type} does not run on paged attention ({error})") from error
        if tried is not None:
            return tried
        raise refuse(
            name, f"{config.model_type} computes something else on paged attention (logits differ by {difference:.2g})"
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
    """Set random weights with which attention is far from uniform, and every bias, norm and sink has an effect."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim >= 2:
            parameter.copy_(noise * 1.5 / max(parameter.shape[-2:]) ** 0.5)
        else:
            parameter.copy_(noise * 0.2 + (1.0 if parameter.mean() > 0.5 else 0.0))


def _prompts() -> list[list[int]]:
    """Returns two prompts of different lengths, each several windows long."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, VOCABULARY - 16, (n,), generator=generator).tolist() for n in (5 * WINDOW, 3 * WINDOW - 1)]


@torch.inference_mode()
def eager_logits(model: PreTrainedModel) -> list[torch.Tensor]:
    """Returns the logits ``[tokens, vocabulary]`` of each prompt, as transformers computes them."""
    model.set_attn_implementation("eager")
    return [model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0] for prompt in _prompts()]


@torch.inference_mode()
def agrees_with_its_cache(model: PreTrainedModel, expected: torch.Tensor) -> bool:
    """Returns whether transformers itself computes the same last logits of the first prompt with its cache as without.

    If it does not, as in families whose cache drops tokens that their mask shows (Moshi), there is no reference.
    """
    tokens = torch.tensor([_prompts()[0]])
    name = cache_parameter(model)
    for positions in ({}, {"position_ids": torch.tensor([[tokens.shape[1] - 1]])}):
        try:
            cache = {name: getattr(model(input_ids=tokens[:, :-1], use_cache=True), name)}
            logits = model(input_ids=tokens[:, -1:], use_cache=True, **cache, **positions).logits[0, -1]
        except Exception:  # the model has no such cache; then generate() does not use one either
            return True
        if (logits - expected[-1]).abs().max() < TOLERANCE * expected[-1].std():
            return True
    return False


@torch.inference_mode()
def compare_with_eager(model: PreTrainedModel, eager: list[torch.Tensor]) -> tuple[float, Tried | None]:
    """Returns the largest relative difference between paged and eager logits without adjustments, and the adjustments
    with which they are equal, None if there are none."""
    model.set_attn_implementation(ATTENTION_NAME)
    states = attach_states(model, one_by_one=False) if keeps_states(model.config) else {}
    stateful = [module.forward for module in model.modules() if isinstance(module.forward, StatefulForward)]
    differences: list[float] = []
    for patterns_from_config in (False, True):
        if patterns_from_config:
            adopt_config_patterns(model)
        for one_by_one in (False, True)[: 2 if stateful else 1]:
            for forward in stateful:
                forward.one_by_one = one_by_one
            differences.append(_compare(model, states, eager))
            if differences[-1] < TOLERANCE:
                return differences[0], Tried(patterns_from_config, one_by_one)
    return differences[0], None


def _compare(model: PreTrainedModel, states: StateShapes, eager: list[torch.Tensor]) -> float:
    """Compute the two prompts in two chunks each, then decode one token of each; returns the largest difference."""
    prompts = _prompts()
    shapes, _ = record_layout(model)
    cache = KVCache(shapes, num_blocks=64, block_size=BLOCK_SIZE, dtype=torch.float32, device=torch.device("cpu"))
    forward, backend = PackedForward(model), make_backend(default_backend(cache.device), cache)
    pool = StatePool(states, 3, cache.device) if states else None
    requests = [Request(i, prompt, SamplingParams()) for i, prompt in enumerate(prompts)]
    for i, request in enumerate(requests):
        request.block_table, request.state_slot = list(range(1 + i, 31 + i, 2)), 2 - i
    ends = [(2 * WINDOW, len(prompts[1]) - 2), (len(prompts[0]) - 1, len(prompts[1]) - 1), tuple(map(len, prompts))]
    computed = [0, 0]
    difference = 0.0
    for step_id, until in enumerate(ends):
        entries = [StepEntry(r, computed[i], until[i] - computed[i]) for i, r in enumerate(requests)]
        batch = build_batch(
            Step(step_id, entries),
            [0, 1],
            num_blocks=64,
            block_size=BLOCK_SIZE,
            vocab_size=VOCABULARY,
            device=cache.device,
        )
        assert batch is not None  # both entries compute tokens
        for i, logits in enumerate(forward(Paged(backend, batch, pool))):
            expected = eager[i][until[i] - 1]
            difference = max(difference, float((logits - expected).abs().max() / expected.std()))
        computed = list(until)
    return difference
