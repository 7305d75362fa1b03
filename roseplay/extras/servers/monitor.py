"""Monitors a server: its metrics, and whether it is still there."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from roseplay.clock import Clock
from roseplay.core.request import FinishReason
from roseplay.engine.errors import EngineError
from roseplay.engine.health import Health
from roseplay.engine.telemetry import LoadEvent, Telemetry
from roseplay.engine.ticker import Ticker
from roseplay.extras.servers.connection import Connection
from roseplay.extras.servers.control import Control, Reply
from roseplay.extras.servers.live import RemoteStreams
from roseplay.extras.servers.load import LoadNames, load_names, read_load
from roseplay.extras.servers.sentences import failure, refusal
from roseplay.extras.servers.server import Server, reported
from roseplay.extras.servers.timings import Timings
from roseplay.formats.numbers import many
from roseplay.formats.text import one_line


class Monitor:
    """Polls the server in a thread of its own: twice a second while requests run, ours or others', otherwise rarely.

    A server whose streams are silent and that does not reply to anything else counts as gone: after ``stopped_s`` its
    streams end with an error. Those of a server that reports a problem go on.

    Args:
        look_at_knobs: reads the server's settings, if it has any; called at each poll that it answers.
    """

    def __init__(
        self,
        server: Server,
        control: Control,
        live: RemoteStreams,
        connection: Connection,
        telemetry: Telemetry,
        clock: Clock,
        timings: Timings,
        look_at_knobs: Callable[[], object],
    ) -> None:
        self.wrong: str | None = None  # one line on what is wrong with the server
        self._look_at_knobs = look_at_knobs
        self._server, self._control, self._live, self._connection = server, control, live, connection
        self._telemetry, self._clock, self._timings = telemetry, clock, timings
        self._silent_since: int | None = None
        self._last_load = LoadEvent(0)
        self._moved_ns = clock.now_ns()  # when its load last changed
        self._names: LoadNames | None = server.names
        self._idle = 0  # polls since the last request ended
        self._ticker = Ticker("roseplay-http-monitor", self._tick, timings.look_s, "the server could not be monitored")
        self._ticker.start()

    def close(self) -> None:
        self._ticker.close(2 * self._timings.look_reply_s)

    def ask(self, timeout: float) -> Health:
        """Check the server's health. May be called from any thread."""
        try:
            return self._said(self._control.get(self._server.health_path, timeout))
        except (httpx.HTTPError, EngineError) as error:  # the latter once the client is closed
            return Health(False, failure(error, self._control.root))

    def _said(self, reply: Reply) -> Health:
        if reply.status == 200:
            return Health(True, "ok")
        return Health(False, one_line(f"{self._control.root} is not healthy: {refusal(*reply)}"))

    # -- its thread

    def _tick(self) -> None:
        busy = self._live.num_live or self._last_load.total.running or self._last_load.total.waiting
        self._idle = 0 if busy or self._silent_since is not None else self._idle + 1
        if not self._idle or self._idle % self._timings.idle_looks == 1:  # 1: shows that nothing runs any more
            self._look()

    def _look(self) -> None:
        began_ns = self._clock.now_ns()
        scraped = self._scrape()
        try:
            health = self._said(self._control.get(self._server.health_path, self._timings.look_reply_s))
        except (httpx.HTTPError, EngineError):
            if scraped or self._live.heard_ns > (self._silent_since or began_ns):
                self._silent_since, self.wrong = None, self._stalled()
            else:
                self._no_reply()
        else:
            self._silent_since, self.wrong = None, self._stalled() if health.ok else health.detail
            self._look_at_knobs()

    def _scrape(self) -> bool:
        """Publish the load in the metrics if it has changed; returns whether there was a reply."""
        if self._server.metrics_path is None:
            return False
        try:
            text = self._control.text(self._server.metrics_path, self._timings.look_reply_s)
        except (httpx.HTTPError, EngineError):
            return False
        if text is None:
            return False
        self._names = self._names or load_names(text)
        if self._names is None:
            return True
        load = read_load(text, self._names, self._clock.now_ns())
        for name in reported(load.total):
            self._live.learn(name)
        self._publish(load)
        return True

    def _publish(self, load: LoadEvent) -> None:
        """Publish a load that differs from the last one."""
        before, self._last_load = self._last_load, load
        if (load.total, load.replicas) != (before.total, before.replicas):
            self._moved_ns = load.time_ns
            self._telemetry.add(load)

    def _stalled(self) -> str | None:
        """Returns one line if requests have run without a token for long: an engine may hang while its API replies.

        Where the server does not count tokens, these are our requests whose answers have begun.
        """
        load, now_ns = self._last_load.total, self._clock.now_ns()
        begun = sum(stream.metrics.first_token_ns is not None for stream in self._live.live())
        running = begun if load.generation_tokens is None else load.running or 0
        if not running:
            self._moved_ns = now_ns
        silent_s = (now_ns - max(self._moved_ns, self._live.heard_ns)) / 1e9
        if silent_s <= self._timings.stalled_s:
            return None
        return (
            f"{self._control.root} replies, but no token has come for {silent_s:.0f} s: {many(running, 'request')} run"
        )

    def _no_reply(self) -> None:
        now_ns = self._clock.now_ns()
        if self._silent_since is None:
            self._silent_since = now_ns
        silent_s = (now_ns - self._silent_since) / 1e9
        if silent_s > self._timings.overdue_s:
            self.wrong = f"{self._control.root} has not answered for {silent_s:.0f} s"
            self._publish(LoadEvent(now_ns))  # what it runs is not known any more
        stopped_s = self._timings.stopped_s
        if silent_s > stopped_s and self._live.num_live:
            sentence = f"{self._control.root} gave no sign of life for {stopped_s:g} s"
            self._connection.end_all(FinishReason.ERROR, sentence)
