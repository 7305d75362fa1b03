"""Faults during a submit: the sender gets an error in one line, and other requests are not affected."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from roseplay import SamplingParams
from roseplay.engine.errors import EngineError
from tests.suites.faults import scene
from tests.suites.faults.inject import Fault, injected
from tests.suites.faults.scene import SOON_S, WAIT_S, check_goes_on, expect_right
from tests.suites.faults.table import PACK, PANICS, PUSH, RAISES
from tests.waiting import wait_until

ENCODE = "transformers.tokenization_utils_tokenizers:TokenizersBackend._encode_plus"
TEMPLATE = "transformers.tokenization_utils_base:PreTrainedTokenizerBase.apply_chat_template"
CHAT = [{"role": "user", "content": "Why?"}]


SUBMIT = {"data": ["Hello?", 0, 4, 0.0, None, "", True, None, False, *[None] * 8]}


@pytest.mark.parametrize(
    ("target", "act", "prompt"),
    [
        (ENCODE, PANICS, "What is a KV block?"),
        (TEMPLATE, RAISES, CHAT),
        ("roseplay.engine.detokenizer:DecodeStream", PANICS, CHAT),
        ("roseplay.engine.transport:ThreadTransport.send", RAISES, CHAT),
    ],
)
def test_a_request_that_cannot_be_taken_is_refused_and_leaves_nothing(target, act, prompt, served, expected) -> None:
    engine, page = served
    streams = scene.begin(engine)
    with injected(Fault(target, act)) as fault:
        fault.arm()
        with pytest.raises((ValueError, EngineError), match="injected") as refused:
            engine.submit(prompt)
        assert fault.fired
    assert "\n" not in str(refused.value)
    for name, stream in streams.items():
        expect_right(name, stream.result(WAIT_S), expected)
    assert engine.abort_all() == 0, "it left something behind"
    wait_until(
        lambda: all(about["finished"] for about in page.outcomes().values()), "the page shows no request as live"
    )
    check_goes_on(engine, page, expected, ["first"])


def test_a_program_that_asks_the_page_is_told_when_the_tokeniser_panics(served) -> None:
    engine, page = served
    with injected(Fault(ENCODE, PANICS)) as fault:
        fault.arm()
        answer = page.client.post("/gradio_api/run/submit", json=SUBMIT)
    assert fault.fired
    assert "injected panic" in answer.text
    assert page.client.post("/gradio_api/run/submit", json=SUBMIT).status_code == 200
    wait_until(lambda: engine.abort_all() == 0, "nothing is left of it")


BURST = 100


@pytest.mark.parametrize(("target", "act"), [(PUSH, PANICS), (PACK, RAISES)])
def test_a_burst_of_bad_requests_does_not_end_the_engine(target, act, served, expected, quiet) -> None:
    """Each alone in a step that samples from the saved logits of their common prompt."""
    engine, page = served
    engine.set_knobs(max_batch_size=1, step_max_tokens=None)
    prompt, params = "What is a KV cache?", SamplingParams(max_new_tokens=2, ignore_eos=True)
    engine.submit(prompt, params).result(WAIT_S)  # so that the others find their prompt computed
    with injected(Fault(target, act, times=10**9)) as fault:
        fault.arm()
        streams = [engine.submit(prompt, params) for _ in range(BURST)]
        for stream in streams:
            stream.result(WAIT_S)
        assert fault.faults[0].fired >= BURST
    assert {stream.finish_reason for stream in streams} == {"error"}
    check_goes_on(engine, page, expected, ["first"])


@pytest.mark.parametrize(
    ("target", "ask"),
    [
        ("roseplay.core.scheduler:Scheduler.end", lambda engine: engine.abort_all()),
        ("roseplay.engine.worker:block_info", lambda engine: look_into(engine)),
    ],
)
def test_a_command_that_fails_does_not_end_the_engine(target, ask, served, expected) -> None:
    engine, page = served
    streams = scene.begin(engine)
    with injected(Fault(target, RAISES)) as fault:
        fault.arm()
        ask(engine)
        wait_until(lambda: fault.fired, "the fault acts")
        for name, stream in streams.items():
            wait_until(lambda stream=stream: stream.finished, f"{name} ends", SOON_S)
            if stream.finish_reason == "error":
                assert "injected" in stream.error
            elif stream.finish_reason == "length":
                expect_right(name, stream, expected)
    engine.set_knobs(**scene.KNOBS)
    check_goes_on(engine, page, expected, ["first"])


def look_into(engine: Any) -> None:
    with pytest.raises(TimeoutError):
        engine.inspect_block(1, timeout=0.5)


def test_a_listener_that_blocks_shows_in_the_health_and_passes(served, expected) -> None:
    """It holds up every stream, as the thread that calls it feeds them all."""
    engine, page = served
    blocking, let_go = threading.Event(), threading.Event()

    def listener(stream: Any) -> None:
        blocking.set()
        let_go.wait(WAIT_S)

    streams = scene.begin(engine, listener=listener)
    try:
        assert blocking.wait(SOON_S)
        wait_until(lambda: page.health()[0] == 503, "the health says that the engine does not answer")
    finally:
        let_go.set()
    for name, stream in streams.items():
        expect_right(name, stream.result(WAIT_S), expected)
    wait_until(lambda: page.health()[0] == 200, "the health is good again")
