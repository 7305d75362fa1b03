"""Attention: the interface and the backends in plain torch. Importing this package registers those backends, and our
attention function in transformers."""

from roseplay.model.attention.gather import GatherBackend
from roseplay.model.attention.reference import ReferenceBackend

__all__ = ["GatherBackend", "ReferenceBackend"]
