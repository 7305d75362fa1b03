"""Attention: the interface, and the backends. Importing it registers them and transformers' hook."""

from roseplay.model.attention.cpu.backend import CPUBackend, GatherBackend
from roseplay.model.attention.interface import ATTENTION_NAME, BACKENDS, AttentionBackend, Paged, carry, make_backend
from roseplay.model.attention.reference import ReferenceBackend
from roseplay.model.attention.triton.backend import TritonBackend

__all__ = [
    "ATTENTION_NAME",
    "BACKENDS",
    "AttentionBackend",
    "CPUBackend",
    "GatherBackend",
    "Paged",
    "ReferenceBackend",
    "TritonBackend",
    "carry",
    "make_backend",
]
