"""Tabs and their leases, and bursts."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from roseplay.config import SamplingParams
from roseplay.engine.errors import EngineBusyError
from roseplay.play.bursts import LABELS, kind_of, traffic_source
from roseplay.play.playground import Playground
from roseplay.play.session import LEASE_S, Tab, Tabs
from roseplay.traffic.prompts import KINDS
from tests.play.conftest import Seconds, poll
from tests.play.fake_engine import FakeEngine

TAB = "tab-of-a-test"
PARAMS = SamplingParams(max_new_tokens=500)


@pytest.fixture
def time() -> Seconds:
    return Seconds()


@pytest.fixture
def playground(engine: FakeEngine, time: Seconds) -> Playground:
    return Playground(engine, tabs=Tabs(clock=time))


def test_a_tab_that_stays_away_loses_its_requests(engine: FakeEngine, playground: Playground, time: Seconds) -> None:
    ids = playground.chats.send("hello", lanes=[1, 2], tab_id=TAB, params=PARAMS)
    burst = playground.traffic.burst(size=3, kind="equal", max_new_tokens=9, seed=0, tab_id=TAB)
    ids += [tracked.request_id for tracked in burst.requests]
    time.now = LEASE_S - 1
    playground.tick()
    assert not any(engine.streams[i].finished for i in ids)
    time.now = LEASE_S + 1
    playground.tick()
    assert [engine.streams[i].finish_reason for i in ids] == ["abort"] * 5
    assert len(playground.tabs) == 0


def test_a_page_keeps_lanes_that_its_tab_forgot(engine: FakeEngine, playground: Playground, time: Seconds) -> None:
    def lanes(have: str = "") -> list[dict[str, Any]]:
        return poll(playground, tab_id=TAB, have=have)["own"]["lanes"]

    playground.chats.send("hello", lanes=[1, 2], tab_id=TAB, params=PARAMS)
    have = ",".join(news["have"] for news in lanes())
    time.now = LEASE_S + 1
    playground.tick()
    playground.chats.send("again", lanes=[1], tab_id=TAB, params=PARAMS)
    assert [news["lane"] for news in lanes(have)] == [1], "lane 2, which the page still shows, is not cleared"


def test_requests_that_are_added_at_the_same_time_are_all_kept() -> None:
    tab, before = Tab("tab-of-two", 0.0), sys.getswitchinterval()

    def add() -> None:
        for _ in range(300):
            tab.add(SimpleNamespace(finished=False))  # type: ignore[arg-type]

    threads = [threading.Thread(target=add) for _ in range(2)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(tab.unfinished()) == 600


def test_any_poll_renews_the_lease(engine: FakeEngine, playground: Playground, time: Seconds) -> None:
    (request_id,) = playground.chats.send("hello", lanes=[1], tab_id=TAB, params=PARAMS)
    for minute in range(1, 30):  # the lowest rate at which browsers let a hidden page poll
        time.now = 60.0 * minute
        playground.delta(0, tab_id=TAB)
        playground.tick()
    assert not engine.streams[request_id].finished


def test_requests_of_programs_have_no_lease(engine: FakeEngine, playground: Playground, time: Seconds) -> None:
    tracked = playground.chats.ask("hello", PARAMS)
    playground.traffic.burst(size=2, kind="unique", max_new_tokens=9, seed=0, tab_id="")
    time.now = 10 * LEASE_S
    playground.tick()
    assert not any(stream.finished for stream in engine.streams.values())
    assert playground.stop(ids=[tracked.request_id]) == 1
    assert playground.stop() == 2
    assert playground.stop() == 0


def test_a_poll_of_a_stranger_makes_no_tab(playground: Playground) -> None:
    assert poll(playground, tab_id="nobody-knows-me")["own"] == {"lanes": []}
    assert len(playground.tabs) == 0


@pytest.mark.parametrize("tab_id", ["", "short", "x" * 65, "with space in", "<script>alert"])
def test_a_tab_id_is_checked(playground: Playground, tab_id: str) -> None:
    with pytest.raises(ValueError, match="tab's id"):
        playground.chats.send("hello", lanes=[1], tab_id=tab_id, params=PARAMS)


def test_a_burst_is_accounted_for(engine: FakeEngine, playground: Playground) -> None:
    burst = playground.traffic.burst(size=4, kind="mix", max_new_tokens=2, seed=0, tab_id=TAB)
    assert len(burst.requests) == 4
    lengths = [tracked.prompt_tokens for tracked in burst.requests]
    assert lengths[3] > 20 * lengths[0]
    engine.step(2)
    playground.tick()
    figures = poll(playground)["frames"][-1]["burst"]
    assert figures["prompt_tokens"] == figures["computed"] == sum(lengths)
    assert (figures["saved"], figures["size"], figures["done"], figures["label"]) == (0, 4, 4, "mixed lengths")
    assert figures["ttft_p50"] <= figures["ttft_p95"]


def test_a_burst_has_nothing_in_common_with_the_one_before(engine: FakeEngine, playground: Playground) -> None:
    def prompts(seed: int | None) -> list[list[int]]:
        burst = playground.traffic.burst(size=4, kind="shared head", max_new_tokens=2, seed=seed, tab_id="")
        return [tracked.stream.prompt_token_ids for tracked in burst.requests]

    first, second = prompts(None), prompts(None)
    assert first[0][:512] == first[1][:512] != second[0][:512]
    assert prompts(3) == prompts(3)


def test_saved_tokens_are_counted_once(engine: FakeEngine, playground: Playground) -> None:
    burst = playground.traffic.burst(size=1, kind="equal", max_new_tokens=9, seed=0, tab_id=TAB)
    (tracked,) = burst.requests
    tracked.computed, tracked.target, tracked.cached, tracked.shared = 40, 40, 16, 16
    figures = burst.figures()
    assert (figures["computed"], figures["saved"], figures["blocks_saved"]) == (8, 32, 2)


def test_a_full_engine_takes_what_it_can() -> None:
    playground = Playground(FakeEngine(max_waiting=3))
    burst = playground.traffic.burst(size=8, kind="equal", max_new_tokens=9, seed=0, tab_id="")
    assert (burst.size, len(burst.requests)) == (3, 3)
    with pytest.raises(EngineBusyError):
        playground.traffic.burst(size=8, kind="equal", max_new_tokens=9, seed=0, tab_id="")


def test_kinds_go_by_key_and_label() -> None:
    for key, label in LABELS.items():
        assert kind_of(key) == kind_of(label) == kind_of(label.upper()) == key
    with pytest.raises(ValueError, match="unique, equal, shared_head, mix"):
        kind_of("weird")


def test_a_submission_under_way_is_nobodys_yet(engine: FakeEngine, playground: Playground) -> None:
    """The engine may report a request before ``submit`` has returned whose it is."""
    stream = engine.submit([1, 2, 3])
    with playground.requests.registry.submitting():
        playground.tick()
        assert poll(playground)["snapshot"]["requests"] == []
    playground.tick()
    ((request_id, about),) = poll(playground)["snapshot"]["requests"]
    assert (request_id, about.get("kind", "api")) == (stream.request_id, "api")


@pytest.mark.parametrize("kind", LABELS)
def test_bursts_of_text_differ_from_their_first_word_on(kind: str) -> None:
    class Encoder:
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return [1] * len(text.split())

    engine = FakeEngine()
    engine.tokenizer = Encoder()
    first, second, again = (KINDS[kind].prompts(traffic_source(engine, kind, seed), 8) for seed in (1, 2, 1))
    words = [prompt if isinstance(prompt, str) else prompt[-1]["content"] for prompt in (first[0], second[0])]
    assert words[0].split()[0] != words[1].split()[0] or kind == "shared_head"
    assert first != second
    assert again == first
