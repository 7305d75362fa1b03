"""Plays demos on the running engine, one at a time and in lanes of their own, and restores everything afterwards."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roseplay.config import SamplingParams
from roseplay.engine.errors import EngineBusyError, EngineError
from roseplay.formats.numbers import whole
from roseplay.formats.text import shown
from roseplay.play.chat_service import ChatService
from roseplay.play.demos.asked import Asked, ChatFacts
from roseplay.play.demos.caption_figures import figures_of, figures_of_sent, ring
from roseplay.play.demos.catalog import DEMOS
from roseplay.play.demos.chat_pair import chat_pair
from roseplay.play.demos.check import CHECK, check_plan
from roseplay.play.demos.clients import ClientTraffic, duration, figures_of_size
from roseplay.play.demos.plan import STORY_TOKENS, Plan, plan, reading_s
from roseplay.play.demos.script import Demo, DemoBurst, Scene, lane_prompts
from roseplay.play.requests import Requests
from roseplay.play.session import Tabs
from roseplay.play.story.burst_facts import BurstFacts
from roseplay.play.story.caption import Caption, Segment, caption, figures_in, for_page
from roseplay.play.story.story import Story
from roseplay.play.traffic_service import TrafficService
from roseplay.recording.frame import DemoCaption, Stats
from roseplay.recording.request_registry import TrackedRequest
from roseplay.traffic.environment import overload
from roseplay.traffic.pace import Speed

LOOK_S = 0.02  # interval at which the player checks its stories
STORIES_S = 20.0  # how long stories go on while an answer is chosen
LONGEST = 1.5  # how many times its promised length a demo takes at most
TOLD_S = 2.0  # the most time from a burst's last token until what it did is known
STREAMING_S = 15.0  # time in a scene for the stories to begin
STREAMED_TOKENS = 4  # of each story before a burst, which show the usual gap
_END_S = 5.0
# Stories use these seeds in turn; their texts by SmolLM2 and tiny-chat have been proofread.
_STORY = SamplingParams(temperature=0.6, top_p=0.9, repetition_penalty=1.1, max_new_tokens=STORY_TOKENS)
_SEEDS = 3
_BUSY = Segment(" Other programs keep this computer busy, which disturbs the times.")


class DemoBusyError(ValueError):
    """Another demo is playing; the message says for how long."""


class _StoppedError(Exception):
    """The demo was stopped."""


@dataclass(frozen=True, slots=True)
class DemoContext:
    """The parts of the playground that a demo uses."""

    requests: Requests
    tabs: Tabs
    chats: ChatService
    traffic: TrafficService
    story: Story
    now_ms: Callable[[], float]  # the time on the page's clock, which is the engine's
    speed: Callable[[], Speed | None]  # returns how fast the engine computes; ``None`` while unknown
    stats: Callable[[], Stats]  # returns the newest figures of the KPI strip, as in a frame
    others_s: Callable[[], float | None]  # see ``Machine``


class DemoPlayer:
    """Plays demos, one at a time. Thread-safe."""

    def __init__(self, context: DemoContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._playing: _Play | None = None
        self._news: DemoCaption | None = None
        self.latest: DemoCaption | None = None

    # -- actions

    def start(self, name: str, tab_id: str) -> Demo:
        """Begin a demo in a tab, or check the newest comparison.

        Raises:
            ValueError: there is no such demo, no tab, or nothing to check.
            DemoBusyError: another demo is playing, and does not wait for an answer.
        """
        demo = DEMOS.get(str(name))
        if demo is None and name != CHECK:
            raise ValueError(f"there is no demo {shown(name)}: use one of {', '.join([*DEMOS, CHECK])}")
        tab = self._context.tabs.open(tab_id)
        planned = self.plan(demo) if demo else check_plan(self._context.story)
        if (waiting := self._playing) and waiting.waits:
            waiting.end()
        with self._lock:
            if playing := self._of(""):
                left = playing.seconds_left(self._context.now_ms())
                raise DemoBusyError(f"a demo is playing: it ends in about {left} s")
            self._playing = tab.demo = play = _Play(self._context, planned, tab_id, self._publish)
            play.thread.start()
        return planned.demo

    def plan(self, demo: Demo) -> Plan:
        """Returns a demo's plan if it were played now; raises ``ValueError`` if it cannot be, see ``plan.plan``."""
        engine = self._context.requests.engine
        return plan(demo, self._context.speed(), engine.info, engine.knobs.to_dict(), engine.config)

    def offers(self) -> list[dict[str, str | int]]:
        """Returns for each demo its name and either its approximate ``seconds`` or why it is ``absent``."""
        offers: list[dict[str, str | int]] = []
        for name, demo in DEMOS.items():
            try:
                offers.append({"name": name, "seconds": self.plan(demo).whole_s})
            except ValueError as error:
                offers.append({"name": name, "absent": str(error)})
        return offers

    def next(self, tab_id: str, guess: int = 0) -> bool:
        """Go on to the next caption; returns whether the tab's demo is playing and, with a guess, has asked for one.

        Args:
            guess: the number of the chosen answer, from 1; 0 is none.
        """
        play = self._of(tab_id)
        return play is not None and play.go_on(guess)

    def stop(self, tab_id: str = "", *, keep: Iterable[str] = ()) -> bool:
        """End the demo of a tab, or of any, and wait until everything is restored; returns whether there was one.

        Called by the demo itself, it does nothing.

        Args:
            keep: knobs that are not restored because the caller is about to set them.
        """
        play = self._of(tab_id)
        if play is None or play.thread is threading.current_thread():
            return False
        play.keep.update(keep)
        play.end()
        return True

    def interrupt(self) -> None:
        """End any demo, without waiting for it."""
        if play := self._of(""):
            play.stopping.set()

    def status(self, tab_id: str = "") -> dict[str, int] | None:
        """Returns the playing demo's ``own`` (whether it is this tab's) and ``left_s``; ``None`` if there is none."""
        play = self._of("")
        if play is None or (play.waits and tab_id not in ("", play.tab_id)):
            return None
        return {"own": play.tab_id == tab_id, "left_s": play.seconds_left(self._context.now_ms())}

    def _of(self, tab_id: str) -> _Play | None:
        play = self._playing
        return play if play and play.thread.is_alive() and tab_id in ("", play.tab_id) else None

    # -- captions

    def take_news(self) -> DemoCaption | None:
        """Returns the newest caption since the last call, if any, for a frame."""
        with self._lock:
            news, self._news = self._news, None
        return news

    def _publish(self, said: DemoCaption | None) -> None:
        with self._lock:
            self.latest = said
            self._news = said or {"over": True}


def judgement(guess: str, answers: Mapping[str, str], known: Container[str], *, busy: bool) -> str:
    """Returns whether a guess was right, or why that cannot be told; "" without a guess or its answer.

    Args:
        answers: to the demo's question, by the figure that makes each right if it is ``known``.
        busy: whether other programs may have hidden a difference.
    """
    right = next((figure for figure in answers if figure in known), "")
    if busy and ("cut_limit" in known or right.endswith("_same")):
        return "This run cannot tell."
    if not guess or not right:
        return ""
    return "You guessed right." if right == guess else f"Not quite, the answer was “{answers[right]}”."


class _Play:
    """One run of a demo, in a thread of its own."""

    def __init__(
        self, context: DemoContext, plan: Plan, tab_id: str, publish: Callable[[DemoCaption | None], None]
    ) -> None:
        self._context, self._plan, self._demo, self.tab_id, self._publish = context, plan, plan.demo, tab_id, publish
        self._engine = context.requests.engine
        self._tab = context.tabs.open(tab_id)
        self.stopping, self.skip = threading.Event(), threading.Event()
        self.waits = False  # for an answer, for so long that another tab's demo may take its place
        self.keep: set[str] = set()
        self._set: dict[str, Any] = {}
        self._lanes: dict[int, int] = {}  # lane -> request of its story
        self._requests: list[int] = []
        self._bursts: dict[str, BurstFacts] = {}
        self._chats: dict[str, ChatFacts] = {}
        self._answers: dict[str, str] = {}  # to its question, by figure
        self._asking = False  # whether one may be chosen
        self._guess = ""  # the figure of the chosen one
        self._sent = {"budget": str(plan.budget)}
        if sizes := [scene.burst.size for scene in self._demo.scenes if scene.burst]:
            self._sent["size"] = whole(sizes[0])
        if plan.slow_motion > 1:
            self._sent["slow_motion"] = f"×{plan.slow_motion:g}"
        self._clients = ClientTraffic(self._submit, self._engine.clock.now_ns, self._engine.info.vocab_size)
        if plan.client:
            self._sent |= figures_of_size(plan.client)
        self._overloaded = overload(context.others_s)
        self._begun_ms = context.now_ms()
        self._until_ms = self._begun_ms + 1000 * plan.whole_s
        self.thread = threading.Thread(target=self._run, name="roseplay-demo", daemon=True)

    def end(self) -> None:
        if self.thread is not threading.current_thread():
            self.stopping.set()
            self.thread.join(_END_S)

    def go_on(self, guess: int) -> bool:
        """Go on to the next caption, with a guess only if there is such an answer; returns whether there is."""
        if guess:
            if not self._asking or guess > len(self._answers):
                return False
            self._guess = list(self._answers)[guess - 1]
        self._asking = False
        self.skip.set()
        return True

    def seconds_left(self, now_ms: float) -> int:
        return max(1, round((self._until_ms - now_ms) / 1000))

    # -- the course

    def _run(self) -> None:
        before = dict(self._engine.knobs.to_dict())
        try:
            self._tab.put_lanes_aside()
            self._set_knobs(self._demo.knobs)
            *scenes, end = enumerate(self._demo.scenes)
            for number, scene in scenes:
                self._play(number, scene)
                if not self._plan.client and "cut_limit" in self._sent:
                    break  # there is nothing to compare
            self._sent |= self._demo.conclude(self._bursts)
            self._show_chats(end[1])
            last = self._play(*end)
            self._context.story.say("after demo", self._context.now_ms(), [last, caption([self._demo.after], {})])
        except (_StoppedError, EngineBusyError, EngineError, ValueError):
            pass  # the caller that stopped it knows; an engine that has ended reports that itself
        finally:
            self._end(before)

    def _end(self, before: dict[str, Any]) -> None:
        """Abort what is left, and restore lanes and knobs, except knobs that were changed meanwhile."""
        self._clear()
        now = self._engine.knobs.to_dict()
        changed = {
            name: before[name] for name, value in self._set.items() if name not in self.keep and now[name] == value
        }
        try:
            if changed:
                self._engine.set_knobs(**changed)
        except EngineError:
            pass  # it has ended, and its knobs no longer matter
        self._tab.put_lanes_back()
        self._publish(None)

    def _play(self, number: int, scene: Scene) -> Caption:
        self.skip.clear()
        begun = self._context.now_ms()
        if scene.knobs:
            self._set_knobs(scene.knobs)
        if scene.chats and not scene.burst:
            self._clear()
        burst = self._send(scene.burst, scene.stories) if scene.burst else None
        chats = Asked(scene.chats, self._context.chats, self._context.requests, self.tab_id) if scene.chats else None
        self._requests += chats.request_ids if chats else []
        if scene.clients and self._plan.client:  # the figures of the ones before stay as they were told
            self._clients.begin(scene.clients, self._plan.client)
        elif self._clients.name:
            self._sent |= self._figures_of_clients()
        segments = self._caption(number, scene)
        if scene.answers:
            self._ask_for_guess(number, scene)
        else:
            self._wait(reading_s(segments) if scene.read_s is None else scene.read_s, scene.stories, self.skip.is_set)
        if scene.burst and burst is not None:
            self._take_facts(scene.burst.name, burst, number, begun, scene.stories)
        if scene.chats and chats is not None:
            self._wait(self._left_s(number), False, lambda: chats.answered)
            if chats.answered:
                self._chats[scene.chats.name] = chats.facts()
            else:
                self._cut(chats.tracked, begun)
        return segments

    def _show_chats(self, scene: Scene) -> None:
        """Give the picture of chats that were asked twice; the scene's caption is its sentence."""
        if (before := self._chats.get("before")) and (after := self._chats.get("after")):
            busy, bursts = self._overloaded(), list(self._bursts.values())
            self._context.story.show(chat_pair(before, after, bursts, self._told(scene, busy=busy), busy))

    def _figures(self) -> dict[str, str]:
        return {**self._sent, **figures_of(self._bursts, self._chats)}

    def _told(self, scene: Scene, *, busy: bool) -> Caption:
        """Returns a scene's caption. On a busy machine it names no price, which other programs may have caused."""
        return caption(scene.caption[:1] if busy and self._answers else scene.caption, self._figures())

    def _left_s(self, number: int) -> float:
        """Returns how long a scene may still take if those after it take as long as planned."""
        longest_s = LONGEST * self._plan.whole_s - sum(self._plan.seconds[number + 1 :])
        return longest_s - (self._context.now_ms() - self._begun_ms) / 1000

    def _ask_for_guess(self, number: int, scene: Scene) -> None:
        """Wait until an answer is chosen; the time that is left counts from then on."""
        self._wait(STORIES_S, scene.stories, self.skip.is_set)
        self.waits = True
        self._wait(math.inf, False, self._chosen)
        self.waits = self._asking = False
        self._caption(number, replace(scene, answers={}))
        self._begun_ms = self._context.now_ms() - 1000 * sum(self._plan.seconds[: number + 1])

    def _chosen(self) -> bool:
        """Whether an answer is chosen; where its tab is gone, the demo ends."""
        if self._context.tabs.get(self.tab_id) is not self._tab:
            self.stopping.set()
        return self.skip.is_set()

    def _caption(self, number: int, scene: Scene) -> Caption:
        """Publish a scene's caption and return it; the last one begins by saying whether the guess was right."""
        demo = self._demo
        ends = number == len(demo.scenes) - 1
        busy = ends and self._overloaded()
        segments = self._told(scene, busy=busy)
        if ends:
            judged = judgement(self._guess, self._answers, self._figures(), busy=busy)
            segments = [*([Segment(f"{judged} ")] if judged else []), *segments, *([_BUSY] if busy else [])]
        if scene.answers:
            self._answers, self._asking = dict(scene.answers), True
        now_ms = self._context.now_ms()
        self._until_ms = now_ms + 1000 * sum(self._plan.seconds[number:])  # a scene longer than planned delays the end
        rings = [place for target in scene.rings if (place := ring(target, {**self._bursts, **self._chats}))]
        news: DemoCaption = {
            "name": demo.name,
            "title": demo.title,
            "scene": number,
            "scenes": len(demo.scenes),
            "begun": self._begun_ms,
            "seconds": round((self._until_ms - self._begun_ms) / 1000),
            "span_ms": self._plan.span_ms,
            "caption": for_page(segments),
            "answers": list(scene.answers.values()),
            "guess": self._answers.get(self._guess, ""),
            "figures": figures_in(segments),
            "rings": rings,
        }
        if clients := list(self._measured_clients()):
            news["clients"] = clients
        self._publish(news)
        return segments

    def _set_knobs(self, knobs: Mapping[str, Any]) -> None:
        if self.stopping.is_set():
            raise _StoppedError
        now = self._engine.set_knobs(**knobs).to_dict()
        self._set.update({name: now[name] for name in knobs})

    # -- traffic

    def _send(self, wanted: DemoBurst, stories: bool) -> int:
        """Send a burst once all stories stream, if there are any, and nothing else is running; returns its number."""
        self._clear()
        self._engine.clear_cache()
        if stories:
            self._wait(STREAMING_S, True, self._all_stream)
        burst = self._context.traffic.burst(
            size=wanted.size, kind=wanted.kind, mix=wanted.prompts, max_new_tokens=wanted.answer, seed=wanted.seed,
            tab_id=self.tab_id, tenant=wanted.tenant,
        )  # fmt: skip
        self._requests += [tracked.request_id for tracked in burst.requests]
        self._sent |= figures_of_sent(burst)
        return burst.burst_id

    def _clear(self) -> None:
        """Abort what is left of earlier scenes."""
        for request_id in self._requests:
            self._context.requests.abort(request_id)
        self._lanes.clear()

    def _submit(self, prompt: list[int], params: SamplingParams) -> TrackedRequest:
        tracked = self._context.requests.submit(prompt, params, kind="api", tab=self.tab_id, title="a client's prompt")
        self._tab.add(tracked)
        self._requests.append(tracked.request_id)
        return tracked

    def _figures_of_clients(self) -> dict[str, str]:
        """Returns the clients' figures, and ``kv``, the share of the KV blocks in use, in percent."""
        clients, stats = self._clients, self._context.stats()
        figures = clients.figures()
        total, active, shared = stats.get("kv_total"), stats.get("kv_active"), stats.get("kv_shared")
        if f"{clients.name}_first_token" not in figures:
            self._cut(clients.requests, (self._context.now_ms() - self._begun_ms) / 1000)
        if figures and total and active is not None and shared is not None:
            figures[f"{clients.name}_kv"] = whole(100 * (active + shared) / total)
        return figures

    def _measured_clients(self) -> Iterator[tuple[int, float, float, str]]:
        """Yields the numbers of clients, the times on the page's clock in which the first tokens came that captions speak of,
        and after how long on average."""
        zero_ms = self._context.now_ms() - self._engine.clock.now_ns() / 1e6
        for count, (ttft_s, since_ns, until_ns) in self._clients.measured.items():
            yield count, zero_ms + since_ns / 1e6, zero_ms + until_ns / 1e6, duration(ttft_s)

    def _take_facts(self, name: str, burst: int, number: int, begun: float, stories: bool) -> None:
        """Wait until a scene's burst is answered, and keep stories going; take what is known of it then."""
        story, sent = self._context.story, self._context.traffic.newest_burst

        def told() -> bool:
            return story.burst(burst, answered=True) is not None

        self._wait(self._left_s(number), stories, told)
        if sent and all(tracked.finished for tracked in sent.requests):
            self._wait(TOLD_S, stories, told)
        if facts := story.burst(burst):
            self._bursts[name] = facts
        elif sent:
            self._cut(sent.requests, begun)

    def _cut(self, requests: Sequence[TrackedRequest], begun: float) -> None:
        """Note that these were not all answered in the time since ``begun``."""
        done, seconds = sum(tracked.finished for tracked in requests), (self._context.now_ms() - begun) / 1000
        self._sent |= {"cut_limit": f"{seconds:.0f} s", "cut_done": whole(done), "cut_size": whole(len(requests))}

    def _all_stream(self) -> bool:
        unfinished, least = self._tab.unfinished(), STREAMED_TOKENS
        streaming = {it.request_id for it in unfinished if it.stream.metrics.completion_tokens >= least}
        return streaming.issuperset(self._lanes.values())

    def _wait(self, seconds: float, stories: bool, over: Callable[[], bool]) -> None:
        """Wait for a time, or until ``over`` returns true; meanwhile restart stories that have ended."""
        until = self._context.now_ms() + 1000 * seconds
        while self._context.now_ms() < until:
            if stories:
                self._tell_stories()
            self._clients.send()
            if over():
                return
            if self._engine.clock.wait(self.stopping, LOOK_S):
                raise _StoppedError
        if self.stopping.is_set():
            raise _StoppedError

    def _tell_stories(self) -> None:
        unfinished = {tracked.request_id for tracked in self._tab.unfinished()}
        for lane, prompt in enumerate(lane_prompts(self._engine.info.model)[: self._demo.readers], 1):
            if self._lanes.get(lane) in unfinished:
                continue
            if self.stopping.is_set():
                raise _StoppedError
            self._context.chats.new_chat(lanes=[lane], tab_id=self.tab_id)  # a long history would add prefill
            params = replace(_STORY, seed=1 + len(self._requests) % _SEEDS)
            (request_id,) = self._context.chats.send(prompt, lanes=[lane], tab_id=self.tab_id, params=params, system="")
            self._lanes[lane] = request_id
            self._requests.append(request_id)
