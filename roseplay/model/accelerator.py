"""How kernels make a model's steps faster: an ``Accelerator``, registered for a type of device.

It and ``AttentionBackend`` are all that the model knows of kernels. Without any, the model computes the same, slower.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from roseplay.config import EngineConfig
from roseplay.model.attention import AttentionBackend
from roseplay.model.batch import Drawn, HostBatch, PagedBatch
from roseplay.model.loaded_model import LoadedModel
from roseplay.model.sampler import likeliest

Forward = Callable[[PagedBatch], torch.Tensor]


class Accelerator:
    """Computes the steps of one model runner; this one leaves them as they are, a subclass may do better.

    Args:
        forward: computes a batch's logits, ``[wanted, vocabulary]``, by the model as it is.
        loaded: the model, which ``prepare`` has changed.
        backend: its attention.

    Attributes:
        runs_ahead: whether steps may be launched before the one before them is over; on a GPU they always may.
        num_graphs: sizes of steps that are replayed as CUDA graphs.
        no_graphs: why a GPU's steps are not replayed as graphs; None where they are, and on other devices.
    """

    runs_ahead = False

    def __init__(self, forward: Forward, loaded: LoadedModel, backend: AttentionBackend, config: EngineConfig) -> None:
        self.num_graphs = 0
        self.no_graphs: str | None = None

    @property
    def replays(self) -> bool:
        """Whether there are steps that it replays."""
        return False

    @staticmethod
    def prepare(model: PreTrainedModel, config: EngineConfig) -> None:
        """Change a model that was just loaded, so that it computes the same faster: lay out weights, fuse operations."""

    @staticmethod
    def argmax(logits: torch.Tensor) -> torch.Tensor:
        """As ``sampler.likeliest``."""
        return likeliest(logits)

    def run(self, host: HostBatch, drawn: Drawn | None) -> tuple[torch.Tensor, bool] | None:
        """Compute a step, as a replay where one fits.

        Args:
            drawn: what the step before drew, still on the device, for the batch's placeholders.

        Returns the logits of ``host.logits_rows`` in the model's dtype, until the next step, and whether a replay gave
        them; None for a step that the model is to compute as it is.
        """
        return None


_accelerators: dict[str, type[Accelerator]] = {}


def register_accelerator(device_type: str, accelerator: type[Accelerator]) -> None:
    """Have models on this type of device (``"cpu"``, ``"cuda"``) use it, from the next one that is loaded."""
    _accelerators[device_type] = accelerator


def accelerator_for(device: torch.device) -> type[Accelerator]:
    return _accelerators.get(device.type, Accelerator)
