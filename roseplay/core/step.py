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
    """

    request: Request
    start: int  # position of the first token to compute
    num_tokens: int  # how many tokens to compute
    num_prompt_tokens: int = 0  # how many of them count as prompt tokens (all or none)
    samples: bool = False  # whether to draw the next token, at position ``request.num_tokens``
    # Index into ``Step.entries`` of the entry whose last row to draw from: its own, or an equal prompt's.
    logits_entry: int | None = None
    # Key of the saved logits to draw from instead. With ``samples``, exactly one of the two is set.
    logits_key: int | None = None
    # Key under which to save the raw float32 logits of this entry's last row; None to save none.
    save_logits_key: int | None = None
    # Guessed next tokens (``core/prompt_lookup.py``); a token is drawn after each of them, too.
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
    """What the model runner executes: copies, then one packed forward, then sampling in entry order."""

    # Decodes, then prompts, each in order of the requests' turns.
    entries: list[StepEntry] = field(default_factory=list)
    # (source block, destination block) pairs, copied over all layers before anything is appended; ``copied`` has their
    # requests in the same order.
    copies: list[tuple[int, int]] = field(default_factory=list)
    # (block, host block) and (host block, block) pairs, copied over all layers, the former first, before ``copies``.
    swapped_out: list[tuple[int, int]] = field(default_factory=list)
    swapped_in: list[tuple[int, int]] = field(default_factory=list)
    # (source slot, destination slot) pairs of the state pool: recurrent states that are copied, all at once, before
    # anything is computed, and after everything is.
    states_before: list[tuple[int, int]] = field(default_factory=list)
    states_after: list[tuple[int, int]] = field(default_factory=list)
    # Keys of saved logits that are no longer reachable; to be dropped before new ones are saved.
    dropped_logits: list[int] = field(default_factory=list)
    batched_append: bool = True  # whether keys and values are written once per layer, or once per request and layer
    cuda_graphs: bool = True  # whether to replay the step as a graph if there is one of its size
    admitted: list[int] = field(default_factory=list)  # ids of requests that entered the batch
    # What kept a request from entering, or a prompt from being finished: ``prefill`` (budgets), ``interval`` (of
    # prompts), ``blocks`` (no free KV blocks), ``slots`` (no free state slot) or ``batch`` (it is full), or None.
    held_by: str | None = None
    # (request id, reason) for requests that compute their first uncached prompt token in this step.
    misses: list[tuple[int, Miss]] = field(default_factory=list)
    # By index of the entry, the positions of prompt tokens whose log-probabilities are wanted. Each is predicted by the
    # token before it, which the entry computes.
    prompt_logprobs: dict[int, range] = field(default_factory=dict)


@dataclass(slots=True)
class TokenLogprobs:
    """Log-probabilities of one token and of the likeliest ones: natural logarithms of the softmax of the raw logits."""

    logprob: float
    top: list[tuple[int, float]]


@dataclass(slots=True)
class StepResult:
    """The result of a step, as the model runner returns it."""

    # The token drawn for each entry of the step; None if the entry does not sample, or has an error.
    token_ids: list[int | None]
    logprobs: list[TokenLogprobs | None]  # log-probabilities for each entry; None where none were requested
    # Time on the host for building the batch, the model and drawing tokens; on a GPU, the time to launch them.
    prepare_ns: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    mask_ns: int = 0  # time that masks of structured outputs took, and the time that the step waited for them
    mask_wait_ns: int = 0
    device_ns: int = 0  # time from the step's first work on the device to its last; equals ``forward_ns`` on a CPU
    # Whether the step was replayed, as a CUDA graph or on a CPU from a recording; None if no steps are, or nothing was
    # computed.
    replayed: bool | None = None
    # By index of the entry, why it has no token; its request ends with this message, other requests continue.
    errors: dict[int, str] = field(default_factory=dict)
    # By index of the entry, the log-probabilities at the positions that the step names.
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    # By index of an entry with a draft, the tokens drawn after each token of the draft, with their log-probabilities.
    # Ends early where none can be drawn.
    after_draft: dict[int, list[tuple[int, TokenLogprobs | None]]] = field(default_factory=dict)
