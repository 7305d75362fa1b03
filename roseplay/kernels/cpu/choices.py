"""Describes how the parts of a step are computed on this CPU, and what makes them slower than they could be."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from roseplay.config import EngineConfig
from roseplay.core.info import Choice
from roseplay.kernels.cpu.attention.backend import CPUBackend
from roseplay.kernels.cpu.pack import packed_layers
from roseplay.kernels.cpu.recorded_steps import RecordedSteps
from roseplay.model.attention.interface import AttentionBackend
from roseplay.model.stateful import stateful_modules

try:
    import numba

    from roseplay.kernels.cpu.rows import takes
except ImportError:  # an extra
    numba = None

NO_NUMBA = 'Numba is not installed: pip install "roseplay[cpu]" makes decoding about twice as fast'


def choices_of(
    model: PreTrainedModel, backend: AttentionBackend, config: EngineConfig, recorded: RecordedSteps | None
) -> tuple[Choice, ...]:
    """Returns how a loaded model's steps are computed.

    Args:
        recorded: the recorded steps; None if steps are not recorded.
    """
    missing = no_kernels(model.dtype)
    return (
        _linear_layers(model, config, missing),
        _attention(backend, config, missing),
        _small_operations(config, missing),
        *_states(model, config, missing),
        _steps(config, recorded, missing),
    )


def no_kernels(dtype: torch.dtype) -> str | None:
    """Returns why there are no kernels for a dtype, and what to do about it; None if there are."""
    if numba is None:
        return NO_NUMBA
    if takes(dtype):
        return None
    return f"There are no kernels for {str(dtype).removeprefix('torch.')}: --dtype float32 or bfloat16 is faster"


def _linear_layers(model: PreTrainedModel, config: EngineConfig, missing: str | None) -> Choice:
    part = "linear layers"
    used = {layer.used: layer.products for layer in packed_layers(model)}
    if used:
        times = "; ".join(filter(None, (products.times for products in used.values())))
        return Choice(part, "; ".join(used), times, missing)
    if not config.pack_weights:
        return Choice(part, "torch", "pack_weights is off")
    return Choice(part, "torch", slow=missing or "This build of torch has no packed products of oneDNN")


def _attention(backend: AttentionBackend, config: EngineConfig, missing: str | None) -> Choice:
    part = "attention"
    if isinstance(backend, CPUBackend):
        return Choice(part, "KV blocks read in place" if backend.in_place else "KV blocks gathered first", slow=missing)
    return Choice(part, backend.name, f"attention is {config.attention}")


def _small_operations(config: EngineConfig, missing: str | None) -> Choice:
    part = "norms, activations, rotary"
    if not config.fuse_ops:
        return Choice(part, "torch", "fuse_ops is off")
    return Choice(part, "torch" if missing else "one pass each", slow=missing)


def _states(model: PreTrainedModel, config: EngineConfig, missing: str | None) -> list[Choice]:
    """Returns an empty list for a model without recurrent layers."""
    layers = [forward for _, forward in stateful_modules(model)]
    in_place = sum(layer.in_place is not None for layer in layers)
    if not layers:
        return []
    part, copied = "recurrent states", "copied from their slots and back"
    if not config.fuse_ops:
        return [Choice(part, copied, "fuse_ops is off")]
    if in_place == len(layers):
        return [Choice(part, "updated in their slots")]
    slow = missing or f"{len(layers) - in_place} of {len(layers)} layers have states that no kernel updates"
    return [Choice(part, f"updated in their slots by {in_place} layers" if in_place else copied, slow=slow)]


def _steps(config: EngineConfig, recorded: RecordedSteps | None, missing: str | None) -> Choice:
    part, by_model = "steps", "the model's code"
    if not config.record_steps:
        return Choice(part, by_model, "record_steps is off")
    if config.tensor_parallel_size > 1:
        return Choice(part, by_model, "tensor parallel steps are not recorded")
    if recorded is None:
        return Choice(part, by_model, "" if missing else "blocks are not read in place", missing)
    if recorded.refused is not None:
        return Choice(part, by_model, slow=f"Steps cannot be replayed: {Choice.brief(recorded.refused)}")
    if recorded.decodes_only:
        return Choice(part, "decodes recorded and replayed", "the prompts of a model with recurrent layers are not")
    return Choice(part, "recorded and replayed")
