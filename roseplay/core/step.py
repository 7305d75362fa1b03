"""A step is all that core passes to the model: which tokens to compute for each request, and where to store them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated

from roseplay.core.cache_miss import Miss
from roseplay.core.request import Request


class StepTooLargeError(RuntimeError):
    """The device has no memory for the step, none of which takes effect; a smaller step may succeed."""


class DeviceLostError(RuntimeError):
    """The device no longer responds, and this process cannot recover it."""


@dataclass(slots=True)
class StepEntry:
    """One request's part in a step.

    It computes the tokens ``request.token_ids[start : start + num_tokens]``, whose keys and values are stored where
    ``request.block_table`` says. ``num_tokens`` is 0 when the cache or another request provides all that is needed.
    A decode computes the request's last token, and then its draft, which ``num_tokens`` includes.

    Attributes:
        start, num_tokens: position of the first token to compute, and number of tokens.
        num_prompt_tokens: how many of them count as prompt tokens (all or none).
        samples: whether to draw the next token, at position ``request.num_tokens``.
        logits_entry: index into ``Step.entries`` of the entry whose last row to draw from: its own, or an equal
            prompt's.
        logits_key: key of the saved logits to draw from instead. With ``samples``, exactly one of the two is set.
        save_logits_key: key under which to save the raw float32 logits of this entry's last row; None to save none.
        draft: guessed next tokens (``core/prompt_lookup.py``); a token is drawn after each of them, too.
    """

    request: Request
    start: int
    num_tokens: int
    num_prompt_tokens: int = 0
    samples: bool = False
    logits_entry: int | None = None
    logits_key: int | None = None
    save_logits_key: int | None = None
    draft: Sequence[int] = ()


@dataclass(slots=True)
class StepCounts:
    """What is counted while a step is built. Annotations give unit and description, as in ``engine.records``."""

    step_id: Annotated[int, "", "number of the step, from 0 in each worker"]
    _: KW_ONLY
    prompt_tokens: Annotated[int, "tokens", "of prompts, computed"] = 0
    decode_tokens: Annotated[int, "tokens", "computed for answers, drafts included"] = 0
    cached_tokens: Annotated[int, "tokens", "of prompts, attached from earlier steps' blocks"] = 0
    shared_tokens: Annotated[int, "tokens", "of prompts, attached from blocks that this step computes"] = 0
    recomputed_tokens: Annotated[int, "tokens", "of prompts, that had been computed before a preemption"] = 0
    draft_tokens: Annotated[int, "tokens", "of the decode tokens, that are drafts"] = 0
    accepted_tokens: Annotated[int, "tokens", "of these, that were right, once the step has ended"] = 0
    preempted: Annotated[list[int], "requests", "that lost their blocks"] = field(default_factory=list)
    copied: Annotated[list[int], "requests", "that got a block of their own"] = field(default_factory=list)


@dataclass(slots=True)
class Step(StepCounts):
    """What the model runner executes: copies, then one packed forward, then sampling in entry order.

    Attributes:
        entries: decodes, then prompts, each in order of the requests' turns.
        copies: (source block, destination block) pairs, copied over all layers before anything is appended;
            ``copied`` has their requests in the same order.
        swapped_out, swapped_in: (block, host block) and (host block, block) pairs, copied over all layers, the former
            first, before ``copies``.
        states_before, states_after: (source slot, destination slot) pairs of the state pool: recurrent states that are
            copied, all at once, before anything is computed, and after everything is.
        dropped_logits: keys of saved logits that are no longer reachable; to be dropped before new ones are saved.
        cuda_graphs: whether to replay the step as a graph if there is one of its size.
        batched_append: whether keys and values are written once per layer, or once per request and layer.
        admitted: ids of requests that entered the batch.
        held_by: what kept a request from entering, or a prompt from being finished: ``prefill`` (budgets), ``interval``
            (of prompts), ``blocks`` (no free KV blocks), ``slots`` (no free state slot) or ``batch`` (it is full), or None.
        misses: (request id, reason) for requests that compute their first uncached prompt token in this step.
        prompt_logprobs: by index of the entry, the positions of prompt tokens whose log-probabilities are wanted. Each is
            predicted by the token before it, which the entry computes.
    """

    entries: list[StepEntry] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    swapped_out: list[tuple[int, int]] = field(default_factory=list)
    swapped_in: list[tuple[int, int]] = field(default_factory=list)
    states_before: list[tuple[int, int]] = field(default_factory=list)
    states_after: list[tuple[int, int]] = field(default_factory=list)
    dropped_logits: list[int] = field(default_factory=list)
    batched_append: bool = True
    cuda_graphs: bool = True
    admitted: list[int] = field(default_factory=list)
    held_by: str | None = None
    misses: list[tuple[int, Miss]] = field(default_factory=list)
    prompt_logprobs: dict[int, range] = field(default_factory=dict)


@dataclass(slots=True)
class TokenLogprobs:
    """Log-probabilities of one token and of the likeliest ones: natural logarithms of the softmax of the raw logits."""

    logprob: float
    top: list[tuple[int, float]]


@dataclass(slots=True)
class StepResult:
    """The result of a step, as the model runner returns it.

    Attributes:
        token_ids: the token drawn for each entry of the step; None if the entry does not sample, or has an error.
        after_draft: by index of an entry with a draft, the tokens drawn after each token of the draft, with their
            log-probabilities. Ends early where none can be drawn.
        logprobs: log-probabilities for each entry; None where none were requested.
        prepare_ns, forward_ns, sample_ns: time on the host for building the batch, the model and drawing tokens; on a
            GPU, the time to launch them.
        mask_ns, mask_wait_ns: time that masks of structured outputs took, and the time that the step waited for them.
        device_ns: time from the step's first work on the device to its last; equals ``forward_ns`` on a CPU.
        errors: by index of the entry, why it has no token; its request ends with this message, other requests continue.
        prompt_logprobs: by index of the entry, the log-probabilities at the positions that the step names.
        replayed: whether the step was replayed, as a CUDA graph or on a CPU from a recording; None if no steps are, or
            nothing was computed.
    """

    token_ids: list[int | None]
    logprobs: list[TokenLogprobs | None]
    prepare_ns: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    mask_ns: int = 0
    mask_wait_ns: int = 0
    device_ns: int = 0
    replayed: bool | None = None
    errors: dict[int, str] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    after_draft: dict[int, list[tuple[int, TokenLogprobs | None]]] = field(default_factory=dict)
