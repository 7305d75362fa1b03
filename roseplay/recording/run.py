"""A recording as requests and steps, from which trace, table and report are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from roseplay.recording.frame_rows import StepRow
from roseplay.recording.reader import Recording


class TokenRun(NamedTuple):
    """One token, and the step that made it."""

    t: float
    itl_ms: float | None
    step: StepRow | None


@dataclass(slots=True)
class RequestRun:
    """One request. Times are ms of the page's clock, ``None`` for what did not happen or came before the recording.

    Attributes:
        skipped: tokens it had before the recording begins.
        texts: by token index; empty if they were not recorded.
        preempted, resumed, copied: times of these events.
    """

    request_id: int
    kind: str = "api"
    lane: int | None = None
    burst: int | None = None
    prompt_tokens: int = 0
    title: str | None = None
    submitted: float | None = None
    scheduled: float | None = None
    first: float | None = None
    finished: float | None = None
    reason: str | None = None
    error: str | None = None
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
        return f"burst {self.burst} #{self.request_id}" if self.burst is not None else f"request #{self.request_id}"

    @property
    def ttft(self) -> float | None:
        return None if self.first is None or self.submitted is None else self.first - self.submitted


class Run:
    """A whole recording in order.

    Attributes:
        requests: by id, in order of arrival.
        steps: oldest first.
        knobs: ``(t, step, {name: [old, new]})``.
        start, end: ms of the page's clock.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.requests: dict[int, RequestRun] = {}
        self.steps: list[StepRow] = []
        self._latest: dict[int, StepRow] = {}  # by number; a restarted worker counts from 0 again
        self.knobs: list[tuple[float, int, dict[str, list[Any]]]] = []
        snapshot = recording.header["snapshot"]
        for request_id, about in snapshot.get("requests", ()):
            request = self._about(request_id, about)
            request.skipped = about.get("tokens", 0)
        for request_id, title, _ in snapshot.get("words", ()):
            self._request(request_id).title = title
        for frame in recording.frames:
            self._take(frame)
        times = [t for step in self.steps for t in (step.t0, step.t1)]
        times += [request.submitted for request in self.requests.values() if request.submitted is not None]
        times += [t for t, _, _ in self.knobs]
        self.start = min(times, default=0.0)
        self.end = max(times, default=0.0)
        factors = [(t, changes["slow_motion"][1]) for t, _, changes in self.knobs if "slow_motion" in changes]
        self._slow_motion = [(float("-inf"), recording.header["knobs"]["slow_motion"]), *factors]

    def _request(self, request_id: int) -> RequestRun:
        return self.requests.setdefault(request_id, RequestRun(request_id))

    def _about(self, request_id: int, about: dict[str, Any]) -> RequestRun:
        request = self._request(request_id)
        names = (
            "kind",
            "lane",
            "burst",
            "prompt_tokens",
            "submitted",
            "scheduled",
            "first",
            "finished",
            "reason",
            "error",
        )
        for name in names:
            if name in about:
                setattr(request, name, about[name])
        return request

    def _take(self, frame: dict[str, Any]) -> None:
        for request_id, kind, t, about in frame["requests"]:
            setattr(self._about(request_id, about), kind, t)
        for step in frame["steps"]:
            self._step(step)
        for token in frame["tokens"]:
            made = TokenRun(token.t, token.itl_ms, self._latest.get(token.step))
            self._request(token.request_id).tokens.append(made)
        for request_id, title in frame["titles"]:
            self._request(request_id).title = title
        for request_id, index, text in frame["texts"]:
            texts = self._request(request_id).texts
            texts[index] = texts.get(index, "") + text
        self.knobs += [(t, step, changes) for t, step, changes in frame["knobs"]]

    def _step(self, step: StepRow) -> None:
        self.steps.append(step)
        self._latest[step.step] = step
        for entry in step.entries:
            request = self._request(entry.request_id)
            if len(request.preempted) > len(request.resumed):
                request.resumed.append(step.t0)
        for request_id in step.preempted:
            request = self._request(request_id)
            if len(request.preempted) > len(request.resumed):  # preempted again before it ran
                request.resumed.append(step.t0)
            request.preempted.append(step.t0)
        for request_id in step.copied:
            self._request(request_id).copied.append(step.t0)

    def slow_motion(self, t: float) -> float:
        """Returns by what factor steps were stretched at that time; 1 is not at all."""
        return float(next(factor for since, factor in reversed(self._slow_motion) if since <= t))

    def slowed(self) -> list[tuple[float, float, float]]:
        """Returns the periods of slow motion: ``(from, to, factor)``."""
        ends = [*(since for since, _ in self._slow_motion[1:]), self.end]
        stretches = [(max(since, self.start), min(end, self.end), float(factor))
                     for (since, factor), end in zip(self._slow_motion, ends, strict=True)]  # fmt: skip
        return [(since, end, factor) for since, end, factor in stretches if factor > 1 and end > since]

    def gaps(self) -> list[tuple[RequestRun, TokenRun, float]]:
        """Returns every ITL with its request and token, of all requests."""
        return [
            (r, token, token.itl_ms) for r in self.requests.values() for token in r.tokens if token.itl_ms is not None
        ]


def setting_text(value: Any, none: str = "∞") -> str:
    """Returns a setting's value for people; ``none`` stands for null, which for a knob means no limit."""
    if value is None:
        return none
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def changes_text(changes: dict[str, list[Any]]) -> str:
    """Returns ``prefill_max_tokens 512 → 64`` and further changes, separated by commas."""
    return ", ".join(f"{name} {setting_text(old)} → {setting_text(new)}" for name, (old, new) in changes.items())
