"""The catalogue of settings: EngineConfig (fixed at start), Knobs (may change later), SamplingParams (per request).

Each field carries its whole description (see ``settings.py``). To add a setting, declare it here, read it where it
takes effect, and test that effect. All three classes check their values on construction and raise ``ValueError`` with
what to use instead, so that no other code has to.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from roseplay.extensions import extensions
from roseplay.settings import (
    Biases,
    Choice,
    Number,
    Strings,
    Structure,
    Switch,
    Text,
    TokenIds,
    Whole,
    check_all,
    defaults_of,
    setting,
    settings_of,
)
from roseplay.settings import SettingError as SettingError

# All stop strings are searched for after every token, in the one thread that serves all streams.
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_BAD_WORDS = 256
MAX_BIAS = 100.0
MAX_TENANT_CHARACTERS = 256
MAX_STRUCTURE_CHARACTERS = 1 << 20

# The values of the knob ``scheduling_policy``; ``roseplay/core/waiting_queue.py`` has the classes.
POLICIES = ("fcfs", "shortest", "priority", "lpm", "fair")


SIMULATED_GPUS = tuple(name for extension in extensions() for name in extension.gpus)  # names for ``run_as``


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of an engine that are fixed while it runs."""

    run_as: str | None = setting(
        None,
        Choice(SIMULATED_GPUS, none="this machine", file=".json"),
        "Run as",
        "engine: simulation",
        "Simulate this GPU, or the hardware of a calibration file (roseplay calibrate), instead of computing the model. "
        "Steps take as long as a cost model estimates, answers are a fixed text, and scheduler, prefix cache and block "
        "pool are the real ones. Only the model's config is needed. tensor_parallel_size is the number of GPUs; the "
        "settings of this machine's hardware have no effect.",
    )

    device: str = setting(
        "auto",
        Choice(("auto", "cpu", "cuda"), prefix="cuda:"),
        "Device",
        "engine: hardware",
        "Where the model runs. auto uses a GPU if there is one.",
        compared="name",
    )
    tensor_parallel_size: int = setting(
        1,
        Whole(1, 64),
        "Tensor parallel",
        "engine: hardware",
        "Number of processes that each hold and compute a part of every layer: one per GPU, or several on a CPU. It must "
        "divide the model's head counts, and the model's family needs a tensor parallel plan in transformers.",
        unit="processes",
        vllm="tensor_parallel_size",
    )
    num_blocks: int | None = setting(
        None,
        Whole(2, 2**22, none="as many as fit"),
        "KV blocks",
        "engine: memory",
        "Number of KV blocks in the pool, including block 0, which is never allocated. With too few blocks, requests "
        "are preempted. Cannot be combined with kv_cache_memory.",
        unit="blocks",
        vllm="num_gpu_blocks_override",
    )
    kv_cache_memory: int | None = setting(
        None,
        Whole(1, none="as much as fits"),
        "KV memory",
        "engine: memory",
        "Memory for keys and values, in bytes. If neither this nor num_blocks is set, the pool is sized automatically.",
        unit="bytes",
        vllm="kv_cache_memory_bytes",
        compared="name",
    )
    swap_space: int = setting(
        2**30,
        Whole(0),
        "Swap space",
        "engine: memory",
        "Host memory for the KV blocks of preempted requests, in bytes, at most half of what is free; of each GPU if there "
        "are several. It is allocated as requests are preempted with preemption_mode swap.",
        unit="bytes",
        nearest="swap_space",
        needs="preemption_mode swap",
    )
    state_slots: int | None = setting(
        None,
        Whole(1, none="as many as fit in an eighth of the free memory, at most 64 on a CPU or 256 on a GPU"),
        "State slots",
        "engine: memory",
        "Number of requests that can run at once if the model has recurrent layers. Each needs a slot for its states, "
        "of the same size for short and long requests.",
        unit="slots",
        nearest="max_num_seqs",
        needs="a model with recurrent layers",
    )
    state_snapshots: int | None = setting(
        None,
        Whole(0, none="as many as fit in an eighth of the free memory, at most 64 on a CPU or 256 on a GPU"),
        "Kept states",
        "engine: memory",
        "Number of recurrent states that the prefix cache keeps. Requests with the same beginning continue from them, "
        "and chats from the last full block of an answer. Each takes as much memory as a state slot. 0 turns off the "
        "prefix cache and same-step sharing for such models.",
        unit="states",
        needs="a model with recurrent layers",
    )
    state_interval: int = setting(
        32,
        Whole(0),
        "State interval",
        "engine: memory",
        "A prompt's recurrent state is kept at intervals of this many blocks, at its last full block and at its end. "
        "Each uses one of the kept states and ends a step of the prompt. With 0, prompts are not split, and a state "
        "is kept only at the end, for exact repeats. Each answer keeps one state anyway, after its last full block.",
        unit="blocks",
        needs="a model with recurrent layers",
    )
    latent_cache: str = setting(
        "auto",
        Choice(("auto", "on", "off")),
        "Latent cache",
        "engine: memory",
        "Cache the latents of multi-head latent attention (DeepSeek, Kimi) instead of the keys and values that each head "
        "computes from them: for DeepSeek-V2-Lite a ninth of the bytes. Used only where a test at load time gives the "
        "same results. auto does so on a GPU.",
        watch="ITL p50 with long contexts, and the number of KV blocks that fit.",
        costs="Prompts take more operations, because heads attend to latents, which are longer than keys. On a CPU, short "
        "contexts are slower.",
        needs="a model with multi-head latent attention",
    )
    gpu_memory_utilization: float = setting(
        0.9,
        Number(0, 1, above=True),
        "GPU memory",
        "engine: memory",
        "Fraction of a GPU's memory that weights, activations, KV pool and other programs may use together. An "
        "automatically sized pool stays within it.",
        vllm="gpu_memory_utilization",
        needs="a GPU",
        compared="name",
    )
    block_size: int = setting(
        16,
        Whole(1),
        "Block size",
        "engine: tokens per block",
        "Tokens per KV block.",
        unit="tokens",
        vllm="block_size",
    )
    max_model_len: int | None = setting(
        None,
        Whole(1, none="the model's own limit"),
        "Longest request",
        "engine: tokens",
        "Maximum number of tokens in a prompt and its answer together.",
        unit="tokens",
        vllm="max_model_len",
    )
    max_waiting: int = setting(
        4096,
        Whole(1),
        "Queue length",
        "engine: requests",
        "Maximum number of requests that may wait for admission. Further requests are refused.",
        unit="requests",
    )
    threads: int | None = setting(
        None,
        Whole(1, 1024, none="torch's choice"),
        "Threads",
        "engine: cores",
        "Number of threads that compute one operation together (torch's intra-op threads).",
        unit="threads",
        needs="a CPU",
    )
    seed: int = setting(
        0,
        Whole(),
        "Seed",
        "engine: draws",
        "Seed for random weights, and for requests that do not set their own.",
        vllm="seed",
        compared="",
    )
    random_weights: bool = setting(
        False,
        Switch(),
        "Random weights",
        "engine: weights",
        "Build the model from its config alone, with random weights. It runs as fast as with a checkpoint.",
        vllm="load_format=dummy",
        compared="",
    )
    pack_weights: bool = setting(
        True,
        Switch(),
        "Packed weights",
        "engine: bandwidth",
        "Rearrange weights once into the order in which the CPU's matrix kernels (oneDNN) read them, and compute "
        "layers that share an input as one matrix product.",
        needs="a CPU",
    )
    quantization: str = setting(
        "none",
        Choice(("none", "q8", "q4")),
        "Quantization",
        "engine: bandwidth",
        "Store the weights of linear layers in blocks of 32, as GGUF files do: q8 in 8 bits (Q8_0), q4 in 4 (Q4_1). Inputs "
        "are rounded to 8 bits in blocks of 32 as well. A step then reads about half as many bytes as in bfloat16, or a "
        "third. A GGUF file's own blocks are used as they are, without this setting.",
        watch="ITL p50 with few requests, where a step takes as long as reading the weights.",
        costs="Quality: SmolLM2-135M's perplexity grows by 0.2% with q8 and 5.7% with q4, tiny-chat's by 0.08% and 1.1%.",
        vllm="quantization",
        needs="a CPU",
    )
    fuse_ops: bool = setting(
        True,
        Switch(),
        "Fused operations",
        "engine: few tokens",
        "Compute norms, rotary embeddings, GELUs, gates and updates of recurrent states in one compiled pass each "
        "(with Numba), and prompts of recurrent layers in chunks. On a GPU, merge products with the same input, and "
        "compute what lies between products and attention in one kernel each, and prompts of recurrent layers in a few. "
        "Used only where a test at load time gives the same results.",
    )
    record_steps: bool = setting(
        True,
        Switch(),
        "Replayed steps",
        "engine: few tokens",
        "Record steps of up to 512 tokens, once for each of a fixed set of sizes, and replay them in one call that "
        "uses all threads (with Numba), where a test at load time gives the same results. A GPU uses CUDA graphs.",
        needs="a CPU",
    )
    mask_overlap: bool = setting(
        True,
        Switch(),
        "Masks beside the model",
        "engine: structured output",
        "The tokens that a structured output allows next are computed in a thread while the model runs. When off, each step "
        "computes them before the model.",
    )
    attention: str = setting(
        "auto",
        Choice(("auto", "cpu", "gather", "triton", "reference")),
        "Attention",
        "engine: KV reads",
        "How attention reads keys and values. cpu reads them in place with a compiled kernel, gather first copies "
        "them together, triton is for CUDA devices, and reference is simple and slow. auto picks the best one.",
    )
    dtype: str = setting(
        "auto",
        Choice(("auto", "float32", "bfloat16", "float16")),
        "Number format",
        "engine: bandwidth",
        "Number format of weights and, with kv_dtype auto, of the KV cache. auto uses the checkpoint's own format, but "
        "float32 in place of float16 on any CPU, and in place of bfloat16 on a CPU without instructions for it (AVX512-BF16, "
        "AMX).",
        vllm="dtype",
    )
    kv_dtype: str = setting(
        "auto",
        Choice(("auto", "int8")),
        "KV cache format",
        "engine: memory",
        "Number format of cached keys and values. int8 stores each token's key and value of each head in 8 bits a number "
        "with one scale (float32), so that the same memory holds almost twice as many blocks as in bfloat16. auto uses the "
        "model's format.",
        watch="KV blocks, and preemptions while many or long requests run.",
        costs="Quality: SmolLM2-135M's perplexity grows by 0.15%, with weights in float32 by 0.3%. Tokens that are nearly "
        "tied may differ. Models in float16 are refused.",
        nearest="kv_cache_dtype",
    )
    generation_config: str = setting(
        "auto",
        Choice(("auto", "none")),
        "Generation config",
        "engine: sampling",
        "Where default sampling values come from. auto uses the model's generation_config.json, for the page's lanes "
        "and the API; none uses roseplay's own defaults.",
        vllm="generation_config",
        compared="",
    )
    trust_remote_code: bool = setting(
        False,
        Switch(),
        "Remote code",
        "engine: safety",
        "Run Python code that comes with a checkpoint. When off, models that need such code are refused.",
        vllm="trust_remote_code",
        compared="",
    )
    worker: str = setting(
        "thread",
        Choice(("thread", "process")),
        "Worker",
        "engine: isolation",
        "Whether the engine's loop runs in a thread or in a process of its own.",
        compared="",
    )
    step_timeout_s: float = setting(
        120.0,
        Number(0, 100_000, above=True),
        "Step timeout",
        "engine: health",
        "Seconds after which a silent worker is considered frozen. A step that is predicted to take long may take ten "
        "times its predicted time.",
        unit="s",
        compared="",
    )
    telemetry_steps: int = setting(
        8192,
        Whole(1),
        "Telemetry",
        "engine: memory",
        "Number of step records kept for readers that poll. Older ones are dropped.",
        unit="steps",
        compared="",
    )
    kv_events: bool = setting(
        False,
        Switch(),
        "KV events",
        "engine: telemetry",
        "Record for each step which full blocks entered and left the prefix cache, by hash. Replicas behind one API "
        "do, so that the router knows what each of them holds.",
        nearest="kv_events_config",
        compared="",
    )

    def __post_init__(self) -> None:
        check_all(self)
        if self.num_blocks is not None and self.kv_cache_memory is not None:
            raise ValueError("give num_blocks or kv_cache_memory, not both")
        if self.kv_dtype != "auto" and self.run_as is not None:
            raise ValueError(
                f"kv_dtype {self.kv_dtype} cannot be simulated: set auto, the format that the model's config states"
            )
        if self.quantization != "none" and self.run_as is not None:
            raise ValueError(
                f"quantization {self.quantization} cannot be simulated: name a model whose config states it"
            )
        if self.quantization != "none" and self.tensor_parallel_size > 1:
            raise ValueError(f"quantization {self.quantization} needs tensor_parallel_size 1")
        if self.quantization != "none" and not self.pack_weights:
            raise ValueError(f"quantization {self.quantization} needs pack_weights")
        if self.quantization != "none" and self.dtype == "float16":
            raise ValueError(
                f"quantization {self.quantization} computes in float32 or bfloat16: set dtype to one of these, or to auto"
            )


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """Settings that may change while the engine runs; a change takes effect at the next step."""

    prefill_max_tokens: int | None = setting(
        None,
        Whole(1, none="unlimited"),
        "Prefill budget",
        "smoothness",
        "Maximum number of prompt tokens computed in one step. A small budget keeps running answers smooth; with a "
        "large one, new requests get their first tokens sooner. Cached tokens, shared tokens and decodes do not count.",
        short="budget",
        unit="tokens",
        control="budget",
        watch="When you lower it, **TTFT** rises, and **ITL p99** falls if steps with many prompt tokens are the long ones.",
        costs="With a small budget, new requests wait longer for their first token, and prompts take more steps. Where a step with "
        "few tokens takes as long as one with many, as on a GPU, throughput falls a lot; on a CPU it falls less.",
        nearest="max_num_batched_tokens",
    )
    max_batch_size: int = setting(
        32,
        Whole(1, 4096),
        "Max batch",
        "throughput",
        "Maximum number of requests that run at once. If more requests are waiting, a larger batch gives more tokens per second in "
        "total. Lowering the limit does not end running requests.",
        unit="requests",
        vllm="max_num_seqs",
        control="max-batch",
        watch="If requests **wait**, a larger batch raises **tokens/s**, and fewer of them wait.",
        costs="More KV blocks are in use at once. ITL p50 rises: a lot on a CPU, hardly on a GPU while few requests run.",
    )
    prefill_max_batch_size: int | None = setting(
        None,
        Whole(1, none="unlimited"),
        "Prefill requests",
        "fairness",
        "Maximum number of requests whose prompts are computed in one step.",
        unit="requests",
        control="prefill-requests",
        watch="**TTFT** of a burst: with a low limit, its requests get their first tokens one after another.",
        costs="A low limit makes prompts wait although the budget has room; a high one makes steps longer.",
        nearest="max_num_batched_tokens",
    )
    step_max_tokens: int | None = setting(
        None,
        Whole(1, none="unlimited"),
        "Step tokens",
        "smoothness",
        "Maximum number of prompt and decode tokens together in one step. Decodes are scheduled first.",
        unit="tokens",
        vllm="max_num_batched_tokens",
        control="step-tokens",
        watch="The highest bars of **Tokens per step** and **ITL p99** fall when you lower it.",
        costs="Prompts get only the tokens that decodes leave, so first tokens come later while many answers stream.",
    )
    chunk_max_tokens: int | None = setting(
        None,
        Whole(1, none="unlimited"),
        "Chunk tokens",
        "long prompts",
        "Maximum number of tokens of one prompt in one step, with chunked_prefill. vLLM does not apply it to a lone request.",
        unit="tokens",
        vllm="long_prefill_token_threshold",
        control="chunk-tokens",
        watch="**TTFT** of short prompts that arrive behind a long one.",
        costs="The long prompt itself takes more steps to reach its first token.",
    )
    scheduling_policy: Literal["fcfs", "shortest", "priority", "lpm", "fair"] = setting(
        "fcfs",
        Choice(POLICIES, ("first come", "shortest", "priority", "longest prefix", "fair")),
        "Policy",
        "who is next",
        "Which waiting request is admitted next. fcfs: first come, first served. shortest: the shortest prompt. priority: "
        "the lowest value of the request's priority. lpm: the longest prefix match, the request with the most tokens in "
        "the prefix cache, of the 64 that have waited longest. fair: the tenant that has been served least, by a virtual "
        "counter of the prompt tokens that were computed for it, without cached ones, and of twice its answers' tokens. "
        "Ties go to the request that arrived first. Running requests are not interrupted. SGLang: schedule_policy.",
        nearest="scheduling_policy",
        control="policy",
        watch="The spread of **TTFT** when requests wait: some get their first tokens sooner, others later.",
        costs="Requests that are overtaken wait longer, up to the limit of max_overtakes.",
    )
    max_overtakes: int | None = setting(
        64,
        Whole(1, none="unlimited"),
        "Max overtakes",
        "longest wait",
        "Under a policy other than fcfs, a waiting request that this many later ones have overtaken is admitted next, in "
        "order of arrival. Under fair, a tenant is next once this many requests for each waiting tenant have been "
        "admitted since its last one.",
        unit="requests",
        control="max-overtakes",
        watch="The highest **TTFT**: a low limit brings it down.",
        costs="With a low limit, a policy differs little from first come, first served.",
    )
    prefill_interval: int = setting(
        0,
        Whole(0, 1000),
        "Prefill interval",
        "smoothness",
        "Minimum number of steps that only decode between two steps that compute prompt tokens. When nothing decodes, "
        "prompts are computed at once. 0 is off. SGLang: prefill_decode_interval.",
        unit="steps",
        control="prefill-interval",
        watch="While many prompts arrive, **ITL p95** falls if steps with prompts take longer: most tokens then come from steps without prompts.",
        costs="New requests wait longer for their first token, and long prompts that are computed in chunks most of all.",
        nearest="prefill_schedule_interval",
    )
    chunked_prefill: bool = setting(
        True,
        Switch(),
        "Chunked prefill",
        "long prompts",
        "A prompt that exceeds the budget is computed in chunks. Off: it is computed whole, the only prompt of its step.",
        vllm="enable_chunked_prefill",
        control="chunked",
        watch="With a budget, the worst **ITL** while a long prompt is computed.",
        costs="The long prompt itself takes more steps to reach its first token.",
    )
    prefix_cache: bool = setting(
        True,
        Switch(),
        "Prefix cache",
        "reuse",
        "A prompt that begins like an earlier one reuses its KV blocks instead of computing them again.",
        vllm="enable_prefix_caching",
        control="prefix-cache",
        watch="**saved by sharing** rises and **TTFT** falls if prompts have a common beginning.",
        costs="Next to nothing: unused blocks keep their contents until they are needed.",
    )
    same_step_sharing: bool = setting(
        True,
        Switch(),
        "Same-step sharing",
        "duplicates",
        "Equal prompts in one step are computed once and share their KV blocks.",
        short="sharing",
        control="sharing",
        watch="**saved by sharing** and **TTFT** when equal prompts arrive together.",
        costs="Next to nothing: the prompts of a step are compared.",
        nearest="enable_prefix_caching",
    )
    eviction_policy: Literal["lru", "lfu"] = setting(
        "lru",
        Choice(("lru", "lfu"), ("least recent", "least frequent")),
        "Eviction",
        "reuse",
        "Which cached block is given up when a new one is needed. lru: the one whose last request ended first. lfu: the one "
        "that the fewest requests have used, and of these the least recently used; each use counts for about one turnover "
        "of the rest of the cache, so that what is used no more is given up in the end. SGLang: radix_eviction_policy.",
        control="eviction",
        watch="**saved by sharing** and **TTFT** in a small pool, if some prompts begin alike and others do not come back.",
        costs="With lfu, prompts that are new but will come back stay for a shorter time.",
    )
    pinned_blocks: int = setting(
        0,
        Whole(0, 65536),
        "Pinned prefix",
        "reuse",
        "When a second prompt uses the first blocks of an earlier one, this many of them are pinned: a system prompt stays "
        "cached whatever else passes through. Pinned blocks are given up only when requests hold all others. At most half "
        "of the pool can be pinned; changing the number or clearing the cache releases them.",
        short="pinned",
        unit="blocks",
        control="pinned",
        watch="**saved by sharing** and **TTFT** of prompts that begin with the system prompt.",
        costs="The rest of the cache is smaller.",
    )
    preemption_mode: Literal["recompute", "swap"] = setting(
        "recompute",
        Choice(("recompute", "swap")),
        "Preemption",
        "memory is full",
        "What happens to the keys and values of a request that loses its KV blocks. recompute: they are computed again when "
        "it resumes, as far as they are no longer cached. swap: they are copied to host memory and back; if swap_space is "
        "full, they are computed again. Not for models with recurrent layers, and not where a GPU is simulated. vLLM had "
        "this setting up to version 0; SGLang has none.",
        control="preemption",
        nearest="preemption_mode",
        watch="**ITL p99** when requests are preempted: the step that resumes one copies blocks in place of computing them.",
        costs="Host memory. Short contexts are computed again faster than they are copied, if the device is fast.",
    )
    batched_append: bool = setting(
        True,
        Switch(),
        "Batched append",
        "fewer writes",
        "Each layer writes the keys and values of all requests at once. When off, it makes one write per request.",
        control="append",
        watch="**ITL p50** with many requests; the answers stay the same.",
        costs="Nothing. Turn it off to see what one write per request costs; a simulated GPU does not show it.",
    )
    admission: Literal["queued", "blocking"] = setting(
        "queued",
        Choice(("queued", "blocking")),
        "Admission",
        "submit",
        "queued: submit only enqueues the request. blocking: submit returns once the prompt has been computed.",
        watch="**TTFT** and **Submit** when many requests arrive.",
        costs="With blocking, every client waits for the prompts ahead of its own.",
    )
    cuda_graphs: bool = setting(
        True,
        Switch(),
        "CUDA graphs",
        "GPU overhead",
        "A step's kernel launches are recorded once per padded size and replayed.",
        vllm="enforce_eager",
        needs="a GPU",
        control="graphs",
        watch="**ITL p50** and the host's share of a step.",
        costs="The start takes longer, the recorded launches take memory, and steps are padded to a recorded size.",
        opposite=True,
    )
    overlap: bool = setting(
        True,
        Switch(),
        "Overlap",
        "GPU overhead",
        "The next step is scheduled and launched before the current step's tokens have reached the host.",
        vllm="async_scheduling",
        needs="a GPU",
        watch="**ITL p50** and the host's share of a step.",
        costs="A request that has ended is computed for one more step.",
    )
    speculative_tokens: int = setting(
        0,
        Whole(0, 64),
        "Speculative tokens",
        "drafts",
        "Guess up to this many of a request's next tokens (prompt lookup), and check all of them in one step. The tokens "
        "that followed where its last tokens occur earlier in its own prompt and answer are computed as a draft; as long as "
        "the answer says the same, they count. Answers do not change. How many tokens are guessed follows from how many of "
        "the request's guesses were right and from how many requests run; with many, only sure guesses are computed. 0 is "
        "off. While it is on, steps do not overlap. Not for models with recurrent layers, and not where a GPU is simulated. "
        "SGLang: --speculative-num-draft-tokens with --speculative-algorithm NGRAM.",
        short="speculative",
        unit="tokens",
        nearest="speculative_config.num_speculative_tokens",
        control="speculative",
        watch="**tokens/s** of an answer that repeats its prompt (a summary, an edit), and the share of drafts that are right in "
        "**Tokens per step**.",
        costs="Steps compute tokens that turn out to be wrong; on a GPU, the overlap of steps.",
    )
    lookup_ngram: int = setting(
        3,
        Whole(1, 16),
        "Lookup n-gram",
        "drafts",
        "With speculative tokens: the number of tokens at the end of a request that must occur earlier in its text. A "
        "smaller number finds more drafts, of which fewer are right. SGLang: --speculative-ngram-max-match-window-size.",
        unit="tokens",
        nearest="speculative_config.prompt_lookup_max",
    )
    slow_motion: float = setting(
        1.0,
        Number(1, 1000, note="1 is off"),
        "Slow motion",
        "watching",
        "Every step takes this many times as long, so that you can watch a fast model. It stretches all times.",
        unit="times",
        compared="",
        control="slow",
        watch="Everything, at your own pace.",
        costs="All times are stretched. Those measured in slow motion are marked, as in 60 ms at ×5.",
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
    """How one request's tokens are drawn, when it ends, and what scheduling policies know about it.

    ``stop`` and ``bad_words`` may be single strings or any sequences of strings, lists of token ids any sequences of
    integers, ``logit_bias`` a mapping or pairs, ``structured_outputs`` a mapping or its JSON text. The names are those of
    vLLM's API where the fields say no other.
    """

    temperature: float = setting(
        0.0,
        Number(0, 100, note="0 is greedy"),
        "Temperature",
        "0 greedy",
        "0 always picks the likeliest token; higher values give more varied answers.",
        control="sampling-temperature",
        slider=(0, 2, 0.05),
        api_default=1.0,
        recommended=True,
    )
    top_p: float = setting(
        1.0,
        Number(0, 1, above=True),
        "Top-p",
        "1 all",
        "Sample only from the likeliest tokens whose probabilities together reach this value.",
        control="sampling-top-p",
        slider=(0.05, 1, 0.05),
        recommended=True,
    )
    top_k: int | None = setting(
        None,
        Whole(1, none="all tokens", off=0),
        "Top-k",
        "0 all",
        "Sample only from this many of the likeliest tokens.",
        control="sampling-top-k",
        slider=(0, 200, 1),
        recommended=True,
    )
    min_p: float = setting(
        0.0,
        Number(0, 1, note="0 is off"),
        "Min-p",
        "0 off",
        "Sample only from tokens that are at least this fraction as likely as the likeliest one.",
        control="sampling-min-p",
        slider=(0, 1, 0.01),
        recommended=True,
    )
    repetition_penalty: float = setting(
        1.0,
        Number(0, 100, above=True, note="1 is off"),
        "Repetition",
        "1 off",
        "Values above 1 make the tokens of prompt and answer less likely (positive logits are divided by it).",
        control="sampling-repetition",
        slider=(0.5, 2, 0.05),
        recommended=True,
    )
    presence_penalty: float = setting(
        0.0,
        Number(-2, 2, note="0 is off"),
        "Presence",
        "0 off",
        "Subtracted once from the logit of each token in the answer.",
    )
    frequency_penalty: float = setting(
        0.0,
        Number(-2, 2, note="0 is off"),
        "Frequency",
        "0 off",
        "Subtracted from the logit of each token in the answer, once per occurrence.",
    )
    max_new_tokens: int = setting(
        128,
        Whole(1),
        "New tokens",
        "at most",
        "The answer ends after this many tokens. A longer answer leaves less room for the conversation.",
        unit="tokens",
        vllm="max_tokens",
        control="sampling-new-tokens",
        slider=(1, 256, 1),
        recommended=True,
    )
    min_new_tokens: int = setting(
        0,
        Whole(0),
        "Least tokens",
        "0 any",
        "Tokens that end the answer are not drawn, and stop strings not searched for, before it has this many tokens. One "
        "that can only end, as what it must follow is complete, ends all the same.",
        unit="tokens",
        vllm="min_tokens",
        control="sampling-min-tokens",
        slider=(0, 256, 1),
    )
    seed: int | None = setting(
        None,
        Whole(0, 2**63 - 1, none="a new one each time"),
        "Seed",
        "empty: any",
        "The same seed gives the same tokens, whatever other requests are in the batch.",
        control="sampling-seed",
    )
    stop: tuple[str, ...] = setting(
        (),
        Strings(MAX_STOP_STRINGS, MAX_STOP_CHARACTERS),
        "Stop strings",
        "one per line, \\n is a line break",
        "The answer ends just before the first of these strings.",
        control="sampling-stop",
        multiline=True,
    )
    stop_token_ids: tuple[int, ...] = setting(
        (),
        TokenIds(),
        "Stop tokens",
        "ids",
        "Token ids that end the answer, besides the model's end-of-sequence tokens. They must be in the model's "
        "vocabulary. Such a token is counted, but its text is left out of the answer.",
    )
    include_stop_str_in_output: bool = setting(
        False,
        Switch(),
        "Show the stop",
        "text",
        "The answer's text ends with the stop string, or with the text of the token, that ended it.",
    )
    bad_words: tuple[str, ...] = setting(
        (),
        Strings(MAX_BAD_WORDS, MAX_STOP_CHARACTERS),
        "Bad words",
        "one per line",
        "Texts that the answer does not contain as the tokenizer writes them, alone or after a space: their last token is "
        "not drawn after the others. A text made of other tokens is not recognised.",
        control="sampling-bad-words",
        multiline=True,
    )
    logit_bias: tuple[tuple[int, float], ...] = setting(
        (),
        Biases(MAX_BIAS),
        "Logit bias",
        "by token id",
        "Added to the logits of single tokens before all else; -100 all but excludes a token, 100 all but forces it.",
    )
    allowed_token_ids: tuple[int, ...] = setting(
        (),
        TokenIds(),
        "Allowed tokens",
        "ids",
        "Only these tokens are drawn; without any, all are. A request from which none can be drawn ends with an error.",
    )
    ignore_eos: bool = setting(False, Switch(), "Ignore EOS", "length", "Continue past end-of-sequence tokens.")
    logprobs: int | None = setting(
        None,
        Whole(0, 20, none="none"),
        "Log-probabilities",
        "per token",
        "Report the log-probability of each token and of this many of the likeliest tokens in its place.",
    )
    logprob_token_ids: tuple[int, ...] = setting(
        (),
        TokenIds(),
        "Log-probabilities of",
        "ids",
        "Report the log-probabilities of these tokens, instead of the likeliest ones; needs logprobs.",
    )
    prompt_logprobs: int | None = setting(
        None,
        Whole(0, 20, none="none"),
        "Prompt log-probabilities",
        "per prompt token",
        "Report the log-probability of each prompt token after the first, and of this many of the likeliest tokens.",
        costs="The whole prompt is computed, even the part that is cached.",
    )

    priority: int = setting(
        0,
        Whole(),
        "Priority",
        "lower is sooner",
        "With the scheduling policy priority, waiting requests with a lower value are admitted first.",
        control="sampling-priority",
    )
    tenant: str | None = setting(
        None,
        Text(MAX_TENANT_CHARACTERS, none="none"),
        "Tenant",
        "whose request",
        "Whose request this is. With the policy fair, tenants get equal shares; requests without one count as one tenant.",
        vllm="user",
        control="sampling-tenant",
    )
    structured_outputs: str | None = setting(
        None,
        Structure(MAX_STRUCTURE_CHARACTERS, none="free text"),
        "Structured output",
        '{"json": …}, {"regex": …} or {"choice": […]}',
        "What the answer must follow: a JSON schema, a regular expression that all of it matches, or texts to choose from. "
        "Only tokens with which it can go on are drawn. When it is complete, the answer ends, also if end-of-sequence tokens "
        "are ignored. Needs llguidance; not where a GPU is simulated.",
        costs="The allowed tokens are computed beside the model; a step waits for them if they take longer.",
        control="sampling-structure",
        multiline=True,
    )

    def __post_init__(self) -> None:
        for name in ("stop", "bad_words"):
            texts = getattr(self, name)
            object.__setattr__(self, name, (texts,) if isinstance(texts, str) else tuple(texts))
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        if isinstance(self.structured_outputs, Mapping):  # as text, it can be hashed and sent
            object.__setattr__(self, "structured_outputs", json.dumps(self.structured_outputs, ensure_ascii=False))
        check_all(self)
        if self.min_new_tokens > self.max_new_tokens:
            raise SettingError(
                "min_new_tokens", f"is {self.min_new_tokens}: use at most the answer's limit, {self.max_new_tokens}"
            )
        if self.logprob_token_ids and self.logprobs is None:
            raise SettingError("logprob_token_ids", "needs logprobs: ask for them, or leave it out")


def _biases(biases: Any) -> Any:
    """Returns biases as pairs, with integers for the ids that JSON has as text; raises ``SettingError`` for other keys."""
    pairs = list(biases.items() if isinstance(biases, Mapping) else biases)
    wrong = [str(token) for token, _ in pairs if isinstance(token, str) and not token.isdecimal()]
    if wrong:
        raise SettingError("logit_bias", f"has {', '.join(wrong)[:300]}: use token ids")
    return tuple((int(token) if isinstance(token, str) else token, bias) for token, bias in pairs)


# The sampling parameters for which a model's author may recommend values.
RECOMMENDED = tuple(name for name, setting in settings_of(SamplingParams).items() if setting.recommended)

# The sampling parameters' names in requests to the API, by our names.
API_FIELDS = {name: setting.vllm or name for name, setting in settings_of(SamplingParams).items()}

# All knobs and engine settings by name.
SETTINGS = {**settings_of(Knobs), **settings_of(EngineConfig)}


def catalogue() -> dict[str, dict[str, Any]]:
    """Returns all knobs and engine settings for scripts of the page and of reports, by group and name."""
    return {
        group: {
            name: {**setting.to_dict(), "default": defaults_of(kind)[name]}
            for name, setting in settings_of(kind).items()
        }
        for group, kind in (("knobs", Knobs), ("config", EngineConfig))
    }
