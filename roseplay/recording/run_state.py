"""Applies the frames of a run one after the other to a state: the only reducer of frames in Python.

With history, the state holds everything that happened, for exports. Without, it holds only the present, with which a
recording begins after its oldest frames were dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from roseplay.engine.messages import EntryRecord
from roseplay.recording.block_states import BlockStates
from roseplay.recording.frame_rows import StepRow, TokenRow

_NO_STATE = [-1, 0]
_PROGRESS = ("computed", "target", "cached", "shared")
_ABOUT = (
    *(
        "kind",
        "lane",
        "burst",
        "tenant",
        "priority",
        "prompt_tokens",
        "arrived",
        "submitted",
        "scheduled",
        "first",
        "last",
        "finished",
    ),
    *(
        "thinking",
        "queue_ms",
        "sent_ms",
        "ttft_ms",
        "ttft_parts",
        "itl_max",
        "preemptions",
        "miss",
        "reason",
        "error",
        *_PROGRESS,
    ),
)


class TokenRun(NamedTuple):
    """One token, and the step that made it."""

    t: float
    itl_ms: float | None
    step: StepRow | None


@dataclass(slots=True)
class RequestRun:
    """One request. Times are ms of the page's clock, ``None`` for events that never happened or precede the recording.

    Attributes:
        thinking: its prompt ends with ``<think>``, so that its answer begins with the model's thinking.
        tenant: number of its tenant; ``None`` for nobody's, and in recordings of earlier versions, whose ``priority`` is 0.
        tenant_name: its tenant's name, if it was recorded.
        computed, target, cached, shared: progress of its prompt, as in ``EntryRecord``.
        arrived: when it was due, if its traffic has such times: a busy engine may take it later.
        sent_ms: from its submission until its last byte had been sent to another server.
        ttft_parts: its time to first token by cause, in ms, as in ``TTFTCauses``; ``None`` if unknown.
        last, itl_max: time of its newest token, and the longest gap between two of its tokens.
        preemptions: how often it was preempted.
        miss: why part of its prompt was not cached, as in ``core/cache_miss.py``; ``None`` if all of it was.
        skipped: number of its tokens that are not in ``tokens``, as they precede the recording.
        texts: by token index; empty if they were not recorded.
        preempted, resumed, copied: times of these events.
    """

    request_id: int
    kind: str = "api"
    lane: int | None = None
    thinking: bool = False
    burst: int | None = None
    tenant: int | None = None
    tenant_name: str | None = None
    priority: int = 0
    prompt_tokens: int = 0
    title: str | None = None
    arrived: float | None = None
    submitted: float | None = None
    scheduled: float | None = None
    first: float | None = None
    last: float | None = None
    finished: float | None = None
    queue_ms: float | None = None
    sent_ms: float | None = None
    ttft_ms: float | None = None
    ttft_parts: list[float] | None = None
    itl_max: float | None = None
    preemptions: int = 0
    miss: dict[str, Any] | None = None
    reason: str | None = None
    error: str | None = None
    computed: int = 0
    target: int = 0
    cached: int = 0
    shared: int = 0
    skipped: int = 0
    tokens: list[TokenRun] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    preempted: list[float] = field(default_factory=list)
    resumed: list[float] = field(default_factory=list)
    copied: list[float] = field(default_factory=list)

    @property
    def label(self) -> str:
        if self.lane is not None:
            return f"lane {self.lane} #{self.request_id}"
        if self.burst is not None:
            return f"burst {self.burst} #{self.request_id}"
        return f"{self.kind if self.kind in ('steady', 'own') else 'request'} #{self.request_id}"

    @property
    def tenant_text(self) -> str | None:
        """Its tenant's name, or its number as text if the name was not recorded; ``None`` for nobody's."""
        return self.tenant_name or (None if self.tenant is None else f"tenant {self.tenant}")

    @property
    def num_tokens(self) -> int:
        """Tokens of its answer."""
        return self.skipped + len(self.tokens)

    @property
    def tpot_ms(self) -> float | None:
        """Mean time per output token after the first, so far; ``None`` for fewer than two tokens."""
        if self.num_tokens < 2 or self.first is None or self.last is None:
            return None
        return (self.last - self.first) / (self.num_tokens - 1)

    @property
    def ttft(self) -> float | None:
        return None if self.first is None or self.submitted is None else self.first - self.submitted

    def update(self, about: dict[str, Any]) -> None:
        """Copy the fields that an event or a snapshot has."""
        for name in _ABOUT:
            if name in about:
                setattr(self, name, about[name])

    def about(self) -> dict[str, Any]:
        """Returns its fields as in a snapshot."""
        return {**{name: getattr(self, name) for name in _ABOUT}, "tokens": self.num_tokens}

    def ran(self, t: float) -> None:
        """Note that a step ran it, or preempted it before it ran: an earlier preemption ends."""
        if len(self.preempted) > len(self.resumed):
            self.resumed.append(t)


class RunState:
    """The state of a run after the frames taken so far.

    Args:
        snapshot: the initial state, from a recording's header.
        knobs: their initial values.
        history: keep every step, token and knob change, and requests that have ended.

    Attributes:
        t: time of the last frame, in ms of the page's clock.
        requests: by id, in order of arrival.
        steps: oldest first.
        changes: of the knobs, ``(t, step, {name: [old, new]})``.
        blocks: the KV blocks' states.
        states: the state slots that are not free, for a model with recurrent layers: ``{slot: [request, tokens]}``.
    """

    def __init__(self, snapshot: dict[str, Any], knobs: dict[str, Any], *, history: bool) -> None:
        self.t: float = snapshot["t"]
        self.knobs = dict(knobs)
        self.requests: dict[int, RequestRun] = {}
        self.steps: list[StepRow] = []
        self.changes: list[tuple[float, int, dict[str, list[Any]]]] = []
        self.blocks = BlockStates(snapshot)
        self.states: dict[int, list[int]] = {slot: state for slot, *state in snapshot.get("states", ())}
        self.stats: dict[str, Any] | None = snapshot.get("stats")
        self.burst: dict[str, Any] | None = snapshot.get("burst")
        self._history = history
        self._latest: dict[int, StepRow] = {}  # by step id; a restarted worker counts from 0 again
        for request_id, about in snapshot.get("requests", ()):
            request = self.requests[request_id] = RequestRun(request_id, skipped=about.get("tokens", 0))
            request.update(about)

    def take(self, frame: dict[str, Any]) -> None:
        """Apply a frame whose steps and tokens are named tuples, as ``reader.with_rows`` makes them."""
        self.t = frame["t"]
        for request_id, kind, t, about in frame["requests"]:
            self._event(request_id, kind, t, about)
        for step in frame["steps"]:
            self._step(step)
        for token in frame["tokens"]:
            self._token(token)
        for t, step_id, changes in frame["knobs"]:
            self.knobs.update({name: new for name, (_, new) in changes.items()})
            if self._history:
                self.changes.append((t, step_id, changes))
        self.blocks.take(frame["blocks"])
        for slot, *state in frame.get("states", ()):
            self.states[slot] = state
            if state == _NO_STATE:
                del self.states[slot]
        self.stats = frame.get("stats") or self.stats
        self.burst = frame.get("burst") or self.burst

    def _event(self, request_id: int, kind: str, t: float, about: dict[str, Any]) -> None:
        if kind == "submitted":
            self.requests.setdefault(request_id, RequestRun(request_id))
        for request in self._known([request_id]):
            request.update({**about, kind: t})
            if kind == "finished" and not self._history:
                del self.requests[request_id]

    def _known(self, request_ids: Sequence[int]) -> list[RequestRun]:
        """Returns those of these requests that are kept: steps may name one before its submission or after its end."""
        if self._history:
            return [self.requests.setdefault(request_id, RequestRun(request_id)) for request_id in request_ids]
        return [self.requests[request_id] for request_id in request_ids if request_id in self.requests]

    def _step(self, step: StepRow) -> None:
        if self._history:
            self.steps.append(step)
            self._latest[step.step_id] = step
        for entry in step.entries:
            self._entry(entry, step.t0)
        for request in self._known(step.preempted):
            request.ran(step.t0)
            request.preempted.append(step.t0)
            request.preemptions += 1
        for request in self._known(step.copied):
            request.copied.append(step.t0)

    def _entry(self, entry: EntryRecord, t: float) -> None:
        for request in self._known([entry.request_id]):
            request.update({name: getattr(entry, name) for name in _PROGRESS})
            request.ran(t)

    def _token(self, token: TokenRow) -> None:
        for request in self._known([token.request_id]):
            request.last = token.t
            if token.itl_ms is not None:
                request.itl_max = max(token.itl_ms, request.itl_max or 0.0)
            if self._history:
                request.tokens.append(TokenRun(token.t, token.itl_ms, self._latest.get(token.step_id)))
            else:
                request.skipped += 1
