"""The model runner: executes one step. Copies blocks, packs the batch, runs the model, draws the tokens."""

from __future__ import annotations

import time

import torch

from roseplay.config import EngineConfig
from roseplay.core.info import EngineInfo
from roseplay.core.step import Step, StepResult
from roseplay.model.attention import Paged, make_backend
from roseplay.model.batch import PagedBatch, build_batch
from roseplay.model.forward import PackedForward
from roseplay.model.kv_cache import KVCache, bytes_per_token, choose_num_blocks
from roseplay.model.layout import null_batch
from roseplay.model.loader import LoadedModel
from roseplay.model.sampler import sample, token_logprobs


class ModelRunner:
    """Owns the model, the KV cache and the saved logits; answers each ``Step`` with a ``StepResult``.

    A step that does not fit together raises ``ValueError`` before anything is computed. A step that raises later may
    have written its own tokens' keys and values, and nothing else.

    Args:
        loaded: the model; several runners may share one.
        config: sizes the KV pool (see ``choose_num_blocks``), sets torch's threads, names the attention backend.

    Attributes:
        num_blocks: block 0 included. block_size: tokens. logits_bytes: of one saved row of logits.
    """

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.loaded = loaded
        self.block_size = config.block_size
        self.num_blocks = choose_num_blocks(config, loaded.kv_shapes, loaded.dtype, loaded.device, loaded.max_model_len)
        self.logits_bytes = 4 * loaded.vocab_size
        self.cache = KVCache(
            loaded.kv_shapes,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            dtype=loaded.dtype,
            device=loaded.device,
        )
        self.backend = make_backend("cpu" if config.attention == "auto" else config.attention, self.cache)
        self._forward = PackedForward(loaded.model)
        self._saved_logits: dict[int, torch.Tensor] = {}
        self._warm_up()

    def info(self) -> EngineInfo:
        loaded = self.loaded
        return EngineInfo(
            model=loaded.name,
            architecture=type(loaded.model).__name__,
            device=str(loaded.device),
            dtype=str(loaded.dtype).removeprefix("torch."),
            attention=self.backend.name,
            num_parameters=loaded.num_parameters,
            weight_bytes=loaded.weight_bytes,
            vocab_size=loaded.vocab_size,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            max_model_len=loaded.max_model_len,
            kv_bytes_per_token=bytes_per_token(loaded.kv_shapes, loaded.dtype),
            threads=torch.get_num_threads(),
        )

    def clear(self) -> None:
        """Forget all saved logits."""
        self._saved_logits.clear()

    @torch.inference_mode()
    def execute(self, step: Step) -> StepResult:
        """Run one step. Raises ``ValueError`` when it does not fit together, and whatever the model raises."""
        begin = time.perf_counter_ns()
        for key in step.dropped_logits:
            self._saved_logits.pop(key, None)
        wanted = self._wanted(step)
        batch = build_batch(
            step,
            wanted,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            vocab_size=self.loaded.num_embeddings,
            device=self.loaded.device,
        )
        self.cache.copy_blocks(step.copies)
        prepared = time.perf_counter_ns()
        logits = self._run(batch)
        computed = time.perf_counter_ns()
        result = self._finish(step, wanted, logits)
        result.prepare_ns = prepared - begin
        result.forward_ns = result.device_ns = computed - prepared
        result.sample_ns = time.perf_counter_ns() - computed
        return result

    def _wanted(self, step: Step) -> list[int]:
        """Entries whose last token's logits are needed: to draw from, or to save. Raises ``ValueError``."""
        wanted: dict[int, None] = {}
        for i, entry in enumerate(step.entries):
            if entry.save_logits_key is not None:
                wanted[i] = None
            if not entry.samples:
                continue
            if (entry.logits_entry is None) == (entry.logits_key is None):
                raise ValueError(f"{entry.request} samples, from exactly one of an entry and saved logits")
            if entry.logits_entry is not None:
                wanted[entry.logits_entry] = None
            elif entry.logits_key not in self._saved_logits:
                raise ValueError(f"{entry.request} samples from saved logits {entry.logits_key}, which are not there")
        for i in wanted:
            if not 0 <= i < len(step.entries) or not step.entries[i].num_tokens:
                raise ValueError(f"logits are wanted of entry {i} of step {step.step_id}, which computes no token")
        return list(wanted)

    def _run(self, batch: PagedBatch | None) -> torch.Tensor:
        """float32 logits, a row for each wanted entry."""
        if batch is None:
            return torch.empty((0, self.loaded.vocab_size), device=self.loaded.device)
        return self._forward(Paged(self.backend, batch)).float()

    def _finish(self, step: Step, wanted: list[int], logits: torch.Tensor) -> StepResult:
        row_of = {entry: row for row, entry in enumerate(wanted)}
        for i, entry in enumerate(step.entries):
            if entry.save_logits_key is not None:
                self._saved_logits[entry.save_logits_key] = logits[row_of[i]].clone()

        result = StepResult([None] * len(step.entries), [None] * len(step.entries))
        sampling = [i for i, entry in enumerate(step.entries) if entry.samples]
        if not sampling:
            return result
        logits = self._gather_logits(step, sampling, row_of, logits)
        requests = [step.entries[i].request for i in sampling]
        tokens = sample(logits, requests)
        for i, token, logprobs in zip(sampling, tokens, token_logprobs(logits, requests, tokens), strict=True):
            result.token_ids[i] = token
            result.logprobs[i] = logprobs
        return result

    def _gather_logits(
        self, step: Step, sampling: list[int], row_of: dict[int, int], logits: torch.Tensor
    ) -> torch.Tensor:
        """The logits that each sampling entry draws from, in entry order."""
        saved: list[torch.Tensor] = []
        rows: list[int] = []
        for i in sampling:
            entry = step.entries[i]
            if entry.logits_entry is not None:
                rows.append(row_of[entry.logits_entry])
            else:
                assert entry.logits_key is not None  # _wanted has looked
                rows.append(logits.shape[0] + len(saved))
                saved.append(self._saved_logits[entry.logits_key])
        if rows == list(range(logits.shape[0])):
            return logits
        source = torch.cat([logits, torch.stack(saved)]) if saved else logits
        return source[torch.tensor(rows, device=source.device)]

    @torch.inference_mode()
    def _warm_up(self) -> None:
        """Run the model on a prompt and a decode of block 0, which no request owns."""
        for num_tokens in {1, min(self.block_size, self.loaded.max_model_len)}:
            self._run(null_batch(num_tokens, self.loaded.device))
