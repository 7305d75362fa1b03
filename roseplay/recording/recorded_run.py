"""A recording as requests and steps, from which traces, tables and reports are made."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from roseplay.recording.reader import Recording
from roseplay.recording.run import RequestRun, Run, TokenRun
from roseplay.traffic.pair import named_value


class RecordedRun(Run):
    """The whole run of a recording, from ``start`` to ``end`` in ms of the page's clock."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording.header["knobs"], recording.header["snapshot"])
        self.recording = recording
        for frame in recording.frames:
            self.take(frame)
        times = [t for step in self.steps for t in (step.t0, step.t1)]
        times += [t for it in self.requests.values() for t in (it.submitted, it.finished) if t is not None]
        times += [token.t for token in self.tokens]
        times += [t for t, _, _ in self.changes]
        self.start = min(times, default=0.0)
        self.end = max(times, default=0.0)

    def factors_between(self, since: float | None, until: float | None) -> list[float]:
        """Returns the factors of slow motion between two times; ``None``: before the recording, or its end."""
        return self.factors(self.start if since is None else since, self.end if until is None else until)

    def increase(self, counter: str) -> int | None:
        """Returns by how much a counter in another server's reports rose; ``None`` if they do not include it."""
        loads = [load for frame in self.recording.frames for load in frame.get("loads", ())]
        counts = [count for load in loads if (count := load.get(counter)) is not None]
        rises = [after - before if after >= before else after for before, after in pairwise(counts)]  # else restarted
        return sum(rises) if counts else None

    def slowed(self) -> list[tuple[float, float, float]]:
        """Returns the periods of slow motion: ``(from, to, factor)``."""
        begins = [self.start, *(t for t, _ in self.slow_motion_changes() if t > self.start)]
        periods = zip(begins, [*begins[1:], self.end], strict=True)
        stretches = [(since, end, self.slow_motion(since)) for since, end in periods]
        return [(since, end, factor) for since, end, factor in stretches if factor > 1 and end > since]

    def gaps(self) -> list[tuple[RequestRun, TokenRun, float]]:
        """Returns every ITL of all requests, as ``(request, token, ms)``; tokens that came together have one."""
        return [(r, token, token.itl_ms) for r in self.requests.values() for token in r.token_runs if token.itl_ms]


def changes_text(changes: dict[str, tuple[Any, Any]]) -> str:
    """Returns the changes as text, such as ``Prefill budget 512 → 64``, separated by commas."""
    ends = ((*named_value(name, old), named_value(name, new)[1]) for name, (old, new) in changes.items())
    return ", ".join(f"{label} {before} → {after}" for label, before, after in ends)
