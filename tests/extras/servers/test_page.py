"""The page's playground over another server: what it shows, records and controls, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from roseplay.config import SamplingParams
from roseplay.engine.client import Engine
from roseplay.extras.servers.engine import HttpEngine
from roseplay.extras.servers.timings import Timings
from roseplay.formats.json_text import strict_json
from roseplay.play.playground import Playground
from roseplay.recording.exports import KINDS, export
from roseplay.recording.reader import parse
from roseplay.recording.recorded_run import RecordedRun
from tests.at_a_port import at_a_port
from tests.extras.servers.servers import Script, event, loads_of, words
from tests.play.conftest import poll
from tests.play.conftest import serving as serving_page
from tests.waiting import wait_until

TAB = "tab-of-a-server"
VLLM = (
    "num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_queries_total prefix_cache_hits_total"
)
TGI = "tgi_queue_size 3\ntgi_batch_current_size 8\n"


@pytest.fixture
def page(engine: Engine, address: str) -> Iterator[Playground]:
    engine.clear_cache()
    knobs = engine.knobs
    timings = Timings(look_s=0.02)  # otherwise everything may finish before the load is polled
    with HttpEngine(address, timings=timings) as remote:
        playground = Playground(remote)
        yield playground
        playground.close()
        engine.set_knobs(**knobs.to_dict())


def frames(playground: Playground) -> list[dict[str, Any]]:
    while playground.tick():
        pass
    return list(poll(playground, 1)["frames"])


def stats_of(playground: Playground) -> dict[str, Any]:
    return dict(poll(playground)["snapshot"]["stats"])


def finish(playground: Playground) -> list[dict[str, Any]]:
    """Tick until all requests have ended; returns the frames."""
    wait_until(lambda: playground.tick() is not None and not playground.engine.num_unfinished)
    return frames(playground)


def test_a_lane_s_chat_goes_on(page: Playground, engine: Engine) -> None:
    params = SamplingParams(max_new_tokens=20)
    for question in ("Explain the prefix cache of an engine that serves language models, please.", "And then?"):
        page.chats.send(question, lanes=[1], tab_id=TAB, params=params)
        finish(page)
    lane = page.tabs.open(TAB).lanes[1]
    first, second = lane.chat.turns
    messages = [{"role": "user", "content": first.question}, {"role": "assistant", "content": first.answer.text}]
    ours = engine.submit([*messages, {"role": "user", "content": "And then?"}], params)
    assert second.answer.text == ours.result(timeout=60).text
    assert second.answer.figures["prompt"] == ours.metrics.prompt_tokens > second.answer.figures["tokens"] > 0
    whole_blocks = first.answer.figures["prompt"] // 16 * 16
    assert second.answer.figures["cached"] >= whole_blocks > 0, "the first turn is served from the prefix cache"


def test_an_old_turn_is_left_out_where_the_chat_grows_too_long(page: Playground) -> None:
    long = "word " * 1500  # about 1,900 of 2,048 tokens
    few = SamplingParams(max_new_tokens=4)
    for _ in range(2):
        page.chats.send(long, lanes=[1], tab_id=TAB, params=few)
        finish(page)
    assert page.tabs.open(TAB).lanes[1].chat.turns[1].left_out == 1


def test_frames_have_tokens_and_the_server_s_load(page: Playground) -> None:
    made = page.traffic.burst(size=6, kind="shared head", max_new_tokens=100, seed=1, tab_id=TAB)
    shown = finish(page)
    tokens = [token for frame in shown for token in frame["tokens"]]
    assert len(tokens) == 600
    assert all(token[3] > 0 for token in tokens)
    assert [frame["steps"] for frame in shown if frame["steps"]] == []
    wait_until(lambda: any(load["running"] == 0 for frame in frames(page) for load in frame.get("loads", [])))
    loads = [load for frame in frames(page) for load in frame.get("loads", [])]
    assert max(load["running"] for load in loads) == 6
    assert loads[-1]["prefix_hits"] > 0
    last = made.figures()
    assert (last["done"], last["computed"] + last["saved"]) == (6, last["prompt_tokens"])
    assert last["saved"] >= 5 * 448  # a common prefix of about 512 tokens, estimated at four characters per token
    wait_until(lambda: page.tick() is not None and [stats_of(page)[name] for name in ("running", "waiting")] == [0, 0])
    stats = stats_of(page)
    assert (stats["kv_total"], stats["step"]) == (None, None)
    in_all = stats["in_all"]
    assert in_all["prompt_tokens"] == last["prompt_tokens"] == in_all["computed"] + stats["saved_tokens"]


def test_what_the_server_does_not_report_is_said_with_the_reason(page: Playground) -> None:
    absent = poll(page)["snapshot"]["absent"]
    assert absent["steps"] == "roseplay does not report single steps"
    assert "knobs" not in absent
    assert "cached_tokens" in absent  # until an answer reports it
    page.traffic.burst(size=1, kind="unique", max_new_tokens=4, seed=2, tab_id=TAB)
    changed = [frame["absent"] for frame in finish(page) if "absent" in frame]
    assert "cached_tokens" not in changed[-1]
    assert changed[-1]["steps"] == absent["steps"]


def test_knobs_act_on_the_server_and_come_back_from_it(page: Playground, engine: Engine) -> None:
    assert page.set_knobs({"prefill_max_tokens": 64})["prefill_max_tokens"] == 64
    assert engine.knobs.prefill_max_tokens == 64
    engine.set_knobs(max_batch_size=3)  # by another client
    page.traffic.burst(size=1, kind="unique", max_new_tokens=60, seed=3, tab_id=TAB)
    wait_until(lambda: page.tick() is not None and page.knobs()["max_batch_size"] == 3)


def test_a_recording_of_it_reads_and_exports(page: Playground, tmp_path: Path) -> None:
    page.chats.send("Why?", lanes=[1, 2], tab_id=TAB, params=SamplingParams(max_new_tokens=12))
    page.traffic.burst(size=3, kind="mix", max_new_tokens=12, seed=4, tab_id=TAB)
    finish(page)
    recording = parse(page.recording(TAB), "run.jsonl")
    assert recording.info.server == page.engine.info.server
    assert recording.header["snapshot"]["absent"]["steps"] == "roseplay does not report single steps"
    run = RecordedRun(recording)
    assert len(run.requests) == 5
    for request in run.requests.values():
        assert request.ttft is not None
        assert request.prompt_tokens > 0
        assert 0 <= request.sent_ms < request.ttft_ms
        assert len(request.token_runs) == request.tokens >= 2
    for kind in KINDS:
        assert export(kind, page.recording(TAB)), kind


def test_a_demo_plays_where_knobs_and_cache_are_the_page_s(page: Playground) -> None:
    demo = page.start_demo("prefix", TAB)
    assert demo.name == "prefix"
    page.demos.stop()


@contextmanager
def playing(script: Script) -> Iterator[Playground]:
    with at_a_port(script.app) as address, HttpEngine(address) as remote:
        playground = Playground(remote)
        yield playground
        playground.close()


@pytest.fixture
def scripted() -> Iterator[Playground]:
    with playing(Script(words("Some ", "words"), metrics=TGI)) as playground:
        yield playground


def test_a_server_without_knobs_refuses_what_needs_them(scripted: Playground) -> None:
    for refused in (
        lambda: scripted.set_knobs({"prefill_max_tokens": 64}),
        lambda: scripted.start_demo("budget", TAB),
        lambda: scripted.services["lab"].start({"scenario": "token-budget"}),
        lambda: scripted.block(1),
    ):
        with pytest.raises(ValueError, match="TGI"):
            refused()
    catalogue = scripted.services["lab"].describe()
    assert catalogue["knobs"] == {}
    assert catalogue["scenarios"][0]["b"] == {"knobs": {}, "config": {"url": scripted.engine.address.url}}


def test_what_a_server_says_nothing_of_is_unknown_not_zero(scripted: Playground) -> None:
    scripted.chats.send("Hello", lanes=[1], tab_id=TAB)
    finish(scripted)
    stats = stats_of(scripted)
    assert stats["kv_used"] is None
    assert scripted.tabs.open(TAB).lanes[1].chat.last.answer.text == "Some words"


def test_the_tokens_of_other_clients_are_in_the_header() -> None:
    def metrics(tokens: int) -> str:
        return f"vllm:num_requests_running 33\nvllm:num_requests_waiting 0\nvllm:generation_tokens_total {tokens}\n"

    script = Script(words("Some"), card={"owned_by": "vllm"}, metrics=metrics(0))
    with at_a_port(script.app) as address, HttpEngine(address, timings=Timings(look_s=0.02)) as remote:
        playground = Playground(remote)
        for tokens in range(0, 10_000, 500):
            script.metrics = metrics(tokens)
            seen = len(loads_of(remote))
            wait_until(lambda seen=seen: len(loads_of(remote)) > seen)  # it is asked often, though nothing of ours runs
            playground.tick()
        wait_until(lambda: playground.tick() is not None and (stats_of(playground)["tok_s"] or 0) > 100)
        playground.close()


def test_its_page_has_no_api_of_its_own(address: str) -> None:
    with HttpEngine(address) as remote, serving_page(remote, has_api=False) as page:
        assert httpx.get(f"{page}/v1/models").status_code == 404
        assert httpx.get(f"{page}/metrics").status_code == 404
        assert httpx.get(f"{page}/health").json()["status"] == "ok"
        assert httpx.get(f"{page}/ui/delta").json()["snapshot"]["info"]["server"].startswith("roseplay at 127.0.0.1")


def test_invalid_numbers_do_not_end_the_page() -> None:
    times = (
        b'{"choices": [], "metrics": {"queue_time_ms": 1e400, "time_to_first_token_ms": NaN, "generation_time_ms": 7}}'
    )
    load = "".join(f'vllm:{name}{{engine="{engine}"}} 1e308\n' for name in VLLM.split() for engine in (0, 1))
    script = Script([*words("Hi")[:-1], event(times), event(b"[DONE]")], card={"max_model_len": 10**30}, metrics=load)
    with playing(script) as playground:
        playground.chats.send("Hello", lanes=[1], tab_id=TAB)
        finish(playground)
        for cursor in (0, 1):
            assert strict_json(playground.delta(cursor, tab_id=TAB))
        recorded = parse(playground.recording(), "run")
        assert recorded.info.max_model_len == playground.engine.info.max_model_len < 10**9
    [stream] = [tracked.stream for tracked in playground.requests.registry.all()]
    assert stream.metrics.queue_s is None and stream.metrics.server.decode_s == 0.007


def test_half_of_a_character_does_not_end_a_chat() -> None:
    half = event(b'{"choices": [{"delta": {"content": "\\ud83d!"}, "finish_reason": null}]}')
    script = Script([half, *words("Hi")])
    with playing(script) as playground:
        for question in ("One", "Two"):
            playground.chats.send(question, lanes=[1], tab_id=TAB)
            finish(playground)
        answers = [turn.answer for turn in playground.tabs.open(TAB).lanes[1].chat.turns]
    assert [(answer.text, answer.figures["reason"]) for answer in answers] == [("\ufffd!Hi", "stop")] * 2
    assert script.bodies[1]["messages"][1]["content"] == "\ufffd!Hi"
