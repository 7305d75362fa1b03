"""EngineInfo: what model and engine turned out to be, told upward by the model runner."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EngineInfo:
    """What an engine turned out to be, once its model is loaded.

    Attributes:
        weight_bytes: what one step reads of the weights, all experts of a mixture included; an embedding's table counts
            only where it is the output layer's weight too.
    """

    model: str
    architecture: str
    device: str
    dtype: str
    attention: str
    num_parameters: int
    weight_bytes: int
    vocab_size: int
    block_size: int
    num_blocks: int
    max_model_len: int
    kv_bytes_per_token: int
    threads: int
