"""Prompts that a demo asks in the lanes, on the real engine: what they measure is what the demos are about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from roseplay import Engine
from roseplay.config import Knobs
from roseplay.formats.json_schema import check
from roseplay.formats.segments import plain
from roseplay.play.bursts import Burst
from roseplay.play.demos.asked import Asked, ChatFacts
from roseplay.play.demos.caption_figures import ring
from roseplay.play.demos.chat_demos import FAIR, SPECULATION
from roseplay.play.demos.chat_pair import chat_pair
from roseplay.play.demos.script import DemoBurst, DemoChats, Scene
from roseplay.play.playground import Playground
from roseplay.play.story.caption import caption
from roseplay.recording.schema import FRAME
from tests.waiting import wait_until

TAB = "tab-of-mine"
BLOCKS = 128  # few, so that little fills them


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("tiny-chat", num_blocks=BLOCKS + 1, threads=1, worker="thread") as engine:
        yield engine


@pytest.fixture
def playground(engine: Engine) -> Playground:
    engine.set_knobs(**Knobs().to_dict())
    engine.clear_cache()
    return Playground(engine)


def chats_of(scenes: tuple[Scene, ...], name: str) -> DemoChats:
    return next(scene.chats for scene in scenes if scene.chats and scene.chats.name == name)


def ask(playground: Playground, wanted: DemoChats) -> Asked:
    return Asked(wanted, playground.chats, playground.requests, TAB)


def facts(playground: Playground, wanted: DemoChats) -> ChatFacts:
    playground.engine.pause()  # all begin in the same step, however busy the machine is
    asked = ask(playground, wanted)
    playground.engine.resume()
    wait_until(lambda: asked.answered)
    return asked.facts()


def send(playground: Playground, wanted: DemoBurst) -> Burst:
    return playground.traffic.burst(
        size=wanted.size, kind=wanted.kind, mix=wanted.prompts, max_new_tokens=wanted.answer, seed=wanted.seed,
        tab_id=TAB, tenant=wanted.tenant,
    )  # fmt: skip


def test_the_same_question_again_comes_in_a_few_steps(playground: Playground) -> None:
    playground.set_knobs(dict(SPECULATION.knobs))
    facts(playground, chats_of(SPECULATION.scenes, "start"))
    before = facts(playground, chats_of(SPECULATION.scenes, "before"))
    assert (before.drafted, before.accepted) == (0, 0)
    assert before.steps and before.steps > 40, "as many as the longest answer has tokens"
    playground.set_knobs({"speculative_tokens": 7})
    after = facts(playground, chats_of(SPECULATION.scenes, "after"))
    assert after.texts == before.texts
    assert after.steps and after.steps < before.steps / 3
    assert 0.7 * after.drafted < after.accepted <= after.drafted
    pair = chat_pair(before, after, [], caption(["**Fewer.**"], {}), False)
    assert pair["about"] == "the same 2 prompts"
    busy = chat_pair(before, after, [], [], True)
    assert busy["about"] == "the same 2 prompts, beside other programs"
    assert "price" not in [figure["mark"] for figure in busy["figures"]], "which other programs may have caused"
    effect = pair["figures"][0]
    assert (effect["before"], effect["after"], effect["mark"]) == (str(before.steps), str(after.steps), "effect")
    for drawn, chats, value in zip(pair["sides"], (before, after), ("0", "7"), strict=True):
        assert plain(drawn["title"]) == f"Speculative tokens {value}: {chats.steps} steps"
        own = [tokens for t0, _, tokens in drawn["steps"] if t0 > max(drawn["firsts"])]
        assert chats.steps - 2 <= len(own) <= chats.steps, "each step after the first token is drawn"
        assert max(own) <= 2 * (1 + int(value)), "and has a token of each answer, and the guesses"
        assert len(drawn["reader"]) == max(map(len, chats.tokens))


@pytest.mark.parametrize(("policy", "behind"), [("fcfs", True), ("fair", False)])
def test_chats_of_others_wait_behind_a_flood_unless_it_is_fair(playground: Any, policy: str, behind: bool) -> None:
    playground.set_knobs({**FAIR.knobs, "max_batch_size": 2, "scheduling_policy": policy})
    flood = next(scene.burst for scene in FAIR.scenes if scene.burst)
    burst = send(playground, replace(flood, size=20))
    asked = ask(playground, chats_of(FAIR.scenes, "before"))
    wait_until(lambda: asked.answered and all(tracked.finished for tracked in burst.requests))
    begun = [tracked.stream.metrics.scheduled_ns or 0 for tracked in burst.requests]
    chats = [playground.requests.registry.get(request_id) for request_id in asked.request_ids]
    first = min(tracked.stream.metrics.scheduled_ns or 0 for tracked in chats if tracked)
    assert (first >= max(begun)) == behind
    assert sum(time_ns < first for time_ns in begun) in (range(20, 21) if behind else range(10))


@pytest.mark.parametrize("kind", ["rows", "steps"])
def test_a_recording_may_have_a_ring_around_chats(kind: str) -> None:
    chats = ChatFacts(first_token=9.0, step=None, steps=3, drafted=0, accepted=0, texts=(), requests=(3, 4))
    around = ring((kind, "before"), {"before": chats})
    assert around and around["requests"] == [3, 4]
    check({"rings": [around]}, FRAME["fields"]["demo"])
