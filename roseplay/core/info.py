"""Properties of the loaded model, its engine and the machine's free memory, as the model runner reports them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roseplay.config import GPU_KNOBS, Knobs, SamplingParams, SettingError
from roseplay.core.budget import check_fits

_BRIEF = 300  # characters
# Sampling parameters that change which tokens may be drawn.
_CHOOSING = ("allowed_token_ids", "bad_words", "logit_bias", "min_new_tokens")


@dataclass(frozen=True, slots=True)
class Choice:
    """How one part of a step is computed on this machine."""

    part: str  # the part of the step, such as "linear layers"
    chosen: str  # what computes it
    why: str = ""  # the measurement or setting that decided it; empty where there is nothing to add
    # Why it is slower than it could be, and what to do about it; None if it is not slow, or if a setting asked for it.
    slow: str | None = None

    @staticmethod
    def brief(why: str) -> str:
        """Returns the first line of a message, cut to a length that can be shown."""
        return why.strip().partition("\n")[0][:_BRIEF]


class UnsupportedKnobError(SettingError):
    """An engine cannot have this knob's value."""


@dataclass(slots=True)
class EngineInfo:
    """Properties of an engine, known once its model is loaded."""

    model: str
    architecture: str
    device: str
    dtype: str
    attention: str
    num_parameters: int
    # Bytes of weights that one step reads, including all experts of a mixture; an embedding's table counts only if it
    # is also the output layer's weight.
    weight_bytes: int
    vocab_size: int
    block_size: int
    num_blocks: int
    max_model_len: int
    kv_bytes_per_token: int
    threads: int
    cuda_graphs: int = 0  # number of step sizes that are replayed as CUDA graphs; 0 if none are
    # Why a GPU's steps are not replayed as graphs; None if they are, or if there is no GPU.
    no_cuda_graphs: str | None = None
    # Most tokens per step as found at the start: on a GPU as many as it has memory for, on a CPU as many as it computes
    # in about ten seconds; None is unlimited.
    max_step_tokens: int | None = None
    choices: tuple[Choice, ...] = field(default=())  # how the parts of a step are computed here
    state_slots: int = 0  # most requests of a model with recurrent layers that can run at once; 0 for other models
    state_snapshots: int = 0  # most states of such a model that the prefix cache keeps
    state_bytes: int = 0  # bytes of one request's states
    host_blocks: int = 0  # blocks in host memory that preempted requests can be swapped to; 0 if they cannot
    decode_s: float = 0.0  # seconds that a step takes to decode one request, measured at the start; 0 if not measured
    # Seconds that each further token adds to a step, measured at the start; 0 if not measured.
    prompt_token_s: float = 0.0
    # Kind and address of the other server that computes; None where the engine computes itself. Counts and sizes that
    # such a server does not report are 0.
    server: str | None = None
    # What such a server was started with, by its own names; empty if it does not report them.
    server_settings: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    eos_token_ids: list[int] = field(default_factory=list)  # tokens that end an answer
    # The hardware whose speed is simulated, and how far its times can be trusted; None where a model is computed.
    simulated: str | None = None
    # The label of simulated times, such as ``uncalibrated``; None where a model is computed.
    evidence: str | None = None
    evidence_kind: str | None = None  # the label without the error
    # The knobs that another server can change while it runs, with their largest values (1: a switch); empty if all can.
    knob_limits: Mapping[str, int] = field(default_factory=dict)
    # Values that the model's author recommends, for fields of ``SamplingParams`` that a request does not set.
    sampling_defaults: Mapping[str, float | int] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> EngineInfo:
        """Build one from the output of ``dataclasses.asdict`` after it has been through JSON."""
        return cls(**{**values, "choices": tuple(Choice(**choice) for choice in values.get("choices", ()))})

    @property
    def slow(self) -> list[str]:
        """The reasons why steps are slower than they could be on this machine, each listed once."""
        return list(dict.fromkeys(choice.slow for choice in self.choices if choice.slow))

    @property
    def tokenizes(self) -> bool:
        """Whether prompts are tokenized here; another server receives them as text or messages."""
        return self.server is None

    def check_fits(self, num_prompt_tokens: int, max_new_tokens: int, limit: str = "max_new_tokens") -> None:
        """Raises ``RequestTooLargeError`` for a request that could never be served; ``limit``: see ``check_fits``."""
        pool = (self.max_model_len, self.num_blocks - 1, self.block_size)
        check_fits(num_prompt_tokens, max_new_tokens, *pool, limit=limit)

    def check_params(self, params: SamplingParams) -> None:
        """Raises ``SettingError`` for tokens beyond the vocabulary, if that is known, and for what is not simulated."""
        biased = [token for token, _ in params.logit_bias]
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "logit_bias"):
            largest = max(biased if name == "logit_bias" else getattr(params, name), default=0)
            if 0 < self.vocab_size <= largest:
                size = f"the vocabulary has {self.vocab_size} tokens"
                raise SettingError(name, f"has {largest}, but {size}: use ids from 0 to {self.vocab_size - 1}")
        for name in _CHOOSING if self.simulated is not None else ():
            if getattr(params, name):
                raise SettingError(name, "cannot be simulated, as answers are a fixed text: leave it out")

    def settable(self, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns those of the knobs that can be changed, whatever their values are."""
        return {name: value for name, value in knobs.items() if name in (self.knob_limits or knobs)}

    def check_knobs(self, knobs: Knobs, before: Knobs | None = None) -> None:
        """Raises ``UnsupportedKnobError`` for knobs that this engine cannot have.

        Args:
            before: its knobs so far. Without a GPU or within ``knob_limits``, some may only be as they were.
        """
        limits, new, old = self.knob_limits, knobs.to_dict(), (before or knobs).to_dict()
        for name in (name for name in new if limits and new[name] != old[name]):
            if name not in limits:
                raise UnsupportedKnobError(name, f"cannot be changed while the server runs, only {', '.join(limits)}")
            if (new[name] or 0) > (most := limits[name]):
                raise UnsupportedKnobError(
                    name, f"is {new[name]}: use at most {most}, which the server was started with"
                )
        has_gpu = self.device.startswith("cuda") or self.cuda_graphs > 0
        for name in GPU_KNOBS if before is not None and not has_gpu else ():
            if getattr(knobs, name) != getattr(before, name):
                raise UnsupportedKnobError(name, f"needs a CUDA device; this engine runs on {self.device}")
        most = (self.num_blocks - 1) // 2
        if self.server is None and knobs.pinned_blocks > most:
            raise UnsupportedKnobError(
                "pinned_blocks",
                f"is {knobs.pinned_blocks:,}, but at most half of the KV pool can be pinned: use 0 to {most:,}, or start"
                " with more num_blocks",
            )
        if self.server is None and knobs.preemption_mode == "swap" and not self.host_blocks:
            raise UnsupportedKnobError(
                "preemption_mode", f"swap is not possible: {self._why_not_swapped}; use recompute"
            )
        if knobs.speculative_tokens and self.state_slots:
            raise UnsupportedKnobError(
                "speculative_tokens",
                "needs a model without recurrent layers, whose states cannot go back to before a token that was wrong;"
                f" {self.model} has some: set it to 0",
            )
        if knobs.speculative_tokens and self.simulated is not None:
            raise UnsupportedKnobError(
                "speculative_tokens", "cannot be simulated, as answers are a fixed text: set it to 0"
            )

    @property
    def _why_not_swapped(self) -> str:
        if self.simulated is not None:
            return "how fast a simulated GPU copies to the host is not known"
        if self.state_slots:
            return f"{self.model} has recurrent layers, whose states cannot be swapped"
        return "swap_space has no room for a single KV block"


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes that are free."""

    host: int  # free memory of the machine, within its container's limit
    device: int | None = None  # free and total memory of the GPU that the engine runs on; None without a GPU
    device_total: int | None = None
