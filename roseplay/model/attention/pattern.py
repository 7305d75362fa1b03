"""What a layer's attention does beyond the arguments that its model passes: read from the config and the modules.

Some families express their pattern only in the mask, which we do not build (Llama 4, PhiMoE), or share keys and values
between layers (Gemma 3n, Gemma 4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

Positions = TypeVar("Positions", int, npt.NDArray[np.int64], torch.Tensor)
_ATTRIBUTE = "roseplay_pattern"


class Reach(NamedTuple):
    """How far back a token sees; at most one of the two is given.

    Attributes:
        window: itself and the ``window - 1`` tokens before it.
        chunk: the tokens before it in its own chunk of ``chunk`` tokens (Llama 4).
    """

    window: int | None = None
    chunk: int | None = None

    def first(self, position: Positions) -> Positions:
        """The first position that a token at ``position`` sees; may be negative."""
        if self.chunk:
            return position - position % self.chunk
        if self.window:
            return position - (self.window - 1)
        return position - position

    @property
    def most(self) -> int | None:
        """Most tokens that a token sees; None for all before it."""
        return self.window or self.chunk


EVERYTHING = Reach()


class Temperature(NamedTuple):
    """Queries grow with their position: ``log(1 + floor((position + 1) / floor_scale)) * attn_scale + 1`` (Llama 4)."""

    floor_scale: float
    attn_scale: float

    def factors(self, positions: torch.Tensor) -> torch.Tensor:
        """``[tokens]`` in float32."""
        return torch.log1p(torch.floor((positions.float() + 1) / self.floor_scale)) * self.attn_scale + 1


@dataclass(frozen=True, slots=True)
class LayerPattern:
    """Attributes:
    reach: where the model passes no ``sliding_window``.
    kv_layer: the layer whose keys and values this one reads, instead of its own.
    temperature: of queries, where the model would take it from a token's place in the batch.
    """

    reach: Reach = EVERYTHING
    kv_layer: int | None = None
    temperature: Temperature | None = None


_PLAIN = LayerPattern()


def pattern_of(module: torch.nn.Module) -> LayerPattern:
    """The pattern of an attention module."""
    found: LayerPattern = getattr(module, _ATTRIBUTE, _PLAIN)
    return found


def share_keys(model: torch.nn.Module, kv_layers: dict[int, int]) -> None:
    """Let layers read the keys and values of others: ``kv_layers[layer]`` is the layer that has them."""
    for module, layer in _attention_modules(model):
        if layer in kv_layers:
            _change(module, kv_layer=kv_layers[layer])


def adopt_config_patterns(model: torch.nn.Module) -> None:
    """Let layers see only what the config says, also where the model expresses it in a mask alone (``layer_types``,
    ``sliding_window``, ``attention_chunk_size``). Whether that is right for a family, the probe finds out."""
    for module, layer in _attention_modules(model):
        _change(module, reach=_config_reach(getattr(module, "config", model.config), layer))


def adopt_temperatures(model: torch.nn.Module) -> None:
    """Compute Llama 4's temperatures from positions; its own code counts tokens of the call, which here are of many
    requests."""
    for module, _ in _attention_modules(model):
        if getattr(module, "attn_temperature_tuning", False) and not getattr(module, "use_rope", False):
            _change(module, temperature=Temperature(float(module.floor_scale), float(module.attn_scale)))
            module.attn_temperature_tuning = False


def _config_reach(config: Any, layer: int) -> Reach:
    layer_types = getattr(config, "layer_types", None)
    kind = layer_types[layer] if layer_types else None
    window, chunk = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    if chunk and kind in (None, "chunked_attention"):
        return Reach(chunk=int(chunk))
    if window and kind in (None, "sliding_attention"):
        return Reach(window=int(window))
    return EVERYTHING


def _attention_modules(model: torch.nn.Module) -> list[tuple[Any, int]]:
    """The modules that say which layer they are of: those that attend, and a few others, which do not mind."""
    found = ((module, getattr(module, "layer_idx", None)) for module in model.modules())
    return [(module, layer) for module, layer in found if isinstance(layer, int)]


def _change(module: torch.nn.Module, **fields: Any) -> None:
    setattr(module, _ATTRIBUTE, replace(pattern_of(module), **fields))
