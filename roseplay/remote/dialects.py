"""What is particular to each kind of server: its name, its names of sampling parameters, and how its metrics are had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of server.

    Attributes:
        title: what people call it.
        neutral: sampling fields with the values that switch them off; these are always sent, since the server or its model has
            other defaults. Without them, a field is only sent where it asks for something: a strict server refuses what
            OpenAI's API does not have.
        renamed: its names of fields, where they are not vLLM's.
        metrics_hint: how it is started so that it has metrics; "" where it always has, or never.
        clear_hint, cached_hint, times_hint: how it is started so that its prefix cache can be cleared, and so that its
            answers say how much of their prompts was cached, and how long they waited; likewise.
        counts_chunks: each chunk says how many tokens there were so far, if ``continuous_usage_stats`` asks for it.
    """

    title: str
    neutral: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    metrics_hint: str = ""
    clear_hint: str = ""
    cached_hint: str = ""
    times_hint: str = ""
    counts_chunks: bool = False


UNKNOWN = Dialect("this server")
_VLLM_NEUTRAL = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}

# By what a server says its models are owned by.
DIALECTS = {
    "roseplay": Dialect("roseplay", _VLLM_NEUTRAL, counts_chunks=True),
    "vllm": Dialect(
        "vLLM",
        _VLLM_NEUTRAL,
        clear_hint="start it with VLLM_SERVER_DEV_MODE=1",
        cached_hint="start it with --enable-prompt-tokens-details",
        times_hint="start it with --enable-per-request-metrics",
        counts_chunks=True,
    ),
    "sglang": Dialect(
        "SGLang",
        _VLLM_NEUTRAL,
        metrics_hint="start it with --enable-metrics",
        cached_hint="start it with --enable-cache-report",
    ),
    "llamacpp": Dialect(
        "llama.cpp",
        {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0},
        {"repetition_penalty": "repeat_penalty"},
        "start it with --metrics",
    ),
    "library": Dialect("Ollama"),
    "tgi": Dialect("TGI"),
    "trtllm": Dialect("TensorRT-LLM"),
}
