"""Simulated traffic, and what happened to it in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from roseplay.core.request import Request
from roseplay.extras.simulation.step_summaries import StepSummaries


class SimulatedRequest(NamedTuple):
    """One request of the traffic.

    Attributes:
        at_s: seconds after the beginning; without effect if clients send one request after the other.
        token_ids: its prompt.
        answer_tokens: exact length of its answer.
        tenant, priority: as in ``SamplingParams``.
    """

    at_s: float
    token_ids: Sequence[int]
    answer_tokens: int
    tenant: str | None = None
    priority: int = 0


@dataclass(slots=True)
class RequestTimes:
    """What happened to one request.

    Attributes:
        arrived_ns: its arrival, in ns of virtual time.
        scheduled_ns: when the first step that had a part of it began; None before.
        spans: the first and last of each run of consecutive steps in which it got a token.
        preemptions: how often it lost its blocks.
        cached_tokens: prompt tokens that the prefix cache served.
        refused: why it was refused; empty if it was not.
    """

    arrived_ns: int
    prompt_tokens: int
    spans: list[list[int]] = field(default_factory=list)
    scheduled_ns: int | None = None
    preemptions: int = 0
    cached_tokens: int = 0
    refused: str = ""

    def took(self, step: int, tokens: int = 1) -> None:
        """Record that it got one token in each of the steps from ``step`` on."""
        if self.spans and self.spans[-1][1] == step - 1:
            self.spans[-1][1] += tokens
        else:
            self.spans.append([step, step + tokens - 1])


@dataclass(slots=True, kw_only=True)
class Simulated:
    """The outcome of a simulation.

    Attributes:
        requests: in the order of the traffic.
        ends_ns: ``[steps]`` int64, when each step ended, in ns of virtual time.
        skipped: how many of the steps were applied in runs.
        tokens: tokens of all answers.
        busiest: the most requests that ran at once.
        peak_blocks: the most blocks that requests held at once.
        num_blocks: blocks that requests can hold.
        start_ns: the beginning, in ns of virtual time.
        served: the requests themselves, with their tokens, in the order of the traffic, if they were to be kept.
        steps: the record of each step, if there was to be one.
    """

    requests: list[RequestTimes] = field(default_factory=list)
    ends_ns: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    skipped: int = 0
    tokens: int = 0
    busiest: int = 0
    peak_blocks: int = 0
    num_blocks: int
    start_ns: int = 0
    served: list[Request] = field(default_factory=list)
    steps: StepSummaries | None = None

    @property
    def seconds(self) -> float:
        """Virtual seconds from the beginning to the end of the last step."""
        return float(self.ends_ns[-1] - self.start_ns) / 1e9 if len(self.ends_ns) else 0.0

    def token_times_ns(self, index: int) -> np.ndarray:
        """Returns ``[tokens]`` int64: when request ``index`` got each of its tokens."""
        spans = self.requests[index].spans
        return np.concatenate([self.ends_ns[:0], *(self.ends_ns[first : last + 1] for first, last in spans)])
