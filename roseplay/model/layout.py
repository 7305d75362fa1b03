"""Finding out what each attention layer caches, by running the model once."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from roseplay.model.attention import AttentionParams, Paged
from roseplay.model.attention.pattern import adopt_temperatures, share_keys
from roseplay.model.batch import PagedBatch, dummy_batch
from roseplay.model.forward import PackedForward
from roseplay.model.kv_cache import LayerShape


class RecordingBackend:
    """An ``AttentionBackend`` that records the shapes it is called with, and returns zeros."""

    name = "recording"

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.kv_layers: dict[int, int] = {}
        self._seen: dict[tuple[int, int], tuple[int, torch.Tensor, torch.Tensor]] = {}

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch) -> None:
        if not isinstance(layer, int):
            raise RuntimeError(f"an attention module has the layer_idx {layer!r}")
        if layer in self.shapes or layer in self.kv_layers:
            raise RuntimeError(f"two attention modules have the layer_idx {layer}")
        place = k.data_ptr(), v.data_ptr()
        if place in self._seen:
            self.kv_layers[layer] = self._seen[place][0]
            return
        self._seen[place] = layer, k, v  # kept, so that no other tensors can be in their place
        self.shapes[layer] = LayerShape(k.shape[1], k.shape[2], v.shape[2])

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch, params: AttentionParams
    ) -> torch.Tensor:
        if q.shape[1] % k.shape[1]:
            raise RuntimeError(f"{q.shape[1]} query heads are not a multiple of {k.shape[1]} key heads")
        return q.new_zeros((q.shape[0], q.shape[1], v.shape[2]))


@torch.inference_mode()
def record_layout(model: PreTrainedModel) -> tuple[dict[int, LayerShape], int]:
    """Returns what each layer caches, by ``layer_idx``, and how many logits the model computes for a token.

    Layers that attend to the very keys and values of another (Gemma 3n, Gemma 4) cache nothing: from now on they read what
    that layer caches.

    Raises ``RuntimeError`` when the model does not call our attention once in each layer.
    """
    adopt_temperatures(model)
    backend = RecordingBackend()
    batch = dummy_batch(2, row_tokens=2, block_size=2).upload(model.device)
    logits = PackedForward(model)(Paged(backend, batch))
    if not backend.shapes:
        raise RuntimeError("no layer called attention")
    share_keys(model, backend.kv_layers)
    return backend.shapes, int(logits.shape[-1])
