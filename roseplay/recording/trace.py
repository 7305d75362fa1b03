"""Exports a run as a trace in Chrome's format, for ui.perfetto.dev and chrome://tracing.

Process 1 is the engine: a track of steps, and counters. Process 2 has a track for each request: queued, prefill chunks,
decodes, and marks for events. Without steps, as of another server, a decode is the gap before a token, and a request is
waiting until its first token unless the server reported how long it was queued. Times are microseconds since the run's first event.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, zip_longest
from typing import Any

from roseplay.engine.records import COLUMNS, EntryRecord, StepRow
from roseplay.formats.json_text import encode
from roseplay.recording.reader import Recording
from roseplay.recording.recorded_run import RecordedRun, changes_text
from roseplay.recording.run import RequestRun

ENGINE, REQUESTS = 1, 2
STEPS = 1  # the engine's only track; requests' tracks are numbered from 1 in order of arrival
Event = dict[str, Any]


def trace(recording: Recording) -> bytes:
    """Returns the whole run as one JSON object, with events in order of time."""
    events = _Events(RecordedRun(recording))
    header = recording.header
    document = {
        "traceEvents": events.all(),
        "displayTimeUnit": "ms",
        "otherData": {
            "source": f"roseplay {header.get('version', '')}".strip(),
            "created": header.get("created"),
            "model": header["info"],
            "knobs": None if "knobs" in header["snapshot"].get("absent", {}) else header["knobs"],
            "environment": header.get("environment"),
        },
    }
    return encode(document)


class _Events:
    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._tracks = {request_id: number for number, request_id in enumerate(run.requests, 1)}
        self._parts: dict[int, list[tuple[StepRow, EntryRecord]]] = {request_id: [] for request_id in run.requests}
        for step in run.steps:
            for entry in step.entries:
                self._parts[entry.request_id].append((step, entry))

    def all(self) -> list[Event]:
        timed = [*self._steps(), *self._knobs()]
        for request in self._run.requests.values():
            timed += self._request(request)
        timed.sort(key=lambda event: event["ts"])
        return [*self._names(), *timed]

    def _us(self, ms: float) -> int:
        return round((ms - self._run.start) * 1000)

    def _names(self) -> Iterator[Event]:
        info = self._run.recording.info
        named = f"{info.model}, {info.device}" if info.simulated else info.model
        for pid, name, index in ((ENGINE, f"engine ({named})", 0), (REQUESTS, "requests", 1)):
            yield _meta("process_name", pid, 0, name=name)
            yield _meta("process_sort_index", pid, 0, sort_index=index)
        yield _meta("thread_name", ENGINE, STEPS, name="steps")
        for request_id, track in self._tracks.items():
            yield _meta("thread_name", REQUESTS, track, name=self._run.requests[request_id].label)
            yield _meta("thread_sort_index", REQUESTS, track, sort_index=track)

    def _slice(self, pid: int, tid: int, name: str, category: str, t0: float, t1: float, /, **args: Any) -> Event:
        ts = self._us(t0)
        at = {"ts": ts, "dur": max(0, self._us(t1) - ts)}
        return {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, **at, "args": args}

    def _mark(self, pid: int, tid: int, name: str, t: float, scope: str, /, **args: Any) -> Event:
        event = {"ph": "i", "name": name, "cat": "mark", "pid": pid, "tid": tid, "ts": self._us(t), "s": scope}
        return {**event, "args": args}

    # -- the engine

    def _steps(self) -> Iterator[Event]:
        guesses = any(step.draft_tokens for step in self._run.steps)
        for step in self._run.steps:
            name = f"step {step.step_id}"
            yield self._slice(
                *(ENGINE, STEPS, name, "step", step.t0, step.t1),
                **{name: getattr(step, name) for name in COLUMNS["steps"] if name not in ("t0", "t1", "entries")},
                requests=len(step.entries),
                slow_motion=self._run.slow_motion(step.t1),
            )
            counters: dict[str, dict[str, int]] = {
                "tokens per step": {"decode": step.decode_tokens, "prompt": step.prompt_tokens},
                "requests": {"running": step.running, "waiting": step.waiting},
                "KV blocks": {kind: getattr(step, f"blocks_{kind}") for kind in ("shared", "active", "cached", "free")},
            }
            if guesses:
                wrong = step.draft_tokens - step.accepted_tokens
                counters["draft tokens"] = {"accepted": step.accepted_tokens, "wrong": wrong}
            if self._run.recording.info.state_slots:
                counters["recurrent states"] = {"slots in use": step.state_slots, "kept": step.states_kept}
            for counter, values in counters.items():
                yield {"ph": "C", "name": counter, "pid": ENGINE, "tid": 0, "ts": self._us(step.t1), "args": values}

    def _knobs(self) -> Iterator[Event]:
        for t, step, changes in self._run.changes:
            args = {name: {"old": old, "new": new} for name, (old, new) in changes.items()}
            yield self._mark(ENGINE, STEPS, f"knob: {changes_text(changes)}", t, "g", from_step=step, **args)

    # -- a request

    def _request(self, request: RequestRun) -> Iterator[Event]:
        tid, parts = self._tracks[request.request_id], self._parts[request.request_id]
        work = [request.begun, request.first, *(step.t0 for step, _ in parts[:1])]
        until = min((t for t in work if t is not None), default=request.finished)
        if request.submitted is not None and until is not None and until >= self._run.start:
            about = {"kind": request.kind, "prompt_tokens": request.prompt_tokens, "title": request.title}
            about |= {"tenant": request.tenant_text, "priority": request.priority}
            begin = min(max(request.submitted, self._run.start), until)
            name = "waiting" if request.begun is None and "steps" in self._run.absent else "queued"
            yield self._slice(REQUESTS, tid, name, "queued", begin, until, **about)
        yield from self._work(request, tid) if parts else self._stream(request, tid)
        for begin, end in zip_longest(request.preempted, request.resumed, fillvalue=request.finished or self._run.end):
            yield self._slice(REQUESTS, tid, "waiting again", "queued", begin, end)
        marks = [("preempted", t) for t in request.preempted] + [("resumed", t) for t in request.resumed]
        for name, t in [*marks, *(("copied a block", t) for t in request.copied)]:
            yield self._mark(REQUESTS, tid, name, t, "t")
        if request.first is not None and request.first >= self._run.start:
            yield self._mark(REQUESTS, tid, "first token", request.first, "t", ttft_ms=request.ttft)
        if request.finished is not None:
            about = {"reason": request.reason, "error": request.error, "tokens": request.tokens}
            yield self._mark(REQUESTS, tid, "finished", request.finished, "t", **about)

    def _stream(self, request: RequestRun, tid: int) -> Iterator[Event]:
        """Yields an event for the prefill and one for each further token of a request that no step names."""
        if request.begun is not None and request.first is not None and self._run.start <= request.begun < request.first:
            yield self._slice(REQUESTS, tid, "prefill", "prefill", request.begun, request.first)
        for index, (before, token) in enumerate(pairwise(request.token_runs), request.skipped + 1):
            args = {"token": index, "itl_ms": token.itl_ms, "text": request.texts.get(index)}
            yield self._slice(REQUESTS, tid, "decode", "decode", before.t, token.t, **args)

    def _work(self, request: RequestRun, tid: int) -> Iterator[Event]:
        """Yields an event for each step's work on the request."""
        tokens = {id(token.step): (index, token) for index, token in enumerate(request.token_runs, request.skipped)}
        for step, entry in self._parts[request.request_id]:
            args: dict[str, object] = {"step": step.step_id, "step_prompt_tokens": step.prompt_tokens}
            if (factor := self._run.slow_motion(step.t1)) > 1:
                args["slow_motion"] = factor
            if id(step) in tokens:
                index, token = tokens[id(step)]
                args |= {"token": index, "itl_ms": token.itl_ms, "text": request.texts.get(index)}
            if entry.decode_tokens:
                yield self._slice(REQUESTS, tid, "decode", "decode", step.t0, step.t1, **args)
            else:
                args |= {"computed": entry.computed, "target": entry.target}
                args |= {"cached": entry.cached, "shared": entry.shared}
                yield self._slice(REQUESTS, tid, f"prefill {entry.prompt_tokens}", "prefill", step.t0, step.t1, **args)


def _meta(name: str, pid: int, tid: int, /, **args: Any) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}
