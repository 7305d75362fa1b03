"""What the probe tells of a real vLLM is what its clients receive and what its pool holds; its limits change under load."""

from __future__ import annotations

import itertools

import pytest

from tests.extras.servers.vllm.suite.probe_reader import Message, Mirror, Reader
from tests.extras.servers.vllm.suite.server import Server, of, text, tokens_of
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def idle(reader: Reader) -> None:
    wait_until(lambda: not reader.snapshot()["requests"], "an idle engine")


def test_every_field_is_there(server: Server, reader: Reader) -> None:
    snapshot = reader.snapshot()
    assert snapshot["missing"] == {}
    settings = snapshot["settings"]
    assert settings["model"]
    assert (snapshot["block_size"], settings["max_model_len"], settings["async_scheduling"]) == (32, 4096, False)
    assert snapshot["settings"]["dtype"] == "bfloat16" and snapshot["settings"]["enable_prefix_caching"] is True
    assert "roseplay's probe is off" not in server.log()


def test_steps_have_the_tokens_that_clients_received(server: Server, reader: Reader) -> None:
    reader.attached()
    clients = {f"story{n}": server.start(f"story{n}", text(50 * n, f"{n} "), 20 + n) for n in range(1, 7)}
    answers = {name: client.result() for name, client in clients.items()}
    idle(reader)
    messages = reader.quiet()
    for name, answer in answers.items():
        assert len(answer.token_ids) == 20 + int(name[-1])
        assert tokens_of(messages, name) == answer.token_ids
        entries = [entry for entry in of(messages, "entries") if entry[0].startswith(f"cmpl-{name}-")]
        (new,) = (new for new in of(messages, "new") if new[0] == entries[0][0])
        assert new[1] == answer.prompt_tokens and new[2] == entries[0][2] and 0 < new[3] < 30e9
        computed = [entry[2] + entry[1] for entry in entries]
        assert [entry[2] for entry in entries[1:]] == computed[:-1]  # none left out
        assert computed[-1] == answer.prompt_tokens + len(answer.token_ids) - 1
        assert [row for row in of(messages, "ended") if row[0] == entries[0][0]] == [[entries[0][0], "length"]]
    steps = [message for message in messages if message["kind"] == "step"]
    assert [step["step"] for step in steps] == list(range(steps[0]["step"], steps[0]["step"] + len(steps)))
    for step, following in itertools.pairwise(steps):
        assert step["schedule"][0] <= step["schedule"][1] <= step["output"][0] <= step["output"][1]
        assert step["output"][1] <= following["schedule"][0]


def test_messages_add_up_to_the_pool(server: Server, reader: Reader) -> None:
    """Requests as of each message; the pool, which snapshots read from vLLM itself, whenever no step is computed."""
    mirror = Mirror.of(reader.attached())
    shared = text(200)
    compared = burst = 0
    while burst < 4 or (compared <= 10 and burst < 20):  # beside other programs, few snapshots meet the newest message
        burst += 1
        clients = [server.start(f"b{burst}-{n}", shared + f" {burst} {n} " * n, 8 + n) for n in range(5)]
        while not all(client.done() for client in clients):
            snapshot = Mirror.of(reader.snapshot())
            while mirror.n < snapshot.n:
                mirror.add(reader.next())
                mirror.check()
            if mirror.n == snapshot.n:
                assert (mirror.held, mirror.computed) == (snapshot.held, snapshot.computed)
                compared += 1
        idle(reader)
        for message in reader.quiet():
            mirror.add(message)
            mirror.check()
        assert mirror == Mirror.of(reader.snapshot())
    assert compared > 10
    assert mirror.cached > 6  # blocks that the next prompt would find


def test_a_prefix_that_is_cached_is_told(server: Server, reader: Reader) -> None:
    reader.attached()
    server.ask("first", text(300, "A prefix. "), 2)
    server.ask("second", text(300, "A prefix. "), 2)
    first, second = of(reader.quiet(), "new")
    assert first[2] == 0 and second[2] == (second[1] - 1) // 32 * 32 > 200


def burst(server: Server, name: str) -> list[int]:
    """Six readers, and eight long prompts while they read; returns how many tokens each received."""
    readers = [server.start(f"{name}-reader{n}", text(8, f"{name} {n} "), 150) for n in range(6)]
    prompts = [server.start(f"{name}-prompt{n}", text(500, f"{name} {n} "), 4) for n in range(8)]
    return [len(client.result().token_ids) for client in (*readers, *prompts)]


def test_limits_change_under_load_and_no_request_fails(server: Server, reader: Reader) -> None:
    reader.attached()
    assert burst(server, "before") == [150] * 6 + [4] * 8
    idle(reader)
    largest = max(sum(entry[1] for entry in step["entries"]) for step in reader.quiet())
    assert largest > 1000
    clients = [server.start(f"long{n}", text(400, f"long {n} "), 200) for n in range(6)]
    messages = reader.until(lambda message: bool(message.get("entries")) and len(message["entries"]) == 6)
    reader.order(set={"max_num_batched_tokens": 64, "max_num_seqs": 2})
    more = [server.start(f"more{n}", text(400, f"more {n} "), 5) for n in range(4)]
    assert [len(client.result().token_ids) for client in (*clients, *more)] == [200] * 6 + [5] * 4
    idle(reader)
    messages = reader.quiet()
    (at,) = (i for i, message in enumerate(messages) if message["kind"] == "limits")
    after = [
        message for message in messages[at + 2 :] if message["kind"] == "step"
    ]  # one may have been scheduled before
    assert max(sum(entry[1] for entry in step["entries"]) for step in after) <= 64
    for step, following in itertools.pairwise(after):
        assert len(step["entries"]) <= 2 or not following["new"]  # it drains first
    assert of(after, "preempted") == []
    reader.order(set={"max_num_batched_tokens": 2048, "max_num_seqs": 128})
    assert burst(server, "after") == [150] * 6 + [4] * 8
    idle(reader)
    assert max(sum(entry[1] for entry in step.get("entries", ())) for step in reader.quiet()) > 1000


def test_a_limit_below_the_requests_that_run_stalls_none(server: Server, reader: Reader) -> None:
    reader.attached()
    clients = [server.start(f"run{n}", text(8, f"run {n} "), 600) for n in range(6)]
    reader.until(lambda message: bool(message.get("entries")) and len(message["entries"]) == 6)
    reader.order(set={"max_num_batched_tokens": 1, "max_num_seqs": 1})
    assert all(len(client.result().token_ids) == 600 for client in clients)
    reader.until(lambda message: message["kind"] == "limits")
    steps = list(itertools.takewhile(lambda step: not step["ended"], reader.quiet()))
    assert len(steps) > 20
    assert all(len(step["entries"]) == 6 for step in steps)
    assert len(server.ask("one by one", text(40, "slow "), 3).token_ids) == 3


def test_a_client_that_leaves(server: Server, reader: Reader) -> None:
    mirror = Mirror.of(reader.attached())
    body = {"model": "tiny", "prompt": text(60, "leaver "), "max_tokens": 3000, "stream": True, "ignore_eos": True}
    with server.http.stream("POST", "/v1/completions", json=body, headers={"X-Request-Id": "leaver"}) as reply:
        next(reply.iter_lines())
    messages = reader.until(lambda message: bool(message.get("ended")))
    ((name, reason),) = messages[-1]["ended"]
    assert name.startswith("cmpl-leaver-0-") and reason == "abort"
    for message in messages:
        mirror.add(message)
        mirror.check()
    assert mirror.held == {} and mirror == Mirror.of(reader.snapshot())


def test_structured_output(server: Server, reader: Reader) -> None:
    reader.attached()
    choice = {"structured_outputs": {"choice": ["blue whale", "red fox"]}, "ignore_eos": False}
    clients = [server.start(f"choice{n}", text(20, f"{n} "), 30, **choice) for n in range(3)]
    answers = [client.result() for client in clients]
    idle(reader)
    messages = reader.quiet()
    for n, answer in enumerate(answers):
        assert answer.finish_reason == "stop" and answer.token_ids
        assert tokens_of(messages, f"choice{n}") == answer.token_ids
    assert {reason for _, reason in of(messages, "ended")} == {"stop"}


def test_the_prefix_cache_is_cleared_here_and_there(server: Server, reader: Reader) -> None:
    server.ask("fill", text(200, "fill "), 2)
    mirror = Mirror.of(reader.attached())
    assert mirror.cached > 0
    client = server.start("busy", text(30), 200)
    reader.until(lambda message: bool(message.get("entries")))
    assert reader.order(clear="prefix_cache") == {"cleared": False}
    client.result()
    idle(reader)
    reader.quiet()
    assert reader.order(clear="prefix_cache") == {"cleared": True}
    assert reader.next()["kind"] == "reset" and reader.snapshot()["pool"] == []
    server.ask("fill again", text(200, "fill "), 2)
    reader.until(lambda message: bool(message.get("ended")))
    assert server.http.post("/reset_prefix_cache").status_code == 200
    assert reader.next()["kind"] == "reset" and reader.snapshot()["cached"] == 0


def test_a_reader_that_comes_late_or_loses_messages_is_right_again(server: Server) -> None:
    clients = [server.start(f"late{n}", text(100, f"late {n} "), 400) for n in range(4)]
    with server.reader() as reader:
        wait_until(lambda: reader.snapshot()["running"] == 4)
        mirror = Mirror.of(attached(reader))
        for _ in range(3):
            lost = [reader.next() for _ in range(5)]
            with pytest.raises(AssertionError, match="a message is lost"):
                mirror.add(lost[-1] | {"n": lost[-1]["n"] + 1})
            mirror = Mirror.of(reader.snapshot())
            follow(reader, mirror, 20)
        for client in clients:
            assert len(client.result().token_ids) == 400
        idle(reader)
        for message in reader.quiet():
            mirror.add(message)
            mirror.check()
        assert mirror == Mirror.of(reader.snapshot())


def attached(reader: Reader) -> Message:
    """A snapshot while requests run, once messages come."""
    reader.next()
    return reader.snapshot()


def follow(reader: Reader, mirror: Mirror, count: int) -> None:
    """Adds the next messages, leaving out what the snapshot has already."""
    while count:
        message = reader.next()
        if message["n"] > mirror.n:
            mirror.add(message)
            count -= 1


def test_a_paused_engine_computes_nothing_and_answers_orders(server: Server, reader: Reader) -> None:
    reader.attached()
    client = server.start("paused", text(30), 300)
    reader.until(lambda message: bool(message.get("entries")))
    assert server.http.post("/pause", params={"mode": "keep"}).status_code == 200
    reader.quiet(500)
    assert reader.quiet(500) == []
    assert reader.order(ask="clock")["now_ns"] > 0
    assert reader.order(set={"max_num_seqs": 5})["limits"]["max_num_seqs"] == 5
    assert server.http.post("/resume").status_code == 200
    assert len(client.result().token_ids) == 300
