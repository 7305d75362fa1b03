"""Follows the frames of a run and describes what happened, after each burst and every few seconds of other traffic."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from roseplay.play.story.burst_facts import BurstFacts, BurstWatch
from roseplay.play.story.caption import Caption, caption, figures_in, for_page
from roseplay.play.story.pair import BEFORE_AND_AFTER, Bursts, before_and_after, burst_pair, last_comparable
from roseplay.play.story.steady_facts import KINDS, SteadyFacts, SteadyWatch
from roseplay.play.story.words import compared, guesses, how_it_goes, what_happened
from roseplay.recording.frame import Said
from roseplay.recording.run import Run
from roseplay.recording.schema import Frame
from roseplay.traffic.pair import Pair

STEADY_MS = 5000.0  # between two sentences about steady traffic or that of a file
BURST_MS = 8000.0  # a sentence about a burst is shown at least this long
SILENCE_MS = 12_000.0  # steady traffic counts as ended after this time without an arrival
COMPARED_MS = 10_000.0  # time that is compared, before and after a change of a setting
KEEP_MS = 65_000.0  # longer than a burst is watched
_KEEP_BURSTS = 32


class Story:
    """What happened so far in a run. One thread calls ``take``; ``burst`` and ``latest`` are thread-safe.

    Args:
        others_s: see ``Machine.others_s``.
        run: keeps requests for ``KEEP_MS`` after their end, and takes each frame before the story does.
    """

    def __init__(self, run: Run, others_s: Callable[[], float | None] = lambda: None) -> None:
        self.latest: Said | None = None  # the newest message
        self._run, self._others_s = run, others_s
        self._watched: OrderedDict[int, BurstWatch] = OrderedDict()
        self._facts: OrderedDict[int, BurstFacts] = OrderedDict()  # of the newest bursts
        self._newest = 0  # burst
        self._steady: SteadyWatch | None = None
        self._before: SteadyFacts | None = None
        self._said_ms = float("-inf")
        self._said_burst_ms = float("-inf")
        self._told_ms = float("-inf")
        self._next: Said | None = None
        self._pair: Pair | None = None
        self._compared: tuple[Bursts, Bursts] | None = None
        self._lock = threading.Lock()

    def take_pair(self) -> Pair | None:
        """Returns the picture of comparable bursts if the last one has ended since the last call."""
        with self._lock:
            pair, self._pair = self._pair, None
        return pair

    def burst(self, burst: int, *, answered: bool = False) -> BurstFacts | None:
        """Returns the facts of a burst; ``None`` until its prompts are computed, or if it was stopped.

        Args:
            answered: also return ``None`` until its answers have ended.
        """
        with self._lock:
            return None if answered and burst in self._watched else self._facts.get(burst)

    def newest_pair(self) -> tuple[Bursts, Bursts] | None:
        """Returns the bursts of the newest picture, before and after; ``None`` if there is none, or if ``say`` came later."""
        with self._lock:
            return self._compared

    def compare(self, before: Bursts, after: Bursts) -> None:
        """Give the picture of these comparable bursts, which have been answered."""
        with self._lock:
            self._compared, self._pair = (before, after), burst_pair(before, after)

    def show(self, pair: Pair) -> None:
        """Give a picture of something else than two bursts."""
        with self._lock:
            self._compared, self._pair = None, pair

    def say(self, about: str, t: float, lines: list[Caption]) -> None:
        """Give another message with the next frame, and none about bursts that arrived earlier."""
        with self._lock:
            self._next, self._told_ms, self._compared = _said(about, t, lines), t, None

    @property
    def has_more(self) -> bool:
        """Whether a message from ``say`` waits for a frame."""
        with self._lock:
            return self._next is not None

    def take(self, frame: Frame) -> Said | None:
        """Take a frame; returns a message, if there is one."""
        message = self._take_bursts(frame)
        message = message or self._take_steady(frame)
        with self._lock:
            message, self._next = self._next or message, None
        self.latest = message or self.latest
        return message

    # -- bursts

    def _take_bursts(self, frame: Frame) -> Said | None:
        for _, event, _, about in frame["requests"]:
            burst = about.get("burst") if event == "submitted" else None
            if burst is not None and burst > self._newest:
                self._watched[burst] = BurstWatch(burst, self._run, self._others_s)
                self._newest = burst
        message = None
        for burst, watch in list(self._watched.items()):
            watch.take(frame)
            answered = watch.answered(frame["t"])
            if answered or (burst not in self._facts and watch.computed(frame["t"])):
                message = self._close(watch, frame["t"], answered) or message
        return message

    def _close(self, watch: BurstWatch, t: float, answered: bool) -> Said | None:
        """Take the facts of a burst that is computed or answered; returns a message if there was none about it yet."""
        before, facts = self._facts.get(watch.burst), watch.facts()
        with self._lock:
            if facts is not None:
                self._facts[watch.burst] = facts
                if len(self._facts) > _KEEP_BURSTS:
                    self._facts.popitem(last=False)
            if answered:
                del self._watched[watch.burst]
        earlier = [one for burst, one in self._facts.items() if burst < watch.burst]
        other = None if facts is None else last_comparable(facts, earlier)
        if answered and facts is not None and other is not None:
            self.compare([other], [facts])
        lines, lines_before = (_lines(one, other) for one in (facts, before))
        if facts is None or watch.arrived < self._told_ms or lines == lines_before:
            return None
        self._said_burst_ms = t
        message = _said("burst", t, lines)
        message["burst"] = facts.burst
        if other is not None:
            message["compared"] = other.burst
        return message

    # -- steady traffic

    def _take_steady(self, frame: Frame) -> Said | None:
        now = frame["t"]
        if self._steady is None:
            if not (arrived := self._run.arrived_since(now - SILENCE_MS, KINDS)):
                return None
            self._steady = SteadyWatch(min(request.submitted or now for request in arrived), self._run)
            self._said_ms = now
        steady = self._steady
        if frame["knobs"]:
            changed = max(t for t, _, _ in frame["knobs"])
            self._before = steady.facts(now, COMPARED_MS) or self._before
            self._steady = steady = SteadyWatch(changed, self._run)
        steady.take(frame)
        own = {request_id: request for request_id, request in self._run.requests.items() if request.kind == "own"}
        waits = any(request.finished is None for request in own.values())
        # No frame need follow the one in which the last answer of a file ends.
        ended = not waits and any(event == "finished" and i in own for i, event, _, _ in frame["requests"])
        if steady.latest < now - SILENCE_MS and not (waits or ended):
            self._steady = self._before = None
            return None
        if (now < self._said_ms + STEADY_MS and not ended) or now < self._said_burst_ms + BURST_MS:
            return None
        if (facts := steady.facts(now, ended=ended)) is None:
            return None
        self._said_ms = now
        newest = steady.facts(now, COMPARED_MS) if now >= steady.begun + COMPARED_MS else None
        return _said("steady", now, [how_it_goes(facts), compared(newest, self._before)])


def _lines(facts: BurstFacts | None, other: BurstFacts | None) -> list[Caption]:
    """Returns what is told of a burst, and how it differs from another one."""
    if facts is None:
        return []
    differs = caption(BEFORE_AND_AFTER, before_and_after([other], [facts])) if other else []
    return [what_happened(facts), guesses(facts) or differs]


def _said(about: str, t: float, lines: list[Caption]) -> Said:
    told = [line for line in lines if line]
    return {"about": about, "t": t, "lines": list(map(for_page, told)), "figures": list(map(figures_in, told))}
