"""Attention: the interface, and the backends in plain torch. Importing it registers these, and our attention function in
transformers."""

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
from roseplay.model.attention.reference import ReferenceBackend

__all__ = [
    "ATTENTION_NAME",
    "BACKENDS",
    "AttentionBackend",
    "AttentionParams",
    "GatherBackend",
    "Paged",
    "ReferenceBackend",
    "carry",
    "default_backend",
    "make_backend",
    "register_backend",
]
