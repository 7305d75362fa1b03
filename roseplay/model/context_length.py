"""Reads a model's context length from its config. Imports nothing large: lists of models need it without torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "n_ctx")


def stated_length(get: Callable[[str], Any]) -> int | None:
    """Returns the context length in a decoder's config, before rotary embeddings extend it; None if there is none.

    Args:
        get: returns a value of the config by its key, or None.
    """
    return next((value for value in map(get, _KEYS) if isinstance(value, int) and value > 0), None)
