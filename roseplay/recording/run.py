"""A recording as requests and steps, from which traces, tables and reports are made."""

from __future__ import annotations

from typing import Any

from roseplay.recording.reader import Recording
from roseplay.recording.run_state import RequestRun, RunState, TokenRun
from roseplay.traffic.pair import named_value


class Run:
    """A whole recording in order.

    Attributes:
        requests: by id, in order of arrival.
        steps: oldest first.
        knobs: their changes, ``(t, step, {name: [old, new]})``.
        absent: names of what the engine, another server's, did not report (see ``Capabilities``), as at the end.
        start, end: times of the first and the last event, in ms of the page's clock.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        header = recording.header
        state = RunState(header["snapshot"], header["knobs"], history=True)
        for frame in recording.frames:
            state.take(frame)
        self.requests, self.steps, self.knobs = state.requests, state.steps, state.changes
        self.absent = set(state.absent)
        times = [t for step in self.steps for t in (step.t0, step.t1)]
        times += [request.submitted for request in self.requests.values() if request.submitted is not None]
        times += [t for t, _, _ in self.knobs]
        self.start = min(times, default=0.0)
        self.end = max(times, default=0.0)
        factors = [(t, changes["slow_motion"][1]) for t, _, changes in self.knobs if "slow_motion" in changes]
        self._slow_motion = [(float("-inf"), header["knobs"]["slow_motion"]), *factors]

    def slow_motion(self, t: float) -> float:
        """Returns the factor by which steps were stretched at time ``t``; 1 if they were not."""
        return float(next(factor for since, factor in reversed(self._slow_motion) if since <= t))

    def factors(self, since: float | None, until: float | None) -> list[float]:
        """Returns the factors of slow motion between two times, ascending; ``None``: before the recording, or its end."""
        since = self.start if since is None else since
        later = {float(factor) for t, factor in self._slow_motion if since < t < (self.end if until is None else until)}
        return sorted(later | {self.slow_motion(since)})

    def slowed(self) -> list[tuple[float, float, float]]:
        """Returns the periods of slow motion: ``(from, to, factor)``."""
        ends = [*(since for since, _ in self._slow_motion[1:]), self.end]
        stretches = [(max(since, self.start), min(end, self.end), float(factor))
                     for (since, factor), end in zip(self._slow_motion, ends, strict=True)]  # fmt: skip
        return [(since, end, factor) for since, end, factor in stretches if factor > 1 and end > since]

    def gaps(self) -> list[tuple[RequestRun, TokenRun, float]]:
        """Returns every ITL of all requests, as ``(request, token, ms)``; tokens that came together have one."""
        return [(r, token, token.itl_ms) for r in self.requests.values() for token in r.token_runs if token.itl_ms]


def changes_text(changes: dict[str, list[Any]]) -> str:
    """Returns the changes as text, such as ``Prefill budget 512 → 64``, separated by commas."""
    ends = ((*named_value(name, old), named_value(name, new)[1]) for name, (old, new) in changes.items())
    return ", ".join(f"{label} {before} → {after}" for label, before, after in ends)
