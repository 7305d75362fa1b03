"""Turns telemetry into frames for browsers to poll: ten a second, encoded once and shared by all tabs.

A frame is a JSON object with the steps, tokens, request events and knob changes since the last frame and, four times a
second, the figures of the KPI strip. Times are in milliseconds since ``PageTime.zero_ns``. While nothing happens, there
are no frames.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from roseplay.engine import telemetry
from roseplay.engine.records import StepRecord
from roseplay.formats.json_text import encode
from roseplay.play.blocks import BlockTabs
from roseplay.play.bursts import Burst
from roseplay.play.page_records import TOLD, about_request
from roseplay.play.stats import header_figures
from roseplay.play.story.story import Story
from roseplay.recording.block_states import BlockStates, State
from roseplay.recording.frame import DemoCaption, Fields, Stats
from roseplay.recording.late_tokens import LateTokens
from roseplay.recording.request_registry import RequestRegistry
from roseplay.recording.rows import PageTime, step_row, token_rows
from roseplay.recording.run import Run
from roseplay.recording.schema import EventRow, Frame, KnobRow
from roseplay.recording.state_slots import StateSlots

KEEP_S = 30.0  # how long frames, and requests that have ended, are kept
STATS_S = 0.25

Tap = Callable[[Frame, bytes], None]


class FrameRing:
    """The encoded frames of the last ``KEEP_S`` seconds, numbered from 1; ``next`` is the number of the next one."""

    def __init__(self, keep_s: float = KEEP_S, capacity: int = 512) -> None:
        self._lock = threading.Lock()
        self._frames: deque[tuple[float, bytes]] = deque(maxlen=capacity)
        self._keep_ms = keep_s * 1000
        self.next = 1

    def append(self, frame: Frame) -> bytes:
        """Number, encode and keep a frame; returns it encoded."""
        steps = [step.values() for step in frame["steps"]]
        with self._lock:
            encoded = encode({"seq": self.next, **frame, "steps": steps})
            self._frames.append((frame["t"], encoded))
            self.next += 1
            while self._frames[0][0] < frame["t"] - self._keep_ms:
                self._frames.popleft()
        return encoded

    def since(self, cursor: int) -> tuple[int, list[bytes] | None]:
        """Returns the next cursor and the frames from ``cursor`` on; ``None`` instead if some are no longer kept."""
        with self._lock:
            missing = self.next - cursor
            if cursor < 1 or missing < 0 or missing > len(self._frames):
                return self.next, None
            return self.next, [self._frames[i][1] for i in range(len(self._frames) - missing, len(self._frames))]

    def restart(self) -> None:
        """Drop all frames and skip a number, so that every browser starts again from a snapshot."""
        with self._lock:
            self._frames.clear()
            self.next += 1

    def recent(self, span_ms: float) -> tuple[int, list[bytes]]:
        """Returns the next cursor and the frames of the ``span_ms`` up to the newest, however long ago that was."""
        with self._lock:
            since = self._frames[-1][0] - span_ms if self._frames else 0.0
            return self.next, [encoded for t, encoded in self._frames if t >= since]


class FrameBuilder:
    """Turns telemetry events into frames. Only one thread may call ``tick``.

    Args:
        run: takes every frame.
        story: describes what happened in it.
        max_waiting: the length of the engine's queue.
        remote: whether another server computes.
        absent: returns what the engine cannot report, with the reasons.
        tap: called with every frame, as an object and encoded.
    """

    def __init__(
        self,
        registry: RequestRegistry,
        page_time: PageTime,
        ring: FrameRing,
        *,
        run: Run,
        story: Story,
        max_waiting: int,
        remote: bool = False,
        absent: Callable[[], Mapping[str, str]] = dict,
        tap: Tap | None = None,
    ) -> None:
        self._registry = registry
        self._run = run
        self._story = story
        self._max_waiting = max_waiting
        self._time = page_time
        self._ring = ring
        self._tap = tap
        self._remote = remote
        self._absent = absent
        self._arrivals = 0
        self._late = LateTokens()
        self._held: list[telemetry.RequestEvent] = []
        self._figures_due_ns = 0
        self.blocks = BlockStates()
        self.states = StateSlots()
        self.block_tabs = BlockTabs(registry)
        self.latest: Stats = {}

    def tick(
        self, events: Sequence[telemetry.TelemetryEvent], burst: Burst | None = None, demo: DemoCaption | None = None
    ) -> bool:
        """Make a frame from these events, the changes in the newest burst, and a demo's caption.

        Returns whether a frame was made.

        If it fails, charts miss the events, and browsers get a snapshot instead of the frame.
        """
        held, self._held = self._held, []
        try:
            return self._make(held, events, burst, demo)
        except BaseException:
            self._skip(held, events)
            raise

    def _skip(self, held: Sequence[telemetry.RequestEvent], events: Sequence[telemetry.TelemetryEvent]) -> None:
        """Keep what a snapshot needs from events that made no frame: the requests and the blocks."""
        requests = [*held, *(event for event in events if isinstance(event, telemetry.RequestEvent))]
        self._held = [
            event
            for event in requests
            if (stream := event.stream) is not None and self._registry.find(event.request_id, stream) is None
        ]
        records = [event.record for event in events if isinstance(event, telemetry.StepEvent)]
        self._changed_blocks(records)
        self._changed_states(records)
        self._ring.restart()

    def _make(
        self,
        held: Sequence[telemetry.RequestEvent],
        events: Sequence[telemetry.TelemetryEvent],
        burst: Burst | None,
        demo: DemoCaption | None,
    ) -> bool:
        frame: Frame = {"t": self._time.now(), "steps": [], "tokens": [], "requests": [], "knobs": [], "blocks": []}
        records = [event.record for event in events if isinstance(event, telemetry.StepEvent)]
        for event in (*held, *events):
            if isinstance(event, telemetry.StepEvent):
                self._step(event, frame)
            elif isinstance(event, telemetry.RequestEvent):
                self._request(event, frame)
            elif isinstance(event, telemetry.KnobEvent):
                frame["knobs"].append(KnobRow(self._time.ms(event.time_ns), event.step_id, event.changed))
            elif isinstance(event, telemetry.TokensEvent):
                self._arrivals += 1
                frame["tokens"] += token_rows(event.tokens, self._time, self._arrivals)
            elif isinstance(event, telemetry.LoadEvent):
                self._load(event, frame)
        self._mark_late(frame)
        # A server's first answers may show that it reports more.
        if (absent := dict(self._absent())) != self._run.absent:
            frame["absent"] = absent
        frame["blocks"] = self._changed_blocks(records)
        if states := self._changed_states(records):
            frame["states"] = states
        self._run.take(frame)
        frame["stats"] = self._due_figures()
        frame["burst"] = burst.changed_figures() if burst else None
        frame["demo"] = demo
        if not any(value for name, value in frame.items() if name != "t") and not self._story.has_more:
            return False
        frame["story"] = self._story.take(frame)
        if pair := self._story.take_pair():
            frame["pair"] = pair
        encoded = self._ring.append(frame)
        if self._tap:
            self._tap(frame, encoded)
        return True

    def _due_figures(self) -> Stats | None:
        """Returns the KPI figures if they have changed and are due again."""
        now_ns = self._time.now_ns()
        if now_ns < self._figures_due_ns:
            return None
        self._figures_due_ns = now_ns + int(STATS_S * 1e9)
        unfinished = sum(not tracked.finished for tracked in self._registry.all())
        figures = header_figures(self._run, unfinished, self._registry.totals, remote=self._remote)
        if figures == self.latest:
            return None
        self.latest = figures
        return figures

    def _changed_blocks(self, records: list[StepRecord]) -> list[list[int]]:
        """Returns rows of the blocks that these steps changed, in their newest states."""
        newest: dict[int, State] = {}
        for record in records:
            if record.new_pool:
                newest = self.blocks.freed()
                self.block_tabs.clear()
            for change in record.block_changes:
                self.block_tabs.take(change)  # every change: a request may come and go within one frame
                newest[change.block] = (change.references, change.owner, change.findable)
        return self.blocks.change(newest)

    def _changed_states(self, records: list[StepRecord]) -> list[list[int]]:
        """Returns rows of the slots of recurrent states that these steps changed; most models have none."""
        return self.states.take(change for record in records for change in record.state_changes)

    def _step(self, event: telemetry.StepEvent, frame: Frame) -> None:
        record = event.record
        for entry in record.entries:
            self._registry.progress(entry)
        frame["steps"].append(step_row(record, self._time, self._max_waiting))
        frame["tokens"] += token_rows(event.tokens, self._time, record.step_id)

    def _mark_late(self, frame: Frame) -> None:
        """Decide which tokens came late; lanes tint these."""
        self._late.mark(frame)
        for token in frame["tokens"]:
            if token.cause and token.usual_ms and (tracked := self._registry.get(token.request_id)):
                tracked.late.append((token.t, token.usual_ms))

    def _load(self, event: telemetry.LoadEvent, frame: Frame) -> None:
        figures: Fields = {"t": self._time.ms(event.time_ns), **asdict(event.total)}
        if event.replicas:
            figures["replicas"] = {name: asdict(load) for name, load in event.replicas.items()}
        frame.setdefault("loads", []).append(figures)

    def _request(self, event: telemetry.RequestEvent, frame: Frame) -> None:
        stream = event.stream
        if (tracked := self._registry.find(event.request_id, stream)) is None:
            if stream is not None:
                self._held.append(event)
            return
        kind = str(event.kind)
        if kind == "submitted":
            self._registry.submitted(tracked)
            self.block_tabs.registered(tracked)
        elif kind == "first_token":
            kind = "first"
        elif kind == "finished":
            self._registry.settle(tracked)
        about = about_request(tracked, self._registry, self._time, TOLD[kind])
        frame["requests"].append(EventRow(event.request_id, kind, self._time.ms(event.time_ns), about))
