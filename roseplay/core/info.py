"""What the model runner reports: properties of the loaded model and its engine, and free memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roseplay.core.budget import check_fits

_BRIEF = 300  # characters


@dataclass(frozen=True, slots=True)
class Choice:
    """How one part of a step is computed on this machine.

    Attributes:
        part: of the step, such as "linear layers".
        chosen: what computes it.
        why: what was measured, or the setting that asked for it; empty where there is nothing to say.
        slow: why it is slower than it could be, and what to do about it; None where it is not, or where a setting asked for it.
    """

    part: str
    chosen: str
    why: str = ""
    slow: str | None = None

    @staticmethod
    def brief(why: str) -> str:
        """The first line of a message, which may be an error's of any length."""
        return why.strip().partition("\n")[0][:_BRIEF]


@dataclass(slots=True)
class EngineInfo:
    """Properties of an engine, known once its model is loaded.

    Attributes:
        weight_bytes: what one step reads of the weights, all experts of a mixture included; an embedding's table counts
            only where it is the output layer's weight too.
        cuda_graphs: sizes of steps that are replayed as graphs; 0 where nothing is.
        no_cuda_graphs: why a GPU's steps are not, None when they are, or where there is no GPU.
        max_step_tokens: most tokens of a step as the start found them: on a GPU those it has memory for, on a CPU those it
            computes in about ten seconds; None is unlimited.
        choices: how the parts of a step are computed here.
        state_slots: requests of a model with recurrent layers that can run at once; 0 for other models.
        state_snapshots: states of such a model that the prefix cache keeps at most.
        state_bytes: of the states of one request.
        decode_s: seconds of a step that decodes one request, as measured at the start; 0 where it was not.
        prompt_token_s: seconds that each further token of a step takes, as measured at the start; 0 where it was not.
        server: where another server computes, its kind and address; None where the engine computes itself. Then the
            counts and sizes that it does not tell are 0.
        sampling_defaults: what the model's author recommends: fields of ``SamplingParams`` for requests that do not say.
    """

    model: str
    architecture: str
    device: str
    dtype: str
    attention: str
    num_parameters: int
    weight_bytes: int
    vocab_size: int
    block_size: int
    num_blocks: int
    max_model_len: int
    kv_bytes_per_token: int
    threads: int
    cuda_graphs: int = 0
    no_cuda_graphs: str | None = None
    max_step_tokens: int | None = None
    choices: tuple[Choice, ...] = field(default=())
    state_slots: int = 0
    state_snapshots: int = 0
    state_bytes: int = 0
    decode_s: float = 0.0
    prompt_token_s: float = 0.0
    server: str | None = None
    sampling_defaults: Mapping[str, float | int] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> EngineInfo:
        """From what ``dataclasses.asdict`` made of one, once through JSON."""
        return cls(**{**values, "choices": tuple(Choice(**choice) for choice in values.get("choices", ()))})

    @property
    def slow(self) -> list[str]:
        """What makes steps slower than this machine could compute them, each reason once."""
        return list(dict.fromkeys(choice.slow for choice in self.choices if choice.slow))

    @property
    def tokenizes(self) -> bool:
        """Whether prompts become token ids here; a server is given them as text or messages."""
        return self.server is None

    def check_fits(self, num_prompt_tokens: int, max_new_tokens: int) -> None:
        """Raises ``RequestTooLargeError`` for a request that could never be served."""
        check_fits(num_prompt_tokens, max_new_tokens, self.max_model_len, self.num_blocks - 1, self.block_size)


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes that are free.

    Attributes:
        host: of the machine, within its container's limit.
        device, device_total: of the GPU that the engine runs on, and all that it has; None without a GPU.
    """

    host: int
    device: int | None = None
    device_total: int | None = None
