"""Routes, the guard in front of them, and the named endpoints as ``gradio_client`` calls them."""

from __future__ import annotations

import gc
import json
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from gradio.state_holder import SessionState
from gradio.utils import get_upload_folder
from gradio_client import Client
from gradio_client.exceptions import AppError

from roseplay.config import SamplingParams
from roseplay.play.demos.catalog import DEMOS
from roseplay.play.playground import Playground
from roseplay.play.web import assets
from roseplay.play.web.engine_routes import engine_router
from roseplay.recording.exports import KINDS
from roseplay.serve.drain import Drain
from roseplay.serve.health import health_router
from tests.at_a_port import at_a_port
from tests.play.conftest import client_of_routes
from tests.play.fake_engine import WORDS, FakeEngine
from tests.waiting import wait_until

TAB = "tab-of-a-test"


def test_health_and_delta_answer_and_say_what_is_wrong(address: str, live_engine: FakeEngine) -> None:
    for wrong in (None, "the engine has not answered for 4 s"):
        live_engine.wrong = wrong
        health, delta = (httpx.get(address + path) for path in ("/health", "/ui/delta?since=0"))
        live_engine.wrong = None
        assert (health.status_code, health.json()["status"]) == ((503, wrong) if wrong else (200, "ok"))
        assert health.headers["cache-control"] == delta.headers["cache-control"] == "no-store"
        assert (delta.json()["boot_id"], delta.json()["health"]) == (health.json()["boot_id"], wrong)
    assert httpx.get(f"{address}/ui/delta?since=many").status_code == 422
    assert httpx.get(f"{address}/ui/health").status_code == 404


def test_a_poll_is_compressed_for_who_takes_it(engine: FakeEngine) -> None:
    playground = Playground(engine)
    client = client_of_routes(engine_router(playground))
    engine.submit([1, 2, 3], SamplingParams(max_new_tokens=40))
    engine.step(40)
    playground.tick()
    plain = client.get("/ui/delta?since=0", headers={"Accept-Encoding": "identity"})
    packed = client.get("/ui/delta?since=0", headers={"Accept-Encoding": "br, gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(plain.content) / 2
    told, told_plain = packed.json(), plain.json()
    assert told["snapshot"]["requests"] == told_plain["snapshot"]["requests"]
    assert told["frames"] == told_plain["frames"]
    assert "Accept-Encoding" in plain.headers["vary"]
    empty = client.get(f"/ui/delta?since={told['next']}", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in empty.headers  # compression would make a few bytes larger


def test_health_answers_though_the_engine_never_does() -> None:
    """Many simultaneous calls take a single thread, and each of them gets a response."""
    free, asked = threading.Event(), []

    class Stuck(FakeEngine):
        def health(self, timeout: float = 1.0) -> Any:
            asked.append(timeout)
            assert free.wait(60)

    app = client_of_routes(health_router(Playground(Stuck()), Drain())).app
    with at_a_port(app) as address, ThreadPoolExecutor(20) as pool:
        try:
            answers = list(pool.map(lambda _: httpx.get(f"{address}/health", timeout=30), range(20)))
        finally:
            free.set()
    assert {answer.status_code for answer in answers} == {503}
    assert "did not report its health within" in answers[0].json()["status"]
    assert len(asked) == 1


def test_static_files_are_kept_for_good(address: str) -> None:
    static = f"/ui/static/{assets.version()}"
    for path in (f"{static}/shared/store.js", assets.plotly_address()):
        answer = httpx.get(address + path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert "javascript" in answer.headers["content-type"]
        plain = httpx.get(address + path, headers={"Accept-Encoding": "identity"})
        assert plain.content == answer.content and "content-encoding" not in plain.headers
        assert int(answer.headers["content-length"]) < 0.6 * int(plain.headers["content-length"])
    assert httpx.get(f"{address}/").headers["content-encoding"] == "gzip"
    for name in ("nothing.js", "shared", "shared/../../page.py", "/etc/passwd", "..%2fpage.py"):
        assert httpx.get(f"{address}{static}/{name}").status_code == 404
    assert httpx.get(f"{address}/ui/static/old/shared/store.js").status_code == 404


def test_the_page_asks_nobody_else_and_learns_of_the_engine_by_its_poll(address: str, live_engine: FakeEngine) -> None:
    assert httpx.get(f"{address}/config").json()["analytics_enabled"] is False
    page = httpx.get(f"{address}/", timeout=20).text
    assert "roseplay" in page and "cdn" not in page.lower()
    assert live_engine.info.model not in page
    assert page.index("<style>") < page.index('id="rp-opening"') < page.index("<gradio-app"), "it is ours at once"
    snapshot = httpx.get(f"{address}/ui/delta?since=0", timeout=20).json()["snapshot"]
    assert snapshot["info"]["model"] == live_engine.info.model


def test_the_public_endpoints_and_no_others(client: Client) -> None:
    named = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    expected = "burst chat end_demo new_chat next_caption regenerate set_knobs start_demo steady stop submit"
    assert sorted(named) == [f"/{name}" for name in expected.split()]
    assert all(parameter["parameter_has_default"] for about in named.values() for parameter in about["parameters"])


def test_chats_run_side_by_side(call: Any) -> None:
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda i: call("/chat", f"hello {i}", 8), range(4)))
    assert texts == ["".join(WORDS)] * 4


def test_submit_answers_at_once(call: Any, live_engine: FakeEngine) -> None:
    (request_id,) = call("/submit", "hello", max_new_tokens=500)["ids"]
    assert not live_engine.streams[request_id].finished
    assert call("/stop", [request_id]) == 1
    assert live_engine.streams[request_id].finish_reason == "abort"


def test_submit_reaches_the_lanes_of_a_tab_which_can_be_stopped_one_by_one(call: Any, address: str) -> None:
    assert len(call("/submit", "hello", max_new_tokens=1900, tab=TAB)["ids"]) == 4  # so long that all still run
    assert len(call("/submit", "again", [3, 5], max_new_tokens=1900, tab=TAB)["ids"]) == 2
    own = httpx.get(f"{address}/ui/delta?since=0&tab={TAB}").json()["own"]
    titles = {lane["lane"]: lane["title"] for lane in own["lanes"]}
    assert titles == {1: "hello", 2: "hello", 3: "again", 4: "hello", 5: "again"}
    assert call("/stop", tab=TAB, lane=3) == 1
    assert call("/stop", tab=TAB) == 4
    assert call("/new_chat", [3, 4], TAB) == 2


def test_a_demo_is_played_and_ended_by_its_endpoints(call: Any) -> None:
    assert call("/next_caption", TAB) is False
    assert call("/start_demo", tab=TAB) == next(iter(DEMOS.values())).title
    assert call("/next_caption", TAB) is True
    assert call("/end_demo", TAB) is True
    assert call("/end_demo", TAB) is False


def test_burst_has_defaults(call: Any) -> None:
    assert len(call("/burst")["ids"]) == 20
    made = call("/burst", 3, "equal", 1900)
    assert len(made["ids"]) == 3
    assert call("/stop") >= 3


def test_steady_traffic_runs_until_its_rate_is_0(call: Any, address: str) -> None:
    tab = "tab-of-a-program"
    assert call("/steady", 0, tab=tab) is None
    begun = call("/steady", 40, "equal", 2, "even", 7, tab)
    assert (begun["on"], begun["rate"], begun["seed"], begun["stopped"]) == (True, 40, 7, None)

    def polled() -> Any:
        return httpx.get(f"{address}/ui/delta?since=0&tab={tab}", timeout=20).json()["own"]["steady"]

    wait_until(lambda: polled()["done"] >= 3)
    call("/steady", 0, tab=tab)
    ended = wait_until(lambda: (now := polled())["on"] is False and now)
    assert ended["sent"] >= 3
    assert ended["stopped"] is None


def test_a_file_of_traffic_is_read_played_and_stopped_by_its_routes(address: str) -> None:
    line = b'{"arrival_s": 3, "prompt_tokens": 5, "answer_tokens": 2}\n'
    with httpx.Client(base_url=f"{address}/ui/traffic", timeout=20) as client:
        later = line.replace(b"3", b"603.5", 1)
        read = client.post("/check?name=a.jsonl", content=line + later).json()
        assert read == {"name": "a.jsonl", "requests": 2, "span_s": 600.5}
        assert client.post("/stop?tab=tab-of-the-page").json() == {"stopped": False}
        figures = client.post("/play?name=a.jsonl&tab=tab-of-the-page&seed=7", content=line + later).json()
        assert (figures["on"], figures["requests"], figures["seed"]) == (True, 2, 7)
        assert client.post("/stop?tab=tab-of-the-page").json() == {"stopped": True}
        for path, said in (
            ("/check", "line 2 is not JSON"),
            ("/play?tab=tab-of-the-page", "line 2 is not JSON"),
            ("/play?tab=x", "a tab's id"),
            ("/play?tab=tab-of-the-page&seed=x", "seed should be"),
            ("/play", "needs the id of a tab"),
            ("/stop", "a tab's id"),
            (f"/check?name={'x' * 81}", "at most 80 characters"),
        ):
            refused = client.post(path, content=line + b"{")
            assert refused.status_code == 422
            assert said in refused.json()["detail"]
        assert client.post("/check", content=line * 200_000).status_code == 413


def test_knobs_take_any_subset_also_as_text(call: Any, live_engine: FakeEngine) -> None:
    knobs = call("/set_knobs", {"prefill_max_tokens": 64, "prefix_cache": False})
    assert (knobs["prefill_max_tokens"], knobs["prefix_cache"], knobs["max_batch_size"]) == (64, False, 32)
    knobs = call("/set_knobs", json.dumps({"prefill_max_tokens": "1 024", "prefill_max_batch_size": "unlimited"}))
    assert (knobs["prefill_max_tokens"], knobs["prefill_max_batch_size"]) == (1024, None)
    assert call("/set_knobs", {"prefill_max_tokens": None, "slow_motion": "×4"})["slow_motion"] == 4
    assert call("/set_knobs") == live_engine.knobs.to_dict()
    assert live_engine.knobs.prefill_max_tokens is None


ONE_MESSAGE = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("name", "asked", "message"),
    [
        ("/set_knobs", {"knobs": {"nope": 1}}, "unknown knob nope"),
        ("/set_knobs", {"knobs": {"max_batch_size": 0}}, "max_batch_size is 0"),
        ("/set_knobs", {"knobs": {"prefill_max_tokens": "many"}}, "prefill_max_tokens is 'many'"),
        ("/set_knobs", {"knobs": "{bad"}, "not JSON"),
        ("/set_knobs", {"knobs": [1]}, "must be a JSON object"),
        ("/submit", {"prompt": ""}, "prompt is empty"),
        ("/submit", {"lane": 99}, "lane"),
        ("/submit", {"lane": 1.5}, "lane"),
        ("/submit", {"lane": []}, "lane"),
        ("/submit", {"lane": [1, 0], "tab": TAB}, "no lane 0"),
        ("/submit", {"lane": 1, "tab": "x"}, "tab's id"),
        ("/submit", {"max_new_tokens": -4}, "max_new_tokens is -4"),
        ("/submit", {"max_new_tokens": 4.5}, "max_new_tokens should be"),
        ("/submit", {"system": "s" * 8001}, "system prompt has 8\u202f001 characters"),
        ("/submit", {"system": "s" * 8001, "tab": TAB}, "system prompt has 8\u202f001 characters"),
        ("/submit", {"stop": ["x"] * 17}, "use at most 16 strings"),
        ("/submit", {"structured_outputs": {"choice": ["a"]}, "tab": TAB}, "structured_outputs needs a tokenizer"),
        ("/burst", {"size": 0}, "burst of 0"),
        ("/burst", {"size": "many"}, "size should be"),
        ("/burst", {"size": True}, "size should be"),
        ("/burst", {"kind": "weird"}, "no burst of kind"),
        ("/burst", {"seed": "1e3"}, "seed should be"),
        ("/stop", {"ids": [1.5]}, "ids 1 should be"),
        ("/stop", {"lane": 2}, "tab's id"),
        ("/stop", {"lane": 9, "tab": TAB}, "lane should be"),
        ("/start_demo", {"name": "nothing", "tab": TAB}, "no demo 'nothing'"),
        ("/start_demo", {}, "tab's id"),
        ("/new_chat", {}, "tab's id"),
        ("/new_chat", {"lane": 9, "tab": TAB}, "lane"),
        ("/regenerate", {}, "tab's id"),
        ("/regenerate", {"lane": 1, "tab": "a-tab-without-chats"}, "there is no answer to generate again"),
        ("/chat", {"prompt": None}, "prompt is empty"),
        ("/chat", {"prompt": "x" * 5000}, "do not fit"),
        ("/chat", {"system": "s" * 8001}, "system prompt has 8\u202f001 characters"),
        ("/chat", {"stop": ["x" * 257]}, "of at most 256 characters"),
        ("/chat", {"structured_outputs": {"choice": ["a"]}}, "structured_outputs needs a tokenizer"),
        ("/chat", {"structured_outputs": '{"choice": '}, "structured_outputs is"),
        ("/chat", {"messages": [ONE_MESSAGE] * 257}, "at most 256 items"),
        ("/chat", {"messages": [{**ONE_MESSAGE, "role": "<|im_start|>user"}]}, "role should be"),
        *(("/chat", {"messages": messages}, "messages") for messages in ([], [{"role": "user"}], ["hello"], "{", ONE_MESSAGE)),
    ],
)  # fmt: skip
def test_bad_input_is_told_and_changes_nothing(
    call: Any, live_engine: FakeEngine, name: str, asked: dict[str, Any], message: str
) -> None:
    knobs, count = live_engine.knobs, len(live_engine.streams)
    with pytest.raises(AppError, match=message):
        call(name, **asked)
    assert live_engine.knobs == knobs
    assert len(live_engine.streams) == count


def test_exports_leave_no_files(call: Any, address: str) -> None:
    """Neither in a folder of ours nor in Gradio's cache, as exports are created when they are fetched."""
    places = [Path(tempfile.gettempdir()), Path(get_upload_folder())]

    def count() -> int:
        ours = [path for path in places[0].glob("roseplay-*") for _ in (path, *path.rglob("*"))]
        return len(ours) + sum(1 for path in places[1].rglob("*") if path.is_file())

    call("/burst", 2, "equal", 4)
    before = count()
    for name in ("recording", "trace"):  # the one is streamed as it is, the others are made in a process
        answer = httpx.get(f"{address}/ui/export/{KINDS[name].file}", timeout=60)
        assert len(answer.content) > 100
    assert count() == before


def test_sessions_that_have_gone_leave_nothing_behind(address: str) -> None:
    def sessions() -> int:
        gc.collect()
        return sum(type(thing) is SessionState for thing in gc.get_objects())

    before = sessions()
    with httpx.Client(base_url=address, timeout=60) as client:
        for number in (*range(66), 0):  # a visitor that returns after a long time is still served
            body = {"data": [{}], "session_hash": f"visitor{number}"}
            assert client.post("/gradio_api/run/set_knobs", json=body).status_code == 200
    assert 0 < sessions() - before <= 64
