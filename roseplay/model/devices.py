"""Chooses the device that a model runs on."""

from __future__ import annotations

import torch

from roseplay.config import EngineConfig
from roseplay.model.errors import UnsupportedModelError


def choose_device(device: str) -> torch.device:
    """Returns the device of the setting ``device``. Raises ``UnsupportedModelError`` for a GPU that does not exist."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(device)
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise UnsupportedModelError(
            f"device {device} does not exist: this torch sees {torch.cuda.device_count()} GPUs; use cpu"
        )
    return chosen


def rank_device(config: EngineConfig, rank: int) -> torch.device:
    """Returns a rank's device: the CPU, or a GPU of its own. Raises ``UnsupportedModelError`` if there are too few."""
    size = config.tensor_parallel_size
    if config.device.startswith("cuda:"):
        raise UnsupportedModelError(
            f"device {config.device} is one GPU; tensor_parallel_size {size} uses the first {size}: set device to cuda"
        )
    if choose_device(config.device).type == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count < size:
        raise UnsupportedModelError(
            f"tensor_parallel_size is {size}, but this torch sees {count} GPU{'s' * (count != 1)}: set it to {count} at"
            " most, or device to cpu"
        )
    return torch.device("cuda", rank)
