"""Speeds up steps on a CPU, apart from attention: packed weights, fused operations, recorded steps."""

from __future__ import annotations

import logging

import torch
from transformers import PreTrainedModel

from roseplay.config import EngineConfig
from roseplay.core.info import Choice
from roseplay.core.progress import Reporter
from roseplay.kernels.cpu.attention.backend import CPUBackend
from roseplay.kernels.cpu.choices import NO_NUMBA, choices_of, no_kernels
from roseplay.kernels.cpu.pack import can_pack, pack_linears, saved_bytes
from roseplay.kernels.cpu.products import block_kinds, block_products, choose
from roseplay.kernels.cpu.recorded_steps import WARM_UP_LEN, RecordedSteps, RecordingOptions
from roseplay.kernels.merge import SharedInputs
from roseplay.kernels.replace_modules import replace_gelus
from roseplay.model.accelerator import Accelerator, Computed, Parts, register_accelerator
from roseplay.model.batch import Drawn, HostBatch
from roseplay.model.errors import UnsupportedModelError
from roseplay.model.layout import record_layout
from roseplay.model.sampler import likeliest

try:
    from roseplay.kernels.cpu import argmax, features, fuse
except ImportError:  # Numba is an extra
    argmax = features = fuse = None  # type: ignore[assignment]


_KINDS = {"q4": "Q4_1", "q8": "Q8_0"}  # of the blocks of each quantization
logger = logging.getLogger(__name__)


class CPUAccelerator(Accelerator):
    """Packed weights, fused operations and recorded steps for models on a CPU.

    Attributes:
        recording: options for when steps are recorded and replayed; a subclass may set others.
        choose_products: chooses how linear layers are multiplied; a subclass may choose in another way.
        recorded: the recorded steps; None if blocks are not read in place, ``record_steps`` is off, or the model is
            split over processes.
    """

    recording = RecordingOptions()
    choose_products = staticmethod(choose)

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        forward, loaded, backend, config, reporter, states = parts
        self.recorded: RecordedSteps | None = None
        self._model, self._backend, self._config = loaded.model, backend, config
        missing = no_kernels(loaded.dtype)
        if missing is not None:
            logger.warning("%s", missing)
        records = config.record_steps and config.tensor_parallel_size == 1  # exchanges of processes are not recorded
        if records and isinstance(backend, CPUBackend) and backend.in_place:
            self.recorded = RecordedSteps(forward, loaded.max_model_len, config.block_size, self.recording, states)
            if config.block_size >= WARM_UP_LEN and loaded.max_model_len >= WARM_UP_LEN:
                self.recorded.warm_up(reporter)

    def choices(self) -> tuple[Choice, ...]:
        return choices_of(self._model, self._backend, self._config, self.recorded)

    @property
    def replays(self) -> bool:
        return self.recorded is not None and self.recorded.refused is None

    @classmethod
    def prepare(cls, model: PreTrainedModel, config: EngineConfig, reporter: Reporter) -> int:
        kind, saved = _KINDS.get(config.quantization), 0
        packs = config.pack_weights and can_pack(model.device, model.dtype)
        if kind is not None and not (packs and block_products(model.dtype)):
            why = f"quantization {config.quantization} does not compute {model.dtype} on this machine"
            raise UnsupportedModelError(f"{why}: {NO_NUMBA if fuse is None else 'set dtype to float32'}")
        replace_gelus(model)
        if packs:
            with SharedInputs(model) as inputs:
                record_layout(model)
            pack_linears(model, inputs.groups, reporter, kind=kind, plain=inputs.bypassed, choose=cls.choose_products)
            saved = saved_bytes(model)
        if config.fuse_ops and fuse is not None:
            fuse.fuse(model, reporter)
        return saved

    @staticmethod
    def block_kinds(config: EngineConfig) -> frozenset[str]:
        packs = config.pack_weights and can_pack(torch.device("cpu"), torch.float32)
        return block_kinds() if packs else frozenset()

    @staticmethod
    def multiplies_bfloat16() -> bool:
        return (
            Accelerator.multiplies_bfloat16() if features is None else features.has("avx512bf16") or features.has_amx()
        )

    @staticmethod
    def argmax(logits: torch.Tensor) -> torch.Tensor:
        return argmax.argmax(logits) if argmax is not None and argmax.can_argmax(logits) else likeliest(logits)

    def run(self, host: HostBatch, drawn: Drawn | None) -> Computed | None:
        return self.recorded.run(host) if self.recorded is not None else None


register_accelerator("cpu", CPUAccelerator)
