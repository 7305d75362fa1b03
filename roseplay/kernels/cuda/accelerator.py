"""Speeds up steps on a GPU, apart from attention: fused operations, and steps as CUDA graphs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from roseplay.config import EngineConfig
from roseplay.core.info import Choice
from roseplay.core.progress import Reporter
from roseplay.kernels.cuda import fuse
from roseplay.kernels.cuda.attention.backend import TritonBackend, available, missing
from roseplay.kernels.cuda.compile_ahead import CompileAhead
from roseplay.kernels.cuda.graphs import Graph, StepGraphs, cuda_graphs, expected_bytes, make_buckets
from roseplay.kernels.replace_modules import replace_gelus
from roseplay.model import gpu_memory
from roseplay.model.accelerator import Accelerator, Computed, Forward, Parts, no_quantization, register_accelerator
from roseplay.model.batch import Drawn, HostBatch
from roseplay.model.drawing import Drawing
from roseplay.model.gpu_memory import Profile
from roseplay.model.loaded_model import LoadedModel
from roseplay.model.padding import dummy_batch
from roseplay.model.stateful import stateful_modules

logger = logging.getLogger(__name__)

_WARM_UP_TILE = 128  # tokens of a prompt that is computed with the largest tiles


class CudaAccelerator(Accelerator):
    """Fused operations and CUDA graphs for models on a GPU.

    Attributes:
        buckets: sizes of the graphs; a subclass may set others.
        graphs: the captured graphs; None if the model is split over processes, which a graph of one cannot replay.
        graph_bytes: bytes of the GPU's memory that graphs take.
    """

    runs_ahead = True
    buckets = make_buckets()

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        forward, loaded, backend, config, reporter, states = parts
        self._attention, self._fuse_ops = backend.name, config.fuse_ops
        self._stateful = [forward for _, forward in stateful_modules(loaded.model)]
        self._no_triton = None
        on_gpu = loaded.device.type == "cuda"
        why = missing(loaded.device) if on_gpu else None
        if why is not None and config.attention == "auto":
            self._no_triton = f"Attention gathers KV blocks first, since its Triton kernel {why}"
            logger.warning("%s", self._no_triton)
        self.graph_bytes = 0
        if isinstance(backend, TritonBackend):
            split = config.tensor_parallel_size > 1
            _compile_attention(forward, loaded, config.block_size, reporter, split=split)
        if on_gpu and why is None:
            from roseplay.kernels.cuda import sampling

            sampling.warm_up(loaded.vocab_size, (loaded.dtype, torch.float32), loaded.device)
        self.graphs: StepGraphs | None = None
        if config.tensor_parallel_size > 1:
            self.no_graphs = "tensor parallel steps are not captured"
            return
        free = _free_bytes(loaded.device)
        self.graphs = StepGraphs(
            forward,
            table_columns=_table_columns(loaded, config),
            block_size=config.block_size,
            vocab_size=loaded.vocab_size,
            dtype=loaded.dtype,
            device=loaded.device,
            new_graph=self.graph_factory(loaded.device),
            buckets=self.buckets,
            states=states,
        )
        self.graphs.capture(reporter)
        self.num_graphs, self.no_graphs = len(self.graphs), self.graphs.refused
        self.graph_bytes = free - _free_bytes(loaded.device)

    @classmethod
    def reserved_bytes(cls, loaded: LoadedModel, attention: str, config: EngineConfig, profile: Profile) -> int:
        if config.tensor_parallel_size > 1 or attention == "gather":  # neither can be captured
            return 0
        return expected_bytes(
            [bucket for bucket in cls.buckets if bucket.decodes_only or not loaded.state_shapes],
            table_columns=_table_columns(loaded, config),
            block_size=config.block_size,
            row_bytes=loaded.vocab_size * loaded.dtype.itemsize,
            layers=len(loaded.kv_shapes) + len(loaded.state_shapes),
            profile=profile,
        )

    @staticmethod
    def graph_factory(device: torch.device) -> Callable[[], Graph]:
        """Returns a function that makes empty graphs."""
        return cuda_graphs(device)

    def choices(self) -> tuple[Choice, ...]:
        fused = "norms, activations, rotary"
        return (
            Choice("attention", self._attention, slow=self._no_triton),
            Choice(fused, "one pass each") if self._fuse_ops else Choice(fused, "torch", "fuse_ops is off"),
            *self._state_prompts(),
            self._steps(),
        )

    def _state_prompts(self) -> list[Choice]:
        """Returns an empty list for a model without recurrent layers."""
        part, by_model, layers = "prompts of recurrent layers", "the model's code", self._stateful
        if not layers:
            return []
        if not self._fuse_ops:
            return [Choice(part, by_model, "fuse_ops is off")]
        others = [layer for layer in layers if layer.packed is None]
        if not others:
            return [Choice(part, "a few launches for all rows of a step")]
        why = next((layer.refused["packed"] for layer in others if layer.refused), "their functions have no kernels")
        return [
            Choice(
                part, by_model, slow=f"{len(others)} of {len(layers)} layers launch their prompts' operations: {why}"
            )
        ]

    def _steps(self) -> Choice:
        part, one_by_one = "steps", "launched one by one"
        if self.graphs is None:
            return Choice(part, one_by_one, self.no_graphs or "")
        if self.no_graphs is not None:
            refused = f"Steps are not replayed as CUDA graphs: {Choice.brief(self.no_graphs)}"
            return Choice(part, one_by_one, slow=refused)
        why, kind, slow = f"they take {self.graph_bytes / 2**20:,.0f} MiB" if self.graph_bytes > 0 else "", "", None
        if self.graphs.decodes_only:
            why, kind = "the prompts of a model with recurrent layers are not replayed", "decodes of "
        if self.graphs.too_large:
            sizes = [bucket.tokens for bucket in self.graphs.too_large]
            slow = (
                f"There is no memory for the CUDA graphs of {len(sizes)} sizes of {min(sizes)} tokens and more:"
                " set gpu_memory_utilization, num_blocks or kv_cache_memory lower"
            )
        return Choice(part, f"CUDA graphs of {kind}{self.num_graphs} sizes", why, slow)

    @property
    def replays(self) -> bool:
        return self.graphs is not None

    @staticmethod
    def prepare(model: PreTrainedModel, config: EngineConfig, reporter: Reporter) -> int:
        no_quantization(config)
        replace_gelus(model)
        if config.fuse_ops:
            fuse.fuse(model)
        return 0

    @staticmethod
    def sample(logits: torch.Tensor, requests: Sequence[Drawing]) -> torch.Tensor | None:
        if not available():
            return None
        from roseplay.kernels.cuda import sampling

        return sampling.sample(logits, requests) if sampling.fits(logits) else None

    def run(self, host: HostBatch, drawn: Drawn | None) -> Computed | None:
        bucket = None if self.graphs is None else self.graphs.find(host)
        if self.graphs is None or bucket is None:
            return None
        return Computed(self.graphs.replay(bucket, host, drawn), replayed=True)


def _table_columns(loaded: LoadedModel, config: EngineConfig) -> int:
    """Returns the number of blocks of the longest request."""
    return -(-loaded.max_model_len // config.block_size)


def _free_bytes(device: torch.device) -> int:
    """Returns the free bytes of a GPU, whose memory in torch's cache counts as free and is returned; 0 on other devices."""
    return gpu_memory.free_bytes(device)[0] if device.type == "cuda" else 0


def _compile_attention(
    forward: Forward, loaded: LoadedModel, block_size: int, reporter: Reporter, *, split: bool
) -> None:
    """Run steps with every variant of the attention kernels, so that no request has to wait for a compilation.

    On a GPU, steps run without the missing kernels first, and these are compiled at once. Not for a split model, whose other
    processes would compile one after another meanwhile.
    """
    limit = loaded.max_model_len
    sizes = sorted({1, min(2, limit), min(_WARM_UP_TILE, limit)})
    reporter.expect(len(sizes))

    def run(num_tokens: int) -> None:
        forward(dummy_batch(num_tokens, row_tokens=limit, block_size=block_size).upload(loaded.device))

    if loaded.device.type == "cuda" and not split:
        ahead = CompileAhead()
        with ahead.collecting():
            for num_tokens in sizes:
                run(num_tokens)
        ahead.compile(loaded.device)
    for num_tokens in sizes:
        run(num_tokens)
        reporter.advance()
    if loaded.device.type == "cuda":
        torch.cuda.synchronize(loaded.device)


register_accelerator("cuda", CudaAccelerator)
