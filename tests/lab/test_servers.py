"""The lab on other servers: two servers, or two settings of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from roseplay.config import Knobs
from roseplay.engine.client import Engine
from roseplay.engine.telemetry import KnobEvent
from roseplay.lab import command
from roseplay.lab.lab import Lab
from roseplay.lab.words import sentences
from roseplay.remote.address import ServerAddress
from roseplay.remote.engine import HttpEngine
from tests.lab.fake_arms import ran
from tests.remote.servers import Script, at_a_port, words
from tests.serve.conftest import serving

PARAMS = {"num_requests": 4, "max_new_tokens": 6}


@pytest.fixture(scope="module")
def engines() -> Iterator[list[Engine]]:
    settings: dict[str, Any] = {"worker": "thread", "threads": 1}
    with (
        Engine("tiny-chat", num_blocks=600, **settings) as a,
        Engine("tiny-chat", num_blocks=300, **settings) as b,
    ):
        yield [a, b]


@pytest.fixture(scope="module")
def urls(engines: list[Engine]) -> Iterator[list[str]]:
    with serving(engines[0]) as a, serving(engines[1]) as b:
        yield [f"{a}/v1", f"{b}/v1"]


def test_two_servers_are_compared(engines: list[Engine], urls: list[str]) -> None:
    engines[1].set_knobs(prefill_max_tokens=128)
    with HttpEngine(urls[0]) as live:
        lab = Lab(live, servers=[ServerAddress(urls[1])])
        catalogue = lab.describe()
        assert catalogue["servers"] == urls
        poisson = next(one for one in catalogue["scenarios"] if one["name"] == "poisson")
        assert [poisson[arm]["config"]["url"] for arm in "ab"] == urls
        before = [engine.telemetry.next_cursor for engine in engines]
        body = {"scenario": "poisson", "params": PARAMS, "repeats": 2, **{arm: poisson[arm] for arm in "ab"}}
        document, _ = ran(body, lab=lab)
    assert document["device"].startswith("roseplay at 127.0.0.1")
    assert document["arms"]["B"]["label"] == f"url {urls[1]}"
    assert document["summary"]["same_tokens"]  # both got the same prompts
    assert "The same requests, on other servers" in sentences(document["summary"])[2]
    for run in document["runs"]:
        assert run["steps"] == []
        assert all(request["prompt_tokens"] > 0 and request["ttft_ms"] > 0 for request in run["requests"])
    for engine, cursor in zip(engines, before, strict=True):
        events = engine.telemetry.since(cursor)[1]
        assert not any(isinstance(event, KnobEvent) for event in events)  # each server keeps its own settings
        kinds = [getattr(event, "kind", "") for event in events]
        assert kinds.count("finished") == 2 * 4 + 4  # two runs and a warm-up
    engines[1].set_knobs(**Knobs().to_dict())


def test_two_settings_of_a_server_are_compared_and_put_back(engines: list[Engine], urls: list[str]) -> None:
    engines[0].set_knobs(max_batch_size=7)
    with HttpEngine(urls[0]) as live:
        cursor = engines[0].telemetry.next_cursor
        body = {"scenario": "token-budget", "params": PARAMS, "a": {}, "b": {"knobs": {"prefill_max_tokens": 64}}}
        document, _ = ran(body, lab=Lab(live))
    changes = [event.changed for event in engines[0].telemetry.since(cursor)[1] if hasattr(event, "changed")]
    assert {"prefill_max_tokens": (None, 64)} in changes
    assert document["arms"]["B"]["label"] == "Prefill budget 64"
    assert engines[0].knobs == Knobs(max_batch_size=7)
    engines[0].set_knobs(**Knobs().to_dict())


def test_a_rate_is_swept(urls: list[str]) -> None:
    body = {"scenario": "poisson", "params": PARAMS, "a": {}, "repeats": 1,
            "sweep": {"setting": "rate_per_s", "from": 10, "to": 20, "points": 2}}  # fmt: skip
    with HttpEngine(urls[0]) as live:
        document, _ = ran(body, lab=Lab(live))
    assert [point["value"] for point in document["points"]] == [10.0, 20.0]
    assert document["arms"]["A"]["config"] == {"url": urls[0]}


def test_what_cannot_be_set_from_here_is_refused(engines: list[Engine], urls: list[str]) -> None:
    elsewhere = {"url": "http://elsewhere:1/v1"}
    with HttpEngine(urls[0]) as server:
        for live, config, says in (
            (server, {"block_size": 8}, "block_size can only be set when the other server is started"),
            (server, elsewhere, "not one of this lab's servers"),
            (engines[0], elsewhere, "this lab starts its own engines"),
        ):
            with pytest.raises(ValueError, match=says):
                Lab(live).start({"scenario": "poisson", "a": {}, "b": {"config": config}})


def test_prompts_begin_anew_where_the_cache_cannot_be_cleared() -> None:
    script = Script(words("Some ", "words", usage={"prompt_tokens": 9, "completion_tokens": 2}))
    with at_a_port(script.app) as address:
        lab = Lab(HttpEngine(address))
        document, _ = ran({"scenario": "poisson", "params": PARAMS, "a": {}, "b": {}, "repeats": 1}, lab=lab)
    assert "knobs" in document["arms"]["A"]
    runs = [body["messages"][0]["content"] for body in script.bodies]
    begun = {text.split(".")[0] for text in runs}
    assert len(begun) == 4  # a warm-up and a run for each arm
    assert {run["saved_tokens"] for run in document["runs"]} == {None}  # the server does not report it
    rest = [text.partition(". ")[2] for text in runs]
    assert sorted(rest[-8:-4]) == sorted(rest[-4:])


def test_the_command_line(urls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--num-requests", "4", "--max-new-tokens", "6"]
    assert command.main(["poisson", "--url", urls[0], "--url-b", urls[1], *few, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [document["arms"][arm]["config"]["url"] for arm in "AB"] == urls
    for bad, says in (
        (["--url", urls[0], "--block-size", "8"], "leave out --block-size"),
        (["--url-b", urls[0]], "name that one as well"),
        (["--url-api-key", "k"], "--url-api-key needs --url"),
        (["--url", urls[0], "--url-b", urls[0]], "the same server"),
        (["--url", "http://127.0.0.1:9/v1"], "nothing answers"),
    ):
        assert command.main(["poisson", *bad]) == 2
        assert says in capsys.readouterr().err
