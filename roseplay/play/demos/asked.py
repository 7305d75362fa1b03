"""The prompts of a demo in the lanes of its tab, and what was measured of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median
from typing import Any

from roseplay.config import SamplingParams
from roseplay.play.chat_service import ChatService
from roseplay.play.demos.script import DemoChats, lane_prompts
from roseplay.play.requests import Requests
from roseplay.recording.request_registry import TrackedRequest
from roseplay.traffic.pair import Step


@dataclass(frozen=True, kw_only=True)
class ChatFacts:
    """What was measured of prompts in lanes that were asked together. Times are in ms, ``None`` if there were none."""

    first_token: float | None  # the longest TTFT
    step: float | None  # the median time between two arrivals of an answer
    steps: int | None  # steps that drew tokens of the longest answer; ``None`` without answers
    drafted: int  # tokens that were guessed and computed, and how many of them were right
    accepted: int
    texts: tuple[str, ...]  # the answers
    factors: tuple[float, ...] = (1.0,)  # of slow motion; none of these times is converted
    requests: tuple[int, ...] = ()  # the numbers of their requests
    tokens: tuple[tuple[float, ...], ...] = ()  # when each answer got its tokens, since the first prompt was sent
    computed: tuple[Step, ...] = ()  # the steps until then, on the same clock
    knobs: Mapping[str, Any] = field(default_factory=dict)


class Asked:
    """Asks the prompts of one scene in lanes. One thread calls its methods."""

    def __init__(self, wanted: DemoChats, chats: ChatService, requests: Requests, tab_id: str) -> None:
        self._engine = requests.engine
        self._telemetry, self._drafted = self._engine.telemetry.reader(), 0
        self._steps: list[tuple[int, int, int]] = []  # in ns
        self._knobs = self._engine.knobs.to_dict()  # whoever changes a setting ends the demo
        if wanted.turn == "new":
            chats.new_chat(lanes=wanted.lanes, tab_id=tab_id)
        params = SamplingParams(max_new_tokens=wanted.answer, tenant=wanted.tenant, seed=1)
        self.request_ids: list[int] = []
        for lane, prompt in zip(wanted.lanes, wanted.prompts or lane_prompts(self._engine.info.model), strict=True):
            self.request_ids += chats.send(
                prompt, lanes=[lane], tab_id=tab_id, params=params, system="", edit=wanted.turn == "again"
            )
        tracked = (requests.registry.get(request_id) for request_id in self.request_ids)
        self.tracked: list[TrackedRequest] = [one for one in tracked if one is not None]

    @property
    def answered(self) -> bool:
        return all(tracked.finished for tracked in self.tracked)

    def facts(self) -> ChatFacts:
        """Returns what was measured so far."""
        metrics = [tracked.stream.metrics for tracked in self.tracked]
        # A token that came with the one before has no gap.
        gaps = [[gap / 1e6 for gap in one.itl_ns if gap] for one in metrics]
        tokens, arrivals = sum(len(one.itl_ns) for one in metrics), sum(map(len, gaps))
        begun = min(one.submitted_ns for one in metrics)
        self._take_steps()
        first_tokens = [1000 * one.ttft_s for one in metrics if one.ttft_s is not None]
        return ChatFacts(
            first_token=max(first_tokens, default=None),
            step=median(gap for one in gaps for gap in one) if arrivals else None,
            steps=1 + max(map(len, gaps)) if first_tokens else None,
            drafted=self._drafted,
            accepted=tokens - arrivals,
            texts=tuple(tracked.stream.text for tracked in self.tracked),
            factors=(self._knobs["slow_motion"],),
            requests=tuple(self.request_ids),
            tokens=tuple(
                tuple((t - begun) / 1e6 for t in accumulate(one.itl_ns, initial=one.first_token_ns))
                for one in metrics if one.first_token_ns is not None
            ),
            computed=tuple(((t0 - begun) / 1e6, (t1 - begun) / 1e6, tokens) for t0, t1, tokens in self._steps),
            knobs=self._knobs,
        )  # fmt: skip

    def _take_steps(self) -> None:
        """Take the steps so far, and count the guessed tokens that they computed for these prompts."""
        request_ids = set(self.request_ids)
        for record in self._telemetry.steps():
            if record.entries:
                self._steps.append((record.start_ns, record.end_ns, record.prompt_tokens + record.decode_tokens))
            if record.draft_tokens:
                entries = (entry for entry in record.entries if entry.request_id in request_ids)
                self._drafted += sum(max(0, entry.decode_tokens - 1) for entry in entries)
