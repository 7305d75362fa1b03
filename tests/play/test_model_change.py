"""Loading another model in place of the running one: what ends, what is kept, and what happens if loading fails."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from roseplay.config import EngineConfig, SamplingParams
from roseplay.engine.errors import EngineError
from roseplay.model.source import embedded_model
from roseplay.models.entry import ModelEntry
from roseplay.play.engine_host import LoadBusyError
from roseplay.play.engine_start import host_engine
from roseplay.play.model_picker import ModelPicker
from roseplay.play.options import parse
from roseplay.play.playground import Playground
from roseplay.play.start_status import StartStatus
from tests.play.conftest import client_of, poll
from tests.play.model_host import BROKEN, FIRST, ModelHost
from tests.waiting import wait_until

TAB = "tab-of-a-test"
REASON = "the model was changed to other"
LONG = SamplingParams(max_new_tokens=900)


@pytest.fixture
def client(models: ModelHost) -> Iterator[TestClient]:
    catalog: Any = SimpleNamespace(find=lambda name: ModelEntry(name, name, "directory"))
    picker = ModelPicker(models.host, trusted=True, models=[FIRST, "other"], catalog=catalog)
    with client_of(models.host, picker=picker) as client:
        yield client


def ask(models: ModelHost) -> Any:
    return models.host.chats.ask("hello", LONG)


def lane(models: ModelHost) -> dict[str, Any]:
    return dict(poll(models.host, tab_id=TAB)["own"]["lanes"][0])


def test_whoever_waits_for_an_answer_is_told_why_it_ends(models: ModelHost) -> None:
    stream = ask(models).stream
    wait_until(lambda: stream.token_ids)
    models.switch("other")
    assert (str(stream.finish_reason), stream.error) == ("error", REASON)
    assert models.host.live and models.host.engine.info.model == "other"
    assert not models.engines[0].alive


def test_chats_keep_their_texts_and_go_on(models: ModelHost) -> None:
    (before,) = models.host.chats.send("first", lanes=[1], tab_id=TAB, params=LONG)
    wait_until(lambda: lane(models)["tokens"] > 3)
    models.switch("other")
    kept = lane(models)
    assert kept["state"] == "error" and kept["error"] == REASON
    (turn,) = kept["turns"]
    assert turn["question"] == "first" and turn["text"].startswith("A step ") and turn["error"] == REASON
    (after,) = models.host.chats.send("second", lanes=[1], tab_id=TAB, params=SamplingParams(max_new_tokens=4))
    assert after > before  # ids are not reused, since pages identify requests by them
    wait_until(lambda: lane(models)["state"] == "done")
    assert [turn["question"] for turn in lane(models)["turns"]] == ["first", "second"]


def test_what_another_model_answered_is_marked_and_not_asked_again(models: ModelHost) -> None:
    def answered(question: str, number: int) -> dict[str, Any]:
        models.host.chats.send(question, lanes=[number], tab_id=TAB, params=SamplingParams(max_new_tokens=4))
        wait_until(lambda: poll(models.host, tab_id=TAB)["own"]["lanes"][number - 1]["state"] == "done")
        return dict(poll(models.host, tab_id=TAB)["own"]["lanes"][number - 1])

    answered("first", 1)
    models.switch("other")
    again, alone = answered("second", 1), answered("second", 2)
    assert again["prompt"] == alone["prompt"]
    assert [turn["model"] for turn in again["turns"]] == [FIRST, "other"]
    assert answered("third", 1)["prompt"] > again["prompt"]


def test_traffic_ends_and_knobs_are_kept(models: ModelHost) -> None:
    host = models.host
    host.set_knobs({"max_batch_size": 7})
    plan = {"rate": 5.0, "spacing": "even", "kind": "unique", "max_new_tokens": 8, "seed": 1}
    steady = host.playground.traffic.start_steady(**plan, tab_id=TAB)
    models.switch("other")
    wait_until(lambda: not steady.running)
    assert host.knobs()["max_batch_size"] == 7 == models.engine.knobs.max_batch_size
    assert "steady" not in poll(host, tab_id=TAB)["own"]


def test_one_that_fails_brings_the_one_before_back(models: ModelHost) -> None:
    models.broken.add("broken")
    stream = ask(models).stream
    models.switch("broken")
    assert stream.error == "the model was changed to broken"
    assert models.host.live and models.host.engine.info.model == FIRST
    notice = f"broken could not be loaded: {BROKEN}. {FIRST} is running again."
    assert poll(models.host)["notice"] == notice
    models.switch("other")
    assert poll(models.host)["notice"] is None


def test_where_both_fail_a_third_can_be_loaded(models: ModelHost) -> None:
    models.broken |= {"broken", FIRST}
    models.host.chats.send("first", lanes=[1], tab_id=TAB, params=LONG)
    models.switch("broken")
    assert models.host.state == "failed"
    with pytest.raises(EngineError, match="tiny-chat could not be started"):
        models.host.engine.info
    models.switch("other")
    assert models.host.live and lane(models)["turns"][0]["question"] == "first"


def test_loads_are_one_after_the_other_and_can_be_given_up(models: ModelHost) -> None:
    with pytest.raises(LoadBusyError, match="no model is being loaded"):
        models.host.cancel()
    models.held.set()
    models.host.switch("other", EngineConfig())
    with pytest.raises(LoadBusyError, match="other is being loaded"):
        models.host.switch("third", EngineConfig())
    wait_until(lambda: len(models.starts) == 2)
    assert models.host.goes_back_to == FIRST
    assert models.host.cancel() == FIRST
    wait_until(lambda: len(models.starts) == 3)
    with pytest.raises(LoadBusyError):  # the load back to the first model cannot be cancelled
        models.host.cancel()
    models.held.clear()
    assert models.host.wait(30) and models.host.engine.info.model == FIRST
    assert models.host.playground.notice is None  # no notice, as the user has cancelled it


def test_a_cancelled_start_does_not_go_live(models: ModelHost) -> None:
    """Whoever is told that a start is cancelled gets the model from before, even if the start had all but ended."""

    class Cancelled(Playground):
        def start(self) -> None:
            super().start()
            if self.engine.info.model == "other":
                assert models.host.cancel() == FIRST

    models.kind = Cancelled
    models.switch("other")
    assert models.host.engine.info.model == FIRST and models.host.playground.notice is None
    assert [engine.alive for engine in models.engines] == [False, False, True]


def test_a_start_that_is_live_cannot_be_cancelled(models: ModelHost, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = []

    def end(status: StartStatus) -> None:
        with pytest.raises(LoadBusyError, match="nothing to cancel"):
            models.host.cancel()
        refused.append(status.model)

    monkeypatch.setattr(StartStatus, "end", end)
    models.switch("other")
    assert refused == ["other"] and models.host.engine.info.model == "other"


def test_an_engine_that_starts_after_the_close_is_closed(models: ModelHost) -> None:
    going_on = threading.Event()

    class Waiting(Playground):
        def start(self) -> None:
            going_on.wait(30)

    models.kind = Waiting
    models.host.switch("other", EngineConfig())
    wait_until(lambda: len(models.engines) == 2)
    models.host.close(within_s=0.0)
    going_on.set()
    assert models.host.wait(30) and not any(engine.alive for engine in models.engines)


def test_closing_it_meanwhile_ends_it(models: ModelHost) -> None:
    models.held.set()
    models.host.switch("other", EngineConfig())
    wait_until(lambda: len(models.starts) == 2)
    models.host.close()
    assert models.host.over and not any(engine.alive for engine in models.engines)
    with pytest.raises(LoadBusyError, match="the server is shutting down"):
        models.host.switch("other", EngineConfig())


class TestServer:
    def test_a_poll_that_a_change_overtakes_is_told_of_the_start(self, models: ModelHost, client: TestClient) -> None:
        delta = models.host.delta

        def overtaken(*args: Any, **options: Any) -> bytes:
            models.host.switch("other", EngineConfig())
            return delta(*args, **options)

        models.held.set()
        models.host.delta = overtaken  # type: ignore[method-assign]
        reply = client.get("/ui/delta")
        assert (reply.status_code, reply.json()["start"]["model"]) == (200, "other")
        models.held.clear()

    def test_pages_and_programs_see_the_start_and_the_new_model(self, models: ModelHost, client: TestClient) -> None:
        boot = client.get("/ui/delta").json()["boot_id"]
        assert client.get("/v1/models").json()["data"][0]["id"] == FIRST
        models.held.set()
        assert client.post("/ui/models/load", json={"model": "other"}).json() == {"loading": "other"}
        start = wait_until(lambda: found if (found := client.get("/ui/delta").json()["start"])["stage"] else None)
        assert (start["model"], start["stage"], start["back"], start["failed"]) == ("other", "Weights", FIRST, None)
        assert client.get("/health").json()["status"] == "starting"
        assert client.get("/ui/models").json()["state"] == "starting"
        refused = client.post("/v1/completions", json={})
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "starting"
        assert client.get("/metrics").status_code == 503
        second = client.post("/ui/models/load", json={"model": FIRST})
        assert second.status_code == 409 and "other is being loaded" in second.json()["detail"]
        assert client.post("/ui/models/cancel").json() == {"loading": FIRST}
        wait_until(lambda: len(models.starts) == 3)
        assert client.post("/ui/models/cancel").status_code == 409
        models.held.clear()
        assert models.host.wait(30)
        assert client.get("/v1/models").json()["data"][0]["id"] == FIRST
        client.post("/ui/models/load", json={"model": "other"})
        assert models.host.wait(30)
        delta = client.get(f"/ui/delta?since=5&boot={boot}").json()
        assert delta["reset"] and delta["boot_id"] != boot and delta["snapshot"]["info"]["model"] == "other"
        assert client.get("/v1/models").json()["data"][0]["id"] == "other"
        assert client.get("/health").json()["model"] == "other"
        assert client.post("/ui/sampling", json={"tab": TAB}).status_code == 200
        assert client.post("/gradio_api/run/set_knobs", json={"data": [{"max_batch_size": 5}]}).status_code == 200
        assert models.engine.knobs.max_batch_size == 5

    def test_metrics_count_what_ended_and_begin_anew(self, models: ModelHost, client: TestClient) -> None:
        def value(name: str) -> dict[str, float]:
            found = re.findall(rf'^vllm:{name}{{.*model_name="([^"]*)"}} (\S+)$', client.get("/metrics").text, re.M)
            return {model: float(number) for model, number in found}

        for _ in range(2):
            stream = models.host.chats.ask("hello", SamplingParams(max_new_tokens=3)).stream
            stream.result(30)
            wait_until(lambda: value("generation_tokens_total") == {models.host.model: 3})
            models.switch("other" if models.host.model == FIRST else FIRST)
            assert value("generation_tokens_total") == {models.host.model: 0}


def test_with_real_engines(tmp_path: Path) -> None:
    """From tiny-chat to a copy of it, and back to that copy since the next model has no weights."""
    copy, empty = str(tmp_path / "copy"), tmp_path / "empty"
    shutil.copytree(embedded_model(), copy)
    empty.mkdir()
    shutil.copy(embedded_model() / "config.json", empty)
    options = parse("--model tiny-chat --worker thread --num-blocks 64 --max-batch-size 5".split())
    host = host_engine(options, "roseplay play")
    host.page_is_made.set()
    host.begin()

    def answered() -> tuple[int, str]:
        assert host.wait(120) and host.live, host.status.sentence
        tracked = host.chats.ask("What is a KV block?", SamplingParams(max_new_tokens=6))
        return tracked.request_id, tracked.stream.result(60).text

    with closing(host):
        first, text = answered()
        host.switch(copy, options.config)
        second, again = answered()
        assert again == text and second > first
        assert [stage["state"] for stage in host.status.figures()["stages"] if stage["title"] == "Weights"] == ["done"]
        assert host.engine.info.model == "copy" and host.knobs()["max_batch_size"] == 5
        host.switch(str(empty), options.config)
        assert answered()[1] == text
        assert host.engine.info.model == "copy" and "it has no weights" in (host.playground.notice or "")
