"""How long a model's context is, by its config. Imports nothing large: lists of models need it without torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "n_ctx")


def stated_length(get: Callable[[str], Any]) -> int | None:
    """Returns the tokens that a decoder's config states, before rotary embeddings extend them; None if it states none.

    Args:
        get: returns a value of the config by its key, or None.
    """
    return next((value for value in map(get, _KEYS) if isinstance(value, int) and value > 0), None)
