"""Attention: the interface and the backends in plain torch. Importing this package registers those backends, and our
attention function in transformers."""

from roseplay.model.attention.gather import GatherBackend
from roseplay.model.attention.interface import (
    ATTENTION_NAME,
    BACKENDS,
    AttentionBackend,
    AttentionParams,
    Paged,
    carry,
    default_backend,
    make_backend,
    register_backend,
)
from roseplay.model.attention.pattern import EVERYTHING, Reach
from roseplay.model.attention.reference import ReferenceBackend

__all__ = [
    "ATTENTION_NAME",
    "BACKENDS",
    "EVERYTHING",
    "AttentionBackend",
    "AttentionParams",
    "GatherBackend",
    "Paged",
    "Reach",
    "ReferenceBackend",
    "carry",
    "default_backend",
    "make_backend",
    "register_backend",
]
