"""The page over real servers in other processes: chats, bursts, steady traffic, stopping, the lab, exports."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason
from roseplay.extras.lab.lab import Lab
from roseplay.extras.servers.engine import HttpEngine
from roseplay.play.playground import Playground
from roseplay.recording.exports import KINDS, export
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
TAB = "tab-of-a-server"
SERVERS = ("our_server", "llama_cpp", "guidellm_mock")
WHO = {"our_server": "roseplay", "llama_cpp": "llama.cpp", "guidellm_mock": "OpenAI API"}
# What each server does not report, besides blocks, steps and their contents.
ABSENT = {
    "our_server": set(),
    "llama_cpp": {"knobs", "clear_cache", "kv_usage", "server_times"},
    "guidellm_mock": {"knobs", "clear_cache", "kv_usage", "queue", "prefix_hit_rate", "server_times"},
}
NEVER = {"blocks", "steps", "pause", "inspect"}


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param, request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def name(server: tuple[str, str]) -> str:
    return server[0]


@pytest.fixture
def page(server: tuple[str, str]) -> Iterator[Playground]:
    with HttpEngine(server[1]) as engine:
        playground = Playground(engine)
        playground.start()
        yield playground
        playground.close()


def test_it_is_known_for_what_it_is(page: Playground, name: str) -> None:
    assert page.engine.info.server.startswith(WHO[name])
    assert page.engine.info.model == "tiny-chat"
    assert page.engine.health().ok


def test_a_chat_streams_with_its_times(page: Playground, name: str) -> None:
    params = SamplingParams(max_new_tokens=24, temperature=0.7, seed=5)
    page.chats.send("Tell me a story about a fox.", lanes=[1, 2], tab_id=TAB, params=params)
    wait_until(lambda: not page.engine.num_unfinished)
    lanes = page.tabs.open(TAB).lanes
    for lane in (lanes[1], lanes[2]):
        tracked = lane.chat.last.tracked
        assert tracked.stream.error is None
        assert tracked.stream.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        metrics = tracked.stream.metrics
        assert len(tracked.stream.text) > 20
        assert metrics.prompt_tokens > 3
        assert 2 < metrics.completion_tokens <= 25
        assert 0 < metrics.ttft_s < metrics.e2e_s
        assert metrics.submitted_ns <= metrics.sent_ns <= metrics.first_byte_ns <= metrics.first_token_ns
    if name == "guidellm_mock":
        assert metrics.ttft_s >= 0.04
    page.chats.send("And then?", lanes=[1], tab_id=TAB, params=params)
    wait_until(lambda: not page.engine.num_unfinished)
    assert lanes[1].chat.last.answer.text


def test_what_it_says_nothing_of_is_absent_with_a_reason(page: Playground, name: str) -> None:
    page.traffic.burst(size=2, kind="equal", max_new_tokens=8, seed=1, tab_id=TAB)
    wait_until(lambda: not page.engine.num_unfinished)
    reasons = dict(page.engine.capabilities.reasons)
    cached = {"cached_tokens"} if name == "guidellm_mock" else set()  # its answers may not report this
    assert set(reasons) - cached == NEVER | ABSENT[name]
    assert all(reasons.values())


def test_a_burst_is_answered(page: Playground) -> None:
    burst = page.traffic.burst(size=8, kind="shared head", max_new_tokens=16, seed=2, tab_id=TAB)
    wait_until(lambda: burst.figures()["done"] == 8)
    errors = [tracked.stream.error for tracked in burst.requests if tracked.stream.error]
    assert errors == []
    assert burst.figures()["ttft_p95"] > 0
    assert burst.figures()["prompt_tokens"] > 8 * 20


def test_a_stopped_answer_ends_at_once(page: Playground) -> None:
    (request_id,) = page.chats.send(
        "Tell me a long story.", lanes=[3], tab_id=TAB, params=SamplingParams(max_new_tokens=900, ignore_eos=True)
    )
    tracked = page.tabs.open(TAB).lanes[3].chat.last.tracked
    wait_until(lambda: tracked.stream.metrics.completion_tokens > 1)
    assert page.stop(ids=[request_id]) == 1
    wait_until(lambda: tracked.finished, timeout=2)
    assert tracked.stream.finish_reason is FinishReason.ABORT


def test_steady_traffic_arrives_at_its_rate(page: Playground) -> None:
    page.traffic.start_steady(rate=6, spacing="even", kind="unique", max_new_tokens=4, seed=3, tab_id=TAB)
    wait_until(lambda: page.tabs.open(TAB).traffic["steady"].figures()["sent"] >= 10)
    page.traffic.stop("steady", TAB)
    wait_until(lambda: not page.engine.num_unfinished)


def test_its_run_is_exported(page: Playground) -> None:
    page.chats.send("Why?", lanes=[1], tab_id=TAB, params=SamplingParams(max_new_tokens=8))
    wait_until(lambda: not page.engine.num_unfinished)
    time.sleep(0.5)  # wait for the frame with the end
    for kind in KINDS:
        assert export(kind, page.recording(TAB)), kind


def test_a_rate_is_swept(page: Playground) -> None:
    lab = Lab(page.engine)
    body = {"scenario": "poisson", "params": {"max_new_tokens": 8}, "a": {}, "repeats": 1,
            "sweep": {"setting": "rate_per_s", "from": 3, "to": 6, "points": 2, "seconds": 2}}  # fmt: skip
    job = lab.start(body)
    assert job.wait(120)
    assert (job.state, job.error) == ("done", None)
    document = lab.store.get(job.result)
    assert [point["value"] for point in document["points"]] == [3.0, 6.0]
    assert all(run["ttft_p95_ms"] > 0 for point in document["points"] for run in point["runs"])
