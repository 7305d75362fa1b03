"""The peculiarities of each kind of server: its name, names of sampling parameters, and how to enable its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roseplay.config import RECOMMENDED, SamplingParams
from roseplay.settings import defaults_of


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of server."""

    title: str  # its common name
    # Sampling fields with the values that switch them off. These are always sent, since the server or its model may
    # have other defaults. Other fields are sent only if they have an effect: a strict server refuses those that
    # OpenAI's API does not have.
    neutral: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)  # its names of fields, where they differ from vLLM's
    metrics_hint: str = ""  # how to start it with metrics; "" if it always has them, or never
    # Likewise, how to start it so that its prefix cache can be cleared, and so that its answers report how much of
    # their prompts was cached and how long they waited.
    clear_hint: str = ""
    cached_hint: str = ""
    times_hint: str = ""
    structures: bool = False  # whether it takes vLLM's ``structured_outputs``; others take JSON schemas as OpenAI does
    # Whether each chunk has the token count so far if ``continuous_usage_stats`` asks for it.
    counts_chunks: bool = False


UNKNOWN = Dialect("this server")
# Sampling parameters of OpenAI's that are always sent, since a server's defaults may differ from ours.
ALWAYS = ("max_new_tokens", "temperature", "top_p")
_NEUTRAL = {
    name: value for name, value in defaults_of(SamplingParams).items() if name in RECOMMENDED if name not in ALWAYS
}
_VLLM_NEUTRAL = {**_NEUTRAL, "top_k": -1}

# By the ``owned_by`` of a server's models.
DIALECTS = {
    "roseplay": Dialect("roseplay", _VLLM_NEUTRAL, structures=True, counts_chunks=True),
    "vllm": Dialect(
        "vLLM",
        _VLLM_NEUTRAL,
        clear_hint="start it with VLLM_SERVER_DEV_MODE=1",
        cached_hint="start it with --enable-prompt-tokens-details",
        times_hint="start it with --enable-per-request-metrics",
        structures=True,
        counts_chunks=True,
    ),
    "sglang": Dialect(
        "SGLang",
        _VLLM_NEUTRAL,
        metrics_hint="start it with --enable-metrics",
        cached_hint="start it with --enable-cache-report",
    ),
    "llamacpp": Dialect(
        "llama.cpp", {**_NEUTRAL, "top_k": 0}, {"repetition_penalty": "repeat_penalty"}, "start it with --metrics"
    ),
    "library": Dialect("Ollama"),
    "tgi": Dialect("TGI"),
    "trtllm": Dialect("TensorRT-LLM"),
}
