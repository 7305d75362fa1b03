"""The lab on other servers: two servers, or two settings of one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from roseplay.config import Knobs
from roseplay.engine.client import Engine
from roseplay.engine.telemetry import KnobEvent
from roseplay.extras.lab import command
from roseplay.extras.lab.lab import Lab
from roseplay.extras.lab.report import html_report
from roseplay.extras.lab.words import sentences
from roseplay.extras.servers.address import ServerAddress, StepsAddress
from roseplay.extras.servers.engine import HttpEngine
from tests.at_a_port import at_a_port
from tests.extras.lab.fake_arms import ran
from tests.extras.servers.servers import Script, words
from tests.extras.servers.vllm.fake_probe import probe
from tests.serve.conftest import serving

PARAMS = {"num_requests": 4, "max_new_tokens": 6}


@pytest.fixture(scope="module")
def engines() -> Iterator[list[Engine]]:
    settings: dict[str, Any] = {"worker": "thread", "threads": 1}
    with Engine("tiny-chat", num_blocks=600, **settings) as a, Engine("tiny-chat", num_blocks=300, **settings) as b:
        yield [a, b]


@pytest.fixture(scope="module")
def urls(engines: list[Engine]) -> Iterator[list[str]]:
    with serving(engines[0]) as a, serving(engines[1]) as b:
        yield [f"{a}/v1", f"{b}/v1"]


def test_two_servers_are_compared(engines: list[Engine], urls: list[str]) -> None:
    engines[1].set_knobs(prefill_max_tokens=128)
    with HttpEngine(urls[0], others=[ServerAddress(urls[1])]) as live:
        lab = Lab(live)
        catalogue = lab.describe()
        assert catalogue["servers"] == urls
        poisson = next(one for one in catalogue["scenarios"] if one["name"] == "poisson")
        assert [poisson[arm]["config"]["url"] for arm in "ab"] == urls
        before = [engine.telemetry.next_cursor for engine in engines]
        body = {"scenario": "poisson", "params": PARAMS, "repeats": 2, **{arm: poisson[arm] for arm in "ab"}}
        document, _ = ran(body, lab=lab)
    assert document["device"].startswith("roseplay at 127.0.0.1")
    assert document["arms"]["B"]["label"] == f"Prefill budget 128, url {urls[1]}"  # its own, not the default
    assert "torch" not in document["environment"]
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
    assert "on other servers" not in " ".join(sentences(document["summary"]))
    assert engines[0].knobs == Knobs(max_batch_size=7)
    engines[0].set_knobs(**Knobs().to_dict())


def test_two_settings_of_a_running_vllm_are_compared_and_put_back() -> None:
    """Over the probe inside, which puts them back itself if the lab is killed."""
    script = Script(words("Some ", "words"), card={"owned_by": "vllm"})
    with (
        probe() as fake,
        at_a_port(script.app) as address,
        HttpEngine(address, steps=StepsAddress(fake.address)) as live,
    ):
        live.set_knobs(max_batch_size=16)
        lab = Lab(live)
        catalogue = lab.describe()
        tokens = {"step_max_tokens": 2048, "prefill_max_tokens": 2048, "chunk_max_tokens": None}
        assert catalogue["knobs"] == {"max_batch_size": 16, "prefix_cache": True, **tokens}
        budget = next(one for one in catalogue["scenarios"] if one["name"] == "token-budget")
        assert budget["b"]["knobs"] == {"prefill_max_tokens": 64}
        assert budget["common"]["knobs"] == {"max_batch_size": 8, "prefix_cache": False}  # all that can be changed
        document, _ = ran({"scenario": "poisson", "params": PARAMS, "repeats": 1, "a": {}, "b": budget["b"]}, lab=lab)
    assert [document["arms"][arm]["knobs"]["prefill_max_tokens"] for arm in "AB"] == [2048, 64]
    assert [document["arms"][arm]["knobs"]["max_batch_size"] for arm in "AB"] == [16, 16]
    sent = [(order["set"]["prompt_tokens"], order["lease_s"]) for order in fake.orders if "set" in order]
    assert sent[0] == sent[-1] == (2048, 0.0) and (64, 15.0) in sent


def test_traffic_for_a_server_may_come_from_a_pipe(urls: list[str]) -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"arrival_s": 0, "prompt": "What is TTFT?", "answer_tokens": 4}\n')
    os.close(writing)
    flags = ["--traffic", f"/dev/fd/{reading}", "--b", "prefill_max_tokens=64", "--url", urls[0], "--repeats", "1"]
    assert command.main(flags) == 0
    os.close(reading)


def test_slow_motion_of_a_server_is_not_measured(engines: list[Engine], urls: list[str]) -> None:
    engines[0].set_knobs(slow_motion=2.0)
    with HttpEngine(urls[0]) as live:
        body = {"scenario": "poisson", "params": PARAMS, "repeats": 1, "a": {}, "b": {"knobs": {"max_batch_size": 4}}}
        document, _ = ran(body, lab=Lab(live))
    assert {document["arms"][arm]["knobs"]["slow_motion"] for arm in "AB"} == {1.0}
    assert engines[0].knobs.slow_motion == 2.0
    engines[0].set_knobs(slow_motion=1.0)


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


def test_a_server_is_not_compared_with_itself_where_its_settings_cannot_be_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = Script(words("Some ", "words"))
    says = "A and B are the same server, and this server has no /v1/runtime_config"
    with at_a_port(script.app) as address:
        with HttpEngine(address) as live, pytest.raises(ValueError, match=says):
            lab = Lab(live)
            poisson = next(one for one in lab.describe()["scenarios"] if one["name"] == "poisson")
            lab.start({"scenario": "poisson", "params": PARAMS, "a": poisson["a"], "b": poisson["b"]})
        assert command.main(["poisson", "--url", address]) == 2
        assert "--url-b" in capsys.readouterr().err
    assert script.bodies == []


def test_prompts_begin_anew_where_the_cache_cannot_be_cleared() -> None:
    script = Script(words("Some ", "words", usage={"prompt_tokens": 9, "completion_tokens": 2}))
    with at_a_port(script.app) as address:
        other = address.replace("127.0.0.1", "localhost")
        lab = Lab(HttpEngine(address, others=[ServerAddress(other)]))
        body = {"scenario": "poisson", "params": PARAMS, "a": {}, "b": {"config": {"url": other}}, "repeats": 1}
        document, _ = ran(body, lab=lab)
    assert document["arms"]["A"]["knobs"] == {}  # the server does not report its settings
    runs = [body["messages"][0]["content"] for body in script.bodies]
    begun = {text.split(".")[0] for text in runs}
    assert len(begun) == 4  # a warm-up and a run for each arm
    assert {run["saved_tokens"] for run in document["runs"]} == {None}  # the server does not report it
    rest = [text.partition(". ")[2] for text in runs]
    assert sorted(rest[-8:-4]) == sorted(rest[-4:])


def started_with(max_num_seqs: int) -> Script:
    """A vLLM in development mode."""
    script = Script(words("Some ", "words"), card={"owned_by": "vllm"})
    scheduler = {"max_num_seqs": max_num_seqs, "policy": "fcfs", "other": 1}
    config = {"scheduler_config": scheduler, "cache_config": None}
    script.app.get("/server_info")(lambda: {"vllm_config": config})
    return script


def test_what_two_servers_were_started_with_is_compared(urls: list[str]) -> None:
    scripts = [started_with(seqs) for seqs in (128, 8)]
    with at_a_port(scripts[0].app) as a, at_a_port(scripts[1].app) as b:
        arms = {"a": {}, "b": {"config": {"url": b}}}
        lab = Lab(HttpEngine(a, others=[ServerAddress(b)]))
        document, _ = ran({"scenario": "poisson", "params": PARAMS, **arms, "repeats": 1}, lab=lab)
    assert document["arms"]["A"]["server"] == {"max_num_seqs": 128, "policy": "fcfs"}
    assert document["arms"]["B"]["label"] == f"url {b}, max_num_seqs 8"
    assert "max_num_seqs" in html_report(document)
    assert all(address.partition("://")[2] in document["device"] for address in (a, b))


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
