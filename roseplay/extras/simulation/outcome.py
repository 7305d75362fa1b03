"""Simulated traffic, and what happened to it in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from roseplay.core.request import Request
from roseplay.extras.simulation.step_summaries import StepSummaries


class SimulatedRequest(NamedTuple):
    at_s: float  # seconds after the beginning; without effect if clients send one request after the other
    token_ids: Sequence[int]  # its prompt
    answer_tokens: int  # exact length of its answer
    tenant: str | None = None  # as in ``SamplingParams``
    priority: int = 0


@dataclass(slots=True)
class RequestTimes:
    arrived_ns: int  # its arrival, in ns of virtual time
    prompt_tokens: int
    # The first and last of each run of consecutive steps in which it got a token.
    spans: list[list[int]] = field(default_factory=list)
    scheduled_ns: int | None = None  # when the first step that had a part of it began; None before
    preemptions: int = 0  # how often it lost its blocks
    cached_tokens: int = 0  # prompt tokens that the prefix cache served
    refused: str = ""  # why it was refused; empty if it was not

    def took(self, step: int, tokens: int = 1) -> None:
        """Record that it got one token in each of the steps from ``step`` on."""
        if self.spans and self.spans[-1][1] == step - 1:
            self.spans[-1][1] += tokens
        else:
            self.spans.append([step, step + tokens - 1])


@dataclass(slots=True, kw_only=True)
class Simulated:
    requests: list[RequestTimes] = field(default_factory=list)  # in the order of the traffic
    # ``[steps]`` int64, when each step ended, in ns of virtual time.
    ends_ns: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    skipped: int = 0  # how many of the steps were applied in runs
    tokens: int = 0  # tokens of all answers
    busiest: int = 0  # the most requests that ran at once
    peak_blocks: int = 0  # the most blocks that requests held at once
    num_blocks: int  # blocks that requests can hold
    start_ns: int = 0  # the beginning, in ns of virtual time
    # The requests themselves, with their tokens, in the order of the traffic, if they were to be kept.
    served: list[Request] = field(default_factory=list)
    steps: StepSummaries | None = None  # the record of each step, if there was to be one

    @property
    def seconds(self) -> float:
        """Virtual seconds from the beginning to the end of the last step."""
        return float(self.ends_ns[-1] - self.start_ns) / 1e9 if len(self.ends_ns) else 0.0

    def token_times_ns(self, index: int) -> np.ndarray:
        """Returns ``[tokens]`` int64: when request ``index`` got each of its tokens."""
        spans = self.requests[index].spans
        return np.concatenate([self.ends_ns[:0], *(self.ends_ns[first : last + 1] for first, last in spans)])
