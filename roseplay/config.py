"""What can be set: EngineConfig (fixed at start), Knobs (change while running), SamplingParams (per request).

All three check their values when they are made and raise ``ValueError`` with what to do instead, so that
nothing further in has to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
ADMISSIONS = ("queued", "blocking")
WORKERS = ("thread", "process")
ATTENTIONS = ("auto", "cpu", "gather", "triton", "reference")

MAX_BATCH_SIZE = 4096
# Every stop string is searched for after every token, in the one thread that serves all streams.
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What an engine is made of; fixed from its start to its end.

    Attributes:
        device: ``auto`` takes a GPU if there is one.
        dtype: of weights and KV cache; ``auto`` is the checkpoint's own; on a CPU without instructions
            for bfloat16 (AVX512-BF16, AMX), and for float16 on any, float32.
        block_size: tokens a KV block holds.
        num_blocks: KV blocks, block 0 included (it is never handed out); exclusive with ``kv_cache_memory``.
        kv_cache_memory: bytes for keys and values; ``None`` for both sizes the pool by itself.
        gpu_memory_utilization: share of a GPU's memory that weights, activations and KV pool may take, with whatever else
            is on it; a pool that sizes itself stays within it.
        max_model_len: longest prompt plus answer, in tokens; ``None`` is the model's own limit.
        max_waiting: requests that may wait for admission before ``submit`` refuses more.
        threads: torch's intra-op threads; ``None`` leaves torch's choice.
        seed: of requests that bring none, and of random weights.
        random_weights: build the model from its config alone, with random weights.
        attention: how keys and values are read: ``cpu`` in place where the compiled kernel is there, ``gather`` copies
            them together first, ``triton`` is for CUDA devices, ``reference`` is slow and plain; ``auto`` takes the best.
        pack_weights: lay weights out once in the order that the CPU's matrix kernels read them (oneDNN), and compute
            layers of one input as one product; CPU only.
        fuse_ops: norms, rotary embeddings, GELUs and gates in one compiled pass each (with Numba), on a GPU norms and rotary
            embeddings in one kernel each, where that is proven to be the same.
        replay_steps: on a CPU, steps of decodes and short prompts are recorded once for some numbers of tokens and replayed
            in one call of all threads, where that is proven to give the same (with Numba). A GPU has CUDA graphs for it.
        trust_remote_code: run Python code that comes with a checkpoint. Off, such a model is refused.
        worker: whether the engine's loop runs in a thread or in a spawned process.
        step_timeout_s: a worker that is silent for longer is taken for frozen; a step that is predicted to take long has
            ten times its predicted time.
        telemetry_steps: step records kept in the ring buffer.
    """

    device: str = "auto"
    dtype: str = "auto"
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_memory: int | None = None
    gpu_memory_utilization: float = 0.9
    max_model_len: int | None = None
    max_waiting: int = 4096
    threads: int | None = None
    seed: int = 0
    random_weights: bool = False
    attention: str = "auto"
    pack_weights: bool = True
    fuse_ops: bool = True
    replay_steps: bool = True
    trust_remote_code: bool = False
    worker: str = "thread"
    step_timeout_s: float = 120.0
    telemetry_steps: int = 8192

    def __post_init__(self) -> None:
        _require(
            self.device in DEVICES or self.device.startswith("cuda:"),
            f"device is {self.device!r}: use one of {DEVICES}",
        )
        _require(self.dtype in DTYPES, f"dtype is {self.dtype!r}: use one of {DTYPES}")
        _require(self.attention in ATTENTIONS, f"attention is {self.attention!r}: use one of {ATTENTIONS}")
        _require(self.worker in WORKERS, f"worker is {self.worker!r}: use one of {WORKERS}")
        for name, least in (("block_size", 1), ("max_waiting", 1), ("telemetry_steps", 1)):
            value = getattr(self, name)
            _require(_is_int(value) and value >= least, f"{name} is {value!r}: use an integer of at least {least}")
        for name, least in (("num_blocks", 2), ("kv_cache_memory", 1), ("max_model_len", 1), ("threads", 1)):
            value = getattr(self, name)
            _require(
                value is None or (_is_int(value) and value >= least),
                f"{name} is {value!r}: use an integer of at least {least}, or leave it out",
            )
        _require(
            self.num_blocks is None or self.kv_cache_memory is None, "give num_blocks or kv_cache_memory, not both"
        )
        _require(
            _is_number(self.gpu_memory_utilization) and 0 < self.gpu_memory_utilization <= 1,
            f"gpu_memory_utilization is {self.gpu_memory_utilization!r}: use a share above 0, at most 1",
        )
        _require(
            _is_number(self.step_timeout_s) and self.step_timeout_s > 0,
            f"step_timeout_s is {self.step_timeout_s!r}: use seconds above 0",
        )
        _require(_is_int(self.seed), f"seed is {self.seed!r}: use an integer")


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """What may change while the engine runs; a change acts on the next step. ``None`` is unlimited.

    Attributes:
        max_batch_size: requests running at once (vLLM: ``max_num_seqs``); lowering it drains.
        prefill_max_tokens: prompt tokens computed a step; cached and shared ones cost nothing, decodes do not count.
        prefill_max_batch_size: requests whose prompts are computed in one step.
        step_max_tokens: prompt and decode tokens of a step together, decodes first (vLLM: ``max_num_batched_tokens``).
        chunked_prefill: a prompt over the budget is computed in parts. Off: whole, as the step's only prompt.
        prefix_cache: look prompts up in earlier steps' blocks. Off: no look-ups, no inserts across steps.
        same_step_sharing: requests of one step share what one of them computes. Off: each computes its own.
        batched_append: one KV write a layer a step. Off: one a request and layer.
        admission: ``queued``: submit only enqueues. ``blocking``: submit returns when its prefill is done, one at a time.
        cuda_graphs: a step is replayed as a graph of its padded size, where there is one. CUDA only.
        overlap: the next step is scheduled and launched before this one's tokens have reached the host. CUDA only.
        slow_motion: a step is stretched to this many times its own duration, to watch a fast model.
    """

    max_batch_size: int = 32
    prefill_max_tokens: int | None = None
    prefill_max_batch_size: int | None = None
    step_max_tokens: int | None = None
    chunked_prefill: bool = True
    prefix_cache: bool = True
    same_step_sharing: bool = True
    batched_append: bool = True
    admission: Literal["queued", "blocking"] = "queued"
    cuda_graphs: bool = True
    overlap: bool = True
    slow_motion: float = 1.0

    def __post_init__(self) -> None:
        _require(
            _is_int(self.max_batch_size) and 1 <= self.max_batch_size <= MAX_BATCH_SIZE,
            f"max_batch_size is {self.max_batch_size!r}: use an integer from 1 to {MAX_BATCH_SIZE}",
        )
        for name in ("prefill_max_tokens", "prefill_max_batch_size", "step_max_tokens"):
            value = getattr(self, name)
            _require(
                value is None or (_is_int(value) and value >= 1),
                f"{name} is {value!r}: use an integer of at least 1, or null for unlimited",
            )
        for name in (
            "chunked_prefill",
            "prefix_cache",
            "same_step_sharing",
            "batched_append",
            "cuda_graphs",
            "overlap",
        ):
            _require(isinstance(getattr(self, name), bool), f"{name} is {getattr(self, name)!r}: use true or false")
        _require(self.admission in ADMISSIONS, f"admission is {self.admission!r}: use one of {ADMISSIONS}")
        _require(
            _is_number(self.slow_motion) and 1 <= self.slow_motion <= 1000,
            f"slow_motion is {self.slow_motion!r}: use a number from 1 (off) to 1000",
        )

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """A copy with ``changes`` applied; raises ``ValueError`` for an unknown name or a bad value."""
        unknown = sorted(set(changes) - {field.name for field in dataclasses.fields(self)})
        _require(
            not unknown,
            f"unknown knob {', '.join(unknown)}: the knobs are {', '.join(f.name for f in dataclasses.fields(self))}",
        )
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request's tokens are chosen and when it ends.

    Attributes:
        max_new_tokens: most tokens to generate.
        temperature: 0 is greedy.
        top_k: keep the k likeliest tokens; ``None`` or a number past the vocabulary keeps all.
        top_p: keep the likeliest tokens until their probability reaches this.
        min_p: drop tokens less likely than this share of the likeliest one's probability.
        repetition_penalty: above 1 makes tokens of prompt and answer less likely (divides positive logits).
        presence_penalty, frequency_penalty: subtracted from logits of tokens in the answer, once or per occurrence.
        seed: the same seed draws the same tokens, whatever the request is batched with.
        stop: strings that end the answer, at most 16 of at most 256 characters; they are cut from its text.
        stop_token_ids: token ids that end the answer, besides the model's end-of-sequence tokens.
        ignore_eos: go on past end-of-sequence tokens.
        logprobs: report the log-probability of each token and of this many likeliest ones; ``None`` reports none.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        _require(
            _is_int(self.max_new_tokens) and self.max_new_tokens >= 1,
            f"max_new_tokens is {self.max_new_tokens!r}: use an integer of at least 1",
        )
        _require(
            _is_number(self.temperature) and 0 <= self.temperature <= 100,
            f"temperature is {self.temperature!r}: use a number from 0 (greedy) to 100",
        )
        _require(
            self.top_k is None or (_is_int(self.top_k) and self.top_k >= 1),
            f"top_k is {self.top_k!r}: use an integer of at least 1, or null for all",
        )
        _require(
            _is_number(self.top_p) and 0 < self.top_p <= 1, f"top_p is {self.top_p!r}: use a number above 0, at most 1"
        )
        _require(_is_number(self.min_p) and 0 <= self.min_p <= 1, f"min_p is {self.min_p!r}: use a number from 0 to 1")
        _require(
            _is_number(self.repetition_penalty) and 0 < self.repetition_penalty <= 100,
            f"repetition_penalty is {self.repetition_penalty!r}: use a number above 0 (1 is off)",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(
                _is_number(value) and -2 <= value <= 2, f"{name} is {value!r}: use a number from -2 to 2 (0 is off)"
            )
        _require(
            self.seed is None or (_is_int(self.seed) and 0 <= self.seed < 2**63),
            f"seed is {self.seed!r}: use an integer from 0 to 2**63 - 1, or null",
        )
        _require(
            all(isinstance(s, str) and s for s in stop),
            "stop has an empty string or something not a string: give non-empty strings",
        )
        _require(
            len(stop) <= MAX_STOP_STRINGS and all(len(s) <= MAX_STOP_CHARACTERS for s in stop),
            f"stop has {len(stop)} strings, the longest of {max(map(len, stop), default=0)} characters: "
            f"use at most {MAX_STOP_STRINGS} strings of at most {MAX_STOP_CHARACTERS} characters",
        )
        _require(
            all(_is_int(t) and t >= 0 for t in self.stop_token_ids),
            "stop_token_ids must be token ids (integers of at least 0)",
        )
        _require(
            self.logprobs is None or (_is_int(self.logprobs) and 0 <= self.logprobs <= 20),
            f"logprobs is {self.logprobs!r}: use an integer from 0 to 20, or null",
        )
