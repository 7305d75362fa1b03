"""Whatever one call waits for, the server continues to respond to all others."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from gradio_client.utils import Status

from roseplay.config import SamplingParams
from roseplay.engine.client import Engine
from roseplay.engine.stream import Stream
from roseplay.play.playground import Playground
from roseplay.serve.submissions import SUBMITTING, Submissions
from tests.play.conftest import connect, serving
from tests.play.fake_engine import FakeEngine
from tests.waiting import wait_until

TAB = "tab-of-a-test"
BAD = [
    -1, 2.5, 10**12, 10**400, "", "NaN", "9" * 5000, "<|im_start|>", "x" * 50_000, "a\0b", [], [[]], ["x"] * 1000, {}, {"": None},
]  # fmt: skip
WITHIN_S = 20.0
CHAT = ["hello", 4, 0.0, *[None] * 11]
SUBMIT = ["hello", 0, 4, None, None, "", False, None, False, *[None] * 8]


class HeldEngine(FakeEngine):
    """``submit`` waits until ``free`` is set, as it may for its turn with blocking ``admission``."""

    def __init__(self) -> None:
        super().__init__(run=True, step_s=0.005)
        self.free = threading.Event()
        self.free.set()
        self.asked: list[Any] = []  # the prompts so far

    def submit(self, prompt: Any, params: SamplingParams | None = None, **more: Any) -> Stream:
        self.asked.append(prompt)
        assert self.free.wait(60)
        return super().submit(prompt, params, **more)


@pytest.fixture(scope="module")
def held() -> Iterator[tuple[str, HeldEngine]]:
    engine = HeldEngine()
    playground = Playground(engine)
    playground.submissions = Submissions(turn_within_s=1.0)
    with serving(engine, playground) as address:
        yield address, engine
        engine.free.set()
    engine.close()


def test_everything_else_answers_while_submits_wait(held: tuple[str, HeldEngine]) -> None:
    address, engine = held
    before = len(engine.asked)
    client = connect(address)

    def call(name: str, data: list[Any]) -> httpx.Response:
        return httpx.post(f"{address}/gradio_api/run/{name}", json={"data": data}, timeout=60)

    with ThreadPoolExecutor(100) as pool:
        try:
            engine.free.clear()
            chats = [pool.submit(call, "chat", CHAT) for _ in range(24)]
            submits = [pool.submit(call, "submit", SUBMIT) for _ in range(24)]
            queued = [client.submit("hello", 4, api_name="/chat") for _ in range(5)]
            wait_until(lambda: len(engine.asked) - before == SUBMITTING)
            for path in ("/health", "/ui/delta?since=0", "/ui/export", "/ui/export/trace.json", "/config"):
                assert httpx.get(address + path, timeout=WITHIN_S).status_code == 200, path
            change = {"tab": TAB, "changes": {"temperature": 0.5}}
            assert httpx.post(f"{address}/ui/sampling", json=change, timeout=WITHIN_S).status_code == 200
            assert call("stop", [None, TAB, 0]).status_code == 200
            assert client.submit({"max_batch_size": 7}, api_name="/set_knobs").result(WITHIN_S)["max_batch_size"] == 7
            assert client.submit(tab=TAB, api_name="/stop").result(WITHIN_S) == 0
            wait_until(lambda: any(call.done() for call in (*chats, *submits)))
            assert not any(call.done() and call.result().status_code == 200 for call in (*chats, *submits))
            assert len(engine.asked) - before == SUBMITTING
        finally:
            engine.free.set()
        answers = [call.result(WITHIN_S) for call in (*chats, *submits)]
        assert {answer.status_code for answer in answers} == {200, 429}
        busy = {answer.json()["error"] for answer in answers if answer.status_code == 429}
        assert len(busy) == 1 and "try again later" in busy.pop()
        for job in queued:  # those that did not get their turn in time are refused as well
            error = job.exception(WITHIN_S)
            assert error is None or "try again later" in str(error)


def test_a_chat_that_is_cancelled_while_it_is_submitted_ends(held: tuple[str, HeldEngine]) -> None:
    address, engine = held
    client = connect(address)
    before, asked = set(engine.streams), len(engine.asked)
    try:
        engine.free.clear()
        job = client.submit("hello", 1900, api_name="/chat")
        wait_until(lambda: len(engine.asked) > asked)
        # Only then does the client know the id of the event that it asks the server to cancel.
        wait_until(lambda: job.status().code is Status.PROCESSING)
        job.cancel()
        wait_until(lambda: job.done())
    finally:
        engine.free.set()
    wait_until(lambda: len(set(engine.streams) - before) == 1)
    (request_id,) = set(engine.streams) - before
    wait_until(lambda: engine.streams[request_id].finished)
    assert engine.streams[request_id].finish_reason == "abort"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("chat", ["x" * 1_000_000, *CHAT[1:]]),
        ("submit", ["x" * 1_000_000, *SUBMIT[1:]]),
        ("submit", ["x" * 1_000_000, 1, 4, None, None, TAB, *SUBMIT[6:]]),
        ("chat", [*CHAT[:4], [{"role": "user", "content": "y" * 600}] * 100, *CHAT[5:]]),
    ],
)
def test_a_prompt_of_too_many_characters_is_refused_before_it_is_tokenized(
    held: tuple[str, HeldEngine], name: str, data: list[Any]
) -> None:
    address, engine = held
    asked = len(engine.asked)
    answer = httpx.post(f"{address}/gradio_api/run/{name}", json={"data": data}, timeout=WITHIN_S)
    assert answer.status_code == 422
    assert "characters: use at most 32\u202f768" in answer.json()["error"]
    assert len(engine.asked) == asked


@pytest.fixture(scope="module")
def real() -> Iterator[tuple[str, Engine]]:
    with Engine("tiny-chat", num_blocks=129, worker="thread") as engine, serving(engine) as address:
        yield address, engine


@pytest.mark.parametrize(("name", "data"), [("chat", CHAT), ("submit", SUBMIT)])
def test_blocking_admission_is_refused_while_paused(real: tuple[str, Engine], name: str, data: list[Any]) -> None:
    address, engine = real

    def call() -> httpx.Response:
        return httpx.post(f"{address}/gradio_api/run/{name}", json={"data": data}, timeout=WITHIN_S)

    engine.set_knobs(admission="blocking")
    engine.pause()
    try:
        answer = call()
    finally:
        engine.resume()
        engine.set_knobs(admission="queued")
    assert answer.status_code == 429
    assert "paused" in answer.json()["error"]
    assert call().status_code == 200


def test_a_burst_of_bad_requests_leaves_the_engine_alone(real: tuple[str, Engine]) -> None:
    """Many refusals at once do not change the tokens of a running request."""
    with httpx.Client(base_url=real[0], timeout=60) as client:
        info = client.get("/gradio_api/info").json()["named_endpoints"]["/chat"]["parameters"]
        defaults = {p["parameter_name"]: p["parameter_default"] for p in info}

        def chat(**changes: Any) -> httpx.Response:
            data = list({**defaults, "max_new_tokens": 16, **changes}.values())
            body = json.dumps({"data": data}).encode()
            return client.post("/gradio_api/run/chat", content=body, headers={"Content-Type": "application/json"})

        expected = chat().json()["data"]
        names = [name for name in defaults if name != "max_new_tokens"]
        bad = [{name: value} for number, name in enumerate(names) for value in BAD[number % 3 :: 3]]
        bad += [{"max_new_tokens": value} for value in (0, -1, 10**12, 2.5, "x")]
        with ThreadPoolExecutor(8) as pool:
            long = pool.submit(chat, max_new_tokens=200)
            answers = list(pool.map(lambda changes: chat(**changes), bad))
            undisturbed = long.result()
        assert all(answer.status_code < 500 for answer in answers)
        assert sum(answer.status_code == 422 for answer in answers) > len(bad) / 2
        assert real[1].alive
        assert undisturbed.status_code == 200
        assert chat(max_new_tokens=200).json()["data"] == undisturbed.json()["data"]
        assert chat().json()["data"] == expected
        assert client.get("/health").status_code == 200
