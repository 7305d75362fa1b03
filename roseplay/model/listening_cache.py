"""Finds the modules of a model that keep a state, and those that keep keys and values, by running it once."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache

from roseplay.model.states import StateShape, StateShapes

_KINDS = ("conv_states", "recurrent_states")


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How a module uses the cache: the argument in which it receives the cache, and the layer that it uses."""

    argument: str
    layer: int


class ListeningCache(DynamicCache):
    """A cache that records which modules store keys and values in it, and which ones store states.

    Attributes:
        attention: the layer of the cache that each attention module uses.
        stateful: how each module with a state uses the cache.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.attention: dict[nn.Module, int] = {}
        self.stateful: dict[nn.Module, CacheUse] = {}
        self._running: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = []

    @contextmanager
    def listen(self, model: nn.Module) -> Iterator[None]:
        """While entered, ``model`` may be run with this cache."""
        hooks = []
        for module in model.modules():
            hooks.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
            hooks.append(module.register_forward_hook(self._leave))
        try:
            yield
        finally:
            self._running.clear()
            for hook in hooks:
                hook.remove()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._running.append((module, args, kwargs))

    def _leave(self, *call: Any) -> None:
        self._running.pop()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.attention[self._running[-1][0]] = layer_idx
        return key_states, value_states

    def update_conv_state(self, conv_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._note_state(layer_idx)
        return super().update_conv_state(conv_states, layer_idx, *args, **kwargs)

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        self._note_state(layer_idx)
        return super().update_recurrent_state(recurrent_states, layer_idx, *args, **kwargs)

    def _note_state(self, layer: int) -> None:
        module, args, kwargs = self._running[-1]
        arguments = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        arguments |= arguments.pop("kwargs", {})
        argument = next((name for name, value in arguments.items() if value is self), None)
        if argument is None:
            raise RuntimeError(f"{type(module).__name__} is not given the cache that it keeps its state in")
        if any(use.layer == layer for other, use in self.stateful.items() if other is not module):
            raise RuntimeError(f"two modules keep their state in layer {layer} of the cache")
        self.stateful[module] = CacheUse(argument, layer)

    def state_shapes(self) -> StateShapes:
        """Returns the states that each layer keeps for one request; call it after the model has run."""
        shapes: StateShapes = {}
        for use in self.stateful.values():
            states = [(kind, *item) for kind in _KINDS for item in getattr(self.layers[use.layer], kind).items()]
            shapes[use.layer] = tuple(
                StateShape(kind, index, tuple(state.shape[1:]), state.dtype)
                for kind, index, state in states
                if state is not None
            )
        return shapes
