"""The model runner executes a step: it copies blocks, packs the batch, runs the model and draws the tokens.

``launch`` enqueues all work of a step on a GPU without waiting, so that the next step can be launched while it runs; the
drawn tokens stay on the device for that step (``Drawn``). ``execute`` launches and waits.
"""

from __future__ import annotations

import contextlib
import gc
import time

import numpy as np
import torch

from roseplay.config import EngineConfig
from roseplay.core.info import EngineInfo, FreeMemory
from roseplay.core.progress import Reporter
from roseplay.core.step import DeviceLostError, Step, StepResult
from roseplay.host_memory import free_memory
from roseplay.model import exclusive, gpu_memory, speed
from roseplay.model.accelerator import Accelerator, Computed, Parts, accelerator_for
from roseplay.model.attention.interface import Paged, default_backend, make_backend
from roseplay.model.batch import HostBatch, PagedBatch, pack_step
from roseplay.model.device_errors import judge
from roseplay.model.forward import PackedForward
from roseplay.model.kv_cache import KVCache, bytes_per_token, cache_dtype, choose_host_blocks, choose_num_blocks
from roseplay.model.launch import DeviceTimer, LaunchedStep
from roseplay.model.loaded_model import LoadedModel
from roseplay.model.padding import dummy_batch
from roseplay.model.prompt_logprobs import PromptLogprobs, predicting_rows
from roseplay.model.sampler import Logprobs, draw
from roseplay.model.states import StatePool, bytes_per_slot, choose_state_slots, choose_state_snapshots
from roseplay.model.step_sampler import StepSampler


class ModelRunner:
    """Owns the model, the KV cache, the recurrent states and the saved logits; computes a ``StepResult`` for each ``Step``.

    An inconsistent step raises ``ValueError`` before anything is computed. A step that raises later may have written the
    keys and values of its own tokens, and nothing else.

    Args:
        loaded: the model; several runners may share it.
        config: sizes the KV pool (see ``choose_num_blocks``), sets torch's threads, names the attention backend.
        reporter: receives the progress of "kernels", a stage that loading the model began, and of "warm-up".

    Attributes:
        num_state_slots, num_state_snapshots: slots for requests' recurrent states, and for kept ones; 0 if there are
            none.
        num_host_blocks: blocks in host memory that preempted requests can be swapped to.
        num_blocks, block_size, logits_bytes: blocks including block 0, tokens per block, bytes of a saved row of
            logits.
        runs_ahead: whether a step may be launched before the previous one has ended.
        memory_limit: tokens of the largest step that fits a GPU's memory; None on other devices.
        times: predicts how long steps take.
    """

    def __init__(self, loaded: LoadedModel, config: EngineConfig, reporter: Reporter | None = None) -> None:
        with exclusive.loading:
            self._start(loaded, config, reporter or Reporter())

    def _start(self, loaded: LoadedModel, config: EngineConfig, reporter: Reporter) -> None:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.loaded = loaded
        self.block_size = config.block_size
        self.logits_bytes = 4 * loaded.vocab_size
        self._on_gpu = loaded.device.type == "cuda"
        if self._on_gpu:
            torch.cuda.set_device(loaded.device)  # for this thread: its events and streams are created there
        accelerator = accelerator_for(loaded.device)
        self.runs_ahead = self._on_gpu or accelerator.runs_ahead
        # Entered in each step, but made once: making them takes longer.
        self._inference_mode = torch.inference_mode()
        self._stepping = exclusive.stepping if self.runs_ahead else contextlib.nullcontext()
        self._forward = self._make_forward()
        self._sampler = StepSampler(self._release_memory, accelerator, mask_overlap=config.mask_overlap)
        self._kv_dtype = cache_dtype(config, loaded.dtype)
        token_bytes, has_states = self._kv_bytes_per_token(), bool(loaded.state_shapes)
        self.num_host_blocks = choose_host_blocks(config, token_bytes, has_states=has_states)
        attention = default_backend(loaded.device) if config.attention == "auto" else config.attention
        if self._on_gpu:
            profile = self._profile(attention, accelerator)
            reserved = profile.activation_bytes + accelerator.reserved_bytes(loaded, attention, config, profile)
            self.memory_limit: int | None = profile.tokens
            free = self._kv_cache_bytes(config.gpu_memory_utilization, reserved)
        else:
            self.memory_limit, free = None, free_memory()
        slot_bytes = bytes_per_slot(loaded.state_shapes)
        self.num_state_slots = choose_state_slots(config, slot_bytes, free_bytes=free, on_gpu=self._on_gpu)
        free -= (self.num_state_slots + 1) * slot_bytes
        self.num_state_snapshots = choose_state_snapshots(config, slot_bytes, free_bytes=free, on_gpu=self._on_gpu)
        free -= self.num_state_snapshots * slot_bytes
        self.states = self._make_states(self.num_state_slots, self.num_state_snapshots)
        limit = loaded.max_model_len
        self.num_blocks = choose_num_blocks(config, token_bytes, limit, free_bytes=free, on_gpu=self._on_gpu)
        self.cache = self._make_cache(self.num_blocks)
        self.backend = make_backend(attention, self.cache)
        self.times = speed.StepTimes(speed.even_context(loaded), loaded.max_model_len)
        self.accelerator = self._warm_up(accelerator, config, reporter)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids of tokens that end a request, unless it ignores them."""
        return self.loaded.eos_token_ids

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
            kv_bytes_per_token=self._kv_bytes_per_token(),
            threads=torch.get_num_threads(),
            cuda_graphs=self.accelerator.num_graphs,
            no_cuda_graphs=self.accelerator.no_graphs,
            max_step_tokens=self.max_step_tokens,
            choices=(*speed.too_slow(loaded.name, self.times.base_s), *loaded.choices, *self.accelerator.choices()),
            decode_s=self.times.base_s,
            prompt_token_s=self.times.token_s,
            sampling_defaults=loaded.sampling_defaults,
            state_slots=self.num_state_slots,
            state_snapshots=self.num_state_snapshots,
            state_bytes=bytes_per_slot(loaded.state_shapes),
            host_blocks=self.num_host_blocks,
            eos_token_ids=sorted(self.eos_token_ids),
        )

    @property
    def max_step_tokens(self) -> int | None:
        """Most tokens in a step: as many as a GPU has memory for, or as a CPU computes in about ``speed.STEP_S``."""
        return self.memory_limit if self._on_gpu else max(16, self.block_size, self.times.tokens_in(speed.STEP_S))

    @property
    def token_cost(self) -> float:
        """Time that a further token adds to a step, relative to a step of one token."""
        return self.times.token_cost

    def predict_s(self, step: Step) -> float:
        """Returns about how many seconds a step takes."""
        return self.times.predict_s(step)

    def free_memory(self) -> FreeMemory:
        """Returns the memory that is available now, on the host and on the GPU."""
        if not self._on_gpu:
            return FreeMemory(free_memory())
        return FreeMemory(free_memory(), *gpu_memory.free_bytes(self.loaded.device))

    def clear(self) -> None:
        """Delete all saved logits."""
        self._sampler.saved_logits.clear()

    def close(self) -> None:
        """Release the model and the KV pool; the runner cannot be used any more."""
        on_gpu = self._on_gpu
        self.__dict__.clear()  # breaks reference cycles
        if on_gpu:  # else the next engine in this process would find the memory in use
            gc.collect()
            gpu_memory.empty_cache()

    def execute(self, step: Step) -> StepResult:
        """Run one step. Raises ``ValueError`` if it is inconsistent, and whatever the model raises."""
        return self.launch(step).result()

    def launch(self, step: Step) -> LaunchedStep:
        """Enqueue a step on a GPU; on a CPU, run it. Raises the same errors as ``execute``.

        A placeholder among the step's tokens stands for the token that the previously launched step draws. Also raises
        ``StepTooLargeError`` if the device has no memory for the step, and ``DeviceLostError``.
        """
        try:
            with self._inference_mode, self._stepping:
                return self._launch(step)
        except Exception as error:
            failure = judge(error, self.loaded.device)
            if failure is error:
                raise
            if isinstance(failure, DeviceLostError):
                raise failure from error
        self._release_memory()  # here, where no frame of the step references its tensors
        raise failure

    def _release_memory(self) -> None:
        """Return memory that torch's allocator caches to the GPU."""
        if self._on_gpu:
            gpu_memory.empty_cache()

    def _launch(self, step: Step) -> LaunchedStep:
        begin = time.perf_counter_ns()
        for key in step.dropped_logits:
            self._sampler.saved_logits.pop(key, None)
        wanted = self._sampler.wanted(step)
        host = pack_step(
            step,
            wanted,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            vocab_size=self.loaded.num_embeddings,
            drawn=self._sampler.drawn,
        )
        if host is not None and self.states is not None:
            self.states.check(host.state_slots)
        num_wanted = 0 if host is None else len(host.logits_rows)
        if host is not None and step.prompt_logprobs:
            host.logits_rows = np.concatenate([host.logits_rows, predicting_rows(step, host.cu_seqlens_q)])
        timer = DeviceTimer(self.loaded.device)
        self.cache.swap(step.swapped_out, step.swapped_in)
        self.cache.copy_blocks(step.copies)
        if self.states is not None:
            self.states.copy(step.states_before)
        prepared = time.perf_counter_ns()
        masks = self._sampler.masks(step, pin=self._on_gpu)
        logits, replayed, argmax = self._compute(host, may_replay=not step.prompt_logprobs)
        if self.states is not None:
            self.states.copy(step.states_after)
        computed = time.perf_counter_ns()
        prompt_logprobs = None
        if step.prompt_logprobs:
            prompt_logprobs = PromptLogprobs(step, logits[num_wanted:])
            logits = logits[:num_wanted].clone()  # so that the rest can be freed
        draws = self._sampler.sample(step, wanted, logits, argmax, masks)
        timer.mark()
        return LaunchedStep(
            step,
            draws,
            timer,
            prepare_ns=prepared - begin,
            forward_ns=computed - prepared,
            sample_ns=time.perf_counter_ns() - computed,
            replayed=replayed,
            observe=self.times.observe,
            prompt_logprobs=prompt_logprobs,
            masks=masks,
        )

    def _compute(self, host: HostBatch | None, *, may_replay: bool) -> Computed:
        """Run the model, or replay the step; without a batch there are no logits."""
        if host is None:
            empty = torch.empty((0, self.loaded.vocab_size), dtype=self.loaded.dtype, device=self.loaded.device)
            return Computed(empty, replayed=None)
        computed = self.accelerator.run(host, self._sampler.drawn) if may_replay else None
        if computed is None:
            logits = self._run(host.upload(self.loaded.device, self._sampler.drawn))
            computed = Computed(logits, replayed=False if self.accelerator.replays else None)
        return computed

    def _run(self, batch: PagedBatch) -> torch.Tensor:
        return self._forward(Paged(self.backend, batch, self.states))

    # -- before the first step; subclasses extend these to other ranks

    def _make_forward(self) -> PackedForward:
        return PackedForward(self.loaded.model)

    def _make_cache(self, num_blocks: int) -> KVCache:
        loaded, sizes = self.loaded, {"num_blocks": num_blocks, "num_host_blocks": self.num_host_blocks}
        sizes["block_size"] = self.block_size
        return KVCache(loaded.kv_shapes, **sizes, dtype=self._kv_dtype, device=loaded.device)

    def _make_states(self, num_slots: int, num_snapshots: int = 0) -> StatePool | None:
        shapes = self.loaded.state_shapes
        return StatePool(shapes, num_slots + 1, self.loaded.device, num_snapshots) if shapes else None

    def _kv_bytes_per_token(self) -> int:
        return bytes_per_token(self.loaded.kv_shapes, self._kv_dtype)

    def _kv_cache_bytes(self, utilization: float, activation_bytes: int) -> int:
        return gpu_memory.kv_cache_bytes(utilization, activation_bytes, self.loaded.device)

    @torch.inference_mode()
    def _profile(self, attention: str, accelerator: type[Accelerator]) -> gpu_memory.Profile:
        """Measure the memory that the largest step needs, on a minimal KV cache."""
        backend, states = make_backend(attention, self._make_cache(2)), self._make_states(0)
        limit, device = self.loaded.max_model_len, self.loaded.device

        def run(num_tokens: int) -> None:
            most = min(gpu_memory.STEP_LOGITS, num_tokens)
            host = dummy_batch(num_tokens, row_tokens=limit, block_size=self.block_size, num_logits=most)
            logits = self._forward(Paged(backend, host.upload(device), states))
            requests = gpu_memory.greediest_requests(logits.shape[0])
            rows = torch.cat([logits.float(), logits.float()[:1]])[:-1].clone()  # the copies that saved logits cause
            Logprobs(rows, requests, draw(rows, requests, wait=False, kernels=accelerator))

        return gpu_memory.profile(run, gpu_memory.STEP_TOKENS, device)

    @torch.inference_mode()
    def _warm_up(self, accelerator: type[Accelerator], config: EngineConfig, reporter: Reporter) -> Accelerator:
        """Run a decode and two prompts, so that no request has to wait for one-off setup; then measure steps."""
        limit = self.loaded.max_model_len

        def run(num_tokens: int) -> None:
            host = dummy_batch(num_tokens, row_tokens=limit, block_size=self.block_size)
            accelerator.argmax(self._run(host.upload(self.loaded.device)))
            speed.wait_for(self.loaded.device)

        took = {}
        for num_tokens in sorted({min(size, limit) for size in speed.FIRST_SIZES}):
            begin = time.perf_counter()
            run(num_tokens)
            took[num_tokens] = time.perf_counter() - begin
            reporter.advance()
        started = accelerator(Parts(self._run, self.loaded, self.backend, config, reporter, self.states))
        if reporter.stage != "warm-up":  # nothing is replayed here
            reporter.begin("warm-up")
        self.times.measure(run, took)
        reporter.end()
        return started
