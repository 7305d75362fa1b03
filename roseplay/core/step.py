"""A step: the one thing that passes from core to model. Who computes which tokens, and where they go."""

from __future__ import annotations

from dataclasses import dataclass, field

from roseplay.core.cache_miss import Miss
from roseplay.core.request import Request


class StepTooLargeError(RuntimeError):
    """The device has no memory for the step, and computed nothing that counts; a smaller one may go."""


class DeviceLostError(RuntimeError):
    """The device answers no more, and nothing that this process does will change that."""


@dataclass(slots=True)
class StepEntry:
    """One request's part in a step.

    The tokens it computes are ``request.token_ids[start : start + num_tokens]``; their keys and values go where
    ``request.block_table`` says. ``num_tokens`` is 0 when the cache or another request gives all that is needed.

    Attributes:
        start: position of the first token computed.
        num_tokens: tokens computed.
        num_prompt_tokens: how many of these count as prompt tokens (all or none).
        samples: whether a next token is drawn, at position ``request.num_tokens``.
        logits_entry: whose last row gives the logits: an index into ``Step.entries`` (its own or its leader's).
        logits_key: or which saved logits to draw from. Exactly one of both is set when ``samples``.
        save_logits_key: keep the raw float32 logits of this entry's last row under this key.
    """

    request: Request
    start: int
    num_tokens: int
    num_prompt_tokens: int = 0
    samples: bool = False
    logits_entry: int | None = None
    logits_key: int | None = None
    save_logits_key: int | None = None


@dataclass(slots=True)
class Step:
    """What the model runner executes: copies first, then one packed forward, then sampling in entry order.

    Attributes:
        step_id: counts up from 0.
        entries: in order of arrival within decodes and prompts; first tokens are drawn in request order.
        copies: (source block, destination block), one batched copy over all layers before anything is appended.
        copied: ids of the requests that got these copies, in the same order.
        states_before: (source slot, destination slot) of the state pool: recurrent states that are copied, all at once,
            before anything is computed; states_after: after all of it.
        dropped_logits: keys of saved logits that nobody can reach any more; forget them before saving new ones.
        cuda_graphs: replay the step as a graph where there is one of its size.
        batched_append: one append a layer, or (the write-up's "before") one a request and layer.
        prompt_tokens, decode_tokens: computed in this step.
        cached_tokens: prompt tokens attached from earlier steps' blocks.
        shared_tokens: prompt tokens attached from blocks that this very step computes.
        preempted: ids of requests that lost their blocks while this step was scheduled.
        admitted: ids of requests that entered the batch.
        held_by: what kept the next request from entering, or a prompt from being finished: ``prefill`` (a budget of
            tokens or requests), ``blocks`` (no free KV blocks), ``slots`` (no free state slot) or ``batch`` (the batch is full). None if nobody waits.
        misses: requests that compute the first of their prompt tokens in it, and why that was not cached.
        prompt_logprobs: by index of the entry, the positions of prompt tokens whose log-probabilities are wanted. Each is
            predicted by the token before it, which the entry computes.
    """

    step_id: int
    entries: list[StepEntry] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    copied: list[int] = field(default_factory=list)
    states_before: list[tuple[int, int]] = field(default_factory=list)
    states_after: list[tuple[int, int]] = field(default_factory=list)
    dropped_logits: list[int] = field(default_factory=list)
    batched_append: bool = True
    cuda_graphs: bool = True
    prompt_tokens: int = 0
    decode_tokens: int = 0
    cached_tokens: int = 0
    shared_tokens: int = 0
    preempted: list[int] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    held_by: str | None = None
    misses: list[tuple[int, Miss]] = field(default_factory=list)
    prompt_logprobs: dict[int, range] = field(default_factory=dict)


@dataclass(slots=True)
class TokenLogprobs:
    """Log-probabilities (natural log, after softmax of the raw logits) of one token and of the likeliest ones."""

    logprob: float
    top: list[tuple[int, float]]


@dataclass(slots=True)
class StepResult:
    """What the model runner answers.

    Attributes:
        token_ids: one per entry of the step; None where the entry does not sample, or has an error.
        logprobs: likewise, None where none were asked for.
        prepare_ns, forward_ns, sample_ns: the host's time in building the batch, in the model, and in drawing tokens; on a
            GPU that is the time it takes to launch them.
        device_ns: time from the step's first work on the device to its last; equals ``forward_ns`` on a CPU.
        errors: by index of the entry, why there is no token for it: its request ends with this reason, the others go on.
        prompt_logprobs: by index of the entry, those of the positions that the step names.
        graph: whether the step was replayed, as a CUDA graph or from a recording; None where there are none, or nothing was
            computed.
    """

    token_ids: list[int | None]
    logprobs: list[TokenLogprobs | None]
    prepare_ns: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    device_ns: int = 0
    graph: bool | None = None
    errors: dict[int, str] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
