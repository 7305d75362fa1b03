"""One packed forward through a transformers model."""

from __future__ import annotations

import inspect

import torch
from transformers import PreTrainedModel

from roseplay.model.attention import Paged, carry


class PackedForward:
    """Calls a model on a packed row of tokens, and keeps only the logits that are wanted."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._keeps_rows = "logits_to_keep" in inspect.signature(model.forward).parameters

    def __call__(self, paged: Paged) -> torch.Tensor:
        """Logits ``[len(batch.logits_rows), vocabulary]`` in the model's dtype."""
        batch = paged.batch
        keep = {"logits_to_keep": batch.logits_rows} if self._keeps_rows else {}
        with carry(paged):
            output = self.model(
                input_ids=batch.input_ids[None],
                position_ids=batch.positions[None],
                use_cache=False,
                paged=paged,
                **keep,
            )
        logits: torch.Tensor = output.logits[0]
        return logits if self._keeps_rows else logits[batch.logits_rows]
