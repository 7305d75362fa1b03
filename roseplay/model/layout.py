"""Finds out what each layer caches for a request, by running the model once."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from roseplay.model import stateful
from roseplay.model.attention import latent
from roseplay.model.attention.interface import AttentionParams, Paged
from roseplay.model.attention.pattern import adopt_temperatures, attend_latents, share_keys
from roseplay.model.batch import PagedBatch
from roseplay.model.block_tensor import shapes_only
from roseplay.model.forward import PackedForward
from roseplay.model.kv_cache import LayerShape
from roseplay.model.padding import dummy_batch
from roseplay.model.states import StateShapes


class RecordingBackend:
    """An ``AttentionBackend`` that records the shapes it is called with, and returns zeros."""

    name = "recording"

    def __init__(self) -> None:
        self.calls: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch) -> None:
        self.calls.append((layer, k, v))

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch, params: AttentionParams
    ) -> torch.Tensor:
        if q.shape[1] % k.shape[1]:
            raise RuntimeError(f"{q.shape[1]} query heads are not a multiple of {k.shape[1]} key heads")
        return q.new_zeros((q.shape[0], q.shape[1], v.shape[2]))


@torch.inference_mode()
def record_layout(model: PreTrainedModel) -> tuple[dict[int, LayerShape], int]:
    """Returns what each attention layer caches, by ``layer_idx``, and how many logits the model computes per token.

    Layers that attend to another layer's keys and values (Gemma 3n, Gemma 4) cache nothing: from now on they read what
    that layer caches.

    Raises ``RuntimeError`` if the model does not call our attention once per layer.
    """
    adopt_temperatures(model)
    backend = RecordingBackend()
    with shapes_only():
        logits = PackedForward(model)(_two_tokens(model, backend))
    if not backend.calls:
        raise RuntimeError("no layer called attention")
    shapes, kv_layers = _cached(backend.calls)
    share_keys(model, kv_layers)
    return shapes, int(logits.shape[-1])


def _cached(calls: list[tuple[int, torch.Tensor, torch.Tensor]]) -> tuple[dict[int, LayerShape], dict[int, int]]:
    """Returns what each layer caches, and for layers that cache nothing, the layer whose keys and values they read."""
    shapes: dict[int, LayerShape] = {}
    kv_layers: dict[int, int] = {}
    first: dict[tuple[int, int], int] = {}
    for layer, k, v in calls:
        if not isinstance(layer, int):
            raise RuntimeError(f"an attention module has the layer_idx {layer!r}")
        if layer in shapes or layer in kv_layers:
            raise RuntimeError(f"two attention modules have the layer_idx {layer}")
        owner = first.setdefault((k.data_ptr(), v.data_ptr()), layer)
        if owner == layer:
            shapes[layer] = LayerShape(k.shape[1], k.shape[2], v.shape[2], values_in_keys=_is_part(v, k))
        else:
            kv_layers[layer] = owner
    return shapes, kv_layers


def _is_part(values: torch.Tensor, keys: torch.Tensor) -> bool:
    """Returns whether values are the first numbers of the keys: the same memory."""
    return values.data_ptr() == keys.data_ptr() and values.stride() == keys.stride()


@torch.inference_mode()
def adopt_latents(model: PreTrainedModel) -> int:
    """Make layers with multi-head latent attention cache their latents (``attention.latent``); returns their number.

    These are the layers that attend to their expanded keys and values as they are, which a run of the model shows.
    """
    projections = latent.projections(model)
    if not projections:
        return 0
    expanded: dict[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}
    backend = RecordingBackend()
    for module in projections:
        latent.keep_expanded(module, expanded)
    try:
        PackedForward(model)(_two_tokens(model, backend))
    finally:
        for module in projections:
            latent.expand_as_before(module)
    attended = {(layer, k.data_ptr(), v.data_ptr()) for layer, k, v in backend.calls}
    adopted = 0
    for module, (keys, values) in expanded.items():
        if (module.layer_idx, keys.data_ptr(), values.data_ptr()) in attended:
            attend_latents(module, projections[module])
            adopted += 1
    return adopted


def attach_states(model: PreTrainedModel, *, one_by_one: bool) -> StateShapes:
    """Make a model's modules with a state compute packed batches; returns the shapes of their states, by ``layer_idx``.

    Args:
        one_by_one: see ``StatefulForward``.
    """
    return stateful.attach(model, _two_tokens(model, RecordingBackend()), one_by_one=one_by_one)


def _two_tokens(model: PreTrainedModel, backend: RecordingBackend) -> Paged:
    return Paged(backend, dummy_batch(2, row_tokens=2, block_size=2).upload(model.device))
