"""One packed forward pass through a transformers model."""

from __future__ import annotations

import inspect

import torch
from transformers import Cache, PreTrainedModel

from roseplay.model.attention.interface import Paged, carry


def cache_parameter(model: PreTrainedModel) -> str:
    """Returns what a model's forward, and its output, call the cache: ``cache`` since transformers 5.24."""
    forwards = filter(None, (vars(kind).get("forward") for kind in type(model).__mro__))
    new = any("cache" in inspect.signature(forward).parameters for forward in forwards)
    return "cache" if new else "past_key_values"


class PackedForward:
    """Calls a model on a packed row of tokens and returns the wanted logits."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._keeps_rows = "logits_to_keep" in inspect.signature(model.forward).parameters

    def __call__(self, paged: Paged) -> torch.Tensor:
        """Returns the logits of ``batch.logits_rows``, ``[wanted, vocabulary]``, in the model's dtype."""
        return self.with_cache(paged, None)

    def with_cache(self, paged: Paged, cache: Cache | None) -> torch.Tensor:
        """Returns the same logits, passing the model one of transformers' own caches, to find out how it is used."""
        batch = paged.batch
        # logits_to_keep=0 keeps all.
        keep = {"logits_to_keep": 0 if batch.logits_rows is None else batch.logits_rows} if self._keeps_rows else {}
        given = {} if cache is None else {cache_parameter(self.model): cache}
        with carry(paged):
            output = self.model(
                input_ids=batch.input_ids[None],
                position_ids=batch.positions[None],
                use_cache=cache is not None,
                paged=paged,
                **keep,
                **given,
            )
        logits: torch.Tensor = output.logits[0]
        return logits if self._keeps_rows or batch.logits_rows is None else logits[batch.logits_rows]
