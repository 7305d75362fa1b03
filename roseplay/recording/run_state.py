"""Applies the frames of a run one after the other to a state: the only reducer of frames in Python.

With history, the state holds everything that happened, for exports. Without, it holds only the present, with which a
recording begins after its oldest frames were dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from roseplay.engine.records import EntryRecord, RequestRecord, StepRow, TokenRow, names_of
from roseplay.recording.block_states import BlockStates
from roseplay.recording.state_slots import StateSlots

_PROGRESS = ("computed", "target", "cached", "shared")
_ABOUT = names_of(RequestRecord)


class TokenRun(NamedTuple):
    """One token, and the step that made it."""

    t: float
    itl_ms: float | None
    step: StepRow | None


@dataclass(slots=True)
class RequestRun(RequestRecord):
    """One request. Events that precede the recording have no times; the number of its tenant may be unknown.

    Attributes:
        tenant_name: its tenant's name, if it was recorded.
        skipped: number of its tokens that are not in ``token_runs``, as they precede the recording.
        texts: by token index; empty if they were not recorded.
        preempted, resumed, copied: times of these events.
    """

    request_id: int
    title: str | None = None
    tenant_name: str | None = None
    skipped: int = 0
    token_runs: list[TokenRun] = field(default_factory=list)
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
    def tpot_ms(self) -> float | None:
        """Mean time per output token after the first, so far; ``None`` for fewer than two tokens."""
        if self.tokens < 2 or self.first is None or self.last is None:
            return None
        return (self.last - self.first) / (self.tokens - 1)

    @property
    def ttft(self) -> float | None:
        return None if self.first is None or self.submitted is None else self.first - self.submitted

    def update(self, about: dict[str, Any]) -> None:
        """Copy the fields that an event or a snapshot has."""
        for name, value in about.items():
            if name in _ABOUT:
                setattr(self, name, value)

    def about(self) -> dict[str, Any]:
        """Returns its fields as in a snapshot."""
        return {name: getattr(self, name) for name in _ABOUT}

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
        states: the state slots, for a model with recurrent layers.
        absent: what another server does not report, by name with the reasons (see ``Capabilities``).
        load: what it reported last of its load.
    """

    def __init__(self, snapshot: dict[str, Any], knobs: dict[str, Any], *, history: bool) -> None:
        self.t: float = snapshot["t"]
        self.knobs = dict(knobs)
        self.requests: dict[int, RequestRun] = {}
        self.steps: list[StepRow] = []
        self.changes: list[tuple[float, int, dict[str, list[Any]]]] = []
        self.blocks = BlockStates(snapshot)
        self.states = StateSlots(snapshot.get("states", ()))
        self.stats: dict[str, Any] | None = snapshot.get("stats")
        self.burst: dict[str, Any] | None = snapshot.get("burst")
        self.absent: dict[str, str] = snapshot.get("absent", {})
        self.load: dict[str, Any] | None = snapshot.get("load")
        self._history = history
        self._latest: dict[int, StepRow] = {}  # by step id; a restarted worker counts from 0 again
        for request_id, about in snapshot.get("requests", ()):
            request = self.requests[request_id] = RequestRun(request_id, skipped=about.get("tokens", 0))
            request.update(about)
        titles = [(request_id, title) for request_id, title, _ in snapshot.get("words", ())]
        self._take_words({"titles": titles, "tenants": snapshot.get("tenants", ())})

    def take(self, frame: dict[str, Any]) -> None:
        """Apply a frame whose steps and tokens are records, as ``reader.with_rows`` makes them."""
        self.t = frame["t"]
        for event in frame["requests"]:
            if event[1] == "submitted":
                self._event(*event)
        self._take_words(frame)
        for step in frame["steps"]:
            self._step(step)
        for token in frame["tokens"]:
            self._token(token)
        for event in frame["requests"]:
            if event[1] != "submitted":
                self._event(*event)
        for t, step_id, changes in frame["knobs"]:
            self.knobs.update({name: new for name, (_, new) in changes.items()})
            if self._history:
                self.changes.append((t, step_id, changes))
        self.blocks.take(frame["blocks"])
        self.states.take(frame.get("states", ()))
        self.stats = frame.get("stats") or self.stats
        self.burst = frame.get("burst") or self.burst
        self.absent = frame.get("absent", self.absent)
        self.load = (frame.get("loads") or [self.load])[-1]

    def _take_words(self, words: Mapping[str, Any]) -> None:
        """Take the titles and texts of requests and the names of their tenants, if they were recorded."""
        for name, attribute in (("titles", "title"), ("tenants", "tenant_name")):
            for request_id, text in words.get(name, ()):
                for request in self._known([request_id]):
                    setattr(request, attribute, text)
        for request_id, index, text in words.get("texts", ()):
            for request in self._known([request_id]):
                request.texts[index] = request.texts.get(index, "") + text

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
            for name in _PROGRESS:
                setattr(request, name, getattr(entry, name))
            request.ran(t)

    def _token(self, token: TokenRow) -> None:
        for request in self._known([token.request_id]):
            request.last = token.t
            if token.itl_ms is not None:
                request.itl_max = max(token.itl_ms, request.itl_max or 0.0)
            if request.finished is None:
                request.tokens += 1  # else its end has told how many there are
            if self._history:
                request.token_runs.append(TokenRun(token.t, token.itl_ms, self._latest.get(token.step_id)))
