"""The playground: the actions of the page's buttons and endpoints on the engine. One per server.

Every method is thread-safe, and none waits for the model (unless ``admission`` is ``blocking``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from roseplay.engine.engine_like import EngineLike
from roseplay.engine.records import COLUMNS
from roseplay.engine.ticker import Ticker
from roseplay.formats.json_text import encode
from roseplay.play.blocks import INSPECT_S, describe_block
from roseplay.play.bursts import default_traffic
from roseplay.play.chat_service import ChatService
from roseplay.play.demos.player import DemoContext, DemoPlayer
from roseplay.play.demos.script import Demo
from roseplay.play.frames import KEEP_S, FrameBuilder, FrameRing
from roseplay.play.page_records import about_request
from roseplay.play.prompt_cache import describe_prompt
from roseplay.play.requests import Requests
from roseplay.play.session import Tabs
from roseplay.play.story.caption import caption
from roseplay.play.story.story import KEEP_MS, Story
from roseplay.play.tab import TabService, added_tabs
from roseplay.play.traffic_service import LOOPS, TrafficService
from roseplay.recording.recorder import Recorder
from roseplay.recording.rows import PageTime
from roseplay.recording.run import Run
from roseplay.recording.schema import Snapshot
from roseplay.serve.submissions import Submissions
from roseplay.traffic.environment import Machine, environment
from roseplay.traffic.measured_speed import MeasuredSpeed

FRAME_S = 0.1
SNAPSHOT_MS = 20_000.0


class Playground:
    """An engine, the tabs that show it, and the thread that turns its telemetry into frames.

    Args:
        engine: the caller closes it.
        tabs: for tests, with a clock of their own.
        record: a new file for the run. Raises ``OSError`` if it cannot be created.
        keep: how much of the run is kept in memory: ``keep_bytes`` or ``keep_s`` of ``Recorder``.
        after: the playground of the previous engine, which has ended; visitors' tabs are kept, and results of services.
        machine: whose load may explain what a comparison shows, by default this one.

    Attributes:
        notice: a line that every page shows until it is dismissed.
        services: those of the tabs that extensions add, by name.
    """

    replaying: str | None = None  # see ``PageHost``

    def __init__(
        self,
        engine: EngineLike,
        *,
        tabs: Tabs | None = None,
        record: str | None = None,
        keep: Mapping[str, Any] | None = None,
        after: Playground | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.engine = engine
        self.boot_id = uuid.uuid4().hex[:12]
        self.notice: str | None = None
        self.tabs: Tabs = tabs if tabs is not None else after.tabs if after is not None else Tabs()
        self._speed = MeasuredSpeed(engine.info, engine.knobs.slow_motion)
        before = {} if after is None else after.services
        self.services: dict[str, TabService] = {
            tab.name: tab.make(engine, lambda: self._speed.speed, before.get(tab.name)) for tab in added_tabs()
        }
        self.submissions = Submissions()
        self.requests = Requests(engine)
        self._time = PageTime(engine.clock)
        self._ring = FrameRing()
        absent = engine.capabilities.reasons
        self._run = Run(self.knobs(), {"t": 0.0, "requests": [], "absent": dict(absent)}, keep_ms=KEEP_MS)
        # Another server is another program, too.
        others_s = (machine or Machine()).others_s if engine.info.server is None else lambda: None
        self._story = Story(self._run, others_s)
        about = self.requests.registry, self._about, self.knobs()
        self._recorder = Recorder(*about, absent=absent, file=record, **(keep or {}))
        self._builder = FrameBuilder(
            *(self.requests.registry, self._time, self._ring),
            run=self._run,
            story=self._story,
            max_waiting=engine.config.max_waiting,
            remote=engine.info.server is not None,
            absent=lambda: engine.capabilities.reasons,
            tap=self._recorder.take,
        )
        self.chats = ChatService(self.tabs, self.requests)
        self.traffic = TrafficService(self.tabs, self.requests)
        context = DemoContext(
            self.requests,
            self.tabs,
            self.chats,
            self.traffic,
            self._story,
            now_ms=self._time.now,
            speed=lambda: self._speed.speed,
            stats=lambda: self._builder.latest,
            others_s=others_s,
        )
        self.demos = DemoPlayer(context)
        self._events = engine.telemetry.reader(from_start=True)
        self._ticker = Ticker("roseplay-frames", self.tick, FRAME_S, "a frame could not be made")

    @property
    def playground(self) -> Playground:
        """This playground, which is its own ``PageHost``."""
        return self

    def start(self) -> None:
        """Start making frames."""
        self._ticker.start()

    def close(self) -> None:
        """Stop the services, all traffic and making frames. The engine stays open."""
        self._stop_all()
        self._recorder.close()

    def end(self, reason: str) -> None:
        """Close it and its engine: unfinished answers and the recording end with ``reason``; chats keep their texts."""
        stopped = self._stop_all()
        self.engine.close(reason=reason)
        if stopped:
            ended = {"reason": f"{reason[0].upper()}{reason[1:]}"}
            self._story.say("model", self._time.now(), [caption(["**{reason}.**"], ended)])
            with contextlib.suppress(Exception):
                self.tick()  # the last frame shows how each request ended
        self._recorder.close()
        self.tabs.leave_engine()

    def _stop_all(self) -> bool:
        """Stop everything that this has started; returns whether no frame is being made any more."""
        self.close_services()
        self.demos.stop()
        self._stop_traffic()
        return self._ticker.close()

    # -- actions of people and programs

    def stop(self, *, tab_id: str = "", lane: int | None = None, ids: list[int] | None = None) -> int:
        """Abort a tab's requests (all, or one lane's), or those with these IDs, or without either all requests.

        Without a lane or IDs, steady traffic and traffic from files also end, in the tab or in all.

        Returns how many were aborted.
        """
        if ids is None:
            self.demos.stop(tab_id)
        if ids is None and lane is None:
            self._stop_traffic(tab_id)
        if ids is not None:
            doomed = list(ids)
        elif tab_id:
            tab = self.tabs.open(tab_id)
            doomed = [t.request_id for t in tab.unfinished() if lane is None or t.lane == lane]
        else:
            return int(self.engine.abort_all())  # including requests that are not registered
        return sum(self.requests.abort(request_id) for request_id in doomed)

    def close_services(self, timeout: float = 10.0) -> None:
        """Stop the services of tabs for good, and wait for each up to ``timeout`` seconds."""
        for service in self.services.values():
            service.close(timeout)

    def start_demo(self, name: str, tab_id: str) -> Demo:
        """Begin a demo in a tab. Anything sent from that tab, and any change of a knob, ends it.

        Raises:
            ValueError: there is no such demo or no tab; a demo or a tab's service is running; or this is another server, whose
                knobs cannot be changed or whose cache cannot be cleared.
        """
        reasons = self.engine.capabilities.reasons
        if why := reasons.get("knobs") or reasons.get("clear_cache"):
            raise ValueError(f"a demo changes settings and clears the cache, which is not possible here: {why}")
        for tab in added_tabs():
            if self.services[tab.name].running:
                raise ValueError(tab.busy)
        return self.demos.start(name, tab_id)

    def set_knobs(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change some knobs, all or none of them; returns all knobs. Raises ``ValueError`` if one is wrong."""
        if changes:
            self.demos.stop(keep=changes)
            self.engine.set_knobs(**changes)
        return self.knobs()

    def knobs(self) -> dict[str, Any]:
        return dict(self.engine.knobs.to_dict())

    def block(self, number: int, tab_id: str = "") -> dict[str, object]:
        """Returns what a KV block holds now, with its text if the tab may read it. Waits for the current step.

        Raises:
            ValueError: there is no such block.
            TimeoutError, EngineError: the engine did not reply.
        """
        info = self.engine.inspect_block(number, timeout=INSPECT_S)
        readable = self._builder.block_tabs.readable(info, tab_id)
        return describe_block(info, self.engine.tokenizer, readable=readable)

    def prompt(self, request_id: int, tab_id: str = "") -> dict[str, object]:
        """Returns how much of a request's prompt was cached and why not more, with its text if the tab sent it.

        Raises:
            ValueError: the request is unknown, or has been forgotten.
        """
        tracked, tab = self.requests.registry.get(request_id), self.tabs.get(tab_id)
        if tracked is None and tab is not None:
            tracked = tab.find(request_id)
        if tracked is None:
            raise ValueError(f"request {request_id} is not known: there is none with this id, or it ended too long ago")
        return describe_prompt(tracked, self.requests.registry, self.engine.tokenizer, tab_id=tab_id)

    def recording(self, tab_id: str = "") -> Iterator[bytes]:
        return self._recorder.lines(tab_id)

    def recorded(self) -> dict[str, object]:
        return self._recorder.figures()

    def _about(self) -> dict[str, object]:
        info = self.engine.info
        where = environment(threads=info.threads, device=info.device)
        return {"info": dataclasses.asdict(info), "environment": where}

    # -- polls

    def delta(self, since: int, *, boot: str = "", tab_id: str = "", have: str = "") -> bytes:
        tab = self.tabs.renew(tab_id) if tab_id else None
        own: dict[str, object] = {"lanes": tab.updates(have, self.engine.clock.now_ns(), self._time.ms) if tab else []}
        own |= {kind: loop.figures() for kind, loop in tab.traffic.items()} if tab else {}
        following, frames = self._ring.since(since if boot in ("", self.boot_id) else 0)
        head: dict[str, object] = {"boot_id": self.boot_id, "next": following, "reset": frames is None}
        if frames is None:
            now = self._time.now()
            head["next"], frames = self._ring.recent(SNAPSHOT_MS)
            head["snapshot"] = self._snapshot(now)
        head["now"] = self._time.now()
        head["alive"] = self.engine.alive
        overdue = self.engine.overdue
        head |= {"health": overdue or self.engine.client_delay, "overdue": overdue is not None}
        head |= {name: service.running for name, service in self.services.items()}
        head["demo"] = self.demos.status(tab_id)
        head["notice"] = self.notice
        return b"".join((encode(head)[:-1], b',"frames":[', b",".join(frames), b'],"own":', encode(own), b"}"))

    def _snapshot(self, now: float) -> dict[str, object]:
        """Returns what holds now, and what of the engine a recording's header has."""
        registry, burst = self.requests.registry, self.traffic.newest_burst
        snapshot: Snapshot = {
            "t": now,
            "requests": [(it.request_id, about_request(it, registry, self._time)) for it in registry.all()],
            "blocks": self._builder.blocks.rows(),
            "blocks_used": self._builder.blocks.used,
            "states": self._builder.states.rows(),
            "stats": self._builder.latest or None,
            "burst": burst.figures() if burst else None,
            "absent": self._run.absent,
        }
        if self._run.load:
            snapshot["load"] = self._run.load
        return {
            "info": dataclasses.asdict(self.engine.info),
            "knobs": self.knobs(),
            "columns": COLUMNS,
            **snapshot,
            "story": self._story.latest,
            "demo": self.demos.latest,
            "pace": {**default_traffic(self._speed.speed), "demos": self.demos.offers()},
        }

    # -- internals

    def _stop_traffic(self, tab_id: str = "") -> None:
        for kind in LOOPS:
            self.traffic.stop(kind, tab_id, abort=True)

    def tick(self) -> bool:
        """Make the next frame, and abort the requests of tabs whose lease has expired."""
        for tracked in self.tabs.expire():
            self.engine.abort(tracked.request_id)
        events = self._events.read()
        self._speed.take(events)
        if any(service.running for service in self.services.values()):
            self.demos.interrupt()
        if made := self._builder.tick(events, self.traffic.newest_burst, self.demos.take_news()):
            self.requests.registry.forget(self._time.zero_ns + int((self._time.now() / 1000 - KEEP_S) * 1e9))
        return made
