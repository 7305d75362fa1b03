"""Prompts that a demo asks in the lanes, on the real engine: what they measure is what the demos are about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from roseplay import Engine
from roseplay.formats.segments import plain
from roseplay.play.bursts import Burst
from roseplay.play.demos.asked import Asked, ChatFacts
from roseplay.play.demos.catalog import DEMOS
from roseplay.play.demos.chat_demos import FAIR, PINNED, SPECULATION
from roseplay.play.demos.script import DemoBurst, DemoChats, Scene
from roseplay.play.playground import Playground
from roseplay.traffic.prompts import PromptMix
from tests.play.conftest import poll
from tests.waiting import wait_until

TAB = "tab-of-mine"
BLOCKS = 128  # few, so that little fills them


@pytest.fixture
def playground() -> Iterator[Playground]:
    with Engine("tiny-chat", num_blocks=BLOCKS + 1, threads=1) as engine:
        yield Playground(engine)


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
    assert (before.per_step, before.drafted, before.accepted) == (1.0, 0, 0)
    assert before.steps and before.steps > 40, "as many as the longest answer has tokens"
    playground.set_knobs({"speculative_tokens": 7})
    after = facts(playground, chats_of(SPECULATION.scenes, "after"))
    assert after.texts == before.texts
    assert after.per_step and after.per_step > 3
    assert after.steps and after.steps < before.steps / 3
    assert 0.7 * after.drafted < after.accepted <= after.drafted


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


@pytest.mark.parametrize("pinned", [0, 16])
def test_documents_push_a_system_prompt_out_unless_it_is_pinned(playground: Playground, pinned: int) -> None:
    playground.set_knobs({**PINNED.knobs, "max_batch_size": 2, "pinned_blocks": pinned})
    two = facts(playground, chats_of(PINNED.scenes, "start"))
    assert two.computed < two.prompt - 240, "the second prompt uses the system prompt of the first"
    documents = next(scene.burst for scene in PINNED.scenes if scene.burst)
    burst = send(playground, replace(documents, mix=PromptMix(repeats=(25,))))
    wait_until(lambda: all(tracked.finished for tracked in burst.requests))
    assert sum(tracked.prompt_tokens for tracked in burst.requests) > 16 * BLOCKS
    third = facts(playground, chats_of(PINNED.scenes, "before"))
    assert third.cached == (256 if pinned else 0)
    assert third.computed == third.prompt - third.cached


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("speculation", "after_per_step"),
        ("fair", "chats_first_token_falls"),
        ("interval", "reader_falls"),
        ("pinned", "after_cached"),
    ],
)
def test_a_demo_shows_its_effect_on_the_embedded_model(name: str, figure: str) -> None:
    with Engine("tiny-chat", num_blocks=449) as engine:
        playground = Playground(engine)
        playground.start()
        playground.start_demo(name, TAB)
        wait_until(lambda: playground.demos.status() is None, timeout=120)

        def told() -> Any:
            story = poll(playground)["snapshot"]["story"]
            return story and story["about"] == "after demo" and story

        story = wait_until(told)
        playground.close()
    assert figure in story["figures"][0]
    assert plain(story["lines"][1]) == DEMOS[name].after
