"""The prompts of a demo in the lanes of its tab, and what was measured of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from roseplay.config import SamplingParams
from roseplay.engine.engine_like import EngineLike
from roseplay.play.chat_service import ChatService
from roseplay.play.demos.script import DemoChats
from roseplay.play.requests import Requests
from roseplay.recording.request_registry import TrackedRequest
from roseplay.traffic.prompts import EstimatedTokens, TextPrompts


@dataclass(frozen=True, kw_only=True)
class ChatFacts:
    """What was measured of prompts in lanes that were asked together. Times are in ms, ``None`` if there were none.

    Attributes:
        first_token: the median TTFT.
        token: the median time of the tokens after the first; tokens that came together share their time.
        step: the median time between two arrivals of an answer.
        steps: steps that drew tokens of the longest answer; ``None`` without answers.
        prompt: prompt tokens; ``cached`` were found in the cache, and ``computed`` neither there nor shared.
        per_step: tokens after the first that came with each step that brought any; ``None`` without steps.
        drafted, accepted: tokens that were guessed and computed, and how many of them were right.
        texts: the answers.
        factors: of slow motion; none of these times is converted.
    """

    first_token: float | None
    token: float | None
    step: float | None
    steps: int | None
    prompt: int
    cached: int
    computed: int
    per_step: float | None
    drafted: int
    accepted: int
    texts: tuple[str, ...]
    factors: tuple[float, ...] = (1.0,)


class Asked:
    """Asks the prompts of one scene in lanes. One thread calls its methods."""

    def __init__(self, wanted: DemoChats, chats: ChatService, requests: Requests, tab_id: str) -> None:
        self._engine = requests.engine
        self._steps, self._drafted = self._engine.telemetry.reader(), 0
        self._factor = self._engine.knobs.slow_motion  # whoever changes a setting ends the demo
        if wanted.turn == "new":
            chats.new_chat(lanes=wanted.lanes, tab_id=tab_id)
        params = SamplingParams(max_new_tokens=wanted.answer, tenant=wanted.tenant, seed=1)
        system = _system_prompt(self._engine, wanted.system_tokens)
        self.request_ids: list[int] = []
        for lane, prompt in zip(wanted.lanes, wanted.prompts, strict=True):
            self.request_ids += chats.send(
                prompt, lanes=[lane], tab_id=tab_id, params=params, system=system, edit=wanted.turn == "again"
            )
        tracked = (requests.registry.get(request_id) for request_id in self.request_ids)
        self._tracked: list[TrackedRequest] = [one for one in tracked if one is not None]

    @property
    def answered(self) -> bool:
        return all(tracked.finished for tracked in self._tracked)

    def facts(self) -> ChatFacts:
        """Returns what was measured so far."""
        metrics = [tracked.stream.metrics for tracked in self._tracked]
        arrivals = [list(_arrivals(one.itl_ns)) for one in metrics]
        tokens, together = sum(len(one.itl_ns) for one in metrics), sum(map(len, arrivals))
        shares = [gap / count / 1e6 for one in arrivals for gap, count in one for _ in range(count)]
        first_tokens = [1000 * one.ttft_s for one in metrics if one.ttft_s is not None]
        return ChatFacts(
            first_token=median(first_tokens) if first_tokens else None,
            token=median(shares) if shares else None,
            step=median(gap / 1e6 for one in arrivals for gap, _ in one) if together else None,
            steps=1 + max(map(len, arrivals)) if first_tokens else None,
            prompt=sum(one.prompt_tokens for one in metrics),
            cached=sum(one.cached_tokens for one in metrics),
            computed=sum(one.prompt_tokens - one.cached_tokens - one.shared_tokens for one in metrics),
            per_step=tokens / together if together else None,
            drafted=self._count_drafted(),
            accepted=tokens - together,
            texts=tuple(tracked.stream.text for tracked in self._tracked),
            factors=(self._factor,),
        )

    def _count_drafted(self) -> int:
        """Returns the number of tokens that steps computed for these prompts beyond one each, so far."""
        own = set(self.request_ids)
        for record in self._steps.steps():
            if record.draft_tokens:
                entries = (entry for entry in record.entries if entry.request_id in own)
                self._drafted += sum(max(0, entry.decode_tokens - 1) for entry in entries)
        return self._drafted


def _system_prompt(engine: EngineLike, tokens: int) -> str:
    return TextPrompts("-", tokenizer=engine.tokenizer or EstimatedTokens()).head(tokens) if tokens else ""


def _arrivals(itl_ns: list[int]) -> Iterator[tuple[int, int]]:
    """Yields the time since the arrival before and the number of tokens of each arrival after the first.

    A token that came together with the first is not counted.
    """
    gap, count = 0, 0
    for itl in itl_ns:
        if itl:
            if gap:
                yield gap, count
            gap, count = itl, 0
        count += 1
    if gap:
        yield gap, count
