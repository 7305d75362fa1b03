"""Traffic from a file: sent at the file's times, accepted as a whole or refused, and stopped automatically."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roseplay.clock import VirtualClock
from roseplay.play.own import FileTraffic
from roseplay.play.playground import Playground
from roseplay.recording import exports
from roseplay.recording.reader import parse
from roseplay.recording.recorded_run import RecordedRun
from roseplay.recording.tables import requests as as_table
from roseplay.traffic.own import OwnRequest, from_first, parse_traffic, to_jsonl
from roseplay.traffic.own_traffic import OwnTraffic
from tests.play.conftest import poll
from tests.play.fake_engine import FakeEngine
from tests.play.test_steady import ENDLESS, Requests, to_its_end
from tests.waiting import wait_until

MINE, YOURS = "tab-of-mine", "tab-of-yours"


def test_requests_are_sent_at_the_times_of_the_file_whether_or_not_others_are_answered() -> None:
    requests, arrivals = Requests(), (0.0, 0.0, 0.4, 7.25, 3600.0)
    file = OwnTraffic("a.jsonl", tuple(OwnRequest(at, 4, 3) for at in arrivals))
    traffic = FileTraffic(file, 5, requests.send, lambda: True, requests.time)
    figures = to_its_end(traffic).figures()
    assert requests.at_s == pytest.approx(arrivals, abs=0.001)
    assert (figures["on"], figures["sent"], figures["done"], figures["stopped"]) == (False, 5, 0, None)
    assert (figures["name"], figures["requests"], figures["span_s"]) == ("a.jsonl", 5, 3600.0)


@pytest.fixture
def begun(engine: FakeEngine, playground: Playground) -> Playground:
    """A tab plays a file. Two of its requests have arrived, and the last is far in the future."""
    playground.traffic.start_own(to_jsonl(ENDLESS), name="mine.jsonl", seed=5, tab_id=MINE)
    wait_until(lambda: len(engine.streams) == 2)
    return playground


def traffic(playground: Playground) -> Any:
    return poll(playground, tab_id=MINE)["own"]["file"]


def test_polls_tell_its_tab_and_requests_say_what_they_are(engine: FakeEngine, begun: Playground) -> None:
    now = wait_until(lambda: (figures := traffic(begun))["sent"] == 2 and figures)
    assert (now["on"], now["name"], now["requests"], now["span_s"], now["seed"]) == (True, "mine.jsonl", 3, 600.0, 5)
    assert "traffic" not in poll(begun, tab_id=YOURS)["own"]
    begun.tick()
    events = [event for frame in poll(begun)["frames"] for event in frame["requests"]]
    submitted = {request: (t, about) for request, kind, t, about in events if kind == "submitted"}
    assert {about["kind"] for _, about in submitted.values()} == {"own"}
    assert all(about["arrived"] <= t for t, about in submitted.values())
    first, second = engine.streams.values()
    assert (len(first.prompt_token_ids), first.params.max_new_tokens) == (4, 3)
    assert second.prompt_token_ids == [1 + byte % 99 for byte in b"Why is that?"]
    assert second.params.ignore_eos and second.params.max_new_tokens == 5


def test_a_prompt_of_a_given_length_is_the_same_with_the_same_seed(engine: FakeEngine, playground: Playground) -> None:
    content = to_jsonl([OwnRequest(0.0, 40, 3)])
    for seed in (5, 5, 6, None, None):
        playground.traffic.start_own(content, seed=seed, tab_id=MINE)
        wait_until(lambda: not traffic(playground)["on"])
    prompts = [stream.prompt_token_ids for stream in engine.streams.values()]
    assert prompts[0] == prompts[1]
    assert len({tuple(prompt) for prompt in prompts}) == 4, "without a seed, prompts differ each time"


def test_its_own_stop_leaves_answers_and_other_traffic_alone(begun: Playground, engine: FakeEngine) -> None:
    begun.traffic.start_steady(rate=1, spacing="even", kind="equal", max_new_tokens=3, seed=5, tab_id=MINE)
    begun.traffic.stop("file", MINE)
    assert not traffic(begun)["on"]
    assert poll(begun, tab_id=MINE)["own"]["steady"]["on"]
    assert not any(stream.finished for stream in engine.streams.values())
    begun.traffic.stop("steady", MINE)


def test_a_tab_plays_one_file_at_a_time(begun: Playground) -> None:
    before = begun.tabs.open(MINE).traffic["file"]
    begun.traffic.start_own(to_jsonl(ENDLESS), name="next.jsonl", tab_id=MINE)
    assert before is not None and not before.running
    assert (traffic(begun)["name"], traffic(begun)["on"]) == ("next.jsonl", True)
    assert before.figures()["stopped"] is None


@pytest.mark.parametrize(
    ("requests_", "said"),
    [
        ([OwnRequest(0, 4, 3), OwnRequest(1, 2046, 3)], "request 2 of the traffic has 2046 prompt tokens"),
        ([OwnRequest(0, "x" * 2050, 3)], "request 1 of the traffic has 2050 prompt tokens and an answer of 3: there is room for 2048"),
    ],
)  # fmt: skip
def test_what_the_model_cannot_take_is_refused_before_anything_is_sent(
    engine: FakeEngine, playground: Playground, requests_: list[OwnRequest], said: str
) -> None:
    for refused in (playground.traffic.check_own, lambda content: playground.traffic.start_own(content, tab_id=MINE)):
        with pytest.raises(ValueError, match=said):
            refused(to_jsonl(requests_))
    assert not engine.streams
    assert playground.tabs.open(MINE).traffic == {}


def test_what_cannot_begin_leaves_what_plays(begun: Playground) -> None:
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        begun.traffic.start_own(to_jsonl(ENDLESS[:1]) + b"{", tab_id=MINE)
    with pytest.raises(ValueError, match="id of a tab"):
        begun.traffic.start_own(to_jsonl(ENDLESS), tab_id="")
    assert traffic(begun)["on"]


# -- and back to a file


def exported(traffic_file: bytes) -> tuple[bytes, list[int]]:
    """A run's exported traffic file, and the lengths of the prompts that were sent."""
    engine = FakeEngine(clock=VirtualClock())  # waiting for the next arrival takes no time
    playground = Playground(engine)
    own = playground.traffic.start_own(traffic_file, seed=1, tab_id=MINE)
    own.join(20)
    assert own.figures()["stopped"] is None
    engine.step(20)
    playground.tick()
    assert all(stream.finished for stream in engine.streams.values())
    lengths = [len(stream.prompt_token_ids) for stream in engine.streams.values()]
    return exports.export("traffic", playground.recording()), lengths


arrivals = st.floats(0, 3600, allow_nan=False).map(lambda at_s: round(at_s, 3))
prompts = st.integers(1, 100) | st.text("ab \n", min_size=1, max_size=40).filter(str.strip)


@settings(max_examples=8)
@given(st.lists(st.builds(OwnRequest, arrivals, prompts, st.integers(1, 12)), min_size=1, max_size=30))
@example([OwnRequest(0.0, 1, 1)])  # answered as soon as it arrives
def test_a_recording_of_it_plays_the_same_again(sent: list[OwnRequest]) -> None:
    sent = parse_traffic(to_jsonl(from_first(sent)))
    first, lengths = exported(to_jsonl(sent))
    found = parse_traffic(first)
    assert [request.arrival_s for request in found] == pytest.approx([r.arrival_s for r in sent], abs=1e-4)
    assert [request.prompt for request in found] == lengths
    assert [request.answer_tokens for request in found] == [request.answer_tokens for request in sent]
    again = parse_traffic(exported(first)[0])
    assert [request[1:] for request in again] == [request[1:] for request in found]
    assert [r.arrival_s for r in again] == pytest.approx([r.arrival_s for r in found], abs=1e-4)


def test_a_recording_says_that_it_was_own_traffic_and_when_it_was_due(begun: Playground, engine: FakeEngine) -> None:
    engine.step(8)
    begun.tick()
    recording = parse(begun.recording(MINE), "this run")
    run = RecordedRun(recording)
    assert [request.label for request in run.requests.values()] == ["own #1", "own #2"]
    assert all(request.arrived <= request.submitted for request in run.requests.values())
    assert as_table(recording).decode().count(",own,") == 2
