"""One soak: the server, its clients, the samples and the verdict."""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.suites.soak.audit import audit
from tests.suites.soak.browser import BrowserTab
from tests.suites.soak.client import Client
from tests.suites.soak.journal import Journal
from tests.suites.soak.report import print_end, progress_line
from tests.suites.soak.sampler import Sampler
from tests.suites.soak.server import Server
from tests.suites.soak.traffic import Traffic
from tests.suites.soak.trend import CountTrend, MemoryTrend
from tests.suites.soak.watcher import Watcher

IDLE_WITHIN_S = 90.0
_SLACK = {"fds": 4.0, "threads": 8.0, "temporary files": 8.0}  # pools of threads and of connections vary in size
_PROGRESS_S = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The parameters of a soak; see ``--help`` of ``tests.suites.soak``."""

    seconds: float = 3600.0
    seed: int = 1
    rate: float = 1.0
    lab_every_s: float = 120.0  # mean time between lab runs; 0 for none
    sample_every_s: float = 5.0
    browser: str | None = None  # path of the Chromium in which a real tab is open, or None

    @property
    def warm_up(self) -> float:
        """Seconds that no trend includes: a third of the run, at most ten minutes. Bounded stores fill up meanwhile."""
        return min(600.0, self.seconds / 3)


class Soak:
    """A single soak.

    Args:
        folder: for the server's temporary files.
        say: receives each line of progress.
    """

    def __init__(self, settings: Settings, folder: Path, say: Callable[[str], None]) -> None:
        self.settings, self._say = settings, say
        self.journal = Journal()
        self.failures: list[str] = []
        self.server = Server(folder)
        self.seconds = 0.0

    def run(self, interrupted: threading.Event) -> dict[str, Any]:
        """Run the traffic until time is over or ``interrupted`` is set, then end the server. Returns all results."""
        try:
            self._start_clients()
            self._drive(interrupted)
            self._drain()
        finally:
            self.journal.stopped.set()
            self.failures += self.server.close()
        return self._verdict()

    def _start_clients(self) -> None:
        settings, journal = self.settings, self.journal
        self.client = Client(self.server.port, journal)
        self.watcher = Watcher(self.server.port, journal)
        self.watcher.start()
        if not self.watcher.ready.wait(30):
            raise RuntimeError("the page did not answer a poll within 30 s")
        self.sampler = Sampler(self.server, self.client, settings.sample_every_s)
        self.browser = BrowserTab(settings.browser, self.client, journal, settings.seed) if settings.browser else None
        self.traffic = Traffic(
            self.client, journal, seed=settings.seed, rate=settings.rate, lab_every_s=settings.lab_every_s
        )

    def _drive(self, interrupted: threading.Event) -> None:
        began = time.monotonic()
        self.sampler.start()
        if self.browser:
            self.browser.start()
        self.traffic.start()
        with self._noting_errors("warming up"):
            self.traffic.warm_up()
        told = 0.0
        while not interrupted.is_set() and (elapsed := time.monotonic() - began) < self.settings.seconds:
            if elapsed - told >= _PROGRESS_S:
                told = elapsed
                self._say(progress_line(elapsed, self.sampler, self.watcher, self.journal))
            if self.server.process.poll() is not None:
                break
            interrupted.wait(min(1.0, self.settings.seconds - elapsed))
        self.seconds = time.monotonic() - began

    def _drain(self) -> None:
        """Let all clients finish, then wait until the engine is idle and the last frame has been read."""
        self.journal.stopped.set()
        hanging = self.traffic.join(IDLE_WITHIN_S + 60)
        self.failures += [f"the client {name} hangs" for name in hanging]
        with self._noting_errors("turning the knobs back"):
            self.traffic.restore_knobs()
        if self.browser:
            self.browser.close()
        deadline = time.monotonic() + IDLE_WITHIN_S
        while time.monotonic() < deadline and not self._at_rest():
            time.sleep(0.25)
        stuck = self.watcher.unfinished()
        self.failures += [f"{len(stuck)} requests never ended: {stuck[:10]}"] if stuck else []
        self.sampler.close()
        with self._noting_errors("the last sample"):
            self.sampler.sample()
        if others := self.sampler.newest("other processes"):
            self.failures.append(f"{others:.0f} processes besides server and worker are left")
        self.watcher.close()

    @contextmanager
    def _noting_errors(self, what: str) -> Iterator[None]:
        """A server that has ended must not prevent the results from being reported."""
        try:
            yield
        except Exception as error:
            self.failures.append(f"{what}: {type(error).__name__}: {error}")

    def _at_rest(self) -> bool:
        """Whether the page shows an idle engine, in numbers newer than the last request's end."""
        stats, watcher = self.watcher.stats, self.watcher
        finished = len(watcher.shown) == watcher.in_all.get("requests") and not watcher.unfinished()
        return finished and stats.get("running") == 0 and stats.get("waiting") == 0 and stats.get("tok_s") == 0

    def _verdict(self) -> dict[str, Any]:
        compared = audit(self.journal, self.watcher)
        memory, counts = self._trends()
        self.failures += [
            f"memory of {name} grows by {trend.growth:.1f} MB (limit {trend.limit:.0f}): "
            f"{trend.per_hour:+.1f} ± {trend.error:.1f} MB/hour"
            for name, trend in memory.items()
            if not trend.flat
        ]
        self.failures += [
            f"{name} grow: never below {trend.last_lowest:g} at the end, at most {trend.first_highest:g} at the beginning"
            for name, trend in counts.items()
            if not trend.flat
        ]
        complaints = Counter(self.journal.complaints)
        self.failures += [f"{text} ({number} times)" for text, number in complaints.items()]
        self.failures += compared.wrong + self.server.errors()[-1:]
        document = {
            "settings": asdict(self.settings),
            "seconds": self.seconds,
            "failures": self.failures,
            "memory": {name: asdict(trend) for name, trend in memory.items()},
            "counts": {name: asdict(trend) for name, trend in counts.items()},
            "audit": compared.figures,
            "steps": self.watcher.steps,
            "acts": dict(sorted(self.journal.counts.items())),
            "series": dict(self.sampler.series.items()),
            "browser": {"heap_mb": self.browser.heap_mb, "nodes": self.browser.nodes} if self.browser else None,
        }
        print_end(document, self._say)
        return document

    def _trends(self) -> tuple[dict[str, MemoryTrend], dict[str, CountTrend]]:
        series, warm = self.sampler.series, self.settings.warm_up
        if self.seconds <= warm:
            return {}, {}
        after = {name: [point for point in points if point[0] >= warm] for name, points in series.items()}
        kept = dict(after["recording mb"])
        # The page's record of the run has its own bound (64 MB, half an hour), and grows until it reaches that.
        less = [(t, value - kept[t]) for t, value in after["server memory"] if t in kept]
        memory = {"server": MemoryTrend.of(less), "worker": MemoryTrend.of(after["worker memory"])}
        memory["temporary files"] = MemoryTrend.of(after["temporary mb"])
        counts = {
            name: CountTrend.of(points, slack)
            for name, points in after.items()
            for what, slack in _SLACK.items()
            if name.endswith(what)
        }
        if self.browser:
            memory["browser heap"] = MemoryTrend.of([p for p in self.browser.heap_mb if p[0] >= warm])
            counts["browser nodes"] = CountTrend.of([p for p in self.browser.nodes if p[0] >= warm], 2000.0)
        return memory, counts


def soak(settings: Settings, interrupted: threading.Event, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Run a soak in a temporary folder; returns its results, with what failed under ``failures``."""
    with tempfile.TemporaryDirectory(prefix="roseplay-soak-") as folder:
        return Soak(settings, Path(folder), say).run(interrupted)
