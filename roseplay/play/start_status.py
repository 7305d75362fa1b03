"""The progress of an engine's start, for the page, ``/health`` and the terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from roseplay.core.progress import STAGES, Progress
from roseplay.formats.numbers import megabytes_text

# Each stage's title, and its description while there is nothing to count.
_WORDS = {
    "libraries": ("Libraries", "PyTorch and transformers"),
    "download": ("Download", "from the Hugging Face hub"),
    "weights": ("Weights", "into memory"),
    "kernels": ("Kernels", "compiled once, then kept"),
    "warm-up": ("Warm-up", "one step of every size"),
}
_UNTOLD = "The server's terminal says why."
_ESTIMATE_FROM_S = 1.0  # into a stage; earlier, an estimate of the time left would be a guess


@dataclass
class Stage:
    """One stage: when it began and ended, in seconds of the clock, and its progress."""

    name: str
    began: float | None = None
    ended: float | None = None
    progress: Progress | None = None

    @property
    def title(self) -> str:
        return _WORDS[self.name][0]

    @property
    def share(self) -> float | None:
        """Completed share, from 0 to 1; None if unknown."""
        if self.ended is not None:
            return 1.0
        progress = self.progress
        return progress.done / progress.total if progress is not None and progress.total else None

    @property
    def words(self) -> str:
        """The stage's progress, or its description."""
        progress = self.progress
        about = progress.note if progress is not None and progress.note else _WORDS[self.name][1]
        if progress is None or progress.unit != "bytes":
            return about
        if self.ended is not None or progress.done == progress.total:
            size = progress.total or progress.done
            return f"{megabytes_text(size)} MB, {about}" if size else about
        total = f" of {megabytes_text(progress.total)}" if progress.total else ""
        return f"{megabytes_text(progress.done)}{total} MB" + (f", {progress.note}" if progress.note else "")

    def seconds(self, now: float) -> float:
        return (now if self.ended is None else self.ended) - self.began if self.began is not None else 0.0

    def left_s(self, now: float) -> float | None:
        """Estimate the seconds left; None unless bytes are being fetched or read and some time has passed."""
        progress, spent = self.progress, self.seconds(now)
        share = self.share
        counted = progress is not None and progress.unit == "bytes" and not progress.note
        if not counted or not share or share == 1 or spent < _ESTIMATE_FROM_S:
            return None
        return spent * (1 / share - 1)


@dataclass(frozen=True)
class Failure:
    """A failed start: the stage's title, the reason as a sentence, and a command to try."""

    stage: str
    message: str
    command: str


class StartStatus:
    """The stages of one start. Thread-safe.

    Args:
        model: its name.
        told: whether clients may read why it failed, which may name files of this machine; otherwise only ``failure``
            has it.
        clock: seconds.
    """

    def __init__(self, model: str, clock: Callable[[], float] = time.monotonic, *, told: bool = True) -> None:
        self.model, self.told = model, told
        self.failure: Failure | None = None
        self.note = ""  # why the previous start failed, if this one recovers from that
        self._awaited = ""
        self._clock = clock
        self._lock = threading.Lock()
        self._stages = {name: Stage(name) for name in STAGES}
        self._now: Stage | None = None
        self._failed_at: float | None = None

    def take(self, progress: Progress) -> None:
        """Take the engine's report of its progress."""
        with self._lock:
            stage = self._stages[progress.stage]
            if stage is not self._now:
                self._end()
                stage.began = self._clock()
                self._now = stage
            stage.progress = progress

    def wait_for(self, line: str) -> None:
        """Note what a start without stages waits for."""
        with self._lock:
            self._awaited = line

    def end(self) -> None:
        """End the start: the engine is live."""
        with self._lock:
            self._end()

    def fail(self, message: str, command: str) -> None:
        """Mark the start as failed; its current stage does not end."""
        with self._lock:
            self._failed_at = self._clock()
            self.failure = Failure(self._now.title if self._now is not None else "", message, command)

    def _end(self) -> None:
        if self._now is not None:
            self._now.ended = self._clock()

    @property
    def sentence(self) -> str:
        """Returns the start's progress in one line."""
        with self._lock:
            return self._sentence()

    def _sentence(self) -> str:
        return " ".join(filter(None, self._parts()))

    def _parts(self) -> tuple[str, str]:
        """Returns the message in two parts: its main sentence, and the details."""
        if self.failure is not None:
            return f"{self.model} could not be started.", self.failure.message if self.told else _UNTOLD
        stage = self._now
        if stage is None:
            return (
                (f"{self.model} is loading.", "")
                if not self._awaited
                else (f"Waiting for {self.model}.", self._awaited)
            )
        left_s = stage.left_s(self._clock())
        more = f" About {max(1, round(left_s))} s left for this." if left_s is not None and stage.ended is None else ""
        return f"{self.model} is loading.", f"{stage.title}, {stage.words}.{more}"

    def terminal_line(self) -> tuple[str, str, float | None]:
        """Returns the stage's title, the sentence with the stage's seconds, and the stage's completed share."""
        with self._lock:
            stage = self._now
            if stage is None:
                return "", self._sentence(), None
            return stage.title, f"{self._sentence()} {stage.seconds(self._clock()):.0f} s", stage.share

    def figures(self) -> dict[str, object]:
        """Returns the whole status, for the page."""
        with self._lock:
            now, failure = self._clock() if self._failed_at is None else self._failed_at, self.failure
            stages = list(self._stages.values())
            head, more = self._parts()
            reached = stages.index(self._now) if self._now is not None else -1
            failed = None if failure is None else {"message": more, "command": failure.command if self.told else ""}
            return {
                "model": self.model,
                "note": self.note,
                "head": head,
                "more": more,
                "stage": self._now.title if self._now is not None else "",
                "share": self._now.share if self._now is not None else None,
                "failed": failed,
                "stages": [
                    {
                        "title": stage.title,
                        "words": stage.words if stage.began is not None or number > reached else "not needed",
                        "state": self._state(stage, number < reached),
                        "share": stage.share,
                        "seconds": stage.seconds(now) if stage.began is not None else None,
                    }
                    for number, stage in enumerate(stages)
                ],
            }

    def _state(self, stage: Stage, passed: bool) -> str:
        if stage is self._now and stage.ended is None:
            return "running" if self.failure is None else "failed"
        return "done" if stage.ended is not None else "skipped" if passed else "waiting"
