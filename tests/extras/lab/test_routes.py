"""The lab's routes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from roseplay.config import EngineConfig, Knobs
from roseplay.extras.lab.results import MAX_BYTES, parse_result
from roseplay.extras.lab.words import sentences
from roseplay.formats.segments import as_html
from roseplay.play.playground import Playground
from roseplay.traffic.run_figures import FIGURES
from tests.extras.lab.fake_arms import QUICK, ended, fake_lab
from tests.play.conftest import client_of, poll
from tests.play.fake_engine import FakeEngine
from tests.waiting import wait_until

FILE = Path(__file__).with_name("result.json")
PAGE = Path(__file__).with_name("lab_page.json")
QUICKLY = {"scenario": "token-budget", "params": QUICK}
LONG = {"scenario": "token-budget", "params": {"num_requests": 2, "max_new_tokens": 512}}


@pytest.fixture(scope="module")
def page() -> tuple[TestClient, Playground]:
    """One page for all tests, as building it takes a while."""
    live = FakeEngine()
    playground = Playground(live)
    playground.services["lab"] = fake_lab(live)
    return client_of(playground), playground


@pytest.fixture
def playground(page: tuple[TestClient, Playground]) -> Iterator[Playground]:
    yield page[1]
    page[1].services["lab"].stop()
    wait_until(lambda: not page[1].services["lab"].running)


@pytest.fixture
def client(page: tuple[TestClient, Playground], playground: Playground) -> TestClient:
    return page[0]


def shape(value: Any) -> Any:
    """The keys and types of a JSON value; for a list, those of its first item."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return [shape(item) for item in value[:1]] if isinstance(value, list) else type(value).__name__


def test_the_page_learns_of_scenarios_knobs_and_engine(client: TestClient) -> None:
    answer = client.get("/ui/lab")
    assert answer.headers["cache-control"] == "no-store"
    page = answer.json()
    names = [scenario["name"] for scenario in page["scenarios"]]
    assert {"admission", "dedup", "token-budget", "batched-append", "shared-head"} < set(names)
    assert {"long-context", "kv-pressure", "poisson"} < set(names)
    for scenario in page["scenarios"]:
        assert set(scenario) == {"name", "title", "card", "look", "a", "b", "common", "params", "watch"}
        assert scenario["watch"] in FIGURES
        assert len(scenario["look"]) == 2
        assert (scenario["a"], scenario["common"]) != (scenario["b"], scenario["common"])
        for param in scenario["params"].values():
            assert param["min"] <= param["default"] <= param["max"]
        for settings in (scenario["a"], scenario["b"], scenario["common"]):
            Knobs().changed(settings["knobs"])
            EngineConfig(**settings["config"])
    assert "slow_motion" not in page["knobs"]
    assert set(page["engine"]) >= set(json.loads(PAGE.read_text())["engine"])
    assert page["limits"] == {"ttft_ms": 500.0, "itl_ms": 50.0}
    assert fake_lab(FakeEngine()).describe()["state"] is None


def test_an_experiment_from_its_start_to_its_result(client: TestClient, playground: Playground) -> None:
    job_id = client.post("/ui/lab/run", json={**QUICKLY, "repeats": 2, "name": "mine"}).json()["job"]
    ended(playground.services["lab"].job(job_id))
    told = client.get(f"/ui/lab/job?id={job_id}").json()
    assert told["state"] == "done"
    assert client.get("/ui/lab").json()["state"] == told
    answer = client.get(f"/ui/lab/result/{told['result']}")
    document = answer.json()
    expected = shape(json.loads(FILE.read_text()))
    expected["name"], expected["params"]["rate_per_s"] = "str", "float"
    found = shape(document)
    for part in (expected, found):  # a number may happen to be whole, and a limit may be null
        for arm in part["arms"].values():
            arm["knobs"] = set(arm["knobs"])
            arm["config"] = {name: arm["config"][name] for name in expected["arms"]["A"]["config"]}
        part["runs"] = part["environment"] = None
        part["summary"] = dict.fromkeys({**part["summary"], "pair": None})
    assert found == expected
    assert set(document["runs"][0]) == set(json.loads(FILE.read_text())["runs"][0])
    assert parse_result(answer.content)["summary"] == document["summary"]
    report = client.get(f"/ui/lab/result/{told['result']}/report.html")
    assert document["title"] in report.text
    assert "default-src 'none'" in report.headers["content-security-policy"]


def test_one_experiment_runs_at_a_time_and_can_be_stopped(client: TestClient, playground: Playground) -> None:
    job_id = client.post("/ui/lab/run", json=LONG).json()["job"]
    assert poll(playground)["lab"] is True
    refused = client.post("/ui/lab/run", json=QUICKLY)
    assert (refused.status_code, "the lab" in refused.json()["detail"]) == (409, True)
    assert client.post("/ui/lab/stop").json() == {"stopped": True}
    ended(playground.services["lab"].job(job_id))
    assert client.get(f"/ui/lab/job?id={job_id}").json()["state"] == "stopped"
    assert client.post("/ui/lab/stop").json() == {"stopped": False}
    assert poll(playground)["lab"] is False
    assert not playground.engine.paused


def test_what_is_not_there_is_404_with_a_sentence(client: TestClient) -> None:
    comparison = client.post("/ui/lab/open", content=FILE.read_bytes()).json()["id"]
    results = ("result/x", "result/x/report.html", "result/x/points.csv", f"result/{comparison}/points.csv")
    for path in ("job?id=x", "job", *results):
        answer = client.get(f"/ui/lab/{path}")
        assert (answer.status_code, answer.json()["detail"].count(":")) == (404, 1), "what there is not: what to do"
    assert client.post("/ui/lab/summary", json={"id": "x"}).status_code == 404


def test_a_file_can_be_opened_reported_and_summed_up_for_other_limits(client: TestClient) -> None:
    text = FILE.read_bytes()
    opened = client.post("/ui/lab/open", content=text).json()
    assert sentences(opened["summary"])[0].startswith("ITL p99")
    assert opened["id"] != json.loads(text)["id"]  # a file must not replace a result
    assert client.post("/ui/lab/open", content=text).json()["id"] == opened["id"]
    assert client.get(f"/ui/lab/result/{opened['id']}").json()["title"] == "Token budget"
    assert client.get(f"/ui/lab/result/{opened['id']}/report.html").status_code == 200
    limits = {"ttft_ms": 1e5, "itl_ms": 1e5}
    by_id = client.post("/ui/lab/summary", json={"id": opened["id"], "limits": limits}).json()
    by_document = client.post("/ui/lab/summary", json={"document": json.loads(text), "limits": limits}).json()
    assert by_id == by_document
    assert client.get(f"/ui/lab/result/{opened['id']}").json()["limits"] != limits, "they are not those of the result"
    goodput = next(row for row in by_id["metrics"] if row["name"] == "goodput_req_s")
    assert goodput["a"] == pytest.approx(24 / 0.94, rel=0.1)


@pytest.mark.parametrize(
    "asked",
    [
        {"sweep": {"setting": "max_batch_size", "from": 1, "to": 4, "points": 3}},
        {"find": {"setting": "max_batch_size", "itl_p99_ms": 1e5, "ttft_p95_ms": 1e5}},
    ],
)
def test_the_file_of_a_sweep_or_a_search_can_be_opened_and_listed(client, playground, asked) -> None:
    told = ended(playground.services["lab"].start({**QUICKLY, "repeats": 1, **asked}))
    content = client.get(f"/ui/lab/result/{told['result']}").content
    opened = client.post("/ui/lab/open", content=content).json()
    document = client.get(f"/ui/lab/result/{opened['id']}").json()
    assert document["id"] == told["result"] != opened["id"]
    assert opened["summary"] == document["summary"] == json.loads(content)["summary"]
    listed = client.get(f"/ui/lab/result/{opened['id']}/points.csv")
    assert listed.headers["content-type"].startswith("text/csv")
    assert "roseplay-lab-token-budget-max_batch_size.csv" in listed.headers["content-disposition"]
    rows = document["summary"]["points"]
    assert [line.partition(",")[0] for line in listed.text.splitlines()[1:]] == [f"{row['value']:g}" for row in rows]
    report = client.get(f"/ui/lab/result/{opened['id']}/report.html")
    assert all(as_html(found["words"]) in report.text for found in document["summary"]["findings"])
    assert "default-src 'none'" in report.headers["content-security-policy"]
    for about in ({"id": opened["id"]}, {"document": document}):
        refused = client.post("/ui/lab/summary", json=about)
        assert refused.status_code == 422
        assert "other limits need another run" in refused.json()["detail"]


NO_RESULT = "not a result of the lab"


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        ("run", b"{", "not JSON"),
        ("run", b'{"scenario": "magic"}', "no scenario"),
        ("run", b'{"scenario": "dedup", "repeats": 99}', "repeats should be"),
        ("open", b"no", "not JSON"),
        ("open", b"{}", NO_RESULT),
        ("open", b'{"roseplay_lab": 3, "kind": "sweep"}', NO_RESULT),
        ("open", b'{"roseplay_lab": 2, "kind": "race"}', NO_RESULT),
        ("open", b'{"roseplay_lab": 2, "kind": "find"}', "the result, id is missing"),
        ("summary", b"[]", "must be a JSON object"),
        ("summary", b'{"document": 5}', NO_RESULT),
        ("summary", b'{"id": "x", "limits": {"ttft_ms": -1}}', "limits, ttft_ms should be greater than 0"),
    ],
)
def test_what_is_wrong_is_422_with_a_sentence(client: TestClient, path: str, content: bytes, words: str) -> None:
    answer = client.post(f"/ui/lab/{path}", content=content)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


def test_a_file_that_is_too_large_is_413(client: TestClient) -> None:
    for path in ("open", "summary", "run"):
        answer = client.post(f"/ui/lab/{path}", content=b" ", headers={"Content-Length": str(MAX_BYTES + 1)})
        assert answer.status_code == 413
        assert "too large" in answer.json()["detail"]


def test_the_store_forgets_the_oldest(playground: Playground) -> None:
    store = playground.services["lab"].store
    ids = [store.keep({"id": str(number)}) for number in range(20)]
    assert store.get(ids[0]) is None
    assert store.get(ids[-1]) == {"id": "19"}


def test_the_page_learns_what_traffic_from_a_file_is_compared_with(client: TestClient) -> None:
    own = client.get("/ui/lab").json()["own"]
    assert (own["name"], own["params"]) == ("own-traffic", {})
    traffic = {"name": "mine.csv", "text": "arrival_s,prompt_tokens,answer_tokens\n0,8,2\n"}
    body = {"scenario": own["name"], "a": own["a"], "b": own["b"], "repeats": 1, "params": {}, "traffic": traffic}
    assert "job" in client.post("/ui/lab/run", json=body).json()


def test_a_running_sweep_is_told_only_where_the_page_has_fewer_runs(client: TestClient) -> None:
    sweep = {"setting": "max_batch_size", "from": 1, "to": 2, "points": 2}  # each is measured three times
    job = client.post("/ui/lab/run", json={**QUICKLY, "sweep": sweep}).json()["job"]
    wait_until(lambda: client.get(f"/ui/lab/job?id={job}").json()["state"] == "done")
    for have, told in ((0, True), (2, True), (5, True), (6, False)):
        assert ("so_far" in client.get(f"/ui/lab/job?id={job}&have={have}").json()) is told
