"""Attention: the interface, and one file a backend. Importing it registers the backends and transformers' hook."""

from roseplay.model.attention import cpu, reference, triton_backend
from roseplay.model.attention.interface import ATTENTION_NAME, BACKENDS, AttentionBackend, Paged, carry, make_backend

__all__ = [
    "ATTENTION_NAME",
    "BACKENDS",
    "AttentionBackend",
    "Paged",
    "carry",
    "cpu",
    "make_backend",
    "reference",
    "triton_backend",
]
