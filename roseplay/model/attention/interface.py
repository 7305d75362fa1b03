"""The attention interface, which consists of two calls, and the function through which transformers' models call it.

A model loaded with ``attn_implementation="roseplay"`` calls ``roseplay_attention`` in each layer; the batch is passed
through the model's keyword arguments, and ``module.layer_idx`` selects the layer of the KV cache. transformers builds no
mask for an implementation that has none registered, so backends implement causality, windows and the bounds between
requests.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from roseplay.model.attention.pattern import EVERYTHING, Reach, pattern_of
from roseplay.model.batch import PagedBatch
from roseplay.model.kv_cache import KVCache
from roseplay.model.states import StatePool

ATTENTION_NAME = "roseplay"


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """How a layer attends."""

    scaling: float  # factor of the scores
    reach: Reach = EVERYTHING  # how far back a token can see
    softcap: float | None = None  # scores become ``softcap * tanh(score / softcap)`` (Gemma 2)
    sinks: torch.Tensor | None = None  # ``[heads]``: a score that takes part in each softmax but has no value (GPT-OSS)

    @property
    def plain(self) -> bool:
        """Whether this is a plain softmax of scaled scores, which torch's own attention can compute."""
        return self.softcap is None and self.sinks is None


class AttentionBackend(Protocol):
    """How keys and values are written to the KV cache, and how queries read them.

    ``q`` is ``[tokens, heads, k_dim]``, ``k`` ``[tokens, kv_heads, k_dim]``, ``v`` ``[tokens, kv_heads, v_dim]``, with any
    strides but a contiguous last dimension. Tokens are those of the batch, in its order.
    """

    name: str

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch) -> None:
        """Write the batch's keys and values to their slots, in one write or in one per row (``batch.batched_append``)."""

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch, params: AttentionParams
    ) -> torch.Tensor:
        """Let each token attend to its request's tokens up to its own position; called after ``append``.

        Args:
            k, v: the batch's own keys and values, for requests that have no others.

        Returns ``[tokens, heads, v_dim]``.
        """


Suits = Callable[[torch.device], bool]
BACKENDS: dict[str, Callable[[KVCache], AttentionBackend]] = {}
_defaults: dict[str, Suits] = {}


def register_backend(name: str, make: Callable[[KVCache], AttentionBackend], suits: Suits = lambda _: False) -> None:
    """Register a backend by name; ``suits`` returns whether it is the default on a device."""
    BACKENDS[name], _defaults[name] = make, suits


def default_backend(device: torch.device) -> str:
    """Returns the name of a device's default backend: the one registered for it, else ``gather``, which runs on all."""
    return next((name for name, suits in _defaults.items() if suits(device)), "gather")


def make_backend(name: str, cache: KVCache) -> AttentionBackend:
    """Returns a new backend on a cache. Raises ``ValueError`` for a name that is not registered."""
    if name not in BACKENDS:
        raise ValueError(f"there is no attention backend {name!r}: use one of {', '.join(sorted(BACKENDS))}")
    return BACKENDS[name](cache)


@dataclass(slots=True)
class Paged:
    """The keyword argument ``paged`` that a model's forward passes to its layers; ``states`` is None in trial runs."""

    backend: AttentionBackend
    batch: PagedBatch
    states: StatePool | None = None


_carried = threading.local()


@contextlib.contextmanager
def carry(paged: Paged) -> Iterator[None]:
    """While entered, ``paged`` also reaches layers that get no keyword arguments (Nemotron's, or stateful ones)."""
    _carried.paged = paged
    try:
        yield
    finally:
        del _carried.paged


def carried() -> Paged | None:
    """Returns the argument of the ``carry`` that is active in this thread, or None."""
    return getattr(_carried, "paged", None)


def roseplay_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    paged: Paged | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention function for transformers: append, then attend. ``LayerPattern`` has what the model does not pass.

    ``query``, ``key``, ``value`` are ``[1, heads, tokens, dim]``. Returns ``[1, tokens, heads, v_dim]`` and no weights.
    Raises ``RuntimeError`` if the model needs something that no backend supports.
    """
    name = type(module).__name__
    paged = paged or carried()
    if paged is None:
        raise RuntimeError(f"{name} was called without a paged batch: this copy of the model runs in the engine only")
    if attention_mask is not None or others.get("position_bias") is not None:
        raise RuntimeError(f"{name} brings its own attention mask or position bias")
    if others.get("is_causal") is False or not getattr(module, "is_causal", True):
        raise RuntimeError(f"{name} is not causal")
    layer: int = module.layer_idx  # type: ignore[assignment]
    pattern = pattern_of(module)
    q, k, v = query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1)
    if pattern.kv_layer is None:
        paged.backend.append(layer, k, v, paged.batch)
    else:  # ``kv_layer`` has appended them already
        layer = pattern.kv_layer
    if pattern.temperature is not None:
        q = (q * pattern.temperature.factors(paged.batch.positions)[:, None, None]).to(q.dtype)
    params = AttentionParams(
        scaling=q.shape[-1] ** -0.5 if scaling is None else float(scaling),
        reach=Reach(window=sliding_window) if sliding_window and sliding_window > 0 else pattern.reach,
        softcap=softcap,
        sinks=s_aux,
    )
    return pattern.values(paged.backend.attend(layer, pattern.queries(q), k, v, paged.batch, params)).unsqueeze(0), None


AttentionInterface.register(ATTENTION_NAME, roseplay_attention)
