"""Finding out what each attention layer caches, by running the model once."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from roseplay.model.attention import AttentionParams, Paged
from roseplay.model.batch import PagedBatch, dummy_batch
from roseplay.model.forward import PackedForward
from roseplay.model.kv_cache import LayerShape


class RecordingBackend:
    """An ``AttentionBackend`` that records the shapes it is called with, and returns zeros."""

    name = "recording"

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch) -> None:
        if not isinstance(layer, int):
            raise RuntimeError(f"an attention module has the layer_idx {layer!r}")
        if layer in self.shapes:
            raise RuntimeError(f"two attention modules have the layer_idx {layer}")
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

    Raises ``RuntimeError`` when the model does not call our attention once in each layer.
    """
    backend = RecordingBackend()
    batch = dummy_batch(2, row_tokens=2, block_size=2).upload(model.device)
    logits = PackedForward(model)(Paged(backend, batch))
    if not backend.shapes:
        raise RuntimeError("no layer called attention")
    return backend.shapes, int(logits.shape[-1])
