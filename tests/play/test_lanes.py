"""Lanes: what a tab receives about its chats, whatever it has received or lost so far."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from roseplay.config import SamplingParams
from roseplay.engine.records import COLUMNS
from roseplay.play.lanes import parse_seen, rate
from roseplay.play.playground import Playground
from roseplay.traffic.pace import Speed
from tests.play.conftest import poll
from tests.play.fake_engine import WORDS, FakeEngine
from tests.play.paced_engine import PacedEngine

TAB, OTHER = "tab-one-of-two", "tab-two-of-two"
PARAMS = SamplingParams(max_new_tokens=20)


def lanes(playground: Playground, have: str = "", tab: str = TAB) -> list[dict[str, Any]]:
    return poll(playground, tab_id=tab, have=have)["own"]["lanes"]


def test_text_comes_in_parts_that_fit_together(engine: FakeEngine, playground: Playground) -> None:
    playground.chats.send("hello", lanes=[1], tab_id=TAB, params=PARAMS)
    text, have = "", ""
    widths, times = list[int](), list[int]()
    for _ in range(12):
        engine.step()
        for news in lanes(playground, have):
            (turn,) = news["turns"]
            assert (turn["text_from"], turn["tokens_from"]) == (len(text), len(widths))
            text, have = text + turn["text"], news["have"]
            widths += turn["widths"]
            times += turn["times"]
    assert text == "".join((WORDS * 2)[:12])
    assert "🌹" in text
    assert widths == [len(word) + word.count("🌹") for word in (WORDS * 2)[:12]]  # as JavaScript counts characters
    assert lanes(playground, have) == []
    playground.tick()
    frames = poll(playground)["frames"]
    published = [round(100 * token[1]) for frame in frames for token in frame["tokens"]]
    assert list(itertools.accumulate(times)) == published


def test_a_token_is_told_to_be_late_once_its_frame_is_made() -> None:
    engine = PacedEngine(Speed(0.02, 0.0))
    playground = Playground(engine)
    playground.chats.send("hello", lanes=[1], tab_id=TAB, params=PARAMS)
    engine.step(10)
    engine.virtual.ns += 10**9
    engine.step()
    (news,) = lanes(playground)
    assert (len(news["turns"][0]["widths"]), news["turns"][0]["late"]) == (11, [])
    playground.tick()
    (later,) = lanes(playground, news["have"])
    token = poll(playground)["frames"][0]["tokens"][-1]
    assert (later["turns"][0]["widths"], later["turns"][0]["late"]) == ([], [[token[1], 20.0]])
    assert token[COLUMNS["tokens"].index("cause")] == "other"
    assert lanes(playground, later["have"]) == []
    assert lanes(playground)[0]["turns"][0]["late"] == [[token[1], 20.0]], "a page that was reloaded gets all"


def test_states_follow_the_request(engine: FakeEngine, playground: Playground) -> None:
    engine.set_knobs(prefill_max_tokens=2)
    (request_id,) = playground.chats.send("hello", lanes=[1], tab_id=TAB, params=PARAMS)
    assert lanes(playground)[0]["state"] == "queued"
    engine.step()
    playground.tick()
    (news,) = lanes(playground)
    assert (news["state"], news["computed"], news["target"]) == ("prefill", 2, 5)
    engine.step(2)
    playground.tick()
    (news,) = lanes(playground)
    assert (news["state"], news["tokens"]) == ("decode", 1)
    assert news["ttft_ms"] > 0
    engine.abort(request_id)
    assert lanes(playground)[0]["state"] == "stopped"


def test_two_tabs_have_lanes_of_their_own(engine: FakeEngine, playground: Playground) -> None:
    playground.chats.send("mine", lanes=[1], tab_id=TAB, params=PARAMS)
    playground.chats.send("yours", lanes=[1], tab_id=OTHER, params=PARAMS)
    assert [news["title"] for news in lanes(playground)] == ["mine"]
    assert playground.stop(tab_id=TAB) == 1
    assert lanes(playground)[0]["state"] == "stopped"
    assert lanes(playground, tab=OTHER)[0]["state"] == "queued"


@pytest.mark.parametrize(
    "have",
    [
        "",
        ",",
        "x",
        "1.2",
        "1.2.3.4.5.6.7.8",
        "a.b.c.d.e.f.g",
        "1.-2.3.4.5.6",
        "9" * 99 + ".1.1.1.1.1",
        "1.2.3.4.5.6," * 500,
    ],
)
def test_what_a_tab_claims_to_have_may_be_anything(have: str) -> None:
    assert len(parse_seen(have)) <= 16


def test_rate() -> None:
    assert rate([]) is rate([5]) is rate([5, 5]) is None
    assert rate([0, 10**9, 2 * 10**9]) == 1.0
