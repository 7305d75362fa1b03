"""The catalogue of settings: EngineConfig (fixed at start), Knobs (may change while running), SamplingParams (per request).

A field carries its whole description (see ``settings.py``): to add a setting, declare it here, read it where it acts,
and test its effect. All three classes check their values on construction and raise ``ValueError`` with what to use
instead, so that no other code has to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from roseplay.settings import (
    Choice,
    Number,
    Strings,
    Switch,
    TokenIds,
    Whole,
    check_all,
    setting,
    settings_of,
)

# All stop strings are searched for after every token, in the one thread that serves all streams.
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of an engine that are fixed while it runs."""

    device: str = setting(
        "auto",
        Choice(("auto", "cpu", "cuda"), prefix="cuda:"),
        "Device",
        "engine: hardware",
        "Where the model runs; auto uses a GPU if there is one.",
        lab="name",
    )
    tensor_parallel_size: int = setting(
        1,
        Whole(1, 64),
        "Tensor parallel",
        "engine: hardware",
        "Processes that each hold a part of every layer and compute it at the same time: one per GPU, or several on "
        "a CPU. Needs a model whose family has a tensor parallel plan in transformers, and numbers of heads that it "
        "divides.",
        unit="processes",
        vllm="tensor_parallel_size",
        lab="",
    )
    num_blocks: int | None = setting(
        None,
        Whole(2, none="as many as fit"),
        "KV blocks",
        "engine: memory",
        "KV blocks in the pool, including block 0, which is never handed out. With too few, requests are preempted. "
        "Cannot be combined with kv_cache_memory.",
        unit="blocks",
        vllm="num_gpu_blocks_override",
    )
    kv_cache_memory: int | None = setting(
        None,
        Whole(1, none="as much as there is"),
        "KV memory",
        "engine: memory",
        "Bytes for keys and values. Without this and num_blocks, the pool sizes itself.",
        unit="bytes",
        vllm="kv_cache_memory_bytes",
        lab="name",
    )
    state_slots: int | None = setting(
        None,
        Whole(1, none="as many as an eighth of the free memory holds, at most 64, or 256 on a GPU"),
        "State slots",
        "engine: memory",
        "Requests that can run at once if the model has recurrent layers: each needs a slot for its states, of the "
        "same size for short and long requests. Other models need none.",
        unit="slots",
        nearest="max_num_seqs",
        needs="a model with recurrent layers",
    )
    state_snapshots: int | None = setting(
        None,
        Whole(0, none="as many as an eighth of the free memory holds, at most 64, or 256 on a GPU"),
        "Kept states",
        "engine: memory",
        "States of recurrent layers that the prefix cache keeps: requests with the same beginning continue from "
        "them, and chats from the last full block of an answer. Each takes as much memory as a state slot. 0 turns "
        "the prefix cache and same-step sharing off for such models.",
        unit="states",
        needs="a model with recurrent layers",
    )
    state_interval: int = setting(
        32,
        Whole(0),
        "State interval",
        "engine: memory",
        "The recurrent state of a prompt is kept at intervals of this many blocks, at its last full block and at its "
        "end. Each takes one of the kept states, and ends a step of the prompt. With 0, prompts are not cut, and a "
        "state is kept only at the end, for exact repeats. Answers are not affected: each keeps one state, after its "
        "last full block.",
        unit="blocks",
        needs="a model with recurrent layers",
    )
    gpu_memory_utilization: float = setting(
        0.9,
        Number(0, 1, above=True),
        "GPU memory",
        "engine: memory",
        "Share of a GPU's memory that weights, activations and KV pool may use together with other programs; a pool "
        "that sizes itself stays within it.",
        vllm="gpu_memory_utilization",
        needs="a GPU",
        lab="name",
    )
    block_size: int = setting(
        16,
        Whole(1),
        "Block size",
        "engine: tokens a block",
        "Tokens per KV block.",
        unit="tokens",
        vllm="block_size",
    )
    max_model_len: int | None = setting(
        None,
        Whole(1, none="the model's own limit"),
        "Longest request",
        "engine: tokens",
        "Most tokens of a prompt and its answer together.",
        unit="tokens",
        vllm="max_model_len",
    )
    max_waiting: int = setting(
        4096,
        Whole(1),
        "Queue length",
        "engine: requests",
        "Requests that may wait for admission before more are refused.",
        unit="requests",
    )
    threads: int | None = setting(
        None,
        Whole(1, none="torch's choice"),
        "Threads",
        "engine: cores",
        "Threads that compute an operation together (torch's intra-op threads).",
        unit="threads",
        needs="a CPU",
    )
    seed: int = setting(
        0,
        Whole(),
        "Seed",
        "engine: draws",
        "Seed of random weights, and of requests that do not set their own.",
        vllm="seed",
        lab="",
    )
    random_weights: bool = setting(
        False,
        Switch(),
        "Random weights",
        "engine: weights",
        "Build the model from its config alone, with random weights: it is as fast as with a checkpoint, but needs "
        "none.",
        vllm="load_format=dummy",
        lab="",
    )
    pack_weights: bool = setting(
        True,
        Switch(),
        "Packed weights",
        "engine: bandwidth",
        "Lay out weights once in the order in which the CPU's matrix kernels read them (oneDNN), and compute layers "
        "with the same input as one product.",
        needs="a CPU",
    )
    quantization: str = setting(
        "none",
        Choice(("none", "int8")),
        "Quantization",
        "engine: bandwidth",
        "Store the weights of linear layers in int8, with a scale per output, and round their inputs to int8 as "
        "well, with a scale per token: a step reads half as many bytes as in bfloat16.",
        watch="ITL p50 with few requests, where a step takes as long as reading the weights.",
        costs="A little of the model's quality.",
        vllm="quantization",
        needs="a CPU",
    )
    fuse_ops: bool = setting(
        True,
        Switch(),
        "Fused operations",
        "engine: few tokens",
        "Compute norms, rotary embeddings, GELUs, gates and updates of recurrent states in one compiled pass each "
        "(with Numba); on a GPU, norms and rotary embeddings in one kernel each. Used where a test at load gives the "
        "same results.",
    )
    record_steps: bool = setting(
        True,
        Switch(),
        "Replayed steps",
        "engine: few tokens",
        "Record steps of up to 512 tokens once for some numbers of tokens, and replay them in one call of all "
        "threads (with Numba). Used where a test at load gives the same results. A GPU uses CUDA graphs instead.",
        needs="a CPU",
    )
    attention: str = setting(
        "auto",
        Choice(("auto", "cpu", "gather", "triton", "reference")),
        "Attention",
        "engine: KV reads",
        "How keys and values are read: cpu reads them in place with a compiled kernel, gather copies them together "
        "first, triton is for CUDA devices, reference is simple and slow; auto uses the best available one.",
    )
    dtype: str = setting(
        "auto",
        Choice(("auto", "float32", "bfloat16", "float16")),
        "Number format",
        "engine: bandwidth",
        "Number format of weights and KV cache. auto is the checkpoint's own, or float32 on a CPU without "
        "instructions for bfloat16 (AVX512-BF16, AMX), and on any CPU for float16.",
        vllm="dtype",
    )
    generation_config: str = setting(
        "auto",
        Choice(("auto", "none")),
        "Generation config",
        "engine: sampling",
        "Where default sampling values come from: auto takes those of the model's generation_config.json, for the "
        "page's lanes and the API; none uses this program's own.",
        vllm="generation_config",
        lab="",
    )
    trust_remote_code: bool = setting(
        False,
        Switch(),
        "Remote code",
        "engine: safety",
        "Run Python code that comes with a checkpoint. When off, such a model is refused.",
        vllm="trust_remote_code",
        lab="",
    )
    worker: str = setting(
        "thread",
        Choice(("thread", "process")),
        "Worker",
        "engine: isolation",
        "Whether the engine's loop runs in a thread or in a process of its own.",
        lab="",
    )
    step_timeout_s: float = setting(
        120.0,
        Number(0, above=True),
        "Step timeout",
        "engine: health",
        "Seconds after which a silent worker counts as frozen; a step that is predicted to take long may take ten "
        "times its predicted time.",
        unit="s",
        lab="",
    )
    telemetry_steps: int = setting(
        8192,
        Whole(1),
        "Telemetry",
        "engine: memory",
        "Step records to keep for readers that poll; older ones are dropped.",
        unit="steps",
        lab="",
    )
    kv_events: bool = setting(
        False,
        Switch(),
        "KV events",
        "engine: telemetry",
        "Record for each step which full blocks entered and left the prefix cache, with their hashes and tokens, so "
        "that they can be published as KV events.",
        vllm="kv_events_config",
        lab="",
    )

    def __post_init__(self) -> None:
        check_all(self)
        if self.num_blocks is not None and self.kv_cache_memory is not None:
            raise ValueError("give num_blocks or kv_cache_memory, not both")
        if self.quantization != "none" and self.tensor_parallel_size > 1:
            raise ValueError(f"quantization {self.quantization} needs tensor_parallel_size 1")
        if self.quantization == "int8" and not self.pack_weights:
            raise ValueError("quantization int8 needs pack_weights")
        if self.quantization == "int8" and self.dtype == "float16":
            raise ValueError("quantization int8 computes in float32 or bfloat16: set dtype to one of these, or to auto")


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """Settings that may change while the engine runs; a change takes effect at the next step."""

    prefill_max_tokens: int | None = setting(
        None,
        Whole(1, none="unlimited"),
        "Prefill budget",
        "smoothness",
        "Most prompt tokens computed in one step. A small budget keeps all answers flowing evenly; a large one "
        "brings new requests' first tokens sooner. Cached and shared tokens cost nothing, and decodes do not count.",
        short="budget",
        unit="tokens",
        control="budget",
        watch="**ITL p99** falls when you lower it, **TTFT** rises.",
        costs="New requests wait longer for their first token. Total tokens per second hardly change.",
        nearest="max_num_batched_tokens",
    )
    max_batch_size: int = setting(
        32,
        Whole(1, 4096),
        "Max batch",
        "throughput",
        "Requests that run at once. More of them give more tokens per second in total, but fewer to each; lowering "
        "the limit ends none.",
        unit="requests",
        vllm="max_num_seqs",
        control="max-batch",
        watch="**tokens / s** and **ITL p50** rise with it, and fewer requests **wait**.",
        costs="Each answer comes more slowly, and more KV blocks are held at once.",
    )
    prefill_max_batch_size: int | None = setting(
        None,
        Whole(1, none="unlimited"),
        "Prefill requests",
        "fairness",
        "Most requests whose prompts are computed in one step.",
        unit="requests",
        control="prefill-requests",
        watch="**TTFT** of a burst: when lowered, its requests get their first tokens one after the other.",
        costs="When lowered, prompts queue although the budget has room; when raised, a step takes longer.",
        nearest="max_num_batched_tokens",
    )
    step_max_tokens: int | None = setting(
        None,
        Whole(1, none="unlimited"),
        "Step tokens",
        "smoothness",
        "Most prompt and decode tokens in one step together; decodes go first.",
        unit="tokens",
        vllm="max_num_batched_tokens",
        control="step-tokens",
        watch="The highest bars of **Tokens per step** and **ITL p99** fall when you lower it.",
        costs="Prompts get only what decodes leave: first tokens come later while many answers stream.",
    )
    chunked_prefill: bool = setting(
        True,
        Switch(),
        "Chunked prefill",
        "pacing",
        "A prompt larger than the budget is computed in parts. When off: as a whole, as the only prompt of its step.",
        vllm="enable_chunked_prefill",
        control="chunked",
        watch="With a budget, the worst **ITL** while a long prompt is computed.",
        costs="The long prompt itself needs more steps until its first token.",
    )
    prefix_cache: bool = setting(
        True,
        Switch(),
        "Prefix cache",
        "reuse",
        "A prompt that begins like an earlier one reuses its blocks instead of computing them.",
        vllm="enable_prefix_caching",
        control="prefix-cache",
        watch="**saved by sharing** rises and **TTFT** falls if prompts begin alike.",
        costs="Next to nothing: unused blocks are kept until they are needed.",
    )
    same_step_sharing: bool = setting(
        True,
        Switch(),
        "Same-step sharing",
        "dedup",
        "Equal prompts in one step are computed once and share their blocks.",
        short="sharing",
        control="sharing",
        watch="**saved by sharing** and **TTFT** when equal prompts arrive together.",
        costs="Next to nothing: the prompts of a step are compared.",
        nearest="enable_prefix_caching",
    )
    batched_append: bool = setting(
        True,
        Switch(),
        "Batched append",
        "bandwidth",
        "Keys and values of all requests are written at once in each layer. When off: one write per request.",
        control="append",
        watch="**ITL p50** with many requests; the answers stay the same.",
        costs="Nothing. Turn it off to see what one write per request costs.",
    )
    admission: Literal["queued", "blocking"] = setting(
        "queued",
        Choice(("queued", "blocking")),
        "Admission",
        "submit",
        "queued: submit only enqueues a request. blocking: it returns once the prompt is computed, one request at a "
        "time.",
        watch="**TTFT** and **Submit** when many requests arrive.",
        costs="With blocking, every client waits for the prompts before its own.",
    )
    cuda_graphs: bool = setting(
        True,
        Switch(),
        "CUDA graphs",
        "launches",
        "A step's kernel launches are recorded once per padded size and replayed.",
        vllm="enforce_eager",
        needs="a GPU",
        control="graphs",
        watch="**ITL p50** and the host's share of a step.",
        costs="A longer start and memory for the recorded launches; steps are padded to a recorded size.",
        opposite=True,
    )
    overlap: bool = setting(
        True,
        Switch(),
        "Overlap",
        "launches",
        "The next step is scheduled and launched before this one's tokens have reached the host.",
        vllm="async_scheduling",
        needs="a GPU",
        watch="**ITL p50** and the host's share of a step.",
        costs="A request that has ended is computed for one more step.",
    )
    slow_motion: float = setting(
        1.0,
        Number(1, 1000, note="1 is off"),
        "Slow motion",
        "watching",
        "Every step takes this many times as long, so that a fast model can be watched. All times are stretched with "
        "it.",
        unit="times",
        lab="",
        control="slow",
        watch="Everything, at your own pace.",
        costs="All times are stretched, including those in the header.",
    )

    def __post_init__(self) -> None:
        check_all(self)

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """A copy with ``changes`` applied; raises ``ValueError`` for an unknown name or a bad value."""
        unknown = sorted(set(changes) - settings_of(Knobs).keys())
        if unknown:
            raise ValueError(f"unknown knob {', '.join(unknown)}: the knobs are {', '.join(settings_of(Knobs))}")
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


GPU_KNOBS = tuple(name for name, knob in settings_of(Knobs).items() if knob.needs == "a GPU")


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request's tokens are drawn and when it ends.

    ``stop`` may be a single string or any sequence of strings, ``stop_token_ids`` any sequence of integers.
    """

    max_new_tokens: int = setting(
        128,
        Whole(1),
        "New tokens",
        "at most",
        "The answer ends after this many tokens. A longer answer leaves less room for the conversation.",
        unit="tokens",
        vllm="max_tokens",
        control="sampling-new-tokens",
    )
    temperature: float = setting(
        0.0,
        Number(0, 100, note="0 is greedy"),
        "Temperature",
        "0 greedy",
        "0 always takes the likeliest token; higher is more varied.",
        vllm="temperature",
        control="sampling-temperature",
    )
    top_k: int | None = setting(
        None,
        Whole(1, none="all tokens"),
        "Top-k",
        "0 all",
        "Draw only from this many of the likeliest tokens.",
        vllm="top_k",
        control="sampling-top-k",
    )
    top_p: float = setting(
        1.0,
        Number(0, 1, above=True),
        "Top-p",
        "1 all",
        "Draw only from the likeliest tokens that together reach this probability.",
        vllm="top_p",
        control="sampling-top-p",
    )
    min_p: float = setting(
        0.0,
        Number(0, 1, note="0 is off"),
        "Min-p",
        "0 off",
        "Draw only from tokens that are at least this fraction as likely as the likeliest one.",
        vllm="min_p",
        control="sampling-min-p",
    )
    repetition_penalty: float = setting(
        1.0,
        Number(0, 100, above=True, note="1 is off"),
        "Repetition",
        "1 off",
        "Above 1, tokens that are already in the prompt or answer become less likely (divides positive logits).",
        vllm="repetition_penalty",
        control="sampling-repetition",
    )
    presence_penalty: float = setting(
        0.0,
        Number(-2, 2, note="0 is off"),
        "Presence",
        "0 off",
        "Subtracted once from the logits of tokens that are in the answer.",
        vllm="presence_penalty",
    )
    frequency_penalty: float = setting(
        0.0,
        Number(-2, 2, note="0 is off"),
        "Frequency",
        "0 off",
        "Subtracted from the logits of tokens in the answer, once for each occurrence.",
        vllm="frequency_penalty",
    )
    seed: int | None = setting(
        None,
        Whole(0, 2**63 - 1, none="a new one each time"),
        "Seed",
        "empty: any",
        "The same seed draws the same tokens again, whatever the request is batched with.",
        vllm="seed",
        control="sampling-seed",
    )
    stop: tuple[str, ...] = setting(
        (),
        Strings(MAX_STOP_STRINGS, MAX_STOP_CHARACTERS),
        "Stop strings",
        "one per line, \\n is a line break",
        "The answer ends before the first of them.",
        vllm="stop",
        control="sampling-stop",
    )
    stop_token_ids: tuple[int, ...] = setting(
        (),
        TokenIds(),
        "Stop tokens",
        "ids",
        "Token ids that end the answer, besides the model's end-of-sequence tokens.",
        vllm="stop_token_ids",
    )
    ignore_eos: bool = setting(
        False, Switch(), "Ignore EOS", "length", "Continue past end-of-sequence tokens.", vllm="ignore_eos"
    )
    logprobs: int | None = setting(
        None,
        Whole(0, 20, none="none"),
        "Log-probabilities",
        "per token",
        "Report the log-probability of each token and of this many of the likeliest ones.",
        vllm="logprobs",
    )
    prompt_logprobs: int | None = setting(
        None,
        Whole(0, 20, none="none"),
        "Prompt log-probabilities",
        "per prompt token",
        "Report the log-probability of each prompt token after the first, and of this many of the likeliest ones in "
        "its place.",
        costs="The whole prompt is computed, even what is cached.",
        vllm="prompt_logprobs",
    )

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        check_all(self)
