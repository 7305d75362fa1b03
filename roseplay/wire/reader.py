"""Reads another engine's telemetry into a run, from its sockets while it runs or from files."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable
from pathlib import Path

from roseplay.wire.extra import WireError, zmq
from roseplay.wire.forward_pass import decode_forward_pass
from roseplay.wire.imported_run import LATEST_MS, TOO_LATE, ImportedRun, Limits
from roseplay.wire.kv_events import decode_kv_events
from roseplay.wire.problems import Problems
from roseplay.wire.subscription import REPLAY_TIMEOUT_S, Subscription
from roseplay.wire.trace_file import read_trace

POLL_MS = 100
KV_EVENTS, FORWARD_PASS = "KV events", "forward pass metrics"


class SocketReader:
    """Subscribes to one engine's endpoints; the run's time begins when this object is made.

    Args:
        kv_events, forward_pass: endpoints; at least one.
        kv_replay: endpoint for replays of missed and earlier KV events.
        replay_timeout_s: seconds to wait for a replay.

    Raises:
        WireError: an endpoint is invalid.
    """

    def __init__(
        self,
        kv_events: str | None = None,
        forward_pass: str | None = None,
        kv_replay: str | None = None,
        *,
        name: str | None = None,
        replay_timeout_s: float = REPLAY_TIMEOUT_S,
    ) -> None:
        problems = Problems()
        source = ", ".join(endpoint for endpoint in (kv_events, forward_pass) if endpoint)
        self._context = zmq.Context()
        self._kv: Subscription | None = None
        self._forward_pass: Subscription | None = None
        try:
            if kv_events is not None:
                self._kv = Subscription(self._context, kv_events, KV_EVENTS, problems, kv_replay, replay_timeout_s)
            if forward_pass is not None:
                self._forward_pass = Subscription(self._context, forward_pass, FORWARD_PASS, problems)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self.run = ImportedRun(problems, source, name)
        self._start = time.monotonic()
        self._asked_before = False

    def read(self, seconds: float) -> None:
        """Take the messages that arrive within this time."""
        poller = zmq.Poller()
        for subscription in (self._kv, self._forward_pass):
            if subscription is not None:
                poller.register(subscription.socket, zmq.POLLIN)
        deadline = time.monotonic() + seconds
        if self._kv is not None and not self._asked_before:
            for payload in self._kv.history():
                self._take_kv(payload)
            self._asked_before = True
        while (left := deadline - time.monotonic()) > 0:
            poller.poll(min(POLL_MS, int(1000 * left) + 1))
            self._take_received()

    def close(self) -> None:
        """End the subscriptions."""
        self._context.destroy(linger=0)

    def _take_received(self) -> None:
        for payload in self._kv.received() if self._kv is not None else ():
            if payload is None:
                self.run.clear_blocks(self._now())
            else:
                self._take_kv(payload)
        for payload in self._forward_pass.received() if self._forward_pass is not None else ():
            if payload is not None:
                self._take_metrics(payload)

    def _take_kv(self, payload: bytes) -> None:
        try:
            batch, skipped = decode_kv_events(payload)
        except WireError as error:
            self.run.problems.skip(f"{KV_EVENTS}: {error}")
            return
        for reason in skipped:
            self.run.problems.skip(f"{KV_EVENTS}: {reason}")
        self.run.take_kv_events(self._now(), batch)

    def _take_metrics(self, payload: bytes) -> None:
        try:
            metrics = decode_forward_pass(payload)
        except WireError as error:
            self.run.problems.skip(f"{FORWARD_PASS}: {error}")
            return
        self.run.take_metrics(self._now(), metrics)

    def _now(self) -> float:
        return (time.monotonic() - self._start) * 1000


def read_files(paths: Iterable[Path], name: str | None = None, limits: Limits | None = None) -> ImportedRun:
    """Reads Dynamo's files of forward pass metrics, in the given order, as one run; may raise ``OSError``."""
    paths, limits = list(paths), limits or Limits()
    problems = Problems()
    run = ImportedRun(problems, ", ".join(path.name for path in paths), name, limits=limits)
    zero: float | None = None
    t = 0.0
    for path in paths:
        for time_ms, metrics in read_trace(path, problems, limits.file_bytes):
            if time_ms is None:
                t += 1000 * metrics.wall_time
            elif zero is None:
                zero, t = time_ms - t, t
                run.began = datetime.datetime.fromtimestamp(max(0.0, zero) / 1000, datetime.UTC)
            elif time_ms - zero > LATEST_MS:  # later records may have the right time
                problems.skip(TOO_LATE)
                continue
            else:
                t = max(t, time_ms - zero)
            run.take_metrics(t, metrics)
            if run.is_full:
                problems.skip("the rest of the files: a recording holds no more")
                return run
    return run
