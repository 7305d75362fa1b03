"""The messages between the ingress and its replicas. Plain data, picklable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from roseplay.config import Knobs
from roseplay.core.info import EngineInfo
from roseplay.core.step import TokenLogprobs


@dataclass(frozen=True, slots=True)
class About:
    """A replica's description of its engine once that has started."""

    info: EngineInfo
    knobs: Knobs


class KnobChanges(NamedTuple):
    """All knobs that were changed since the start. Sent with each request, so that new replicas get them too."""

    # When the last of them was changed, in seconds since the epoch; a replica ignores changes that are not newer than
    # its own.
    changed_at: float
    values: dict[str, Any]


NO_CHANGES = KnobChanges(0.0, {})


class Part(NamedTuple):
    """Some of an answer's tokens, and the progress of its request. The last part is the whole answer."""

    begin: int  # how many tokens of the answer come before these
    token_ids: list[int]
    ages_ns: list[int]  # for each token, its age when the part was sent; machines do not share a clock
    text: str
    text_ends: list[int]  # for each token, the length of the whole text after it
    logprobs: list[TokenLogprobs]
    prompt_logprobs: list[TokenLogprobs | None]  # of all the prompt's tokens, in the part that begins the answer
    # Time from when the request was first scheduled to when the part was sent; None before that.
    scheduled_ns: int | None
    computed_prompt_tokens: int
    cached_tokens: int
    shared_tokens: int
    num_preemptions: int
    finish_reason: str | None  # set in the last part; ``error`` may then say why
    error: str | None
