"""Attention: the interface, and the backends. Importing it registers them and transformers' hook."""

from roseplay.kernels.cpu.attention.backend import CPUBackend, GatherBackend
from roseplay.kernels.cuda.attention.backend import TritonBackend
from roseplay.model.attention.interface import ATTENTION_NAME, BACKENDS, AttentionBackend, Paged, carry, make_backend
from roseplay.model.attention.reference import ReferenceBackend

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
