"""How kernels make a model's steps faster: an ``Accelerator``, registered for a type of device.

This and ``AttentionBackend`` are the only interfaces between the model and kernels. Without kernels the model computes the
same tokens, more slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from roseplay.config import EngineConfig
from roseplay.core.info import Choice
from roseplay.core.progress import Reporter
from roseplay.model.attention.interface import AttentionBackend
from roseplay.model.batch import Drawn, HostBatch, PagedBatch
from roseplay.model.drawing import Drawing
from roseplay.model.errors import UnsupportedModelError
from roseplay.model.gpu_memory import Profile
from roseplay.model.loaded_model import LoadedModel
from roseplay.model.sampler import likeliest
from roseplay.model.states import StatePool

Forward = Callable[[PagedBatch], torch.Tensor]


class Computed(NamedTuple):
    """A step's logits; the tensors are valid until the next step."""

    logits: torch.Tensor  # of ``HostBatch.logits_rows``, ``[wanted, vocabulary]``, in the model's dtype
    replayed: bool | None  # whether a replay computed them; None if there are no replays
    # Each row's likeliest token, see ``sampler.likeliest``, if it was computed with the logits.
    argmax: torch.Tensor | None = None


class Parts(NamedTuple):
    """What an accelerator works with."""

    forward: Forward  # computes a batch's logits, ``[wanted, vocabulary]``, by running the model
    loaded: LoadedModel  # the model, after ``prepare``
    backend: AttentionBackend  # its attention
    config: EngineConfig
    # Receives the progress of the stage "kernels", which has begun, and of "warm-up", which begins here.
    reporter: Reporter
    # The recurrent states that ``forward`` reads and writes; None for a model that keeps none.
    states: StatePool | None = None


class Accelerator:
    """Computes the steps of one model runner. This base class leaves every step to the model.

    Attributes:
        runs_ahead: whether a step may be launched before the previous one has ended; on a GPU it always may.
        num_graphs: the number of step sizes that are replayed as CUDA graphs.
        no_graphs: why a GPU's steps are not replayed as graphs; None where they are, and on other devices.
    """

    runs_ahead = False

    def __init__(self, parts: Parts) -> None:
        self.num_graphs = 0
        self.no_graphs: str | None = None

    @classmethod
    def reserved_bytes(cls, loaded: LoadedModel, attention: str, config: EngineConfig, profile: Profile) -> int:
        """Returns the bytes of a GPU's memory that this will take, beside those of the largest step."""
        return 0

    def choices(self) -> tuple[Choice, ...]:
        """Returns how the parts of a step are computed on this machine."""
        return ()

    @property
    def replays(self) -> bool:
        """Whether some steps are replayed."""
        return False

    @staticmethod
    def prepare(model: PreTrainedModel, config: EngineConfig, reporter: Reporter) -> int:
        """Make a model that was just loaded faster: lay out its weights, fuse operations.

        Progress is counted in the stage "kernels". Returns how many bytes a step reads less because weights were
        quantized. Raises ``UnsupportedModelError`` for a setting that the device does not support.
        """
        no_quantization(config)
        return 0

    @staticmethod
    def block_kinds(config: EngineConfig) -> frozenset[str]:
        """Returns the types of quantized blocks, by ggml's names, that ``prepare`` takes as weights (``BlockTensor``)."""
        return frozenset()

    @staticmethod
    def multiplies_bfloat16() -> bool:
        """Returns whether the CPU has bfloat16 instructions (AVX512-BF16 or AMX), without which float32 is faster."""
        checks = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
        return any(check() for check in checks if check is not None)

    @staticmethod
    def argmax(logits: torch.Tensor) -> torch.Tensor:
        """Returns each row's likeliest token, see ``sampler.likeliest``."""
        return likeliest(logits)

    @staticmethod
    def sample(logits: torch.Tensor, requests: Sequence[Drawing]) -> torch.Tensor | None:
        """Draw a token for each row, see ``sampler.SamplingKernels``."""
        return None

    def run(self, host: HostBatch, drawn: Drawn | None) -> Computed | None:
        """Compute a step, by a replay if one fits; returns None if the model is to compute it.

        Args:
            drawn: tokens drawn by the previous step, still on the device, for the batch's placeholders.
        """
        return None


def no_quantization(config: EngineConfig) -> None:
    """Raises ``UnsupportedModelError`` if the config asks for quantized weights."""
    if config.quantization != "none":
        raise UnsupportedModelError(f"quantization {config.quantization} needs a CPU: set device to cpu")


_accelerators: dict[str, type[Accelerator]] = {}


def register_accelerator(device_type: str, accelerator: type[Accelerator]) -> None:
    """Use ``accelerator`` for models that are loaded from now on to this type of device (``"cpu"``, ``"cuda"``)."""
    _accelerators[device_type] = accelerator


def accelerator_for(device: torch.device) -> type[Accelerator]:
    """Returns the accelerator registered for a device, else the base class."""
    return _accelerators.get(device.type, Accelerator)
