"""Properties of a layer's attention that its model does not pass as arguments, read from the config and the modules.

Some families express their pattern only in the mask, which we do not build (Llama 4, PhiMoE), or share keys and values
between layers (Gemma 3n, Gemma 4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from roseplay.model.attention.latent import LatentProjection, pass_latents

Positions = TypeVar("Positions", int, npt.NDArray[np.int64], torch.Tensor)
_ATTRIBUTE = "roseplay_pattern"


class Reach(NamedTuple):
    """How far back a token can see; at most one of the two is given."""

    window: int | None = None  # a token sees itself and the ``window - 1`` tokens before it
    chunk: int | None = None  # a token sees the tokens up to itself in its own chunk of ``chunk`` tokens (Llama 4)

    def first(self, position: Positions) -> Positions:
        """Returns the first position that a token at ``position`` sees; may be negative."""
        if self.chunk:
            return position - position % self.chunk
        if self.window:
            return position - (self.window - 1)
        return position - position

    @property
    def most(self) -> int | None:
        """Most tokens that a token can see; None if it sees all before it."""
        return self.window or self.chunk


EVERYTHING = Reach()


class Temperature(NamedTuple):
    """Scales queries by position: ``log(1 + floor((position + 1) / floor_scale)) * attn_scale + 1`` (Llama 4)."""

    floor_scale: float
    attn_scale: float

    def factors(self, positions: torch.Tensor) -> torch.Tensor:
        """Returns the factor of each query, float32 ``[tokens]``."""
        return torch.log1p(torch.floor((positions.float() + 1) / self.floor_scale)) * self.attn_scale + 1


@dataclass(frozen=True, slots=True)
class LayerPattern:
    """The attention pattern of one layer."""

    reach: Reach = EVERYTHING  # used where the model passes no ``sliding_window``
    kv_layer: int | None = None  # the layer whose keys and values this one reads instead of its own
    # Scales the queries where the model's own code would use a token's index in the batch.
    temperature: Temperature | None = None
    # Applied to queries and results, because the layer passes latents instead of keys and values.
    projection: LatentProjection | None = None

    def queries(self, q: torch.Tensor) -> torch.Tensor:
        """Returns the queries that attend to what the layer caches."""
        return q if self.projection is None else self.projection.queries(q)

    def values(self, out: torch.Tensor) -> torch.Tensor:
        """Returns the results of the layer for those of its cached values."""
        return out if self.projection is None else self.projection.values(out)


_PLAIN = LayerPattern()


def pattern_of(module: torch.nn.Module) -> LayerPattern:
    """Returns the pattern of an attention module."""
    pattern: LayerPattern = getattr(module, _ATTRIBUTE, _PLAIN)
    return pattern


def share_keys(model: torch.nn.Module, kv_layers: dict[int, int]) -> None:
    """Make layers read the keys and values of others: ``kv_layers[layer]`` is the layer that has them."""
    for module, layer in _attention_modules(model):
        if layer in kv_layers:
            _change(module, kv_layer=kv_layers[layer])


def attend_latents(module: torch.nn.Module, projection: LatentProjection) -> None:
    """Make a layer cache and attend to its latents."""
    pass_latents(module, projection)
    _change(module, projection=projection)


def adopt_config_patterns(model: torch.nn.Module) -> None:
    """Limit each layer's reach to what the config says (``layer_types``, ``sliding_window``, ``attention_chunk_size``),
    also where the model expresses it only in a mask. The probe finds out whether that is right for a family."""
    for module, layer in _attention_modules(model):
        _change(module, reach=_config_reach(getattr(module, "config", model.config), layer))


def adopt_temperatures(model: torch.nn.Module) -> None:
    """Compute Llama 4's temperatures from positions; its own code uses a token's index in the call, which here holds
    tokens of many requests."""
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
    """Returns the modules with a layer index: those that attend, and a few others, on which a pattern has no effect."""
    pairs = ((module, getattr(module, "layer_idx", None)) for module in model.modules())
    return [(module, layer) for module, layer in pairs if isinstance(layer, int)]


def _change(module: torch.nn.Module, **fields: Any) -> None:
    setattr(module, _ATTRIBUTE, replace(pattern_of(module), **fields))
