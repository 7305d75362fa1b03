"""A run as it happens: its requests, steps, tokens and knobs, filled by frames.

What is said of a run is a function of it: the page's story and figures, the first state of a recording, tables, traces and reports.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile
from statistics import median
from typing import Any, Literal, NamedTuple

from roseplay.engine.records import RequestRecord, StepRow, TokenRow, names_of
from roseplay.recording.frame import Fields
from roseplay.recording.schema import Frame, KnobRow, Snapshot

_PROGRESS = ("computed", "target", "cached", "shared")
_ABOUT = names_of(RequestRecord)
_MOST_TOKENS = 1 << 16  # kept of a run that goes on
_LOADS = 16
_REPORTS_APART = 3  # times the span of a rate, for a server that is slow to report
_USUAL = 256  # gaps from which the usual one is computed


class TokenRun(NamedTuple):
    """One token, and the step that made it."""

    t: float
    itl_ms: float | None
    step: StepRow | None


@dataclass(slots=True)
class RequestRun(RequestRecord):
    """One request. Events that precede the run have no times; the number of its tenant may be unknown."""

    request_id: int
    title: str | None = None
    tenant_name: str | None = None  # its tenant's name, if it was recorded
    skipped: int = 0  # number of its tokens that are not in ``token_runs``, as they precede the run
    token_runs: list[TokenRun] = field(default_factory=list)  # its tokens, if the whole run is kept
    texts: dict[int, str] = field(default_factory=dict)  # by token index; empty if they were not recorded
    preempted: list[float] = field(default_factory=list)  # times of these three events
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
    def begun(self) -> float | None:
        """When it was first computed. Another server reports only at the end how long it waited, or never."""
        if self.scheduled is None and self.submitted is not None and self.queue_ms is not None:
            return self.submitted + self.queue_ms
        return self.scheduled

    @property
    def tpot_ms(self) -> float | None:
        """Mean time per output token after the first, so far; ``None`` for fewer than two tokens."""
        if self.tokens < 2 or self.first is None or self.last is None:
            return None
        return (self.last - self.first) / (self.tokens - 1)

    @property
    def ttft(self) -> float | None:
        return None if self.first is None or self.submitted is None else self.first - self.submitted

    @property
    def ended_well(self) -> bool:
        """Whether its answer is complete."""
        return self.reason in ("stop", "length")

    def streamed_at(self, t: float) -> bool:
        """Whether it had begun to answer by this time and had not ended."""
        return self.first is not None and self.first < t and (self.finished is None or self.finished > t)

    def update(self, about: Fields) -> None:
        """Copy the fields that an event or a snapshot has."""
        for name, value in about.items():
            if name in _ABOUT:
                setattr(self, name, value)

    def about(self) -> Fields:
        """Returns its fields as in a snapshot."""
        return {name: getattr(self, name) for name in _ABOUT}

    def ran(self, t: float) -> None:
        """Note that a step ran it, or preempted it before it ran: an earlier preemption ends."""
        if len(self.preempted) > len(self.resumed):
            self.resumed.append(t)


class Run:
    """A run after the frames taken so far.

    Args:
        knobs: their initial values.
        snapshot: the initial state, as in a recording's header.
        keep_ms: how long requests are kept after their end; by default everything is kept, otherwise only the newest
            step and ``_MOST_TOKENS`` tokens, or no tokens if it is 0.
    """

    def __init__(self, knobs: Mapping[str, Any], snapshot: Snapshot, *, keep_ms: float = math.inf) -> None:
        whole = keep_ms == math.inf
        self.t = snapshot["t"]  # of the last frame, in ms of the page's clock
        self.knobs = dict(knobs)  # as they are now
        self.changes: list[KnobRow] = []  # from which earlier values follow
        self.requests: dict[int, RequestRun] = {}  # by id, in order of arrival
        self.steps: deque[StepRow] = deque(maxlen=None if whole else 1)
        self.tokens: deque[TokenRow] = deque(maxlen=None if whole else _MOST_TOKENS if keep_ms else 0)
        # What another server does not report, with the reasons, and what it reported last of its load, oldest first.
        self.absent = snapshot.get("absent", {})
        self.loads = deque[Fields]([snapshot["load"]] if snapshot.get("load") else [], _LOADS)
        self._keep_ms, self._whole = keep_ms, whole
        self._count = 0  # tokens so far
        self._latest: dict[int, StepRow] = {}  # by step id; a restarted worker counts from 0 again
        for request_id, about in snapshot["requests"]:
            request = self.requests[request_id] = RequestRun(request_id, skipped=about.get("tokens", 0))
            request.update(about)
        self._name("title", [(request_id, title) for request_id, title, _ in snapshot.get("words", ())])
        self._name("tenant_name", snapshot.get("tenants", ()))

    # -- what is asked of it

    def setting_at(self, name: str, t: float) -> Any:
        """Returns the value of a knob at a time, ``None`` if it is unknown."""
        later = (changes[name][0] for changed, _, changes in self.changes if changed > t and name in changes)
        return next(later, self.knobs.get(name))

    def knobs_at(self, t: float) -> dict[str, Any]:
        return {name: self.setting_at(name, t) for name in self.knobs}

    def slow_motion(self, t: float) -> float:
        """Returns the factor by which steps were stretched at time ``t``; 1 if they were not."""
        return float(self.setting_at("slow_motion", t) or 1)

    def factors(self, since: float, until: float = math.inf) -> list[float]:
        """Returns the factors of slow motion between two times, ascending."""
        later = {float(factor) for t, factor in self.slow_motion_changes() if since < t < until}
        return sorted(later | {self.slow_motion(since)})

    def slow_motion_changes(self) -> Iterator[tuple[float, float]]:
        """Yields the times at which slow motion was changed, and the new factors."""
        yield from ((t, changes["slow_motion"][1]) for t, _, changes in self.changes if "slow_motion" in changes)

    def of_burst(self, burst: int) -> dict[int, RequestRun]:
        return {request_id: request for request_id, request in self.requests.items() if request.burst == burst}

    def arrived_since(self, t: float, kinds: Container[str]) -> list[RequestRun]:
        """Returns the requests of these kinds that were submitted from this time on."""
        requests = self.requests.values()
        return [it for it in requests if it.kind in kinds and it.submitted is not None and it.submitted >= t]

    def gaps_since(self, t: float) -> list[TokenRow]:
        """Returns the tokens from this time on that have a gap before them, except those that came with another."""
        return [token for token in self.tokens if token.t >= t and token.itl_ms]

    def usual_ms(self, before: float) -> float | None:
        """Returns the median of the last gaps before a time, under the slow motion of then; ``None`` if there were none."""
        since = max((t for t, _ in self.slow_motion_changes() if t <= before), default=-math.inf)
        gaps = (
            gap
            for token in reversed(self.tokens)
            if (gap := token.itl_ms) and since <= token.t - gap and token.t < before
        )
        newest = list(islice(gaps, _USUAL))
        return median(newest) if newest else None

    def tokens_until(self, t: float) -> int:
        """Returns how many tokens came by a time, of which at most the newest ``_MOST_TOKENS`` came later."""
        return self._count - sum(1 for _ in takewhile(lambda token: token.t > t, reversed(self.tokens)))

    def tokens_per_s(self, ms: float) -> int:
        """Returns the rate over the last ``ms``, rounded."""
        since = self.t - ms
        if len(self.tokens) == self.tokens.maxlen:
            since = max(since, self.tokens[0].t)
        return round(1000 * (self._count - self.tokens_until(since)) / (self.t - since)) if self.t > since else 0

    @property
    def load(self) -> Fields | None:
        """What another server reported last of its load."""
        return self.loads[-1] if self.loads else None

    def served_per_s(self, ms: float) -> int | None:
        """Returns the rate at which another server generated tokens for all its clients in the last ``ms`` or, where its
        reports are further apart, since the one before, rounded; ``None`` if they do not tell.
        """
        reports = [load for load in self.loads if load.get("generation_tokens") is not None]
        if len(reports) < 2 or reports[-1] is not self.loads[-1]:
            return None
        last = reports[-1]
        before = next((load for load in reversed(reports) if load["t"] <= last["t"] - ms), reports[0])
        since = before["t"] if before["running"] else max(before["t"], last["t"] - ms)  # it had nothing to do before
        tokens = last["generation_tokens"] - before["generation_tokens"]
        if tokens < 0 or since == last["t"] or self.t - last["t"] > (_REPORTS_APART * ms if last["running"] else ms):
            return None
        return round(1000 * tokens / (last["t"] - since))

    # -- frames

    def take(self, frame: Frame) -> None:
        self.t = frame["t"]
        for event in frame["requests"]:
            if event.event == "submitted":
                self._event(*event)
        self._name("title", frame.get("titles", ()))
        self._name("tenant_name", frame.get("tenants", ()))
        for request_id, index, text in frame.get("texts", ()):
            for request in self._known([request_id]):
                request.texts[index] = request.texts.get(index, "") + text
        for step in frame["steps"]:
            self._step(step)
        for token in frame["tokens"]:
            self._token(token)
        for event in frame["requests"]:
            if event.event != "submitted":
                self._event(*event)
        for row in frame["knobs"]:
            self.knobs.update({name: new for name, (_, new) in row.changes.items()})
            self.changes.append(row)
        self.absent = frame.get("absent", self.absent)
        self.loads += frame.get("loads") or ()
        if not self._whole:
            self._forget(self.t - self._keep_ms)

    def _forget(self, before: float) -> None:
        """Drop requests that ended by this time, and changes of knobs that were made by then."""
        for request_id in [i for i, it in self.requests.items() if it.finished is not None and it.finished <= before]:
            del self.requests[request_id]
        self.changes = [change for change in self.changes if change.t > before]

    def _name(self, attribute: Literal["title", "tenant_name"], names: Iterable[tuple[int, str | None]]) -> None:
        for request_id, name in names:
            for request in self._known([request_id]):
                setattr(request, attribute, name)

    def _event(self, request_id: int, kind: str, t: float, about: Fields) -> None:
        if kind == "submitted":
            self.requests.setdefault(request_id, RequestRun(request_id))
        for request in self._known([request_id]):
            request.update({**about, kind: t})
            submitted, ttft_ms = request.submitted, request.ttft_ms
            if request.first is None and submitted is not None and ttft_ms is not None:
                request.first = submitted + ttft_ms  # told with its end only

    def _known(self, request_ids: Iterable[int]) -> list[RequestRun]:
        """Returns those of these requests that are kept: steps may name one before its submission or after its end."""
        if self._whole:
            return [self.requests.setdefault(request_id, RequestRun(request_id)) for request_id in request_ids]
        return [self.requests[request_id] for request_id in request_ids if request_id in self.requests]

    def _step(self, step: StepRow) -> None:
        self.steps.append(step)
        if self._whole:
            self._latest[step.step_id] = step
        for entry in step.entries:
            for request in self._known([entry.request_id]):
                for name in _PROGRESS:
                    setattr(request, name, getattr(entry, name))
                request.ran(step.t0)
        for request in self._known(step.preempted):
            request.ran(step.t0)
            request.preempted.append(step.t0)
            request.preemptions += 1
        for request in self._known(step.copied):
            request.copied.append(step.t0)

    def _token(self, token: TokenRow) -> None:
        self.tokens.append(token)
        self._count += 1
        for request in self._known([token.request_id]):
            request.last = token.t
            if token.itl_ms is not None:
                request.itl_max = max(token.itl_ms, request.itl_max or 0.0)
            if request.finished is None:
                request.tokens += 1  # else its end has told how many there are
            if self._whole:
                request.token_runs.append(TokenRun(token.t, token.itl_ms, self._latest.get(token.step_id)))
