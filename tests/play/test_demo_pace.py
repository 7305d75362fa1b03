"""Demos at any model's speed: no scene takes longer than a viewer would wait, and captions state what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from roseplay.config import Knobs
from roseplay.engine.telemetry import StepEvent
from roseplay.formats.numbers import told_text, whole
from roseplay.play.bursts import default_traffic
from roseplay.play.demos.catalog import BUDGET, CLIFF, DEMOS, PREFIX
from roseplay.play.demos.plan import ACT_S, plan
from roseplay.play.demos.player import LONGEST
from roseplay.play.playground import Playground
from roseplay.play.story.burst_facts import GIVE_UP_MS
from roseplay.traffic.pace import Speed
from tests.play.conftest import poll
from tests.play.fake_engine import INFO
from tests.play.paced_engine import PacedEngine
from tests.quiet import QuietMachine
from tests.waiting import wait_until

TAB, FRAME_NS = "tab-of-mine", 100_000_000
# Measured with the embedded model and with SmolLM2-135M on two cores; the third is ten times slower than that.
SPEEDS = {"tiny": Speed(0.003, 0.00005), "smollm2": Speed(0.0115, 0.0007), "slow": Speed(0.115, 0.007)}


def test_over_another_server_demos_change_only_what_it_can_change() -> None:
    vllm = replace(
        INFO, server="vLLM", knob_limits={"max_batch_size": 64, "prefill_max_tokens": 2048, "step_max_tokens": 2048}
    )
    knobs = Knobs(max_batch_size=64, step_max_tokens=2048, prefill_max_tokens=2048).to_dict()
    salting = replace(vllm, knob_limits={**vllm.knob_limits, "prefix_cache": 1})
    for info, can in ((vllm, {"budget", "batch"}), (salting, {"budget", "batch", "prefix"})):
        absent = {}
        for name, demo in DEMOS.items():
            try:
                plan(demo, None, info, {**knobs, "same_step_sharing": False})
            except ValueError as error:
                absent[name] = str(error)
        assert absent.keys() == DEMOS.keys() - can
        assert "cannot be changed while the server runs, only max_batch_size" in absent["interval"]
    [_, _, _, switched, _] = plan(PREFIX, None, salting, {**knobs, "same_step_sharing": False}).demo.scenes
    assert switched.knobs == {"prefix_cache": True}
    small = replace(vllm, knob_limits={**vllm.knob_limits, "max_batch_size": 8})
    with pytest.raises(ValueError, match="max_batch_size is 32: use at most 8, which the server was started with"):
        plan(BUDGET, None, small, knobs)


@pytest.mark.parametrize("speed", SPEEDS.values(), ids=SPEEDS)
def test_no_burst_is_given_up_while_a_demo_waits_for_it(speed: Speed) -> None:
    """Otherwise all its answers would have come, and none of its figures be known."""
    for demo in DEMOS.values():
        with suppress(ValueError):  # this model is too slow or too fast for it
            assert 1000 * LONGEST * plan(demo, speed, INFO, Knobs().to_dict()).whole_s < GIVE_UP_MS


class Said(NamedTuple):
    """The figures of a caption, the time at which it was shown, and the last burst sent by then."""

    ns: int
    scene: int
    figures: dict[str, str]
    burst: int | None


class Watched:
    """A playground on an engine in virtual time, and the captions of a demo that it plays."""

    def __init__(self, speed: Speed) -> None:
        self.engine = PacedEngine(speed)
        self.playground = Playground(self.engine, machine=QuietMachine())
        self.said: list[Said] = []
        self.steps: list[StepEvent] = []
        self._due = self._cursor = 0
        self.engine.virtual.work = self._work

    def _work(self, until_ns: int) -> None:
        self.engine.run_until(until_ns)
        if self.engine.virtual.ns >= self._due:
            self._due = self.engine.virtual.ns + FRAME_NS
            self._cursor, events = self.engine.telemetry.since(self._cursor)
            self.steps += [event for event in events if isinstance(event, StepEvent)]
            self.playground.tick()
        latest, bursts = self.playground.demos.latest, self.playground.traffic.newest_burst
        if latest and (not self.said or self.said[-1].scene != latest["scene"]):
            number = bursts.burst_id if bursts else None
            self.said.append(Said(self.engine.virtual.ns, latest["scene"], latest["figures"], number))
            if latest["answers"]:
                self.playground.demos.next(TAB, 1)

    def play(self, name: str) -> list[Said]:
        self.playground.start_demo(name, TAB)
        wait_until(lambda: self.playground.demos.status() is None, timeout=120)
        self.said.append(Said(self.engine.virtual.ns, -1, {}, None))
        return self.said

    def longest_ms(self) -> list[float]:
        """The durations of the steps that computed prompt tokens."""
        taken = [event.record for event in self.steps if event.record.prompt_tokens]
        return [(record.end_ns - record.start_ns) / 1e6 for record in taken]

    def seconds(self) -> list[float]:
        return [(after.ns - before.ns) / 1e9 for before, after in zip(self.said, self.said[1:], strict=False)]


def milliseconds(text: str) -> float:
    """The number of a text such as ``1 059 ms at ×5``."""
    return float(text.replace("\u202f", "").split()[0])


# The one in the middle is for demos that fill memory, which the slow one cannot, and for the first that is shown.
ACTS = [
    pytest.param(name, pace, marks=() if pace != "smollm2" or demo.fills_pool or demo is BUDGET else pytest.mark.slow)
    for name, demo in DEMOS.items()
    for pace in SPEEDS
    if demo is not CLIFF
]


@pytest.mark.parametrize(("name", "pace"), ACTS)
def test_each_act_is_short_and_its_caption_fits(name: str, pace: str) -> None:
    watched = Watched(SPEEDS[pace])
    if DEMOS[name].fills_pool and pace == "slow":
        with pytest.raises(ValueError, match=r"start with --num-blocks \d+ to see it"):
            watched.playground.start_demo(name, TAB)
        return
    planned = plan(DEMOS[name], SPEEDS[pace], watched.engine.info, Knobs().to_dict())
    assert max(planned.seconds) <= ACT_S, planned.seconds
    said = watched.play(name)
    assert [one.scene for one in said] == [*range(len(DEMOS[name].scenes)), -1]
    assert max(watched.seconds()) <= ACT_S + 0.5, list(zip(watched.seconds(), said, strict=False))
    for one, scene in zip(said, planned.demo.scenes, strict=False):
        if scene.burst and "size" in one.figures:
            assert one.figures["size"] == str(scene.burst.size), "the number of requests that were sent"
    assert ("slow_motion" in said[1].figures) == (planned.slow_motion > 1)
    if name != "speculation":  # its single tokens are watched
        assert planned.slow_motion == 1 or pace == "tiny", "the other models are slow enough to watch"
    assert planned.slow_motion > 1 or pace != "tiny" or name != "budget", "the tiny model is not"
    told = [milliseconds(one.figures[name]) for one in said for name in one.figures if name.endswith("_longest")]
    assert all(any(abs(ms - taken) <= 1 for taken in watched.longest_ms()) for ms in told)
    mark = f" at ×{planned.slow_motion:g}" if planned.slow_motion > 1 else ""
    times = [text for one in said for text in one.figures.values() if " ms" in text]
    assert all(text.endswith(f" ms{mark}") or (mark and text.endswith(mark)) for text in times), times
    if name == "budget":
        assert "worst_falls" in said[-2].figures
        assert pace == "tiny" or max(watched.longest_ms()) > 300, "a pause that is noticeable without slow motion"


def test_prompts_that_take_no_time_to_compute_are_not_shown_to() -> None:
    fast = Speed(0.002, 1e-8)
    for name in ("budget", "prefix", "interval"):
        with pytest.raises(ValueError, match="choose a larger model"):
            plan(DEMOS[name], fast, INFO, Knobs().to_dict())
    assert plan(DEMOS["batch"], fast, INFO, Knobs().to_dict())


def test_each_request_of_the_demo_of_fairness_has_its_tenant() -> None:
    watched = Watched(SPEEDS["smollm2"])
    said = watched.play("fair")
    sent = Counter(stream.params.tenant for stream in watched.engine.streams.values())
    assert (sent["flood"], sent["chats"]) == (60, 8)
    pairs = [frame["pair"] for frame in poll(watched.playground)["frames"] if frame.get("pair")]
    marked = {told_text(drawn["first"]) for drawn in pairs[-1]["sides"]}
    (figure, *_), (told,) = (
        pairs[-1]["figures"],
        [text for name, text in said[-2].figures.items() if name.startswith("chats_first_token")],
    )
    assert marked == {figure["before"], figure["after"]}
    assert all(text in told for text in marked), "what is marked is what the caption says"


def test_what_is_sent_by_default_is_answered_in_time() -> None:
    assert default_traffic(None) == default_traffic(SPEEDS["tiny"]) == {"burst": 20, "answer": 64, "rate": 4.0}
    slow = default_traffic(SPEEDS["slow"])
    assert 8 <= slow["burst"] < 20
    assert slow["answer"] == 16
    assert 0.1 <= slow["rate"] < 4


def test_the_page_is_told_what_a_demo_takes_or_why_it_is_absent() -> None:
    offers: Mapping[str, Any] = {
        pace: {offer["name"]: offer for offer in Watched(speed).playground.demos.offers()}
        for pace, speed in SPEEDS.items()
    }
    assert "on simulated GPUs only" in offers["smollm2"].pop(CLIFF.name)["absent"]
    assert all(20 <= offer["seconds"] <= 60 for offer in offers["smollm2"].values())
    assert "memory" in offers["slow"]["pressure"]["absent"]
    assert whole((INFO.num_blocks - 1) * 16).replace("\u202f", ",") in offers["slow"]["pressure"]["absent"]
