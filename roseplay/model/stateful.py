"""Runs layers with a state of fixed size (linear attention, state spaces, short convolutions) on packed batches.

transformers gives all of them one interface, the linear attention layers of its ``Cache``. To find the modules that
use it, the model is run once with a cache that records its callers. From then on such a module computes the rows of a
packed batch separately, each with a cache that holds the state of its request; everything else in the model stays
packed. Rows of equal length are computed together, so the decodes of a step are one batch. Kernels may replace a module's
functions by ones that compute packed rows in one call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin, LinearAttentionLayer

from roseplay.model.attention.interface import Paged, carried
from roseplay.model.batch import PagedBatch
from roseplay.model.forward import PackedForward
from roseplay.model.listening_cache import CacheUse, ListeningCache
from roseplay.model.states import PackedInputs, PackedRows, StatePool, StateShape, StateShapes
from roseplay.model.upload import to_device


def keeps_states(config: Any) -> bool:
    """Returns whether transformers' cache for a model of this config has layers with a state."""
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in _cache_layers(config))


def keeps_only_states(config: Any) -> bool:
    """Returns whether transformers' cache for this config has layers with a state but none with keys and values."""
    return keeps_states(config) and not any(isinstance(layer, DynamicLayer) for layer in _cache_layers(config))


def _cache_layers(config: Any) -> list[Any]:
    try:
        return list(DynamicCache(config=config).layers)
    except Exception:  # layer types that the cache does not know
        return []


class _InPlaceLayer(LinearAttentionLayer):
    """A layer of a cache whose states are ``SlotStates``, which kernels have already updated in place."""

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0, **kwargs: Any) -> torch.Tensor:
        return recurrent_states


class _PackedLayer(_InPlaceLayer):
    """The same for all rows of a packed batch, which the convolution's function tells apart itself."""

    def update_conv_state(self, conv_states: torch.Tensor, state_idx: int = 0, **kwargs: Any) -> Any:
        return PackedInputs(conv_states, self.conv_states[state_idx])  # type: ignore[arg-type]


class StatefulForward:
    """Replaces the ``forward`` of a module with a state: computes each request's rows with its own state.

    Args:
        one_by_one: whether the module can continue from a state only by one token at a time (Jamba).

    Attributes:
        layer: the layer of the cache that the module uses.
        shapes: the shapes of its states.
        in_place: a forward of the module for single tokens that updates states in place; its cache holds
            ``SlotStates``. None if there is none; then states are copied from their slots and back.
        packed: a forward of the module for all rows of a packed batch of at least two tokens, with ``SlotStates`` as well.
            None if there is none; then rows are computed in groups.
        refused: by the names of these two, why a forward that was tried is not used.
    """

    def __init__(self, module: nn.Module, use: CacheUse, shapes: tuple[StateShape, ...], *, one_by_one: bool) -> None:
        self._forward = module.forward
        self._input = next(iter(inspect.signature(module.forward).parameters))
        self._argument, self.layer = use.argument, use.layer
        self.shapes, self.one_by_one = shapes, one_by_one
        self.in_place: Callable[..., torch.Tensor] | None = None
        self.packed: Callable[..., torch.Tensor] | None = None
        self.refused: dict[str, str] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        x: torch.Tensor = args[0] if args else kwargs[self._input]
        paged = carried()
        if paged is None or paged.states is None:  # a trial run
            return self._compute(self._forward, x, None)
        return self.compute(x, paged.batch, paged.states)

    def compute(self, x: torch.Tensor, batch: PagedBatch, pool: StatePool) -> torch.Tensor:
        """Compute the tokens of a packed batch, ``[1, tokens, dim]``, from its requests' states, and update these."""
        if self.packed is not None and x.shape[1] > 1 and not _only_decodes(batch):
            states = pool.in_place(self.layer, *_packed_rows(batch))
            return self._compute(self.packed, x, self._cache(_PackedLayer, states, has_previous=True))
        out: torch.Tensor | None = None
        groups = _groups(batch)
        for group in groups:
            rows_of_group = x[0][group.tokens].unflatten(0, (-1, group.count))
            computed = self._compute_rows(rows_of_group, group, pool).flatten(0, 1)
            if len(groups) == 1:
                return computed[None]
            if out is None:
                out = computed.new_empty((x.shape[1], computed.shape[-1]))
            out[group.tokens] = computed
        assert out is not None  # no batch is empty
        return out[None]

    def _compute_rows(self, rows: torch.Tensor, group: _Group, pool: StatePool) -> torch.Tensor:
        """Compute ``[rows, count, dim]`` from the states in the group's slots, and update these."""
        one_by_one = self.one_by_one and not group.fresh
        parts = rows.split(1, dim=1) if one_by_one else (rows,)
        if self.in_place is not None and not group.fresh and (one_by_one or group.count == 1):
            states = pool.in_place(self.layer, group.slots)
            cache = self._cache(_InPlaceLayer, states, has_previous=True)
            computed = [self._compute(self.in_place, part, cache) for part in parts]
        else:
            computed = self._compute_copied(parts, group, pool)
        return torch.cat(computed, dim=1) if one_by_one else computed[0]

    def _compute_copied(self, parts: Sequence[torch.Tensor], group: _Group, pool: StatePool) -> list[torch.Tensor]:
        """Compute parts of rows one after another, copying states from their slots and back."""
        layer, computed = self.layer, []
        states = pool.empty(layer, len(group.slots)) if group.fresh else pool.read(layer, group.slots)
        for part in parts:
            cache = self._cache(LinearAttentionLayer, states, has_previous=not group.fresh)
            computed.append(self._compute(self._forward, part, cache))
            states = [getattr(cache.layers[layer], shape.kind)[shape.index] for shape in self.shapes]
        pool.write(layer, group.slots, states)
        return computed

    def _cache(self, kind: type[LinearAttentionLayer], states: Sequence[Any], *, has_previous: bool) -> Cache:
        layer = kind(number_of_states=1 + max(shape.index for shape in self.shapes))
        for shape, state in zip(self.shapes, states, strict=True):
            getattr(layer, shape.kind)[shape.index] = state
            getattr(layer, f"is_{shape.kind}_initialized")[shape.index] = True
            if shape.kind == "conv_states":
                layer.conv_kernel_size[shape.index] = shape.shape[-1]
            layer.has_previous_state[shape.index] = has_previous
        return Cache(layers=[layer] * (self.layer + 1))

    def _compute(self, forward: Callable[..., Any], x: torch.Tensor, cache: Cache | None) -> torch.Tensor:
        output = forward(x, **{self._argument: cache})
        if not isinstance(output, torch.Tensor):
            raise RuntimeError(f"a module with a state returns a {type(output).__name__}")
        return output


def stateful_modules(model: nn.Module) -> list[tuple[nn.Module, StatefulForward]]:
    """Returns a model's modules with a state, after ``attach``, and the replacement of each one's ``forward``."""
    pairs = ((module, vars(module).get("forward")) for module in model.modules())
    return [(module, forward) for module, forward in pairs if isinstance(forward, StatefulForward)]


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of a batch that a module computes at once."""

    count: int  # number of tokens in each row
    fresh: bool  # whether these are the first tokens of their requests
    tokens: slice | torch.Tensor  # index of the tokens in the packed row
    slots: torch.Tensor  # the state slots of the rows' requests


def _groups(batch: PagedBatch) -> list[_Group]:
    """Returns the rows grouped by number of tokens and whether these are first tokens; cached for a step's layers."""
    groups: list[_Group] | None = batch.memo.get(_groups)
    if groups is not None:
        return groups
    begins = batch.host_cu_seqlens_q[:-1]
    counts = np.diff(batch.host_cu_seqlens_q)
    fresh = batch.host_seq_lens == counts
    rows_of: dict[tuple[int, bool], list[int]] = {}
    for row, key in enumerate(zip(counts.tolist(), fresh.tolist(), strict=True)):
        if key[0]:
            rows_of.setdefault(key, []).append(row)
    device, groups = batch.input_ids.device, []
    for (count, is_fresh), rows in rows_of.items():
        begin = begins[rows]
        tokens: slice | torch.Tensor = slice(int(begin[0]), int(begin[0]) + count * len(rows))
        if begin[-1] != begin[0] + count * (len(rows) - 1):  # other rows are in between
            tokens = to_device((begin[:, None] + np.arange(count)).ravel().tolist(), torch.int64, device)
        slots = to_device(batch.host_state_slots[rows].tolist(), torch.int64, device)
        groups.append(_Group(count, is_fresh, tokens, slots))
    batch.memo[_groups] = groups
    return groups


def _only_decodes(batch: PagedBatch) -> bool:
    """Returns whether every row is a single token that is not its request's first."""
    groups: list[_Group] | None = batch.memo.get(_groups)
    if groups is not None:
        return len(groups) == 1 and groups[0].count == 1 and not groups[0].fresh
    counts = np.diff(batch.host_cu_seqlens_q)
    return bool(counts.max() == 1 and (batch.host_seq_lens[counts == 1] > 1).all())


def _packed_rows(batch: PagedBatch) -> tuple[torch.Tensor, PackedRows]:
    """Returns the state slots of a batch's rows on its device, and the rows; cached for a step's layers."""
    entry: tuple[torch.Tensor, PackedRows] | None = batch.memo.get(_packed_rows)
    if entry is None:
        slots = to_device(batch.host_state_slots.tolist(), torch.int64, batch.input_ids.device)
        entry = slots, PackedRows(batch.cu_seqlens_q, batch.seq_lens, batch.host_cu_seqlens_q, batch.memo)
        batch.memo[_packed_rows] = entry
    return entry


def use_static_slots(batch: PagedBatch, slots: torch.Tensor) -> None:
    """Treat all tokens of a batch as decodes whose slots are read from a tensor when a layer needs them.

    A recording of the batch's computation can then be replayed for other requests.

    Args:
        slots: int64 ``[tokens]``, on the model's device.
    """
    batch.memo[_groups] = [_Group(1, False, slice(0, batch.num_tokens), slots)]


@torch.inference_mode()
def attach(model: PreTrainedModel, paged: Paged, *, one_by_one: bool) -> StateShapes:
    """Make a model's modules with a state compute packed batches; returns the shapes of their states, by layer.

    Runs the model once. Also sets the layer index of attention modules that do not have one (Zamba2).

    Args:
        paged: a batch to try, on a backend that accepts any layer.
        one_by_one: see ``StatefulForward``.
    """
    cache = ListeningCache(model.config)
    with cache.listen(model):
        PackedForward(model).with_cache(paged, cache)
    for module, layer in cache.attention.items():
        module.layer_idx = layer  # type: ignore[assignment]
    shapes = cache.state_shapes()
    for module, use in cache.stateful.items():
        module.forward = StatefulForward(module, use, shapes[use.layer], one_by_one=one_by_one)  # type: ignore[method-assign]
    return shapes
